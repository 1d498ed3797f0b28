"""What threads do about the circular buffers of a block: the first one fills, one lane of each warp releases, all wait.

Where blocks of a program copy boxes together, a slot is one of all of them: it is free once the warps of all have
released it, each at the barriers of every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Protocol

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, MemRefType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tilewright.errors import InvalidProgram
from tilewright.kernel import circular_buffer, simt
from tilewright.kernel import dialect as tile
from tilewright.kernel.passes.gpu.distribution.layout import canonical, layout_of
from tilewright.kernel.passes.gpu.distribution.matrix import fragments
from tilewright.kernel.passes.gpu.distribution.warpgroup import Operand, one_result, operand_of
from tilewright.kernel.records import extents_of_record, record_of
from tilewright.kernel.simt import SHARED, element_bytes
from tilewright.kernel.simt_async import FenceOp, MbarrierArriveOp, MbarrierInitOp, MbarrierWaitOp, TensorLoadOp
from tilewright.kernel.simt_warpgroup import (
    WARPS,
    WarpgroupCommitOp,
    WarpgroupFenceOp,
    WarpgroupMmaOp,
    WarpgroupWaitOp,
    WarpIdOp,
)
from tilewright.kernel.tensor_map_box import TensorMapBox
from tilewright.layouts.linear import LinearLayout

SLOT_ALIGN = 1024  # of a swizzled tile: 8 rows of 128 bytes


class Threads(Protocol):
    """What the expansion of tiles offers."""

    values: dict[SSAValue, SSAValue]

    @property
    def kernel(self) -> tile.FuncOp: ...
    def add(self, op: Operation) -> Operation: ...
    def number(self, value: int) -> SSAValue: ...
    def thread(self) -> SSAValue: ...
    def picked(self, value: SSAValue, order: Sequence[int]) -> SSAValue: ...
    def joined(self, parts: Sequence[SSAValue]) -> SSAValue: ...


def expand(at: Threads, op: Operation) -> None:
    """Emit what threads do for an operation of `circular buffers`, and note its results."""
    match op:
        case circular_buffer.CircularOp():
            _circular(at, op)
        case circular_buffer.ProduceOp():
            _produce(at, op)
        case circular_buffer.ConsumerWaitOp():
            slot, turn = _slot(at, op.state, op.number)
            at.add(MbarrierWaitOp(at.values[op.state], slot, turn))
        case circular_buffer.ConsumerReleaseOp():
            _release(at, op)
        case circular_buffer.StagedDotOp():
            at.values[op.result] = _dot(at, op)
        case circular_buffer.FinishOp():
            at.values[op.result] = at.add(WarpgroupWaitOp(op.pending.value.data, [at.values[op.value]])).results[0]
        case _:
            raise AssertionError(f"{op.name} is no operation of circular buffers")


def _add(at: Threads, a: SSAValue, b: SSAValue) -> SSAValue:
    return at.add(arith.AddiOp(a, b)).results[0]


def _circular(at: Threads, op: circular_buffer.CircularOp) -> None:
    """Slots are filled by one thread, and released by as many warps as the blocks that share copies have."""
    slots, shared = op.slots.value.data, _is_shared(op)
    warps = prod(at.kernel.block) // at.kernel.lanes * (at.kernel.blocks if shared else 1)
    for buffer in op.buffers:
        at.values[buffer] = _shared(at, buffer.type, SLOT_ALIGN)
    state = at.values[op.state] = _shared(at, op.state.type, 8)
    first = at.add(tile.CompareOp("eq", at.thread(), at.number(0))).results[0]
    inside = Block()
    for number in range(2 * slots):
        index = arith.ConstantOp(IntegerAttr(number, tile.INDEX))
        inside.add_ops([index, MbarrierInitOp(state, index.result, 1 if number < slots else warps)])
    inside.add_ops([FenceOp("mbarrier"), scf.YieldOp()])
    at.add(scf.IfOp(first, [], Region(inside), Region()))
    at.add(simt.ClusterBarrierOp() if shared else simt.BarrierOp())


def _is_shared(op: circular_buffer.CircularOp) -> bool:
    """Whether blocks of a program copy any of a circular buffer's boxes together."""
    fills = [use.operation for use in op.state.uses if isinstance(use.operation, circular_buffer.ProduceOp)]
    copies = [copy for fill in fills for copy in fill.body.block.ops]
    return any(isinstance(copy, circular_buffer.BulkLoadOp) and copy.together is not None for copy in copies)


