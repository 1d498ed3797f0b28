"""What threads do about the circular buffers of a block: the first one fills, one lane of each warp releases, all wait.

Where blocks of a program copy boxes together, a slot is one of all of them: it is free once the warps of all have
released it, each at the barriers of every block.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, MemRefType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tilewright.kernel import circular_buffer, simt
from tilewright.kernel import dialect as tile
from tilewright.kernel.hopper.simt_async import (
    FenceOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    TensorLoadOp,
    WarpBarrierOp,
)
from tilewright.kernel.passes.gpu.distribution import staged_products
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion
from tilewright.kernel.simt import SHARED, element_bytes
from tilewright.kernel.tensor_map_box import TensorMapBox

SLOT_ALIGN = 1024  # of a swizzled tile: 8 rows of 128 bytes


def expand(at: Expansion, op: Operation) -> None:
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
            at.values[op.result] = staged_products.staged_dot(at, op)
        case circular_buffer.FinishOp():
            at.values[op.result] = staged_products.finish(at, op)
        case _:
            raise AssertionError(f"{op.name} is no operation of circular buffers")


def _add(at: Expansion, a: SSAValue, b: SSAValue) -> SSAValue:
    return at.add(arith.AddiOp(a, b)).results[0]


def _circular(at: Expansion, op: circular_buffer.CircularOp) -> None:
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


def _shared(at: Expansion, type_: Attribute, align: int) -> SSAValue:
    assert isinstance(type_, MemRefType)
    made = MemRefType(type_.element_type, list(type_.get_shape()), memory_space=SHARED)
    return at.add(simt.SharedOp(made, align)).results[0]


def _slots(state: SSAValue) -> int:
    assert isinstance(state.owner, circular_buffer.CircularOp)
    return state.owner.slots.value.data


def _slot(at: Expansion, state: SSAValue, number: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The slot of a use, and the parity of its turn."""
    use, slots = at.values[number], at.number(_slots(state))
    turn = at.add(arith.DivUIOp(use, slots)).results[0]
    slot = at.add(arith.RemUIOp(use, slots)).results[0]
    return slot, at.add(arith.AndIOp(turn, at.number(1))).results[0]


def _produce(at: Expansion, op: circular_buffer.ProduceOp) -> None:
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
    at: Expansion, copy: circular_buffer.BulkLoadOp, slot: SSAValue
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


def _release(at: Expansion, op: circular_buffer.ConsumerReleaseOp) -> None:
    slot, _ = _slot(at, op.state, op.number)
    empty = _add(at, slot, at.number(_slots(op.state)))
    lane = at.add(arith.AndIOp(at.thread(), at.number(at.kernel.lanes - 1))).results[0]
    circular = op.state.owner
    assert isinstance(circular, circular_buffer.CircularOp)
    if _is_read_by_lanes(circular):
        at.add(WarpBarrierOp())
    if _is_shared(circular):  # a lane for each block
        releases = at.add(tile.CompareOp("lt", lane, at.number(at.kernel.blocks))).results[0]
        arrive = MbarrierArriveOp(at.values[op.state], empty, rank=lane)
    else:
        releases = at.add(tile.CompareOp("eq", lane, at.number(0))).results[0]
        arrive = MbarrierArriveOp(at.values[op.state], empty)
    at.add(scf.IfOp(releases, [], Region(Block([arrive, scf.YieldOp()])), Region()))


def _is_read_by_lanes(op: circular_buffer.CircularOp) -> bool:
    """Whether threads themselves read from the slots, so that all lanes of a warp have to be done."""
    users = [use.operation for buffer in op.buffers for use in buffer.uses]
    return any(isinstance(user, circular_buffer.StagedDotOp) and user.by_registers for user in users)
