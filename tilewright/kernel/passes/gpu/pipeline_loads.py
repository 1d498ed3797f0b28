"""Loads of a loop that are on their way while earlier trips compute: several buffers, asynchronous copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, MemRefType, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import stages_of
from tilewright.kernel.dialect import INDEX, FuncOp, element, operations, shape
from tilewright.kernel.facts import NOTHING, facts_of
from tilewright.kernel.passes.common.settings import at_least, one_of
from tilewright.kernel.passes.common.trip import computed, only_user
from tilewright.kernel.passes.gpu.distribution.access import aligned, coalesced, neighbours
from tilewright.kernel.passes.gpu.distribution.layout import canonical, layout_of, with_layout
from tilewright.kernel.passes.gpu.distribution.opaque import memory_between
from tilewright.kernel.passes.gpu.distribution.rows import MEMORIES, Rows, rows_between
from tilewright.kernel.passes.gpu.distribution.staging import places, staging
from tilewright.kernel.simt import COPY_BYTES, SHARED, element_bytes
from tilewright.layouts.access import LINE_BYTES, contiguity
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.opaque import Opaque
from tilewright.machine.units import COPIES

SCHEDULES: Final = ("auto", "tensor-core", "load-first")
"""When a trip copies for a later one: before it computes, or behind; or as the products of the loop want it."""


@dataclass(frozen=True)
class PipelineLoadsPass(ModulePass):
    """Copy the tiles that a loop reads several trips ahead, into `stages` buffers in turns.

    Before:  scf.for %k { %x = tile.load %a[…]  %y = tile.convert %x  … }
    After:   stage(0) commit stage(1) commit
             scf.for %k { await 1  stage(%k + 2)  commit  %y = tile.unstage …  … }
    or:      stage(0) commit stage(1) commit stage(2) commit
             scf.for %k { await 2  %y = tile.unstage …  …  barrier  stage(%k + 3)  commit }
    The first is the `schedule` "tensor-core": a trip fills the buffer that the trip before has read, with one barrier,
    and `stages` - 1 tiles are on their way. The second, "load-first", fills its own again behind what it computes: one
    tile more, and one barrier more; "auto" takes it for unspecified fragment layouts, since these do not mix with
    the loads of fragments of the next step. Tiles lie as `memory` says: swizzled, or in rows that are padded or plain.

    Legal for loads without mask whose only use is a conversion, perhaps of another shape, of memory that the kernel
    does not write, at offsets and in bounds that only the loop's counter and values from outside decide, in pieces of 4
    bytes or more; outside of bounds are zeros. Needs `assign-layouts`. Groups are committed in every trip, so that
    their count stays exact; what lies beyond the last trip is not copied. A kernel's attribute `stages` is asked first.
    Nothing changes with fewer than 2 stages, nor for a machine that has no such copies.
    """

    name = "pipeline-loads"
    stages: int = 3
    schedule: str = "auto"
    memory: str = "swizzled"

    def __post_init__(self) -> None:
        at_least(1, self, "stages")
        one_of(SCHEDULES, self, "schedule")
        one_of(MEMORIES, self, "memory")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts = facts_of(op)
        if facts != NOTHING and COPIES not in facts.units:
            return
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block and (stages := stages_of(kernel, self.stages)) > 1:
                written = {each.view for each in operations(kernel.body) if isinstance(each, tile.StoreOp)}
                for loop in [each for each in operations(kernel.body) if isinstance(each, scf.ForOp)]:
                    _pipeline(loop, stages, self.schedule, self.memory, written)


@dataclass(frozen=True)
class _Settings:
    """Buffers, and whether a trip fills its own again."""

    stages: int
    refills: bool

    @property
    def ahead(self) -> int:
        """How many trips a copy runs ahead."""
        return self.stages - (0 if self.refills else 1)


@dataclass(frozen=True)
class _Staged:
    """One load on its way: the conversion that wants it, its buffer, and the memory of one tile there."""

    load: tile.LoadOp
    type: TensorType[Attribute]  # of the tile with the layout of the threads that copy
    reshapes: list[tile.ReshapeOp]  # between the load and the conversion
    convert: tile.ConvertOp
    slice: tuple[Operation, ...]  # what computes its offset and bounds in a trip, in order
    memory: str  # of the tile that is loaded
    read_as: str  # the same memory of the tile that is converted
    elements: int


def _pipeline(loop: scf.ForOp, stages: int, schedule: str, memory: str, written: set[SSAValue]) -> None:
    body = loop.body.block
    found = [staged for op in body.ops if (staged := _candidate(op, body, written, memory)) is not None]
    if not found:
        return
    opaque = any(isinstance(layout_of(staged.convert.result), Opaque) for staged in found)
    given = _Settings(stages, schedule == "load-first" or (schedule == "auto" and opaque))
    before = _Before(loop)
    buffers = [
        before.add(tile.StagingOp(MemRefType(element(s.load.view), [stages * s.elements], memory_space=SHARED)))
        for s in found
    ]
    # Trips that run ahead of the loop.
    for trip in range(given.ahead):
        ahead = before.add(arith.MuliOp(before.number(trip), loop.step))
        counter = before.add(arith.AddiOp(loop.lb, ahead))
        when = before.add(tile.CompareOp("lt", counter, loop.ub))
        for staged, buffer in zip(found, buffers, strict=True):
            _copy(before, staged, body, counter, buffer, before.number(trip * staged.elements), when)
        before.add_only(tile.CommitOp())
    # The loop: wait for this trip's tiles, start those of a later trip in the buffer that is free.
    at = _Before(body.first_op)
    done = at.add(arith.SubiOp(body.args[0], loop.lb))
    trip_number = at.add(arith.DivUIOp(done, loop.step))
    own = free = at.add(arith.RemUIOp(trip_number, at.number(stages)))
    if not given.refills:
        free = at.add(arith.RemUIOp(at.add(arith.AddiOp(trip_number, at.number(given.ahead))), at.number(stages)))
    counter = at.add(arith.AddiOp(body.args[0], at.add(arith.MuliOp(loop.step, at.number(given.ahead)))))
    when = at.add(tile.CompareOp("lt", counter, loop.ub))
    at.add_only(tile.AwaitOp(given.ahead - 1))
    if given.refills:
        at = _Before(body.last_op)
        at.add_only(tile.BarrierOp())
    for staged, buffer in zip(found, buffers, strict=True):
        place = at.add(arith.MuliOp(free, at.number(staged.elements)))
        _copy(at, staged, body, counter, buffer, place, when)
    at.add_only(tile.CommitOp())
    for staged, buffer in zip(found, buffers, strict=True):
        reading = _Before(staged.convert)
        place = reading.add(arith.MuliOp(own, reading.number(staged.elements)))
        tiles = reading.add(tile.UnstageOp(buffer, place, staged.read_as, staged.convert.result.type))
        tiles.name_hint = staged.load.result.name_hint
        staged.convert.result.replace_all_uses_with(tiles)
        for op in (staged.convert, *reversed(staged.reshapes), staged.load):
            body.erase_op(op)


def _candidate(op: Operation, body: Block, written: set[SSAValue], lies: str) -> _Staged | None:
    if not isinstance(op, tile.LoadOp) or op.mask is not None or op.view in written or not shape(op.result):
        return None
    reshapes: list[tile.ReshapeOp] = []
    user = only_user(op.result, body)
    while isinstance(user, tile.ReshapeOp):
        reshapes.append(user)
        user = only_user(user.result, body)
    if not isinstance(user, tile.ConvertOp):
        return None
    source, target, own = layout_of(user.value), layout_of(user.result), layout_of(op.result)
    needed = computed((op.offset, *op.bounds), body)
    if source is None or target is None or own is None or needed is None or op.view.owner is body:
        return None
    size = element_bytes(op.view)
    memory = _memory(source, target, size * 8, lies, bool(reshapes))
    align = 1 if op.align is None else op.align.value.data
    width = min(memory.run(own, shape(op.result)), max(1, align // size))
    width = min(width, neighbours(own, tile.strides_of(op), max(1, align // size)))
    while not aligned(own, tile.strides_of(op), width):
        width //= 2
    if width * size not in COPY_BYTES or not own.of("register"):
        return None
    # Where copies are narrower than loads, neighbouring threads copy neighbouring pieces of a line. Memory is then that
    # of these copies, in which they have no bank conflicts. The copies of a warp take a cycle for every line that they
    # read, at least: with sectors of 16 rows, 16 instead of 4 (measured on an H200, `emulator.counts`).
    warps, lanes, run = own.in_size("warp"), own.in_size("lane"), max(width, LINE_BYTES // size)
    copied = coalesced(shape(op.result), tile.strides_of(op), width, warps, lanes, run)
    if width < neighbours(own, tile.strides_of(op), max(1, align // size)):
        other = _memory(canonical(copied.reshape(source.shape)), target, size * 8, lies, bool(reshapes))
        memory = other if other.run(copied, shape(op.result)) >= width else memory
    if memory.run(copied, shape(op.result)) < width or neighbours(copied, tile.strides_of(op), width) < width:
        copied = own
    type_ = with_layout(op.result.type, copied)
    assert isinstance(type_, TensorType)
    written_as = memory.text(shape(op.result))
    return _Staged(op, type_, reshapes, user, needed, written_as, memory.text(source.shape), memory.elements)


@dataclass(frozen=True)
class _Memory:
    """How the elements of a tile lie in a buffer: as a layout says, or in rows."""

    lies: LinearLayout | Rows

    def run(self, layout: LinearLayout, extents: Sequence[int]) -> int:
        """How many registers of a thread, in order, lie side by side."""
        if isinstance(self.lies, Rows):
            return neighbours(layout, self.lies.strides, layout.in_size("register"))
        here = self.lies.reshape(extents)
        return min(contiguity(layout, here), 1 << len(places(layout, here).of("register")))

    def text(self, extents: Sequence[int]) -> str:
        """The memory of the same elements as a tile of other extents."""
        return str(self.lies) if isinstance(self.lies, Rows) else str(self.lies.reshape(extents))

    @property
    def elements(self) -> int:
        return self.lies.elements if isinstance(self.lies, Rows) else prod(self.lies.shape)


def _memory(source: LinearLayout, target: LinearLayout, bits: int, lies: str, reshaped: bool) -> _Memory:
    """Where a tile lies; rows have no padding in memory that is that of a tile of other extents too."""
    if isinstance(target, Opaque):
        return _Memory(memory_between(source, target, bits, "linear" if reshaped else lies))
    lies = "swizzled" if reshaped else lies
    return _Memory(rows_between(source, bits, lies) or staging(source, target, bits)[0])


def _copy(
    at: _Before, staged: _Staged, body: Block, counter: SSAValue, buffer: SSAValue, place: SSAValue, when: SSAValue
) -> None:
    """Start the copy of the tile of the trip with this counter."""
    values: dict[SSAValue, SSAValue] = {body.args[0]: counter}
    for op in staged.slice:
        again = op.clone(value_mapper=values)
        at.add_only(again)
        values.update(zip(op.results, again.results, strict=True))
    load = staged.load
    offset, bounds = _mapped(load.offset, values), [_mapped(bound, values) for bound in load.bounds]
    align = 1 if load.align is None else load.align.value.data
    strides, type_ = tile.strides_of(load), staged.type
    at.add_only(tile.StageOp(load.view, offset, buffer, place, when, strides, align, staged.memory, type_, bounds))


def _mapped(value: SSAValue, values: Mapping[SSAValue, SSAValue]) -> SSAValue:
    return values.get(value, value)


class _Before:
    """Puts operations before another one, with its location."""

    def __init__(self, op: Operation | None) -> None:
        assert op is not None
        self.op = op

    def add_only(self, op: Operation) -> None:
        op.location = self.op.location
        block = self.op.parent
        assert block is not None
        block.insert_op_before(op, self.op)

    def add(self, op: Operation) -> SSAValue:
        self.add_only(op)
        return op.results[0]

    def number(self, value: int) -> SSAValue:
        return self.add(arith.ConstantOp(IntegerAttr(value, INDEX)))
