"""Which accesses are ordered: what every thread knows of the progress of the others.

Time counts executed instructions. After a barrier of a whole block every thread knows all that its block did before:
one number per block, its *floor*; likewise one per warp, and one per block for all that its cluster did. Anything else
(barriers of some threads, mbarriers, what other blocks did) needs the *matrix*: the time up to which a thread knows
what another did. Its columns are the threads of the cluster, block after block, then the copy engine of each block, one
column for each mbarrier that counts its copies. Blocks of a cluster are neighbours in the chunk.
"""

from __future__ import annotations

import numpy as np

from tilewright.emulator.scalars import Array

ENGINES = 64  # columns of the copy engine of a block


class Clocks:
    """Floors of blocks and warps, and the matrix once it is needed."""

    def __init__(self, blocks: int, threads: int, cluster: int = 1) -> None:
        self.now = 1
        self.threads = threads  # of one block, whole warps
        self.cluster = cluster  # blocks
        self.members = cluster * threads  # columns that are threads
        self.block_floor = np.ones(blocks, np.int64)  # what the system did before the first instruction
        self.cluster_floor = np.ones(blocks, np.int64) if cluster > 1 else self.block_floor
        self.warp_floor = np.zeros(blocks * threads // 32, np.int64)
        self.matrix: Array | None = None

    # Columns

    @property
    def columns(self) -> int:
        return self.cluster * (self.threads + ENGINES)

    def column(self, positions: Array) -> Array:
        """The columns of threads of the chunk."""
        return np.asarray(positions % self.members)

    def engine(self, block: int, number: int) -> int:
        """A column of the copy engine of a block."""
        return self.members + block % self.cluster * ENGINES + number % ENGINES

    def position(self, block: Array | int, column: Array | int) -> Array:
        """The threads of the chunk that columns are, as their cluster's blocks see them."""
        return np.asarray(np.asarray(block) // self.cluster * self.members + column)

    def _own(self, block: int) -> tuple[slice, slice]:
        """The columns of a block: its threads, its copy engine."""
        rank = block % self.cluster
        engine = self.members + rank * ENGINES
        return slice(rank * self.threads, (rank + 1) * self.threads), slice(engine, engine + ENGINES)

    def need_matrix(self) -> Array:
        """The matrix [block, thread, column]."""
        if self.matrix is None:
            blocks, per_block = len(self.block_floor), self.threads // 32
            matrix = np.empty((blocks, self.threads, self.columns), np.int64)
            for block in range(blocks):
                matrix[block] = self.cluster_floor[block]
                for part in self._own(block):
                    matrix[block, :, part] = self.block_floor[block]
                first = block % self.cluster * self.threads
                for warp in range(per_block):
                    own, columns = slice(32 * warp, 32 * warp + 32), slice(first + 32 * warp, first + 32 * warp + 32)
                    floor = self.warp_floor[block * per_block + warp]
                    matrix[block, own, columns] = np.maximum(matrix[block, own, columns], floor)
            self.matrix = matrix
        return self.matrix

    # Events

    def block_barrier(self, blocks: Array) -> None:
        """All threads of these blocks have met, each block for itself."""
        self.block_floor[blocks] = self.now
        if self.matrix is None:
            return
        if self.cluster == 1:
            self.matrix[blocks] = self.now
            return
        for block in blocks.tolist():
            self.matrix[block] = self.matrix[block].max(axis=0)
            for part in self._own(block):
                self.matrix[block, :, part] = self.now

    def cluster_barrier(self, blocks: Array, time: int) -> None:
        """All threads of these blocks of a cluster know what any of them did up to a time."""
        for floor in (self.cluster_floor, self.block_floor):
            floor[blocks] = np.maximum(floor[blocks], time)

    def warp_barrier(self, warps: Array) -> None:
        """All threads of these warps (numbered through the chunk) have met."""
        self.warp_floor[warps] = self.now
        if self.matrix is not None:
            per_block = self.threads // 32
            for warp in warps.tolist():
                block, first = warp // per_block, warp % per_block * 32
                own, column = slice(first, first + 32), block % self.cluster * self.threads + first
                self.matrix[block, own] = self.matrix[block, own].max(axis=0)
                self.matrix[block, own, column : column + 32] = self.now

    def meet(self, block: int, arriving: Array, leaving: Array) -> None:
        """Some threads of a block have met: those `leaving` learn what those `arriving` know and did."""
        self.learn(block, leaving, self.known(block, arriving))

    def known(self, block: int, threads: Array) -> Array:
        """All that these threads know and did: what an arrival at an mbarrier passes on."""
        found: Array = np.maximum(self.need_matrix()[block, _rows(threads)].max(axis=0), self.cluster_floor[block])
        found[block % self.cluster * self.threads + threads] = self.now
        return found

    def learn(self, block: int, threads: Array, known: Array) -> None:
        """Threads of a block learn what a thread of its cluster knew."""
        matrix, rows = self.need_matrix()[block], _rows(threads)
        if isinstance(rows, slice):
            np.maximum(matrix[rows], known, out=matrix[rows])
        else:
            matrix[rows] = np.maximum(matrix[rows], known)

    # Questions

    def ordered(self, block: Array, thread: Array, other: Array, time: Array) -> Array:
        """Whether what column `other` did at `time` happens before what `thread` does now; arrays of one shape."""
        found = time <= self.block_floor[block]
        thread_column, near = thread, time <= self.warp_floor[block * (self.threads // 32) + thread // 32]
        if self.cluster > 1:
            found = (found & self._same_block(block, other)) | (time <= self.cluster_floor[block])
            thread_column = block % self.cluster * self.threads + thread
        found |= other == thread_column
        found |= (thread_column // 32 == other // 32) & near
        if self.matrix is not None and not found.all():
            late = ~found
            found[late] = time[late] <= self.matrix[block[late], thread[late], other[late]]
        return np.asarray(found)

    def ordered_group(self, block: Array, thread: Array, warp: Array, time: Array) -> Array:
        """As `ordered`, for a product of the warpgroup from `warp` of the cluster on: one of its threads is enough.

        Arrays of one axis.
        """
        found = time <= self.block_floor[block]
        column = block % self.cluster * self.threads + thread
        if self.cluster > 1:
            found = (found & self._same_block(block, 32 * warp)) | (time <= self.cluster_floor[block])
        found |= column // 128 == warp // 4
        if self.matrix is not None and not found.all():
            late = ~found
            found[late] = time[late] <= self._known_of_groups(block[late], thread[late], warp[late])
        return np.asarray(found)

    def _known_of_groups(self, block: Array, thread: Array, warp: Array) -> Array:
        """The latest time of any thread of the warpgroup from `warp` on that `thread` knows of; few are different."""
        matrix, warps = self.need_matrix(), self.members // 32
        different, where = np.unique((block * self.threads + thread) * warps + warp, return_inverse=True)
        positions, first = np.divmod(different, warps)
        lanes = np.minimum(first[:, None] * 32 + np.arange(128), self.members - 1)
        known = matrix[(positions // self.threads)[:, None], (positions % self.threads)[:, None], lanes].max(axis=1)
        return np.asarray(known[where.reshape(block.shape)])

    def ordered_warp(self, block: Array, thread: Array, warp: Array, lanes: Array, time: Array) -> Array:
        """As `ordered`, for what those lanes of a warp of the cluster did whose bits are set; arrays of one axis."""
        found = time <= self.block_floor[block]
        number = block * (self.threads // 32) + thread // 32
        column = block % self.cluster * self.threads + thread
        lanes = np.where(column // 32 == warp, lanes & ~(1 << column % 32), lanes)
        if self.cluster > 1:
            found = (found & self._same_block(block, 32 * warp)) | (time <= self.cluster_floor[block])
        found |= (column // 32 == warp) & (time <= self.warp_floor[number]) | (lanes == 0)
        if self.matrix is not None and not found.all():
            late = ~found
            other = warp[late, None] * 32 + np.arange(32)
            known = time[late, None] <= self.matrix[block[late, None], thread[late, None], other]
            known |= lanes[late, None] >> np.arange(32) & 1 == 0
            found[late] = known.all(axis=1)
        return found

    def _same_block(self, block: Array, column: Array) -> Array:
        rank = np.where(column < self.members, column // self.threads, (column - self.members) // ENGINES)
        return np.asarray(rank == block % self.cluster)


def _rows(threads: Array) -> Array | slice:
    """Threads as a slice where they are neighbours in order, which NumPy reads and changes in place."""
    if len(threads) and (np.diff(threads) == 1).all():
        return slice(int(threads[0]), int(threads[-1]) + 1)
    return threads
