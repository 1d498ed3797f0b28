"""Release and acquire on shared memory: what a strong write passes on to the threads that read it.

A write with `.release`, or a strong one after a fence, publishes at its address what its thread knows and did. A read
with `.acquire` learns it at once, another strong one at the thread's next fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulator.scalars import Array

if TYPE_CHECKING:
    from tilewright.emulator.lanes import Lanes, State

_RELEASES = ("release", "acq_rel")
_ACQUIRES = ("acquire", "acq_rel")


class Releases:
    """Of the threads of a chunk, by position; addresses are offsets into all its shared memory."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.fenced = np.zeros(state.size, np.int64)  # last fence of each thread
        self.published: dict[int, Array] = {}
        self.pending: dict[int, Array] = {}  # read, but not yet behind a fence

    def fence(self, lanes: Lanes) -> None:
        self.fenced[lanes.index] = self.state.clocks.now
        if self.pending:
            positions = lanes.positions()
            for position in positions[np.isin(positions, list(self.pending))].tolist():
                self._learn(position, self.pending.pop(position))

    def read(self, positions: Array, offsets: Array, order: str) -> None:
        """Strong reads by threads."""
        if not self.published:
            return
        for number in np.flatnonzero(np.isin(offsets, list(self.published))).tolist():
            position, known = int(positions[number]), self.published[int(offsets[number])]
            if order in _ACQUIRES:
                self._learn(position, known)
            else:
                before = self.pending.get(position)
                self.pending[position] = known if before is None else np.maximum(before, known)

    def write(self, positions: Array, offsets: Array, order: str) -> None:
        """Strong writes by threads."""
        releases = order in _RELEASES
        chosen = np.arange(len(positions)) if releases else np.flatnonzero(self.fenced[positions] > 0)
        for number in chosen.tolist():
            position, offset = int(positions[number]), int(offsets[number])
            block, thread = divmod(position, self.state.threads)
            known = self.state.clocks.known(block, np.array([thread]))
            if not releases:
                known[position % self.state.clocks.members] = self.fenced[position]
            before = self.published.get(offset)
            self.published[offset] = known if before is None else np.maximum(before, known)

    def _learn(self, position: int, known: Array) -> None:
        block, thread = divmod(position, self.state.threads)
        self.state.clocks.learn(block, np.array([thread]), known)
