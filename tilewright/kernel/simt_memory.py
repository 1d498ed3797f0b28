"""The memory that a block of threads sees, with the checks of every access: bounds, undefined memory, races, copies
that are under way.

An access is a flat array of element numbers with, for each, the lane (its index in the group that runs together), the
thread and who touches it: a thread, or a warp as a whole. Whoever touches a unit (an element of global memory, some
bytes of shared memory) that another has written since the last barrier makes a race.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import FuncOp, operations
from tilewright.kernel.elements import Array, dtype_of
from tilewright.kernel.simt import AsyncCopyOp, SharedOp, element_bytes
from tilewright.kernel.simt_clocks import Clocks, Seen
from tilewright.kernel.views import READ, UPDATE, WRITE, Touches, View, first, has_repeats, line

_BLOCK_ALIGN = 1024  # of shared memory among those of a program: no swizzle reaches further

Step = tuple[Operation, type[Operation], tuple[SSAValue, ...], tuple[SSAValue, ...]]
"""An operation of a block: its kind, operands and results."""


@dataclass
class Place:
    """A view as a block sees it. Element e is made of units ``start + e * grains`` to the next one's.

    `per_thread` elements belong to each thread alone, and no unit is watched. `arriving` counts the copies under way to
    a unit, `leaving` those from it. `seen` are touches of global memory where warps are ordered apart.
    """

    view: View
    touches: Touches | None = None
    arriving: Array | None = None
    leaving: Array | None = None
    start: int = 0
    grains: int = 1
    per_thread: int = 0
    seen: Seen | None = None

    @property
    def elements(self) -> int:
        return self.per_thread or len(self.view.array)

    def units(self, chosen: Array) -> Array:
        """Units of elements: (..., grains)."""
        return self.start + chosen[..., None] * self.grains + np.arange(self.grains)


@dataclass
class Access:
    """One operation's access: elements, and for each the thread and its lane in the group; `warps` touch as a whole."""

    op: Operation
    chosen: Array
    threads: Array
    lanes: Array
    warps: bool = False

    def at(self, kept: Array) -> Access:
        return Access(self.op, self.chosen[kept], self.threads[kept], self.lanes[kept], self.warps)


@dataclass
class _Copy:
    """Copies that one operation has started, one per row: the thread, its group, and the elements it moves."""

    source: Place
    target: Place
    threads: Array
    groups: Array
    taken: Array  # elements of the source
    valid: Array  # which of them are read
    into: Array  # elements of the target
    numbers: Array

    def at(self, rows: Array) -> _Copy:
        arrays = (each[rows] for each in (self.threads, self.groups, self.taken, self.valid, self.into, self.numbers))
        return _Copy(self.source, self.target, *arrays)


