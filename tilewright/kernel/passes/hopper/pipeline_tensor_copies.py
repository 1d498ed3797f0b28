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
    Legal for circular buffers of one slot that one loop fills, at places that only its counter and values from outside
    decide; what lies beyond the last trip is not filled. Fewer stages where shared memory, as far as results that go
    through it leave it, is too small; with fewer than 2 nothing changes. A kernel's attribute `stages` is asked
    first. Comes after `tensor-copies`.
    """

    name = "pipeline-tensor-copies"
    stages: int = 4

    def __post_init__(self) -> None:
        at_least(1, self, "stages")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        room = facts_of(op).shared_bytes
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                circulars = [op for op in operations(kernel.body) if isinstance(op, circular_buffer.CircularOp)]
                for circular in circulars:
                    _deepen(circular, min(stages_of(kernel, self.stages), _fitting(circular, kernel, room)))


def _fitting(circular: circular_buffer.CircularOp, kernel: FuncOp, room: int) -> int:
    """Slots for which there is room beside the tiles that are stored through shared memory, each in its own."""
    stored = [each for each in operations(kernel.body) if isinstance(each, tile.StoreOp) and not _is_direct(each)]
    results = sum(prod(shape(each.value)) * element_bytes(each.value) for each in stored)
    boxes = [each for each in operations(kernel.body) if isinstance(each, BulkStoreOp)]
    results += sum(each.buffers * each.buffer_elements * element_bytes(each.view) for each in boxes)
    slot = sum(circular.slot_elements(buffer) * element_bytes(buffer) for buffer in circular.buffers) + STATE_BYTES
    return max(0, room - results - OTHER_BYTES) // slot


def _is_direct(op: tile.StoreOp) -> bool:
    """Whether two neighbours of a result are 8 bytes that threads store where they belong."""
    aligned = op.align is not None and op.align.value.data >= DIRECT_BYTES
    return aligned and element_bytes(op.view) * 2 == DIRECT_BYTES and tile.strides_of(op)[-1:] == (1,)


def _deepen(circular: circular_buffer.CircularOp, stages: int) -> None:
    fills = [use.operation for use in circular.state.uses if isinstance(use.operation, circular_buffer.ProduceOp)]
    if stages < 2 or circular.slots.value.data != 1 or len(fills) != 1:
        return
    fill = fills[0]
    loop = fill.parent_op()
    if not isinstance(loop, scf.ForOp) or fill.parent is not loop.body.block:
        return
    copies = [copy for copy in fill.body.block.ops if isinstance(copy, circular_buffer.BulkLoadOp)]
    places = [coordinate for copy in copies for coordinate in copy.coordinates]
    slice_ = computed([fill.number, *places], loop.body.block)
    if slice_ is None:
        return
    for trip in range(stages - 1):
        _ahead(fill, slice_, loop, loop.lb, trip, loop)
    start = loop.body.block.first_op
    assert start is not None
    _ahead(fill, slice_, loop, loop.body.block.args[0], stages - 1, start)
    erase(fill)
    buffers = [_widened(buffer, stages) for buffer in circular.buffers]
    wider = circular_buffer.CircularOp(stages, _widened(circular.state, stages), buffers)
    insert_before(circular, wider)
    replace_by_values(circular, wider.results)


def _ahead(
    fill: circular_buffer.ProduceOp,
    slice_: Sequence[Operation],
    loop: scf.ForOp,
    from_: SSAValue,
    trips: int,
    place: Operation,
) -> None:
    """Before `place`, the fill of the trip that is `trips` after the one with counter `from_`, if there is one."""

    def add(op: Operation) -> SSAValue:
        insert_before(place, op)
        return op.results[0]

    distance = add(arith.MuliOp(loop.step, add(arith.ConstantOp(IntegerAttr(trips, INDEX)))))
    counter = add(arith.AddiOp(from_, distance))
    when = add(tile.CompareOp("lt", counter, loop.ub))
    values = again(slice_, {loop.body.block.args[0]: counter}, place)
    made = fill.clone(value_mapper=values)
    made.operands[list(made.operands).index(made.when)] = when
    insert_before(place, made)


def _widened(value: SSAValue, slots: int) -> MemRefType[Attribute]:
    assert isinstance(value.type, MemRefType)
    return MemRefType(element(value), [value.type.get_shape()[0] * slots], memory_space=SHARED)
