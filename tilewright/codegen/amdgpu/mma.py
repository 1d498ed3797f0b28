"""Fragments: products of a wave on WMMA and MFMA, emitted from their records, and rows of 8 x 8 matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from llvmlite import ir

from tilewright.codegen.amdgpu.emission import Emission
from tilewright.codegen.amdgpu.simt import lane_id, taken
from tilewright.codegen.amdgpu.target import Target
from tilewright.codegen.gpu.emission import from_words, scalars_of, to_words, vector
from tilewright.codegen.values import I1, I16, I32
from tilewright.errors import InvalidProgram
from tilewright.intrinsics.elements import bits, is_float
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic, Operand
from tilewright.intrinsics.registry import standard
from tilewright.kernel import simt
from tilewright.kernel.records import record_of, registry_of

_WORDS = 8  # bits of elements of which words of 32 bits are made; wider ones are elements of vectors


def mma(at: Emission, op: simt.MmaOp) -> None:
    """The product that a record computes, by the function of LLVM that it names, or what it is realised by does."""
    record = record_of(op)
    base = registry_of(op).find(record.realised_by) if record.realised_by else record
    if record.group not in _EMITTERS or not base.llvm:
        reason = f"group {record.group}, llvm {base.llvm!r}"
        help = f"a record of groups {', '.join(_EMITTERS)} that names LLVM's function"
        raise InvalidProgram(f"no code for the intrinsic {record.name!r}: {reason}", help=help)
    if base.llvm not in _functions():
        help = "one that a record of the catalogue names: LLVM would end the process for one that it lacks"
        raise InvalidProgram(f"no code for the intrinsic {record.name!r}: its function is {base.llvm!r}", help=help)
    if not _has(at.target, record):
        raise InvalidProgram(f"kernel {at.name}: {at.target.cpu} has no {record.name}")
    a, b, c = (list(at.elements(operand)) for operand in op.operands)
    wanted = tuple(operand.layout.elements for operand in record.operands if isinstance(operand.layout, Fragment))
    given = (len(a), len(b), len(c))
    if given != wanted:
        message = f"{record.name}: fragments of {given} elements of a, b, c; the record has {wanted}"
        raise InvalidProgram(f"kernel {at.name}: {message}")
    at.set(op.result, _EMITTERS[record.group](at, base, a, b, c))


@cache
def _functions() -> frozenset[str]:
    return frozenset(record.llvm for record in standard())


def _has(target: Target, record: Intrinsic) -> bool:
    """Whether a processor executes a record: one that it lists, else one whose name begins as its features do."""
    if record.processors:
        return target.cpu in record.processors
    return all(target.cpu.startswith(feature) for feature in record.features)


def _wmma(at: Emission, record: Intrinsic, a: list[ir.Value], b: list[ir.Value], c: list[ir.Value]) -> list[ir.Value]:
    """``v_wmma``: operands are vectors of elements, or of words for 8-bit types."""
    left, right = (_input(at, source, held) for source, held in zip(record.sources, (a, b), strict=True))
    narrow = bits(record.destination.dtype) == 16
    spread = at.target.generation == 11 and narrow
    sums = vector(at.builder, _spread(at, c) if spread else c)
    if not is_float(record.destination.dtype):
        signs = [I1(int(not source.dtype.startswith("u"))) for source in record.sources]
        given = [signs[0], left, signs[1], right, sums, I1(int(record.numerics.saturate))]
    elif narrow:
        given = [left, right, sums, I1(0)]  # the low halves of the registers
    else:
        given = [left, right, sums]
    found = scalars_of(at.builder, at.call(record.llvm, sums.type, given, convergent=True))
    return found[::2] if spread else found


def _spread(at: Emission, elements: Sequence[ir.Value]) -> list[ir.Value]:
    """16-bit sums of RDNA 3: one to a register, in its low half."""
    return [part for element in elements for part in (element, ir.Constant(element.type, 0))]


def _input(at: Emission, operand: Operand, elements: Sequence[ir.Value]) -> ir.Value:
    return vector(at.builder, to_words(at.builder, elements) if bits(operand.dtype) <= _WORDS else elements)


def _mfma(at: Emission, record: Intrinsic, a: list[ir.Value], b: list[ir.Value], c: list[ir.Value]) -> list[ir.Value]:
    """``v_mfma``; several where there are more elements than the record has, each with the next of both operands."""
    first = record.sources[0]
    each = first.layout.elements if isinstance(first.layout, Fragment) else len(a)
    sums = vector(at.builder, c)
    none = [I32(0)] * 3  # no broadcast of blocks, no permutation
    for start in range(0, len(a), each):
        held = (operand[start : start + each] for operand in (a, b))
        pair = [_piece(at, source, elements) for source, elements in zip(record.sources, held, strict=True)]
        sums = at.call(record.llvm, sums.type, [*pair, sums, *none], convergent=True)
    return scalars_of(at.builder, sums)


def _piece(at: Emission, operand: Operand, elements: Sequence[ir.Value]) -> ir.Value:
    if bits(operand.dtype) > _WORDS:
        return vector(at.builder, elements)
    words = vector(at.builder, to_words(at.builder, elements))
    return at.builder.bitcast(words, ir.IntType(bits(operand.dtype) * len(elements)))


_EMITTERS: dict[str, Callable[..., list[ir.Value]]] = {"wave32": _wmma, "wave64": _mfma}


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
