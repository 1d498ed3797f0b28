"""Fragments: products of a wave on WMMA and MFMA, found by the names of their records, and rows of 8 x 8 matrices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.codegen.amdgpu.emission import Emission
from tilewright.codegen.amdgpu.simt import lane_id, taken
from tilewright.codegen.amdgpu.target import Target
from tilewright.codegen.gpu.emission import from_words, scalars_of, to_words, vector
from tilewright.codegen.values import F16, F32, F64, I1, I16, I32
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import simt


@dataclass(frozen=True)
class Product:
    """A record's name, read: shape, and the types of a, b and the accumulator."""

    name: str
    m: int
    n: int
    k: int
    a: str
    b: str
    c: str


_TYPES = "f16|bf16|f32|f64|f8e4m3fnuz|f8e5m2fnuz|f8e4m3fn|f8e5m2|s8"
_NAME = re.compile(
    rf"(?P<family>wmmar3|wmmar4|v?mfma)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<a>{_TYPES})(?P<b>{_TYPES})?_"
    r"(?P<c>f16|bf16|f32|f64|s32)"
)
_F8 = {"f8e4m3fn": "fp8", "f8e5m2": "bf8", "f8e4m3fnuz": "fp8", "f8e5m2fnuz": "bf8"}
_MACHINE = {"f16": F16, "bf16": I16, "f32": F32, "f64": F64, "s32": I32}
_LETTERS = {"f16": "f16", "bf16": "i16", "f32": "f32", "f64": "f64", "s32": "i32"}  # in the names of LLVM
# Processors of CDNA by instruction; of virtual ones, those that have what they are made of. ISA guides of the MI100,
# MI200, MI300 and CDNA 4. To gfx950 the codes of fnuz formats mean OCP's formats.
_CDNA = ("gfx908", "gfx90a", "gfx942", "gfx950")
_MFMA = {
    **dict.fromkeys(("mfma_16x16x16_f16_f32", "mfma_32x32x8_f16_f32", "mfma_16x16x4_f32_f32"), _CDNA),
    **dict.fromkeys(("vmfma_16x16x32_f16_f32", "vmfma_32x32x16_f16_f32"), _CDNA),
    **dict.fromkeys(("mfma_16x16x8_bf16_f32", "mfma_32x32x4_bf16_f32"), _CDNA[:2]),
    **dict.fromkeys(("mfma_16x16x16_s8_s32", "mfma_32x32x8_s8_s32"), _CDNA[:2]),
    **dict.fromkeys(("mfma_16x16x16_bf16_f32", "mfma_32x32x8_bf16_f32", "mfma_16x16x4_f64_f64"), _CDNA[1:]),
    **dict.fromkeys(("mfma_16x16x32_s8_s32", "mfma_32x32x16_s8_s32"), _CDNA[2:]),
    **{
        f"{family}_{shape}_{types}_f32": ("gfx942",)
        for family in ("mfma", "vmfma")
        for shape in ("16x16x32", "32x32x16")
        for types in ("f8e4m3fnuz", "f8e5m2fnuz", "f8e4m3fnuzf8e5m2fnuz", "f8e5m2fnuzf8e4m3fnuz")
    },
}
_WMMA = {  # generation, and types of a, b and the sum
    "wmmar3": (11, frozenset({"f16_f32", "f16_f16", "bf16_f32", "bf16_bf16", "s8_s32"})),
    "wmmar4": (12, frozenset({
        "f16_f32", "f16_f16", "bf16_f32", "bf16_bf16", "s8_s32", "f8e4m3fn_f32", "f8e5m2_f32",
        "f8e4m3fnf8e5m2_f32", "f8e5m2f8e4m3fn_f32",
    })),
}  # fmt: skip


