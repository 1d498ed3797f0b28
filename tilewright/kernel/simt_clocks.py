"""What warps know of each other, where not only barriers of the whole block order them.

Time is a count of moments of order. A warp knows of another what that did until some moment; it learns that at
barriers, and from barriers that count arrivals, which gather what the arriving warps know. Each of these has an engine,
by which the copies that it counts are known.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.kernel.elements import Array
from tilewright.kernel.views import READ

ENGINES = 128


@dataclass
class Landing:
    """A copy that a barrier counts: elements `into` of a place of shared memory become `numbers`."""

    place: Any
    into: Array
    numbers: Array

    @property
    def bytes(self) -> int:
        return self.numbers.nbytes


@dataclass
class CountingBarrier:
    """`phase` phases are complete; of this one `pending` arrivals and `bytes` bytes are missing."""

    arrivals: int
    pending: int
    maker: int
    made: int
    engine: int
    known: Array
    gathered: Array
    phase: int = 0
    bytes: int = 0
    landings: list[Landing] = field(default_factory=list)


class Seen:
    """The touches of one memory by unit: who wrote last and when, and when each warp read last."""

    def __init__(self, warps: int, units: int) -> None:
        self.written, self.writer = np.zeros(units, np.int64), np.zeros(units, np.int16)
        self.read = np.zeros((units, warps), np.int64)


class Clocks(Seen):
    """Those of shared memory, with what products read, and what warps know of each other."""

    def __init__(self, warps: int, units: int, blocks: int = 1) -> None:
        """`blocks` run the program together; each has as many of the warps."""
        super().__init__(warps, units)
        self.warps, self.now = warps, 1
        self.own = np.array_split(np.arange(warps), blocks)
        self.used = np.zeros((blocks, warps), np.int64)  # when warps of other blocks last used shared memory
        self.gone = np.zeros(blocks, np.bool_)
        self.known = np.zeros((warps + ENGINES, warps + ENGINES), np.int64)
        self.busy = np.zeros(units, np.int32)  # operations under way that read
        self.fenced = np.zeros(warps + ENGINES, np.int64)
        self.barriers: dict[int, CountingBarrier] = {}

    # Order

    def meet(self, warps: Array) -> None:
        """These warps know from here on what any of them knows."""
        together = self.known[warps].max(axis=0)
        together[warps] = self.now
        self.known[warps] = together
        self.now += 1

    def make(self, place: int, arrivals: int, maker: int) -> None:
        nothing = np.zeros(len(self.known), np.int64)
        engine = self.warps + len(self.barriers) % ENGINES
        self.barriers[place] = CountingBarrier(arrivals, arrivals, maker, self.now, engine, nothing, nothing)
        self.now += 1

    def arrive(self, barrier: CountingBarrier, warp: int, bytes_: int) -> bool:
        """One arrival; False where this phase has had all of its own."""
        self.gather(barrier, warp)
        barrier.bytes += bytes_
        barrier.pending -= 1
        if barrier.pending < 0:
            return False
        self.settle(barrier)
        return True

    def gather(self, barrier: CountingBarrier, who: int) -> None:
        barrier.gathered = np.maximum(barrier.gathered, self.known[who])
        barrier.gathered[who] = self.now
        self.now += 1

    def settle(self, barrier: CountingBarrier) -> None:
        if not barrier.pending and not barrier.bytes:
            barrier.phase += 1
            barrier.pending = barrier.arrivals
            barrier.known = barrier.gathered

    def passed(self, barrier: CountingBarrier, parity: int) -> bool:
        return barrier.phase & 1 != parity

    def learn(self, warp: int, barrier: CountingBarrier) -> None:
        self.known[warp] = np.maximum(self.known[warp], barrier.known)

    # Blocks that end

    def use(self, rank: int, warp: int) -> bool:
        """A warp uses the memory of another block; False where that has ended."""
        self.used[rank, warp] = self.now
        return not self.gone[rank]

    def leave(self, rank: int) -> int | None:
        """A block ends; a warp that may, for all that its warps know, not have used its memory yet."""
        self.gone[rank] = True
        late = np.flatnonzero(self.used[rank] > self.known[self.own[rank], : self.warps].max(axis=0))
        return int(late[0]) if late.size else None

    # Touches

    def clash(self, kind: str, units: Array, warps: Array, seen: Seen | None = None) -> tuple[str, int, int] | None:
        """Note accesses of units by warps, of shared memory or another; what another did unknown to one, at which
        position, and which it was.
        """
        seen = seen or self
        writer = seen.writer[units]
        late = (writer != warps) & (seen.written[units] > self.known[warps, writer])
        if late.any():
            position = int(np.flatnonzero(late)[0])
            return "writes", position, int(writer[position])
        if kind == READ:
            seen.read[units, warps] = self.now
            return None
        unknown = seen.read[units, : self.warps] > self.known[warps, : self.warps]
        if unknown.any():
            unknown &= warps[:, None] != np.arange(self.warps)
            for other in np.flatnonzero(unknown.any(axis=0)).tolist()[:1]:
                return "reads", int(np.flatnonzero(unknown[:, other])[0]), other
        seen.written[units], seen.writer[units] = self.now, warps
        return None

    def unfenced(self, units: Array, warp: int) -> Array:
        """Which units a warp's asynchronous operation does not see, as no fence stands after their writing."""
        writer = self.writer[units]
        fenced = np.maximum(self.fenced[writer], self.fenced[warp])
        return np.asarray((self.written[units] > 0) & (writer < self.warps) & (fenced < self.written[units]))

    def fence(self, warps: Array) -> None:
        self.fenced[warps] = self.now
        self.now += 1