class BlockMemory:
    """The memory of one program after the other: arguments of the kernel, shared memory, copies under way.

    Blocks that run a program together are one group of threads, numbered block by block. Their shared memories lie one
    behind the other, `stride` bytes apart: an address tells whose it is.
    """

    def __init__(self, kernel: FuncOp, views: list[View], apart: bool = False) -> None:
        """`apart` says that warps are ordered by other than barriers of the whole block: memory has clocks."""
        self.kernel, self.apart = kernel, apart
        self.clocks: Clocks | None = None
        self.block_threads = prod(kernel.block)
        self.threads = self.block_threads * kernel.blocks
        self.arguments = [Place(view, Touches(len(view.array))) for view in views]
        self.moment = 0  # barriers and blocks so far
        self._steps: dict[Block, list[Step]] = {}
        self.number, self.coordinates = 0, [0]

    def steps(self, block: Block) -> list[Step]:
        """The operations of a block, each with what is asked of it again and again."""
        found = self._steps.get(block)
        if found is None:
            found = [(op, type(op), tuple(op.operands), tuple(op.results)) for op in block.ops]
            self._steps[block] = found
        return found

    def enter(self, number: int, coordinates: list[int]) -> list[dict[SSAValue, Place]]:
        """Start a program: undefined shared memory, no copies. Gives the places of all views, by block."""
        self.number, self.coordinates = number, coordinates
        self.clocks = None
        self.order()
        self.copies: list[_Copy] = []
        self.stores: dict[int, list[list[tuple[Place, Array]]]] = {}  # groups of tensor stores of a thread
        self.commits = np.zeros(self.threads, np.int64)
        for place in self.arguments:
            place.leaving = None
        self.places, self.stride = _shared(self.kernel)
        first = self.places[0].values()
        units = max((len(place.touches.by[READ]) for place in first if place.touches is not None), default=0)
        if self.apart:
            warps = -(-self.threads // self.kernel.lanes)
            self.clocks = Clocks(warps, units, self.kernel.blocks)
            for place in self.arguments:
                place.seen = Seen(warps, place.elements)
        for places in self.places:
            places.update(zip(self.kernel.body.block.args, self.arguments, strict=True))
        return self.places

    def order(self, rank: int | None = None) -> None:
        """A barrier, perhaps of one block of several: what is touched after it cannot race with what was before."""
        self.moment += 1
        if self.clocks is not None:
            warps = np.arange(self.clocks.warps)
            self.clocks.meet(warps if rank is None else np.array_split(warps, self.kernel.blocks)[rank])

    @property
    def base(self) -> int:
        """Stamps of this moment start here: several, then the threads, then the warps."""
        return self.moment * (1 + self.threads + self.threads // self.kernel.lanes)

    def fail(self, op: Operation, message: str, thread: int | None = None) -> NoReturn:
        place = f"@{self.kernel.sym_name.data}, block {self.coordinates}"
        if thread is not None:
            place += f", {self.name(thread)}"
        raise InvalidProgram(f"{message}\n    {line(op)}", where=place)

    def name(self, thread: int) -> str:
        x, y, _ = self.kernel.block
        rank, own = divmod(thread, self.block_threads)
        which = f" of block {rank}" if self.kernel.blocks > 1 else ""
        return f"thread {[own % x, own // x % y, own // (x * y)]}{which}"

    # Accesses -------------------------------------------------------------------------------------------------

    def read(self, place: Place, access: Access) -> Array:
        chosen = self._check(place, access, READ)
        self._check_defined(place, access, chosen)
        self._check_races(place, access, READ)
        return np.asarray(place.view.array[chosen])

    def write(self, place: Place, access: Access, numbers: Array) -> None:
        chosen = self._check(place, access, WRITE)
        self._check_races(place, access, WRITE)
        if has_repeats(chosen):
            values, counts = np.unique(chosen, return_counts=True)
            twice = int(first(chosen == values[counts > 1][0]))
            self.fail(access.op, "two elements of one store have the same place", int(access.threads[twice]))
        self._define(place, chosen, numbers)

    def update(self, place: Place, access: Access, new: Callable[[int, Array], Array], order: Array) -> Array:
        """The old elements; each becomes ``new(position, old)``, one after the other in this order of positions."""
        chosen = self._check(place, access, UPDATE)
        self._check_defined(place, access, chosen)
        self._check_races(place, access, UPDATE)
        array = place.view.array
        old = np.zeros(chosen.shape, array.dtype)
        for position in order:
            old[position] = array[chosen[position]]
            array[chosen[position]] = new(int(position), old[position])
        return old

    def check_alignment(self, op: Operation, place: Place, offsets: Array, align: int, threads: Array) -> None:
        """Whether the elements at `offsets`, one per thread, lie at multiples of `align` bytes."""
        at = place.view.start + offsets * place.view.element_bytes
        wrong = at % align != 0
        if wrong.any():
            which = first(wrong)
            self.fail(op, f"misaligned: byte {at[which]} is no multiple of {align}", int(threads[which]))

    def _check(self, place: Place, access: Access, kind: str) -> Array:
        """Bounds, permission and copies under way; the elements of the array behind the view."""
        chosen, array = access.chosen, place.view.array
        outside = (chosen < 0) | (chosen >= place.elements)
        if outside.any():
            which = first(outside)
            message = f"touches element {chosen[which]} of a view of {place.elements} elements"
            self.fail(access.op, message, int(access.threads[which]))
        if kind != READ and not array.flags.writeable:
            self.fail(access.op, "writes to an input or a constant")
        if place.per_thread:
            if access.warps:
                self.fail(access.op, "a warp moves between registers and memory of one thread", int(access.threads[0]))
            return np.asarray(chosen + access.lanes * place.per_thread)
        if place.arriving is not None:
            under_way = np.asarray(place.arriving[place.units(chosen)].any(axis=-1))
            if under_way.any():
                which = first(under_way)
                message = f"{kind} element {chosen[which]}, to which an asynchronous copy is under way"
                self.fail(access.op, message, int(access.threads[which]))
        if place.leaving is not None and kind != READ:
            under_way = place.leaving[chosen] != 0
            if under_way.any():
                which = first(under_way)
                message = f"{kind} element {chosen[which]}, from which an asynchronous copy is under way"
                self.fail(access.op, message, int(access.threads[which]))
        return chosen

    def _check_defined(self, place: Place, access: Access, chosen: Array) -> None:
        if place.view.written is None:
            return
        empty = np.asarray(~place.view.written[chosen].all(axis=-1))
        if empty.any():
            which = first(empty)
            message = f"reads element {access.chosen[which]}, which nothing has written"
            self.fail(access.op, message, int(access.threads[which]))

    def _check_races(self, place: Place, access: Access, kind: str) -> None:
        chosen = access.chosen
        watched = place.arriving is not None or (place.seen is not None and kind != UPDATE)
        if self.clocks is not None and watched:
            self._check_order(self.clocks, place, access, kind)
        elif place.touches is not None:
            who = access.threads // self.kernel.lanes + self.threads if access.warps else access.threads
            units = place.units(chosen)
            stamps = np.broadcast_to((self.base + 1 + who)[:, None], units.shape)
            clash = place.touches.clash(kind, units.ravel(), stamps.ravel(), self.base)
            if clash is not None:
                earlier, position, other = clash
                which = position // place.grains
                what = f"which {self._stamped(other)} {earlier} with no barrier between"
                self.fail(access.op, f"race: {kind} element {chosen[which]}, {what}", int(access.threads[which]))
        if place.view.touches is not None:
            blocks = place.view.touches.clash(kind, chosen, self.number + 2, 1)
            if blocks is not None:
                earlier, position, _ = blocks
                message = f"race: {kind} element {chosen[position]}, which another block of this launch {earlier}"
                self.fail(access.op, message, int(access.threads[position]))

    def _check_order(self, clocks: Clocks, place: Place, access: Access, kind: str) -> None:
        units = place.units(access.chosen)
        if place.seen is None and kind != READ and clocks.busy[units].any():
            which = int(np.flatnonzero(clocks.busy[units].any(axis=-1))[0])
            message = f"{kind} element {access.chosen[which]}, which an operation that is under way reads"
            self.fail(access.op, message, int(access.threads[which]))
        warps = np.broadcast_to((access.threads // self.kernel.lanes)[:, None], units.shape)
        clash = clocks.clash(kind, units.ravel(), warps.ravel(), place.seen)
        if clash is not None:
            earlier, position, other = clash
            which = position // place.grains
            name = f"warp {other}" if other < clocks.warps else "a copy"
            message = f"race: {kind} element {access.chosen[which]}, which {name} {earlier} in no order with it"
            self.fail(access.op, message, int(access.threads[which]))

    def _stamped(self, stamp: int) -> str:
        number = stamp - self.base - 1
        if number < 0:
            return "another thread"
        return self.name(number) if number < self.threads else f"warp {number - self.threads}"

    # What asynchronous operations do to shared memory

    def check_bounds(self, op: Operation, place: Place, index: Array, threads: Array) -> None:
        """Whether these elements, one per thread, are in a view."""
        outside = (index < 0) | (index >= place.elements)
        if outside.any():
            which = first(outside)
            message = f"touches element {index[which]} of a view of {place.elements} elements"
            self.fail(op, message, int(threads[which]))

    def start_box(self, op: Operation, place: Place, access: Access) -> None:
        """A copy into these elements begins; it is there when whatever counts it says so."""
        self._check(place, access, WRITE)
        self._check_races(place, access, WRITE)
        assert place.arriving is not None
        place.arriving[place.units(access.chosen)] = 1

    def read_later(self, place: Place, access: Access, warp: int) -> Array:
        """The elements that an operation of a warp reads while it is under way, which begins now."""
        assert self.clocks is not None
        chosen = self._check(place, access, READ)
        self._check_defined(place, access, chosen)
        self._check_races(place, access, READ)
        units = place.units(chosen)
        unseen = self.clocks.unfenced(units.ravel(), warp)
        if unseen.any():
            which = first(unseen) // place.grains
            message = f"reads element {access.chosen[which]}, written with no fence of asynchronous operations since"
            self.fail(access.op, f"missing fence: {message}", int(access.threads[which]))
        np.add.at(self.clocks.busy, units.ravel(), 1)
        return np.asarray(place.view.array[chosen])

    def end_reading(self, place: Place, chosen: Array, warps: Array) -> None:
        """An operation has read these elements, and these warps know."""
        assert self.clocks is not None
        units = place.units(chosen).ravel()
        np.subtract.at(self.clocks.busy, units, 1)
        self.clocks.read[units[:, None], warps] = self.clocks.now

    def leave(self, op: Operation, rank: int) -> None:
        """The end of a block: nothing may still be under way to or from its memory."""
        if self.clocks is None:
            return
        for address, barrier in self.clocks.barriers.items():
            if barrier.landings and self.rank_of(address) == rank:
                self.fail(op, f"the block ends before the copies that the barrier at byte {address} counts are there")
        own = np.array_split(self.clocks.busy, self.kernel.blocks)[rank]
        if own.any():
            self.fail(op, "the block ends while its memory is read by an operation that is under way")
        other = self.clocks.leave(rank)
        if other is not None:
            self.fail(op, f"block {rank} ends while warp {other} may still use its memory")

    def rank_of(self, address: int) -> int:
        """Whose shared memory a byte lies in."""
        return address // self.stride if self.kernel.blocks > 1 else 0

    def use(self, op: Operation, rank: int, thread: int) -> None:
        """A thread does something to shared memory of its program, which must be there then."""
        if not 0 <= rank < self.kernel.blocks:
            self.fail(op, f"block {rank} of a program of {self.kernel.blocks}", thread)
        assert self.clocks is not None
        if rank != thread // self.block_threads and not self.clocks.use(rank, thread // self.kernel.lanes):
            self.fail(op, f"uses memory of block {rank}, which may have ended", thread)

    def define(self, place: Place, chosen: Array, numbers: Array) -> None:
        self._define(place, chosen, numbers)

    def _define(self, place: Place, chosen: Array, numbers: Array) -> None:
        if place.view.written is not None:
            place.view.written[chosen] = True
        place.view.array[chosen] = numbers

    # Asynchronous copies --------------------------------------------------------------------------------------

    def start_copy(
        self, op: AsyncCopyOp, source: Place, target: Place, taken: Array, valid: Array, into: Array, threads: Array
    ) -> None:
        """Start a copy per thread: elements `taken`, where `valid`, to `into`, all (threads, elements)."""
        if source.per_thread:
            self.fail(op, "copies from memory of one thread, not from global memory", int(threads[0]))
        wide = np.broadcast_to(threads[:, None], taken.shape)
        reads = Access(op, taken[valid], wide[valid], wide[valid])
        numbers = np.zeros(taken.shape, source.view.array.dtype)
        numbers[valid] = self.read(source, reads)
        writes = Access(op, into.ravel(), wide.ravel(), wide.ravel())
        self._check(target, writes, WRITE)
        self._check_races(target, writes, WRITE)
        if source.leaving is None:
            source.leaving = np.zeros(source.elements, np.int64)
        np.add.at(source.leaving, taken[valid], 1)
        assert target.arriving is not None
        target.arriving[target.units(into)] = 1
        self.copies.append(_Copy(source, target, threads, self.commits[threads], taken, valid, into, numbers))

    def commit(self, threads: Array) -> None:
        self.commits[threads] += 1

    def wait(self, threads: Array, pending: int) -> None:
        """The groups of these threads but the latest `pending` arrive; what was not committed stays under way."""
        waits = np.zeros(self.threads, np.bool_)
        waits[threads] = True
        remaining = []
        for copy in self.copies:
            done = waits[copy.threads] & (copy.groups < self.commits[copy.threads] - pending)
            if done.any():
                self._arrive(copy.at(done))
            if not done.all():
                remaining.append(copy.at(~done))
        self.copies = remaining

    def _arrive(self, copy: _Copy) -> None:
        """The elements are there: for the thread that waited; for others, after a barrier."""
        source, target = copy.source, copy.target
        assert source.leaving is not None
        assert target.arriving is not None
        assert target.touches is not None
        np.subtract.at(source.leaving, copy.taken[copy.valid], 1)
        units = target.units(copy.into)
        target.arriving[units] = 0
        target.touches.note(WRITE, units, (self.base + 1 + copy.threads)[:, None, None], self.base)
        self._define(target, copy.into, copy.numbers)


def _shared(kernel: FuncOp) -> tuple[list[dict[SSAValue, Place]], int]:
    """The shared memory of each block of a program, and how many bytes lie between them.

    Views with an offset lie there, perhaps over others; the rest lie behind them.
    """
    allocations = [op for op in operations(kernel.body) if isinstance(op, SharedOp)]
    if not allocations:
        return [{} for _ in range(kernel.blocks)], 1
    end = max((op.offset.value.data + op.bytes for op in allocations if op.offset is not None), default=0)
    starts = []
    for op in allocations:
        if op.offset is not None:
            starts.append(op.offset.value.data)
            continue
        start = -(-end // op.align.value.data) * op.align.value.data
        starts.append(start)
        end = start + op.bytes
    grain = min(element_bytes(op.result) for op in allocations)
    stride = -(-end // _BLOCK_ALIGN) * _BLOCK_ALIGN if kernel.blocks > 1 else end
    end = stride * kernel.blocks
    memory, written = np.zeros(end, np.uint8), np.zeros(end, np.bool_)
    touches, arriving = Touches(-(-end // grain)), np.zeros(-(-end // grain), np.int8)
    found: list[dict[SSAValue, Place]] = []
    for rank in range(kernel.blocks):
        places: dict[SSAValue, Place] = {}
        for op, own in zip(allocations, starts, strict=True):
            dtype: np.dtype[Any] = dtype_of(op.result.type)
            start = rank * stride + own
            array = memory[start : start + op.bytes].view(dtype)
            view = View(array, written[start : start + op.bytes].reshape(len(array), dtype.itemsize), start)
            places[op.result] = Place(view, touches, arriving, None, start // grain, dtype.itemsize // grain)
        found.append(places)
    return found, stride
