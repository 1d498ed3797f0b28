"""Fragments: ldmatrix, stmatrix, and matrix products of a warp, emitted from their records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from llvmlite import ir
from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tilewright.codegen.gpu.elements import element
from tilewright.codegen.nvptx.emission import F16, I32, Emission, from_words, resized, scalars_of, to_words
from tilewright.codegen.nvptx.simt import lane_id
from tilewright.codegen.values import F32, F64, bits_of
from tilewright.errors import InvalidProgram
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic, Operand
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.records import dtypes_of, is_opaque, record_of
from tilewright.machine.targets import capability

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


# Products -------------------------------------------------------------------------------------------------------------

# The PTX version (times ten) of each compute capability (times ten) that brought instructions of this kind. PTX ISA
# 9.0, "Target ISA Notes" of mma and wmma.
_PTX = {70: 60, 72: 63, 75: 65, 80: 70, 89: 84, 90: 80, 100: 86, 120: 87}
# Elements that registers hold: those of themselves, or the type of the LLVM register that packs them.
_REGISTERS: dict[str, ir.Type] = {
    "f16": ir.VectorType(F16, 2), "f32": F32, "f64": F64, **dict.fromkeys(
        ("bf16", "tf32", "i8", "u8", "i32", "f8e4m3fn", "f8e5m2"), I32),
}  # fmt: skip


def product_of(op: Operation) -> Intrinsic:
    """The record that an operation names.

    Raises InvalidProgram for one that a warp does not issue, that names no function of LLVM, or that multiplies
    elements which registers here do not hold.
    """
    record = record_of(op)
    unknown = [dtype for dtype in dtypes_of(record) if dtype not in _REGISTERS]
    if record.group != "warp32" or not record.llvm or unknown:
        reason = f"elements of {unknown[0]}" if unknown else f"group {record.group}, llvm {record.llvm!r}"
        help = "a record of group warp32 that names LLVM's function"
        raise InvalidProgram(f"no code for the intrinsic {record.name!r}: {reason}", help=help)
    return record


def _require(at: Emission, record: Intrinsic) -> None:
    """Refuse a processor that lacks a record's features, and note the PTX version that has them."""
    since = max((capability(each) for each in record.features if each.startswith("sm_")), default=70)
    at.require(record.name, since, max(ptx for first, ptx in _PTX.items() if first <= max(70, since)))


def mma(at: Emission, op: simt.MmaOp) -> None:
    record = product_of(op)
    if op.precision is not None:
        fact = f"kernel {at.name}: {record.name} with precision {op.precision.data!r} is three products"
        raise InvalidProgram(fact, help="run the pass tf32x3 first")
    _require(at, record)
    operands = [at.elements(operand) for operand in op.operands]
    if not is_opaque(record):
        _check(at, record, [len(elements) for elements in operands])
    words = [registers(at, dtype, elements) for dtype, elements in zip(dtypes_of(record), operands, strict=True)]
    emit = _wmma if is_opaque(record) else _sync
    at.set(op.result, emit(at, op, record, words))


def _sync(at: Emission, op: simt.MmaOp, record: Intrinsic, words: list[list[ir.Value]]) -> list[ir.Value]:
    """``mma.sync``, A by rows and B by columns."""
    return _call(at, record, record.llvm, words)


def _wmma(at: Emission, op: simt.MmaOp, record: Intrinsic, words: list[list[ir.Value]]) -> list[ir.Value]:
    """``wmma.mma``; the orders of A and B are those in which their fragments were loaded."""
    for letter, operand, found in zip("abc", record.operands, words, strict=True):
        wanted = _registers_of(operand)
        if len(found) != wanted:
            raise InvalidProgram(f"{record.name}: {len(found)} registers of {letter}, the fragment has {wanted}")
    order = f"{_order(op.a, 'row')}.{_order(op.b, 'col')}"
    return _call(at, record, record.llvm.replace(".mma.row.col.", f".mma.{order}."), words)


