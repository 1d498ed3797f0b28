"""Products of four warps (``wgmma``), and what warps do apart: their number, their registers."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from xdsl.dialects import arith, scf
from xdsl.ir import Operation, SSAValue

from tilewright.codegen.nvptx.emission import I1, I32, I64, Emission, Place, from_words, resized, to_words, vector
from tilewright.codegen.values import F32
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.hopper import simt_warpgroup
from tilewright.kernel.indices import constant_index
from tilewright.kernel.records import dtypes_of, extents_of_record, record_of
from tilewright.kernel.simt import element_bytes
from tilewright.machine import targets

LANES = 32
SINCE = (90, 80)  # compute capability and PTX version, both times ten
SINCE_MIXED = (90, 84)  # bytes with and without a sign in one product
_TYPES = {  # of factors and sums, as PTX names them
    "f16": "f16", "bf16": "bf16", "tf32": "tf32", "f8e4m3fn": "e4m3", "f8e5m2": "e5m2", "i8": "s8", "u8": "u8",
    "f32": "f32", "i32": "s32",
}  # fmt: skip
_MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # PTX ISA, "Matrix Descriptor Format", bits 62 and 63


def _require(at: Emission, what: str, unit: str = "wgmma") -> None:
    at.require(what, *SINCE)
    if targets.lacks(at.target.cpu, unit):
        raise InvalidProgram(f"kernel {at.name}: {what} needs sm_90a, the target is {at.target.cpu}")


def warp_id(at: Emission, op: simt_warpgroup.WarpIdOp) -> None:
    """Taken from the first lane, so that the compiler knows that all lanes branch alike."""
    x, y, z = at.func.block
    if (y, z) != (1, 1):
        raise InvalidProgram(f"kernel {at.name}: warps of a block of {x}x{y}x{z} threads", help="threads along x")
    thread = at.call("llvm.nvvm.read.ptx.sreg.tid.x", I32, [])
    own = at.builder.lshr(thread, I32(LANES.bit_length() - 1))
    number = at.call("llvm.nvvm.shfl.sync.idx.i32", I32, [I32(-1), own, I32(0), I32(LANES - 1)])
    at.set(op.result, [resized(at.builder, number, at.index)])


def elect(at: Emission, op: simt_warpgroup.ElectOp) -> None:
    """What one lane does behind this the assembler knows to be done by one: copies of boxes need no loop over lanes."""
    at.require("an election", *SINCE)
    at.set(op.result, [at.asm("elect.sync _|$0, 0xffffffff;", I1, "=b", [], "together")])


def registers(at: Emission, op: simt_warpgroup.RegistersOp) -> None:
    _require(at, "a change of registers", "setmaxnreg")
    name = {"grow": "inc", "shrink": "dec"}[op.kind.data]
    at.asm(f"setmaxnreg.{name}.sync.aligned.u32 {op.count.value.data};", ir.VoidType(), "", [], "together")


# Products -------------------------------------------------------------------------------------------------------------


def fence(at: Emission, op: simt_warpgroup.WarpgroupFenceOp) -> None:
    _passing(at, "wgmma.fence.sync.aligned;", op)


def wait(at: Emission, op: simt_warpgroup.WarpgroupWaitOp) -> None:
    _passing(at, f"wgmma.wait_group.sync.aligned {op.pending.value.data};", op)


def commit(at: Emission, op: simt_warpgroup.WarpgroupCommitOp) -> None:
    _require(at, "wgmma")
    at.asm("wgmma.commit_group.sync.aligned;", ir.VoidType(), "", [], "together")


def _passing(at: Emission, text: str, op: simt_warpgroup.WarpgroupFenceOp | simt_warpgroup.WarpgroupWaitOp) -> None:
    """An instruction that registers go through: LLVM moves no use of them across it."""
    _require(at, "wgmma")
    given = [at.elements(value) for value in op.values]
    words = [
        word
        for value, elements in zip(op.values, given, strict=True)
        for word in _copied(at, _words(at, elements), _is_kept_by_loop(op, value))
    ]
    made = iter(_tied(at, text, words, [], ""))
    for result, elements in zip(op.made, given, strict=True):
        count = len(_words(at, elements))
        own = [next(made) for _ in range(count)]
        kept = own if own[0].type == F32 else from_words(at.builder, own, elements[0].type, len(elements))
        at.set(result, kept)


def _is_kept_by_loop(op: Operation, value: SSAValue) -> bool:
    """Whether a value is computed before the innermost loop around an operation, so that all of its trips read it."""
    loop = op.parent_op()
    while loop is not None and not isinstance(loop, scf.ForOp):
        loop = loop.parent_op()
    return loop is not None and not loop.is_ancestor(value.owner)


def _copied(at: Emission, words: list[ir.Value], kept: bool) -> list[ir.Value]:
    """The words of a factor; where a loop keeps it (`kept`), a copy of them that is made in each trip.

    ptxas 13.0 assigns the registers of a kept factor to values that the loop computes after the product, so that the
    next trip multiplies these values. It does the same where the copies are plain moves. So a copy is the word OR a
    zero that ptxas cannot know: the highest bit of `%dynamic_smem_size`. Words of f32, such as sums, are not copied.
    """
    if not kept or not words or words[0].type == F32 or all(isinstance(word, ir.Constant) for word in words):
        return words
    text = "{ .reg .b32 zero; mov.u32 zero, %dynamic_smem_size; shr.u32 zero, zero, 31; "
    count = len(words)
    text += " ".join(f"or.b32 ${number}, ${count + number}, zero;" for number in range(count)) + " }"
    constraints = ",".join(["=&r"] * count + ["r"] * count)
    type_ = words[0].type if count == 1 else ir.LiteralStructType([word.type for word in words])
    made = at.asm(text, type_, constraints, words, "together")
    return [made] if count == 1 else [at.builder.extract_value(made, number) for number in range(count)]


def _words(at: Emission, elements: Sequence[ir.Value]) -> list[ir.Value]:
    return list(elements) if elements[0].type == F32 else to_words(at.builder, elements)


def _tied(
    at: Emission, text: str, words: Sequence[ir.Value], others: Sequence[ir.Value], constraints: str
) -> list[ir.Value]:
    """Assembly that changes words in place; `others` are further operands, numbered behind the words."""
    if not words:
        at.asm(text, ir.VoidType(), constraints, others, "together")
        return []
    letters = ["f" if word.type == F32 else "r" for word in words]
    ties = [str(number) for number in range(len(words))]
    every = ",".join([*(f"={letter}" for letter in letters), *([constraints] if constraints else []), *ties])
    type_ = words[0].type if len(words) == 1 else ir.LiteralStructType([word.type for word in words])
    made = at.asm(text, type_, every, [*others, *words], "together")
    return [made] if len(words) == 1 else [at.builder.extract_value(made, number) for number in range(len(words))]


def mma(at: Emission, op: simt_warpgroup.WarpgroupMmaOp) -> None:
    """One ``wgmma.mma_async``; operands in shared memory by descriptors."""
    _require(at, "wgmma")
    record = record_of(op)
    dtypes = dtypes_of(record)
    unknown = [dtype for dtype in dtypes if dtype not in _TYPES]
    if unknown:
        message = f"no code for the intrinsic {record.name!r}: elements of {unknown[0]}"
        raise InvalidProgram(message, help=f"operands of {', '.join(_TYPES)}")
    a_type, b_type, c_type = (_TYPES[dtype] for dtype in dtypes)
    if c_type == "s32" and a_type != b_type:
        at.require(record.name, *SINCE_MIXED)
    words = _words(at, at.elements(op.c))
    b = simt_warpgroup.matrix_of(op.b_matrix)
    others, constraints = [], []
    first = len(words)
    if op.a_matrix is None or op.a_offset is None:
        held = to_words(at.builder, at.elements(op.a))
        others += held
        constraints += ["r"] * len(held)
        a_text = "{" + ", ".join(f"${first + number}" for number in range(len(held))) + "}"
    else:
        a = simt_warpgroup.matrix_of(op.a_matrix)
        others.append(_descriptor(at, at.places[op.a], op.a_offset, a))
        constraints.append("l")
        a_text = f"${first}"
    others.append(_descriptor(at, at.places[op.b], op.b_offset, b))
    constraints.append("l")
    b_text = f"${first + len(others) - 1}"
    others.append(I1(1))
    constraints.append("b")
    keeps = f"${first + len(others) - 1}"
    flags = "" if c_type == "s32" else ", 1, 1"
    if element_bytes(op.b) == 2:
        if op.a_matrix is not None:
            flags += f", {int(simt_warpgroup.matrix_of(op.a_matrix).transposed)}"
        flags += f", {int(b.transposed)}"
    _, n, k = extents_of_record(record)
    types = f"{c_type}.{a_type}.{b_type}"
    results = "{" + ", ".join(f"${number}" for number in range(first)) + "}"
    text = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types} {results}, {a_text}, {b_text}, {keeps}{flags};"
    made = _tied(at, text, words, others, ",".join(constraints))
    if words[0].type != F32:
        made = from_words(at.builder, made, at.elements(op.c)[0].type, tile.shape(op.c)[0])
    at.set(op.result, made)


def _descriptor(at: Emission, place: Place, offset: SSAValue, matrix: simt_warpgroup.Matrix) -> ir.Value:
    """The 64 bits that describe a matrix in shared memory: 14 bits each of address, leading and stride over 16.

    A constant distance is added to the description of where it counts from, which descriptions share.
    """
    builder, base, distance = at.builder, offset, 0
    if isinstance(offset.owner, arith.AddiOp):
        number = (constant_index(offset.owner.rhs) or 0) * place.bytes
        if number and number % 16 == 0:
            base, distance = offset.owner.lhs, number
    start = builder.lshr(builder.ptrtoint(at.address(place, at.scalar(base)), I32), I32(4))
    low = builder.or_(builder.and_(start, I32(0x3FFF)), I32((matrix.leading >> 4 & 0x3FFF) << 16))
    low = builder.add(low, I32(distance >> 4))
    high = matrix.stride >> 4 & 0x3FFF | _MODES[matrix.swizzle] << 30
    words = vector(builder, [low, I32(high - (1 << 32) if high >> 31 else high)])
    return builder.bitcast(words, I64)
