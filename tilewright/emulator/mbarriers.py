"""The mbarriers of a chunk: phases, arrivals, bytes still expected, and what a completed phase makes known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.lanes import Lanes, State
from tilewright.emulator.scalars import Array

if TYPE_CHECKING:
    from tilewright.emulator.schedule import Scheduler


@dataclass
class BulkLoad:
    """A pending bulk copy into shared memory, which an mbarrier counts."""

    number: int
    start: int  # into shared memory of the chunk
    values: Array | Callable[[], Array]  # a function reads them when the copy is done
    cells: Array


@dataclass
class Mbarrier:
    """One mbarrier: `phase` counts completed phases, `pending` the arrivals and `bytes` the bytes still missing."""

    block: int
    count: int
    pending: int
    maker: int
    made: int
    engine: int  # by what the copy engine is known for the copies that this mbarrier counts
    phase: int = 0
    bytes: int = 0
    gathered: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    known: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    ready: Array = field(default_factory=lambda: np.zeros(0, np.bool_))  # threads of the cluster that know it is made
    loads: list[BulkLoad] = field(default_factory=list)


class Mbarriers:
    """By their offset in the shared memory of the chunk."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.all: dict[int, Mbarrier] = {}
        self.engines: dict[int, int] = {}
        self.copied: dict[int, list[tuple[int, int]]] = {}  # arrivals that wait for copies of a thread

    def make(self, offset: int, count: int, position: int) -> None:
        state = self.state
        nothing = np.zeros(state.clocks.columns, np.int64)
        block = offset // state.shared.stride
        engine = self.engines.setdefault(offset, state.clocks.engine(block, len(self.engines)))
        self.all[offset] = Mbarrier(
            block, count, count, position % state.clocks.members, state.clocks.now, engine, gathered=nothing,
            known=nothing, ready=np.arange(state.clocks.members) == position % state.clocks.members,
        )  # fmt: skip

    def find(self, lanes: Lanes, numbers: Array, offset: int) -> Mbarrier | None:
        """The mbarrier at an offset, for some of these threads; reports one that is not initialised, or not yet."""
        found = self.all.get(offset)
        stride, state = self.state.shared.stride, self.state
        if found is None:
            lanes.report("mbarrier", f"no mbarrier is initialised at byte {offset % stride}", numbers,
                         address=offset % stride, space="shared")  # fmt: skip
            return None
        positions = lanes.positions()[numbers]
        columns = state.clocks.column(positions)
        if not found.ready[columns].all():
            maker, made = (np.full(positions.shape, each) for each in (found.maker, found.made))
            ordered = state.clocks.ordered(positions // state.threads, positions % state.threads, maker, made)
            found.ready[columns] |= ordered
            if not found.ready[columns].all():
                message = f"the mbarrier at byte {offset % stride} is used before its initialisation is ordered"
                lanes.report("race", message, numbers[~found.ready[columns]], address=offset % stride, space="shared")
        return found

    def arrive(
        self, lanes: Lanes, scheduler: Scheduler, barrier: Mbarrier, offset: int, threads: Array, count: int,
        number: int, *, drop: bool = False,
    ) -> None:  # fmt: skip
        """`count` arrivals by threads of one block (positions in the chunk)."""
        state = self.state
        known = state.clocks.known(int(threads[0]) // state.threads, threads % state.threads)
        barrier.gathered = np.maximum(barrier.gathered, known)
        barrier.pending -= count
        if drop:
            barrier.count -= count
        if barrier.pending < 0:
            lanes.report("mbarrier", f"{count} arrivals at the mbarrier at byte {offset % state.shared.stride}, "
                         f"which expects {barrier.pending + count} more in this phase", number)  # fmt: skip
            barrier.pending = 0
        self.settle(barrier, scheduler)

    def settle(self, barrier: Mbarrier, scheduler: Scheduler) -> None:
        """Complete the phase if nothing is missing."""
        if barrier.pending == 0 and barrier.bytes == 0:
            barrier.phase += 1
            barrier.pending = barrier.count
            barrier.known = barrier.gathered
            scheduler.happened()

    def deliver(self, barrier: Mbarrier, scheduler: Scheduler) -> None:
        """Bulk copies that this mbarrier counts arrive, one after the other, until its phase is complete."""
        shared, clocks = self.state.shared, self.state.clocks
        phase = barrier.phase
        while barrier.loads and barrier.phase == phase:
            load = barrier.loads.pop(0)
            values = load.values if isinstance(load.values, np.ndarray) else load.values()
            shared.bytes.data[load.start : load.start + len(values)] = values
            shared.end_write(load.cells, barrier.engine, engine=True)
            barrier.bytes -= len(values)
            barrier.gathered = barrier.gathered.copy()
            barrier.gathered[barrier.engine] = clocks.now
            self.settle(barrier, scheduler)

    def passed(self, barrier: Mbarrier, positions: Array, phase: int, *, parity: bool) -> bool:
        """Whether a phase is complete; threads that see this learn what the arriving threads knew."""
        if (barrier.phase & 1 == phase & 1) if parity else (barrier.phase <= phase):
            return False
        blocks = positions // self.state.threads
        for block in np.unique(blocks).tolist():
            self.state.clocks.learn(block, positions[blocks == block] % self.state.threads, barrier.known)
        return True

    def when_copied(self, offset: int, position: int, *, counts: bool) -> None:
        """An arrival that happens once the thread's ``cp.async`` copies so far are done."""
        barrier = self.all[offset]
        if not counts:
            barrier.pending += 1
        self.copied.setdefault(offset, []).append((position, self.state.copies.issued))

    def finish_copies(self, lanes: Lanes, scheduler: Scheduler, offset: int) -> None:
        """Somebody waits: copies whose arrivals this mbarrier expects are done now."""
        for position, number in self.copied.pop(offset, []):
            self.state.copies.finish_until(position, number)
            self.arrive(lanes, scheduler, self.all[offset], offset, np.array([position]), 1, 0)
