"""Which accesses are ordered: what every thread knows of the progress of the others.

Time counts executed instructions. After a barrier of a whole block every thread knows all that happened before: one
number per block, its *floor*; likewise one per warp. Anything else (barriers of some threads, mbarriers) needs the
*matrix* of a block: the time up to which a thread knows what another did. Its last columns are the copy engine, one for
each mbarrier that counts its copies.
"""

from __future__ import annotations

import numpy as np

from tilewright.emulator.scalars import Array

ENGINES = 64  # columns of the copy engine in a block


class Clocks:
    """Floors of blocks and warps, and the matrices once they are needed."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.now = 1
        self.threads = threads  # of one block, whole warps
        self.block_floor = np.ones(blocks, np.int64)  # what the system did before the first instruction
        self.warp_floor = np.zeros(blocks * threads // 32, np.int64)
        self.matrix: Array | None = None

    @property
    def columns(self) -> int:
        """Threads of a block, and its copy engine as often as it has mbarriers."""
        return self.threads + ENGINES

    def need_matrix(self) -> Array:
        """The matrix [block, thread, other thread or engine]."""
        if self.matrix is None:
            blocks = len(self.block_floor)
            matrix = np.empty((blocks, self.threads, self.columns), np.int64)
            matrix[:] = self.block_floor[:, None, None]
            for warp in range(self.threads // 32):
                own = slice(32 * warp, 32 * warp + 32)
                floor = self.warp_floor.reshape(blocks, -1)[:, warp]
                matrix[:, own, own] = np.maximum(matrix[:, own, own], floor[:, None, None])
            self.matrix = matrix
        return self.matrix

    def block_barrier(self, blocks: Array) -> None:
        """All threads of these blocks have met."""
        self.block_floor[blocks] = self.now
        if self.matrix is not None:
            self.matrix[blocks] = self.now

    def warp_barrier(self, warps: Array) -> None:
        """All threads of these warps (numbered through the chunk) have met."""
        self.warp_floor[warps] = self.now
        if self.matrix is not None:
            per_block = self.threads // 32
            for warp in warps.tolist():
                block, own = warp // per_block, slice(warp % per_block * 32, warp % per_block * 32 + 32)
                self.matrix[block, own] = self.matrix[block, own].max(axis=0)
                self.matrix[block, own, own] = self.now

    def meet(self, block: int, arriving: Array, leaving: Array) -> None:
        """Some threads of a block have met: those `leaving` learn what those `arriving` know and did."""
        matrix = self.need_matrix()
        known = matrix[block, arriving].max(axis=0)
        known[arriving] = self.now
        matrix[block, leaving] = np.maximum(matrix[block, leaving], known)

    def known(self, block: int, threads: Array) -> Array:
        """All that these threads know and did: what an arrival at an mbarrier passes on."""
        found: Array = self.need_matrix()[block, threads].max(axis=0)
        found[threads] = self.now
        return found

    def learn(self, block: int, threads: Array, known: Array) -> None:
        matrix = self.need_matrix()
        matrix[block, threads] = np.maximum(matrix[block, threads], known)

    def ordered(self, block: Array, thread: Array, other: Array, time: Array) -> Array:
        """Whether what `other` did at `time` happens before what `thread` does now; arrays of one shape."""
        found = (time <= self.block_floor[block]) | (other == thread)
        warp = block * (self.threads // 32) + thread // 32
        found |= (thread // 32 == other // 32) & (time <= self.warp_floor[warp])
        if self.matrix is not None:
            found |= time <= self.matrix[block, thread, other]
        return np.asarray(found)

    def ordered_group(self, block: Array, thread: Array, warp: Array, time: Array) -> Array:
        """As `ordered`, for a product of the warpgroup from `warp` on: one of its threads is enough."""
        found = (time <= self.block_floor[block]) | (thread // 128 == warp // 4)
        if self.matrix is not None:
            lanes = np.minimum(warp[..., None] * 32 + np.arange(128), self.threads - 1)
            found |= time <= self.matrix[block[..., None], thread[..., None], lanes].max(axis=-1)
        return np.asarray(found)

    def ordered_warp(self, block: Array, thread: Array, warp: Array, time: Array) -> Array:
        """As `ordered`, for what several threads of a warp of the block did."""
        found = time <= self.block_floor[block]
        number = block * (self.threads // 32) + thread // 32
        found |= (thread // 32 == warp) & (time <= self.warp_floor[number])
        if self.matrix is not None:
            lanes = warp[..., None] * 32 + np.arange(32)
            found |= time <= self.matrix[block[..., None], thread[..., None], lanes].min(axis=-1)
        return found
