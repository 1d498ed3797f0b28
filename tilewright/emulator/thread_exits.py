"""Blocks that end: nothing may use their shared memory any more, and nothing that did may still be under way.

Blocks of a cluster use each other's shared memory. What they do has to happen before the last thread of the block that
owns it ends: at the latest a barrier of the cluster at the end of the kernel sees to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulator.scalars import Array

if TYPE_CHECKING:
    from tilewright.emulator.lanes import Lanes, State


class ThreadExits:
    """Of the blocks of a chunk: who used their shared memory from outside, and what their threads knew at their end."""

    def __init__(self, state: State) -> None:
        blocks, columns = len(state.blocks), state.clocks.columns if state.clocks.cluster > 1 else 0
        self.state = state
        self.used = np.zeros((blocks, columns), np.int64)
        self.known = np.zeros((blocks, columns), np.int64)

    def use(self, lanes: Lanes, homes: Array, *, stays: bool) -> None:
        """Threads use shared memory of blocks `homes` of their clusters; what `stays` is over when they know of it.

        The end of a copy is something else: a block that waits for it knows of that.
        """
        state, positions = self.state, lanes.positions()
        remote = np.flatnonzero(homes != state.block_of[positions])
        if not len(remote):
            return
        if stays:
            self.used[homes[remote], state.clocks.column(positions[remote])] = state.clocks.now
        living: Array = state.alive.reshape(-1, state.threads).max(axis=1)
        gone = remote[~living[homes[remote]]]
        if len(gone):
            name = state.place_of(int(homes[gone[0]]) * state.threads)[0]
            lanes.report("race", f"uses shared memory of block {name}, which may have ended", gone, space="shared")

    def leave(self, lanes: Lanes) -> None:
        """Threads end, perhaps the last ones of their blocks."""
        state, positions = self.state, lanes.positions()
        homes = state.block_of[positions]
        for block in np.unique(homes).tolist():
            mine = np.flatnonzero(homes == block)
            if self.used.size and self.used[block].any():
                known = state.clocks.known(block, positions[mine] % state.threads)
                self.known[block] = np.maximum(self.known[block], known)
            if not state.alive[block * state.threads : (block + 1) * state.threads].any():
                self._check(lanes, block, int(mine[0]))

    def _check(self, lanes: Lanes, block: int, number: int) -> None:
        state = self.state
        late = np.flatnonzero(self.used[block] > self.known[block])
        if len(late):
            other, thread = state.place_of(int(state.clocks.position(block, int(late[0]))))
            message = f"the block ends while thread {thread} of block {other} may still use its shared memory"
            lanes.report("race", message, number, space="shared")
        if any(each.loads for each in state.mbarriers.all.values() if each.block == block):
            message = "the block ends before the wait for a copy into its shared memory"
            lanes.report("overwritten", message, number, space="shared")
