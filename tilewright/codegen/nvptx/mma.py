"""Fragments: ldmatrix, stmatrix, and the families of matrix products of a warp, found by the names of their records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from llvmlite import ir
from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tilewright.codegen.gpu.elements import element
from tilewright.codegen.nvptx.emission import (
    F16,
    I32,
    Emission,
    from_words,
    resized,
    scalars_of,
    to_words,
)
from tilewright.codegen.nvptx.simt import lane_id
from tilewright.codegen.values import F32, F64, bits_of
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt

# The matrices of 8 rows of 16 bytes -----------------------------------------------------------------------------------


def load_matrix(at: Emission, op: simt.LoadMatrixOp) -> None:
    count = op.count.value.data
    address = at.address(at.places[op.view], at.scalar(op.offset))
    at.require("ldmatrix", 75, 65)
    trans = ".trans" if op.transpose is not None else ""
    result = I32 if count == 1 else ir.LiteralStructType([I32] * count)
    found = at.call(f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{trans}.b16.p3", result, [address])
    words = [found] if count == 1 else [at.builder.extract_value(found, i) for i in range(count)]
    element = at.places[op.view].element
    at.set(op.result, from_words(at.builder, words, element, count * 32 // bits_of(element)))


def store_matrix(at: Emission, op: simt.StoreMatrixOp) -> None:
    count = op.count.value.data
    address = at.address(at.places[op.view], at.scalar(op.offset))
    words = to_words(at.builder, at.elements(op.value))
    if at.target.capability < 90:
        _store_rows(at, op, address, words)
        return
    at.require("stmatrix", 90, 78)
    trans = ".trans" if op.transpose is not None else ""
    name = f"llvm.nvvm.stmatrix.sync.aligned.m8n8.x{count}{trans}.b16.p3"
    at.call(name, ir.VoidType(), [address, *words])


def _store_rows(at: Emission, op: simt.StoreMatrixOp, address: ir.Value, words: Sequence[ir.Value]) -> None:
    """Every lane asks the lane that knows where its row lies, and stores its own part of it."""
    builder = at.builder
    lane, mine = lane_id(at), builder.ptrtoint(address, I32)
    group, four = builder.lshr(lane, I32(2)), builder.and_(lane, I32(3))
    for number, word in enumerate(words):
        if op.transpose is None:
            row = _address_of(at, mine, number, group)
            builder.store(word, _shared(at, builder.add(row, builder.shl(four, I32(2)))), align=4)
            continue
        halves = scalars_of(builder, builder.bitcast(word, ir.VectorType(ir.IntType(16), 2)))
        for half, piece in enumerate(halves):
            row = _address_of(at, mine, number, builder.add(builder.shl(four, I32(1)), I32(half)))
            builder.store(piece, _shared(at, builder.add(row, builder.shl(group, I32(1)))), align=2)


def _address_of(at: Emission, mine: ir.Value, number: int, row: ir.Value) -> ir.Value:
    source = at.builder.add(row, I32(8 * number))
    return at.call("llvm.nvvm.shfl.sync.idx.i32", I32, [I32(-1), mine, source, I32(31)])


def _shared(at: Emission, address: ir.Value) -> ir.Value:
    return at.builder.inttoptr(address, ir.PointerType(addrspace=3))


# Factors --------------------------------------------------------------------------------------------------------------


def tf32(at: Emission, op: tile.Tf32Op) -> None:
    """`tile.tf32` by the instruction that rounds, two of a machine where only products read what it gives; else by
    arithmetic.
    """
    if op.kind.data != "nearest" or at.target.capability < 80:
        element(at, op)
        return
    at.require("cvt.rna.tf32", 80, 70)
    rounded = [at.call("llvm.nvvm.f2tf32.rna", I32, [each]) for each in at.elements(op.value)]
    at.set(op.result, [at.builder.bitcast(each, F32) for each in rounded])


# Families of products -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """A record's name, read: shape, types of a, b and the accumulator, and whether integers saturate."""

    name: str
    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    saturating: bool

    @property
    def types(self) -> dict[str, str]:
        return {"a": self.a, "b": self.b, "c": self.c}