def product_of(name: str) -> tuple[str, Product]:
    """Family and parts of a record's name; raises InvalidProgram for one that has no emitter."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidProgram(f"no code for the intrinsic {name!r}", help="records of wmmar3, wmmar4, mfma and vmfma")
    m, n, k = (int(found[letter]) for letter in "mnk")
    return found["family"], Product(name, m, n, k, found["a"], found["b"] or found["a"], found["c"])


def mma(at: Emission, op: simt.MmaOp) -> None:
    family, product = product_of(op.intrinsic.data)
    if not _has(at.target, product.name):
        raise InvalidProgram(f"kernel {at.name}: {at.target.cpu} has no {product.name}")
    a, b, c = (list(at.elements(operand)) for operand in op.operands)
    held = product.m * product.k // at.target.lanes * (2 if family == "wmmar3" else 1)  # which RDNA 3 holds twice
    wanted = (held, held, product.m * product.n // at.target.lanes)
    if (len(a), len(b), len(c)) != wanted:
        given = (len(a), len(b), len(c))
        message = f"{product.name}: fragments of {given} elements of a, b, c; the record has {wanted}"
        raise InvalidProgram(f"kernel {at.name}: {message}")
    at.set(op.result, _FAMILIES[family](at, product, a, b, c))


def _has(target: Target, name: str) -> bool:
    """Whether a processor executes an instruction of this name."""
    family, shape, types = name.split("_", 2)
    if family not in _WMMA:
        return target.cpu in _MFMA.get(name, ())
    generation, known = _WMMA[family]
    return target.generation == generation and shape == "16x16x16" and types in known


def _wmma(at: Emission, product: Product, a: list[ir.Value], b: list[ir.Value], c: list[ir.Value]) -> list[ir.Value]:
    """``v_wmma``: operands are vectors of elements, or of words for 8-bit types."""
    left, right = _input(at, product.a, a), _input(at, product.b, b)
    spread = at.target.generation == 11 and product.c in ("f16", "bf16")
    sums = vector(at.builder, _spread(at, c) if spread else c)
    inputs = "iu8" if product.a == "s8" else _F8.get(product.a, product.a)
    if product.a in _F8:
        inputs += f".{_F8[product.b]}"
    result = {"s32": "i32"}.get(product.c, product.c)
    name = f"llvm.amdgcn.wmma.{result}.16x16x16.{inputs}.{_mangled(product.c, sums)}.{_mangled(product.a, left)}"
    if product.a == "s8":
        given = [I1(1), left, I1(1), right, sums, I1(0)]  # both signed; the sum wraps
    elif product.c in ("f16", "bf16"):
        given = [left, right, sums, I1(0)]  # the low halves of the registers
    else:
        given = [left, right, sums]
    found = scalars_of(at.builder, at.call(name, sums.type, given, convergent=True))
    return found[::2] if spread else found


def _spread(at: Emission, elements: Sequence[ir.Value]) -> list[ir.Value]:
    """16-bit sums of RDNA 3: one to a register, in its low half."""
    return [part for element in elements for part in (element, ir.Constant(element.type, 0))]


def _input(at: Emission, type_: str, elements: Sequence[ir.Value]) -> ir.Value:
    return vector(at.builder, elements if type_ in _MACHINE else to_words(at.builder, elements))


def _mangled(type_: str, value: ir.Value) -> str:
    return f"v{value.type.count}{_LETTERS.get(type_, 'i32')}"


def _mfma(at: Emission, product: Product, a: list[ir.Value], b: list[ir.Value], c: list[ir.Value]) -> list[ir.Value]:
    """``v_mfma``; several where K is that of a virtual record, each with the next elements of both operands."""
    each = min(len(a), {"f16": 4, "bf16": 4, "f32": 1, "f64": 1}.get(product.a, 8))
    sums = vector(at.builder, c)
    k = product.k * each // len(a)
    letter = "i32" if product.c == "s32" else product.c
    name = f"llvm.amdgcn.mfma.{letter}.{product.m}x{product.n}x{k}{_suffix(product, each)}"
    none = [I32(0)] * 3  # no broadcast of blocks, no permutation
    for start in range(0, len(a), each):
        pair = [_piece(at, product.a, operand[start : start + each]) for operand in (a, b)]
        sums = at.call(name, sums.type, [*pair, sums, *none], convergent=True)
    return scalars_of(at.builder, sums)


def _suffix(product: Product, each: int) -> str:
    """How LLVM names types of factors; those with fewer elements in a lane are the older ones."""
    if product.a in _F8:
        return f".{_F8[product.a]}.{_F8[product.b]}"
    if product.a == "bf16":
        return "bf16.1k" if each == 4 else "bf16"
    if product.a == "s8":
        return ".i8" if each == 8 else "i8"
    return product.a


def _piece(at: Emission, type_: str, elements: Sequence[ir.Value]) -> ir.Value:
    if type_ in _MACHINE:
        return vector(at.builder, elements)
    return at.builder.bitcast(vector(at.builder, to_words(at.builder, elements)), ir.IntType(8 * len(elements)))


_FAMILIES: dict[str, Callable[..., list[ir.Value]]] = {"wmmar3": _wmma, "wmmar4": _wmma, "mfma": _mfma, "vmfma": _mfma}


# The matrices of 8 rows of 16 bytes -----------------------------------------------------------------------------------


def load_matrix(at: Emission, op: simt.LoadMatrixOp) -> None:
    """Every lane asks the lane that knows where its row lies, and loads its own part of it."""
    place, words = at.places[op.view], list[ir.Value]()
    for parts in _parts(at, op):
        pieces = [at.builder.load(pointer, align=size, typ=ir.IntType(8 * size)) for pointer, size in parts]
        whole = vector(at.builder, pieces)
        words.append(whole if whole.type == I32 else at.builder.bitcast(whole, I32))
    count = op.count.value.data * 4 // place.bytes
    at.set(op.result, from_words(at.builder, words, place.element, count))


def store_matrix(at: Emission, op: simt.StoreMatrixOp) -> None:
    words = to_words(at.builder, at.elements(op.value))
    for word, parts in zip(words, _parts(at, op), strict=True):
        pieces = [word] if len(parts) == 1 else scalars_of(at.builder, at.builder.bitcast(word, ir.VectorType(I16, 2)))
        for piece, (pointer, size) in zip(pieces, parts, strict=True):
            at.builder.store(piece, pointer, align=size)


def _parts(at: Emission, op: simt.LoadMatrixOp | simt.StoreMatrixOp) -> list[list[tuple[ir.Value, int]]]:
    """Where the 4 bytes of a lane lie, for every matrix: (pointer, bytes) of one piece, or of two where transposed."""
    if at.target.lanes != 32:
        raise InvalidProgram(f"kernel {at.name}: {op.name} is of 32 lanes, a wave has {at.target.lanes}")
    builder = at.builder
    mine = builder.ptrtoint(at.address(at.places[op.view], at.scalar(op.offset)), I32)
    lane = lane_id(at)
    group, four = builder.lshr(lane, I32(2)), builder.and_(lane, I32(3))

    def pointer(matrix: int, row: ir.Value, byte: ir.Value) -> ir.Value:
        start = taken(at, builder.add(row, I32(8 * matrix)), mine)
        return builder.inttoptr(builder.add(start, byte), ir.PointerType(addrspace=3))

    found = []
    for matrix in range(op.count.value.data):
        if op.transpose is None:
            found.append([(pointer(matrix, group, builder.shl(four, I32(2))), 4)])
            continue
        rows = [builder.add(builder.shl(four, I32(1)), I32(half)) for half in range(2)]
        found.append([(pointer(matrix, row, builder.shl(group, I32(1))), 2) for row in rows])
    return found


def no_fragment(at: Emission, op: simt.LoadFragmentOp | simt.StoreFragmentOp) -> None:
    name = op.intrinsic.data
    raise InvalidProgram(f"kernel {at.name}: fragments of {name} are loaded by their layout, not as matrices")