def _call(at: Emission, record: Intrinsic, name: str, words: list[list[ir.Value]]) -> list[ir.Value]:
    sums = words[-1]
    made = at.call(name, ir.LiteralStructType([sums[0].type] * len(sums)), [*chain(*words)], convergent=True)
    found = [at.builder.extract_value(made, number) for number in range(len(sums))]
    return unpacked(at, record.destination.dtype, found)


def _check(at: Emission, record: Intrinsic, given: list[int]) -> None:
    wanted = [operand.layout.elements for operand in record.operands if isinstance(operand.layout, Fragment)]
    if given != wanted:
        message = f"{record.name}: fragments of {(*given,)} elements of a, b, c; the record has {(*wanted,)}"
        raise InvalidProgram(f"kernel {at.name}: {message}")


# Registers ------------------------------------------------------------------------------------------------------------


def registers(at: Emission, dtype: str, elements: Sequence[ir.Value]) -> list[ir.Value]:
    """Elements of a fragment as the registers that the intrinsics take."""
    if elements[0].type in (F32, F64) and dtype != "tf32":
        return list(elements)
    words = to_words(at.builder, elements)
    if dtype == "f16":
        return [at.builder.bitcast(word, _REGISTERS[dtype]) for word in words]
    return words


def unpacked(at: Emission, dtype: str, found: Sequence[ir.Value]) -> list[ir.Value]:
    """Elements of an accumulator."""
    return (
        [piece for register in found for piece in scalars_of(at.builder, register)] if dtype == "f16" else list(found)
    )


# Fragments in memory: wmma --------------------------------------------------------------------------------------------

_MEMORY = {"i8": "s8", "i32": "s32"}  # how LLVM names types of fragments in memory; others as records do


def _registers_of(operand: Operand) -> int:
    """LLVM's registers of a lane's fragment."""
    return operand.registers * 32 // max(32, bits(operand.dtype))


def _fragment_record(at: Emission, op: simt.LoadFragmentOp | simt.StoreFragmentOp) -> Intrinsic:
    record = product_of(op)
    if not is_opaque(record):
        message = f"fragments of {record.name} are loaded by their layout, not as matrices"
        raise InvalidProgram(f"kernel {at.name}: {message}")
    _require(at, record)
    return record


def _moves(record: Intrinsic, letter: str, columns: bool, space: str) -> str:
    """LLVM's function that loads or stores (letter d) a fragment of a record."""
    geometry, _, _ = record.llvm.partition(".mma.")
    kind = "store" if letter == "d" else "load"
    dtype = record.operands[{"a": 0, "b": 1, "c": 2, "d": 2}[letter]].dtype
    order = "col" if columns else "row"
    return f"{geometry}.{kind}.{letter}.{order}.stride.{_MEMORY.get(dtype, dtype)}.p{_space(space)}"


def load_fragment(at: Emission, op: simt.LoadFragmentOp) -> None:
    record, letter = _fragment_record(at, op), op.operand.data
    place = at.places[op.view]
    address = at.address(place, at.scalar(op.offset))
    operand = record.operands["abc".index(letter)]
    count = _registers_of(operand)
    name = _moves(record, letter, op.columns is not None, place.space)
    register = _REGISTERS[operand.dtype]
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
        message = f"fragment {letter} of {record.name} has {len(elements)} elements, not {len_of(op.result)}"
        raise InvalidProgram(f"kernel {at.name}: {message}")
    at.set(op.result, elements)


def store_fragment(at: Emission, op: simt.StoreFragmentOp) -> None:
    record = _fragment_record(at, op)
    place = at.places[op.view]
    address = at.address(place, at.scalar(op.offset))
    found = registers(at, record.destination.dtype, at.elements(op.value))
    if len(found) != _registers_of(record.destination):
        raise InvalidProgram(f"kernel {at.name}: {len(found)} registers of a result of {record.name}")
    stride = resized(at.builder, at.scalar(op.stride), I32)
    name = _moves(record, "d", op.columns is not None, place.space)
    at.call(name, ir.VoidType(), [address, *found, stride], convergent=True)


def _space(space: str) -> int:
    return {"global": 1, "shared": 3, "local": 0}[space]


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