_TYPES = "f16|bf16|tf32|f64|f8e4m3fn|f8e5m2|s8|u8"
_NAME = re.compile(
    rf"(?P<family>mma|wmma)_m?(?P<m>\d+)[nx](?P<n>\d+)[kx](?P<k>\d+)_(?P<a>{_TYPES})(?P<b>{_TYPES})?_"
    r"(?P<c>f16|f32|f64|s32)(?P<sat>_sat)?"
)
_F8 = {"f8e4m3fn": "e4m3", "f8e5m2": "e5m2"}
# Compute capability and PTX version (both times ten) from which a family has an operand type.
_SINCE = {
    "f16": (70, 60), "bf16": (80, 70), "tf32": (80, 70), "f64": (80, 70), "s8": (72, 63), "u8": (72, 63),
    "f8e4m3fn": (89, 84), "f8e5m2": (89, 84),
}  # fmt: skip
# Shapes and accumulators of a family by type of a; b has the same type, or one of the same line. PTX ISA 9.0, "Matrix
# Multiply-Accumulate Operation".
_WHOLE = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
_FORMS: dict[str, dict[str, tuple[tuple[tuple[int, int, int], ...], tuple[str, ...]]]] = {
    "mma": {
        "f16": (((16, 8, 16), (16, 8, 8)), ("f16", "f32")),
        "bf16": (((16, 8, 16), (16, 8, 8)), ("f32",)),
        "tf32": (((16, 8, 8), (16, 8, 4)), ("f32",)),
        "f64": (((8, 8, 4),), ("f64",)),
        **dict.fromkeys(("s8", "u8"), (((16, 8, 32), (16, 8, 16), (8, 8, 16)), ("s32",))),
        **dict.fromkeys(("f8e4m3fn", "f8e5m2"), (((16, 8, 32),), ("f32",))),
    },
    "wmma": {
        "f16": (_WHOLE, ("f16", "f32")),
        "bf16": (_WHOLE, ("f32",)),
        "tf32": (((16, 16, 8),), ("f32",)),
        "f64": (((8, 8, 4),), ("f64",)),
        **dict.fromkeys(("s8", "u8"), (_WHOLE, ("s32",))),
    },
}
_MIXED = ({"s8", "u8"}, {"f8e4m3fn", "f8e5m2"})  # of mma
_OLD_SHAPES = {("f16", 16, 8, 8): (75, 65), ("s8", 8, 8, 16): (75, 65), ("u8", 8, 8, 16): (75, 65)}