def _shared(at: Threads, type_: Attribute, align: int) -> SSAValue:
    assert isinstance(type_, MemRefType)
    made = MemRefType(type_.element_type, list(type_.get_shape()), memory_space=SHARED)
    return at.add(simt.SharedOp(made, align)).results[0]


def _slots(state: SSAValue) -> int:
    assert isinstance(state.owner, circular_buffer.CircularOp)
    return state.owner.slots.value.data


def _slot(at: Threads, state: SSAValue, number: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The slot of a use, and the parity of its turn."""
    use, slots = at.values[number], at.number(_slots(state))
    turn = at.add(arith.DivUIOp(use, slots)).results[0]
    slot = at.add(arith.RemUIOp(use, slots)).results[0]
    return slot, at.add(arith.AndIOp(turn, at.number(1))).results[0]


def _produce(at: Threads, op: circular_buffer.ProduceOp) -> None:
    slot, turn = _slot(at, op.state, op.number)
    state, slots = at.values[op.state], _slots(op.state)
    empty = _add(at, slot, at.number(slots))
    before = at.add(arith.XOrIOp(turn, at.number(1))).results[0]
    copies = [each for each in op.body.block.ops if isinstance(each, circular_buffer.BulkLoadOp)]
    parts = [_part(at, copy, slot) for copy in copies]
    inside = Block()
    sizes = [prod(copy.form.sides) * element_bytes(copy.buffer) for copy in copies]
    inside.add_op(MbarrierWaitOp(state, empty, before))
    inside.add_op(MbarrierArriveOp(state, slot, sum(sizes)))
    for copy, (coordinates, place, box) in zip(copies, parts, strict=True):
        view, buffer, everywhere = at.values[copy.view], at.values[copy.buffer], copy.together is not None
        inside.add_op(TensorLoadOp(view, coordinates, buffer, place, state, slot, box, everywhere))
    inside.add_op(scf.YieldOp())
    first = at.add(tile.CompareOp("eq", at.thread(), at.number(0))).results[0]
    when = at.add(arith.AndIOp(first, at.values[op.when])).results[0]
    at.add(scf.IfOp(when, [], Region(inside), Region()))


def _part(
    at: Threads, copy: circular_buffer.BulkLoadOp, slot: SSAValue
) -> tuple[list[SSAValue], SSAValue, TensorMapBox]:
    """What this block brings of a box: where it begins in the tensor and in the buffer, and its sides."""
    circular, box = copy.buffer.owner, copy.form
    assert isinstance(circular, circular_buffer.CircularOp)
    start = at.add(arith.MuliOp(slot, at.number(circular.slot_elements(copy.buffer)))).results[0]
    place = _add(at, start, at.number(copy.place.value.data))
    coordinates = [at.values[value] for value in copy.coordinates]
    if copy.together is not None:
        rows = box.sides[-2] // at.kernel.blocks
        box = replace(box, sides=(*box.sides[:-2], rows, box.sides[-1]))
        first = at.add(arith.MuliOp(at.add(tile.BlockRankOp()).results[0], at.number(rows))).results[0]
        coordinates[-2] = _add(at, coordinates[-2], first)
        place = _add(at, place, at.add(arith.MuliOp(first, at.number(box.sides[-1]))).results[0])
    return coordinates, place, box


def _release(at: Threads, op: circular_buffer.ConsumerReleaseOp) -> None:
    slot, _ = _slot(at, op.state, op.number)
    empty = _add(at, slot, at.number(_slots(op.state)))
    lane = at.add(arith.AndIOp(at.thread(), at.number(at.kernel.lanes - 1))).results[0]
    circular = op.state.owner
    assert isinstance(circular, circular_buffer.CircularOp)
    if _is_shared(circular):  # a lane for each block
        releases = at.add(tile.CompareOp("lt", lane, at.number(at.kernel.blocks))).results[0]
        arrive = MbarrierArriveOp(at.values[op.state], empty, rank=lane)
    else:
        releases = at.add(tile.CompareOp("eq", lane, at.number(0))).results[0]
        arrive = MbarrierArriveOp(at.values[op.state], empty)
    at.add(scf.IfOp(releases, [], Region(Block([arrive, scf.YieldOp()])), Region()))


# Products -------------------------------------------------------------------------------------------------------------


def _dot(at: Threads, op: circular_buffer.StagedDotOp) -> SSAValue:
    """One product per part of the result and step of k; k outermost, so that neighbours are independent."""
    name, layout = op.intrinsic.data, layout_of(op.c)
    if layout is None:
        raise InvalidProgram(f"{op.result.type} has no layout", help="run assign-layouts before distribute")
    record = record_of(op)
    _, _, step = extents_of_record(record)
    m, columns, depth = op.extents
    size = element_bytes(op.a)
    a = operand_of(op.a_memory.data, m, depth, size, 0)
    b = operand_of(op.b_memory.data, columns, depth, size, 1)
    slot = at.add(arith.RemUIOp(at.values[op.number], at.number(_slots_of(op.a)))).results[0]
    starts = [
        _start(at, view, slot, operand, layout, dim) for dim, (view, operand) in enumerate(((op.a, a), (op.b, b)))
    ]
    parts = fragments(layout, canonical(one_result(record)))
    held = {start: at.picked(at.values[op.c], registers) for start, registers in parts.items()}
    fenced = at.add(WarpgroupFenceOp(list(held.values()))).results
    held = dict(zip(held, fenced, strict=True))
    for k in range(0, depth, step):
        for row, column in held:
            here = _add(at, starts[0], at.number(a.place(row, k)))
            there = _add(at, starts[1], at.number(b.place(column, k)))
            product = WarpgroupMmaOp(
                name, at.values[op.a], here, a.matrix, at.values[op.b], there, b.matrix, held[row, column]
            )
            held[row, column] = at.add(product).results[0]
    at.add(WarpgroupCommitOp())
    joined = at.joined(list(held.values()))
    order = [register for registers in parts.values() for register in registers]
    return at.picked(joined, [order.index(register) for register in range(len(order))])


def _slots_of(buffer: SSAValue) -> int:
    circular = buffer.owner
    assert isinstance(circular, circular_buffer.CircularOp)
    return circular.slots.value.data


def _start(at: Threads, view: SSAValue, slot: SSAValue, operand: Operand, layout: LinearLayout, dim: int) -> SSAValue:
    """Where the operand of this group of warps begins: in the slot, at the group's rows of a or columns of b."""
    circular = view.owner
    assert isinstance(circular, circular_buffer.CircularOp)
    start: SSAValue = at.add(arith.MuliOp(slot, at.number(circular.slot_elements(view)))).results[0]
    groups = layout.of("warp")[WARPS.bit_length() - 1 :]
    for bit, bases in enumerate(groups):
        if not bases[dim]:
            continue
        distance = operand.place(bases[dim], 0)
        warp = at.add(WarpIdOp()).results[0]
        high = at.add(arith.ShRUIOp(warp, at.number(bit + WARPS.bit_length() - 1))).results[0]
        one = at.add(arith.AndIOp(high, at.number(1))).results[0]
        start = _add(at, start, at.add(arith.MuliOp(one, at.number(distance))).results[0])
    return start
