"""Boxes of later trips that are on their way while earlier trips compute: circular buffers of several slots."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, MemRefType, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import circular_buffer
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import stages_of
from tilewright.kernel.bulk_stores import BulkStoreOp
from tilewright.kernel.dialect import INDEX, FuncOp, element, operations, shape
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.facts import facts_of
from tilewright.kernel.passes.common.settings import at_least
from tilewright.kernel.passes.common.trip import again, computed
from tilewright.kernel.passes.gpu.assign_layouts import DIRECT_BYTES
from tilewright.kernel.rewrite import erase, insert_before, replace_by_values
from tilewright.kernel.simt import SHARED, element_bytes

STATE_BYTES = 16  # of a slot: two barriers
OTHER_BYTES = 1024  # left for the alignment of the buffers


@dataclass(frozen=True)
class PipelineTensorCopiesPass(ModulePass):
    """Give circular buffers several slots, and fill the slot of a trip `stages` - 1 trips before.

    Before:  %r, %s = tile.circular_buffer 1
             scf.for %k { produce %r[%n] { … %k … }  consumer_wait %r[%n]  …  consumer_release %r[%n] }
    After:   %r, %s = tile.circular_buffer 4  produce %r[0]  produce %r[1]  produce %r[2]
             scf.for %k { produce %r[%n + 3] { … %k + 3 steps … }  consumer_wait %r[%n]  …  consumer_release %r[%n] }
    Legal for circular buffers of one slot that one loop fills and reads, at places that only its counter and values
    from outside decide; what lies beyond the last trip is not filled. All of a kernel get as many slots. Fewer stages
    where shared memory, as far as results that go through it leave it, is too small; with fewer than 2 nothing changes.
    A kernel's attribute `stages` is asked first. Comes after `tensor-copies`.
    """

    name = "pipeline-tensor-copies"
    stages: int = 4

    def __post_init__(self) -> None:
        at_least(1, self, "stages")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        available = facts_of(op).shared_bytes
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                found = [op for op in operations(kernel.body) if isinstance(op, circular_buffer.ProduceOp)]
                fills = [fill for each in found if (fill := _fill(each)) is not None]
                stages = min(stages_of(kernel, self.stages), _fitting(fills, kernel, available)) if fills else 1
                for loop in dict.fromkeys(fill.loop for fill in fills):
                    _deepen(loop, [fill for fill in fills if fill.loop is loop], stages)


@dataclass(frozen=True)
class _Fill:
    """What fills a circular buffer in every trip of a loop."""

    circular: circular_buffer.CircularOp
    loop: scf.ForOp
    op: circular_buffer.ProduceOp
    slice: tuple[Operation, ...]  # what computes the number of the use and the places of its boxes


def _fill(fill: circular_buffer.ProduceOp) -> _Fill | None:
    """A fill that can run ahead."""
    circular = fill.state.owner
    assert isinstance(circular, circular_buffer.CircularOp), "verified"
    users = [use.operation for each in circular.results for use in each.uses]
    fills = [user for user in users if isinstance(user, circular_buffer.ProduceOp)]
    if circular.slots.value.data != 1 or len(fills) != 1:
        return None
    loop, body = fill.parent_op(), fill.parent
    products = [user for user in users if isinstance(user, circular_buffer.StagedDotOp)]
    if not isinstance(loop, scf.ForOp) or body is None or any(product.parent is not body for product in products):
        return None
    copies = [copy for copy in fill.body.block.ops if isinstance(copy, circular_buffer.BulkLoadOp)]
    places = [coordinate for copy in copies for coordinate in copy.coordinates]
    slice_ = computed([fill.number, *places], body)
    return None if slice_ is None else _Fill(circular, loop, fill, slice_)


def _fitting(fills: Sequence[_Fill], kernel: FuncOp, available: int) -> int:
    """Slots that fit beside the tiles that pass through shared memory, each in its own.

    Those are what is stored, and what is loaded for first factors that threads hold.
    """
    stored = [each for each in operations(kernel.body) if isinstance(each, tile.StoreOp) and not _is_direct(each)]
    taken = sum(prod(shape(each.value)) * element_bytes(each.value) for each in stored)
    boxes = [each for each in operations(kernel.body) if isinstance(each, BulkStoreOp)]
    taken += sum(each.buffers * each.buffer_elements * element_bytes(each.view) for each in boxes)
    taken += sum(prod(shape(each.result)) * element_bytes(each.view) for each in _loads_of_factors(kernel))
    deeper = [fill.circular for fill in fills]
    others = [op for op in operations(kernel.body) if isinstance(op, circular_buffer.CircularOp) and op not in deeper]
    taken += sum(_slot_bytes(each) * each.slots.value.data for each in others)
    return max(0, available - taken - OTHER_BYTES) // sum(map(_slot_bytes, deeper))


def _loads_of_factors(kernel: FuncOp) -> set[tile.LoadOp]:
    """The loads of tiles from which first factors that threads hold are computed, element by element."""
    found, seen = set[tile.LoadOp](), set[SSAValue]()
    left = [op.a for op in operations(kernel.body) if isinstance(op, circular_buffer.StagedDotOp) and op.holds_a]
    while left:
        value = left.pop()
        owner = value.owner
        if value in seen or not isinstance(owner, Operation):
            continue
        seen.add(value)
        if isinstance(owner, tile.LoadOp):
            found.add(owner)
        elif owner.name in ELEMENT:
            left += [operand for operand in owner.operands if shape(operand)]
    return found


def _slot_bytes(circular: circular_buffer.CircularOp) -> int:
    return STATE_BYTES + sum(circular.slot_elements(each) * element_bytes(each) for each in circular.buffers)


def _is_direct(op: tile.StoreOp) -> bool:
    """Whether two neighbours of a result are 8 bytes that threads store where they belong."""
    aligned = op.align is not None and op.align.value.data >= DIRECT_BYTES
    return aligned and element_bytes(op.view) * 2 == DIRECT_BYTES and tile.strides_of(op)[-1:] == (1,)


def _deepen(loop: scf.ForOp, fills: Sequence[_Fill], stages: int) -> None:
    if stages < 2:
        return
    for trip in range(stages - 1):
        for fill in fills:
            _ahead(fill, loop.lb, trip, loop)
    start = loop.body.block.first_op
    assert start is not None
    for fill in fills:
        _ahead(fill, loop.body.block.args[0], stages - 1, start)
        erase(fill.op)
        circular = fill.circular
        buffers = [_widened(buffer, stages) for buffer in circular.buffers]
        wider = circular_buffer.CircularOp(stages, _widened(circular.state, stages), buffers)
        insert_before(circular, wider)
        replace_by_values(circular, wider.results)


def _ahead(fill: _Fill, from_: SSAValue, trips: int, place: Operation) -> None:
    """Before `place`, the fill of the trip that is `trips` after the one with counter `from_`, if there is one."""
    loop = fill.loop

    def add(op: Operation) -> SSAValue:
        insert_before(place, op)
        return op.results[0]

    distance = add(arith.MuliOp(loop.step, add(arith.ConstantOp(IntegerAttr(trips, INDEX)))))
    counter = add(arith.AddiOp(from_, distance))
    when = add(tile.CompareOp("lt", counter, loop.ub))
    values = again(fill.slice, {loop.body.block.args[0]: counter}, place)
    made = fill.op.clone(value_mapper=values)
    made.operands[list(made.operands).index(made.when)] = when
    insert_before(place, made)


def _widened(value: SSAValue, slots: int) -> MemRefType[Attribute]:
    assert isinstance(value.type, MemRefType)
    return MemRefType(element(value), [value.type.get_shape()[0] * slots], memory_space=SHARED)