def product_of(name: str) -> tuple[str, Product]:
    """Family and parts of a record's name; raises InvalidProgram for one that has no emitter."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidProgram(f"no code for the intrinsic {name!r}", help="records of the families mma and wmma")
    m, n, k = (int(found[letter]) for letter in "mnk")
    parts = Product(name, m, n, k, found["a"], found["b"] or found["a"], found["c"], found["sat"] is not None)
    family = found["family"]
    shapes, sums = _FORMS[family].get(parts.a, ((), ()))
    mixed = family == "mma" and any({parts.a, parts.b} <= pair for pair in _MIXED)
    if (m, n, k) not in shapes or parts.c not in sums or not (parts.a == parts.b or mixed):
        listed = ", ".join("x".join(map(str, shape)) for shape in shapes) or "no shapes"
        help = f"{family} multiplies {parts.a} by itself in {listed}, with sums in {' or '.join(sums) or 'no type'}"
        raise InvalidProgram(f"no code for the intrinsic {name!r}: there is no such instruction", help=help)
    return family, parts


def mma(at: Emission, op: simt.MmaOp) -> None:
    family, product = product_of(op.intrinsic.data)
    if op.precision is not None:
        fact = f"kernel {at.name}: {product.name} with precision {op.precision.data!r} is three products"
        raise InvalidProgram(fact, help="run split-products first")
    a, b, c = (
        registers(at, product.types[letter], at.elements(value))
        for letter, value in zip("abc", op.operands, strict=True)
    )
    at.set(op.result, _FAMILIES[family](at, op, product, a, b, c))


def _sync(
    at: Emission, op: simt.MmaOp, product: Product, a: list[ir.Value], b: list[ir.Value], c: list[ir.Value]
) -> list[ir.Value]:
    """``mma.sync``, A by rows and B by columns."""
    shape = f"m{product.m}n{product.n}k{product.k}"
    since = _OLD_SHAPES.get((product.a, product.m, product.n, product.k), (80, 70))
    at.require(product.name, *max(since, _SINCE[product.a], _SINCE[product.b]))
    _check(at, op, product, a, b, c, *(product.m * product.k, product.k * product.n))
    if product.a in _F8:
        types = f"f32.{_F8[product.a]}.{_F8[product.b]}.f32"
    elif product.a == "f16":
        types = f"{product.c}.{product.c}"
    else:
        types = product.a if product.a == product.b else f"{product.a}.{product.b}"
    saturating = "satfinite." if product.saturating else ""
    return _call(at, product, f"llvm.nvvm.mma.{shape}.row.col.{saturating}{types}", [*a, *b, *c], len(c))


def _wmma(
    at: Emission, op: simt.MmaOp, product: Product, a: list[ir.Value], b: list[ir.Value], c: list[ir.Value]
) -> list[ir.Value]:
    """``wmma.mma``; the orders of A and B are those in which their fragments were loaded."""
    at.require(product.name, *_SINCE[product.a])
    for letter, found in zip("abc", (a, b, c), strict=True):
        wanted = _wmma_registers(product, letter)
        if len(found) != wanted:
            raise InvalidProgram(f"{product.name}: {len(found)} registers of {letter}, the fragment has {wanted}")
    order = f"{_order(op.a, 'row')}.{_order(op.b, 'col')}"
    types = f"{product.c}.{product.c}" if product.a == "f16" else product.a
    saturating = ".satfinite" if product.saturating else ""
    name = f"llvm.nvvm.wmma.{_geometry(product)}.mma.{order}.{types}{saturating}"
    return _call(at, product, name, [*a, *b, *c], len(c))


_FAMILIES: dict[str, Callable[..., list[ir.Value]]] = {"mma": _sync, "wmma": _wmma}


def _call(at: Emission, product: Product, name: str, args: list[ir.Value], results: int) -> list[ir.Value]:
    type_ = args[-1].type
    made = at.call(name, ir.LiteralStructType([type_] * results), args, convergent=True)
    found = [at.builder.extract_value(made, number) for number in range(results)]
    return unpacked(at, product.c, found)


def _check(
    at: Emission, op: simt.MmaOp, product: Product, a: list[ir.Value], b: list[ir.Value], c: list[ir.Value],
    of_a: int, of_b: int,
) -> None:  # fmt: skip
    wanted = (of_a // 32, of_b // 32, product.m * product.n // 32)
    given = tuple(len(at.elements(operand)) for operand in op.operands)
    if given != wanted:
        message = f"{product.name}: fragments of {given} elements of a, b, c; the record has {wanted}"
        raise InvalidProgram(f"kernel {at.name}: {message}")


# Registers ------------------------------------------------------------------------------------------------------------


def registers(at: Emission, type_: str, elements: Sequence[ir.Value]) -> list[ir.Value]:
    """Elements of a fragment as the registers that the intrinsics take."""
    if elements[0].type in (F32, F64) and type_ != "tf32":
        return list(elements)
    words = to_words(at.builder, elements)
    if type_ == "f16":
        return [at.builder.bitcast(word, ir.VectorType(F16, 2)) for word in words]
    return words


def unpacked(at: Emission, type_: str, found: Sequence[ir.Value]) -> list[ir.Value]:
    """Elements of an accumulator."""
    return (
        [piece for register in found for piece in scalars_of(at.builder, register)] if type_ == "f16" else list(found)
    )


# Fragments in memory: wmma --------------------------------------------------------------------------------------------

_MACHINE = {"s32": I32, "f32": F32, "f64": F64, "tf32": F32, "f16": F16}


def _geometry(product: Product) -> str:
    return f"m{product.m}n{product.n}k{product.k}"


def _wmma_registers(product: Product, letter: str) -> int:
    """Registers of a lane's fragment; those of f16 factors hold every element twice."""
    type_ = product.types[letter]
    if letter != "c" and type_ == "f16":
        return 8
    rows, columns = {"a": (product.m, product.k), "b": (product.k, product.n), "c": (product.m, product.n)}[letter]
    bits = {"f64": 64, "tf32": 32, "f32": 32, "s32": 32, "f16": 16, "bf16": 16}.get(type_, 8)
    return rows * columns * bits // (32 * max(32, bits))


