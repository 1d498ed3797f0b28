"""Asynchronous copies: pending until the wait that covers them, then all at once.

A copy reads its source when it is issued and writes its destination as late as the rules allow: when its group is
waited for, or when a thread finds that the phase of its mbarrier is not complete.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.lanes import Lanes, State
from tilewright.emulator.scalars import Array


@dataclass
class Pending:
    """Copies of one instruction: who issued them, where they go, and the bytes (n, size)."""

    number: int
    threads: Array  # positions within the chunk
    offsets: Array  # into shared memory of the chunk
    values: Array
    cells: Array
    group: Array  # number of the thread's group; rises with each commit
    done: Array = field(default_factory=lambda: np.zeros(0, np.bool_))


class AsyncCopies:
    """The ``cp.async`` copies of a chunk, by thread and group."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.open_group = np.zeros(state.size, np.int64)  # number of groups committed so far
        self.pending: list[Pending] = []
        self.issued = 0
        self.per_thread = np.zeros(state.size, np.int64)  # copies not yet done

    def next_number(self) -> int:
        self.issued += 1
        return self.issued

    def issue(self, lanes: Lanes, numbers: Array, offsets: Array, values: Array) -> None:
        """Copies of lanes `numbers` to shared memory: checked as writes now, done when waited for."""
        shared, positions = self.state.shared, lanes.positions()[numbers]
        cells = shared.cells(offsets, values.shape[1])
        shared.check_write(lanes, numbers, positions, offsets, cells, None)
        number = self.next_number()
        shared.expect_write(cells, number)
        self.pending.append(
            Pending(
                number, positions, offsets, values, cells, self.open_group[positions], np.zeros(len(numbers), np.bool_)
            )
        )
        self.per_thread[positions] += 1

    def commit(self, lanes: Lanes) -> None:
        self.open_group[lanes.index] += 1

    def wait(self, lanes: Lanes, left: int | None) -> None:
        """All but the last `left` committed groups of these threads are done; None: all copies, committed or not."""
        if not self.pending:
            return
        limit = np.full(self.state.size, -1, np.int64)
        limit[lanes.index] = (1 << 60) if left is None else self.open_group[lanes.index] - 1 - left
        for copy in self.pending:
            self._finish(copy, (copy.group <= limit[copy.threads]) & ~copy.done)
        self.pending = [copy for copy in self.pending if not copy.done.all()]

    def finish_until(self, position: int, number: int) -> None:
        """Copies of a thread up to a serial number are done."""
        for copy in self.pending:
            if copy.number <= number:
                self._finish(copy, (copy.threads == position) & ~copy.done)
        self.pending = [copy for copy in self.pending if not copy.done.all()]

    def _finish(self, copy: Pending, ready: Array) -> None:
        if not ready.any():
            return
        shared = self.state.shared
        size = copy.values.shape[1]
        chosen = np.flatnonzero(ready)
        shared.bytes.data[copy.offsets[chosen, None] + np.arange(size)] = copy.values[chosen]
        shared.end_write(copy.cells[chosen], self.state.clocks.column(copy.threads[chosen]), engine=False)
        copy.done[chosen] = True
        self.per_thread[copy.threads[chosen]] -= 1

    def unfinished(self, threads: Array) -> Array:
        """Which of these threads have copies that nobody waited for."""
        return self.per_thread[threads] > 0

    def abandon(self, lanes: Lanes) -> None:
        """Threads end: what they copied arrives; nobody can wait for it any more."""
        if self.pending and self.unfinished(lanes.positions()).any():
            self.wait(lanes, None)