def _fragment_product(at: Emission, name: str) -> Product:
    family, product = product_of(name)
    if family != "wmma":
        raise InvalidProgram(f"kernel {at.name}: fragments of {name} are loaded by their layout, not as matrices")
    at.require(name, *_SINCE[product.a])
    return product


def load_fragment(at: Emission, op: simt.LoadFragmentOp) -> None:
    product, letter = _fragment_product(at, op.intrinsic.data), op.operand.data
    place, type_ = at.places[op.view], product.types[letter]
    address = at.address(place, at.scalar(op.offset))
    count = _wmma_registers(product, letter)
    order = "col" if op.columns is not None else "row"
    name = f"llvm.nvvm.wmma.{_geometry(product)}.load.{letter}.{order}.stride.{type_}.p{_space(place.space)}"
    register = _register(type_, letter)
    result = register if count == 1 else ir.LiteralStructType([register] * count)
    found = at.call(name, result, [address, resized(at.builder, at.scalar(op.stride), I32)], convergent=True)
    words = [found] if count == 1 else [at.builder.extract_value(found, number) for number in range(count)]
    if register in (F32, F64):
        elements = words
    elif isinstance(register, ir.VectorType):
        elements = [piece for word in words for piece in scalars_of(at.builder, word)]
    else:
        elements = from_words(at.builder, words, place.element, count * 32 // bits_of(place.element))
    if len(elements) != len_of(op.result):
        message = f"fragment {letter} of {product.name} has {len(elements)} elements, not {len_of(op.result)}"
        raise InvalidProgram(f"kernel {at.name}: {message}")
    at.set(op.result, elements)


def store_fragment(at: Emission, op: simt.StoreFragmentOp) -> None:
    product = _fragment_product(at, op.intrinsic.data)
    place = at.places[op.view]
    address = at.address(place, at.scalar(op.offset))
    order = "col" if op.columns is not None else "row"
    name = f"llvm.nvvm.wmma.{_geometry(product)}.store.d.{order}.stride.{product.c}.p{_space(place.space)}"
    found = registers(at, product.c, at.elements(op.value))
    if len(found) != _wmma_registers(product, "c"):
        raise InvalidProgram(f"kernel {at.name}: {len(found)} registers of a result of {product.name}")
    stride = resized(at.builder, at.scalar(op.stride), I32)
    at.call(name, ir.VoidType(), [address, *found, stride], convergent=True)


def _space(space: str) -> int:
    return {"global": 1, "shared": 3, "local": 0}[space]


def _register(type_: str, letter: str) -> ir.Type:
    if type_ == "f16":
        return ir.VectorType(F16, 2)
    return {"f32": F32, "f64": F64}.get(type_, I32)


def len_of(value: SSAValue) -> int:
    return int(value.type.get_shape()[0])  # type: ignore[attr-defined]


def _order(value: SSAValue, default: str) -> str:
    """The order in which a fragment was loaded: through loops and element operations back to its load."""
    seen: set[SSAValue] = set()
    while value not in seen:
        seen.add(value)
        owner: Operation | Block = value.owner
        if isinstance(owner, simt.LoadFragmentOp):
            return "col" if owner.columns is not None else "row"
        if isinstance(owner, Block):
            loop = owner.parent_op()
            if not isinstance(loop, scf.ForOp) or value is owner.args[0]:
                return default
            value = loop.iter_args[list(owner.args).index(value) - 1]  # type: ignore[arg-type]
        elif isinstance(owner, scf.ForOp):
            value = owner.iter_args[list(owner.results).index(value)]  # type: ignore[arg-type]
        elif isinstance(owner, scf.IfOp):
            last = owner.true_region.block.last_op
            assert last is not None, "a branch that gives values ends with a yield"
            value = last.operands[list(owner.results).index(value)]  # type: ignore[arg-type]
        elif owner.operands:
            value = owner.operands[0]
    return default
