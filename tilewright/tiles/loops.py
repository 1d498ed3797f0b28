"""Spatial loops in tiles: how many there are, and how they are distributed to the programs of a grid.

Several products in one kernel share blocks of loops: tiles of a loop are then counted within a block.
"""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis


@dataclass(frozen=True)
class SpatialLoop:
    """One loop: `quantum` points per tile, tiles distributed in `blocks` to a grid axis.

    A `vector` loop pads its ragged tile to `lanes`. Where the points of a block are given, `tiles_per_block` follows.
    """

    axis: Axis
    quantum: int = 1
    blocks: int = 1
    vector_lanes: int = 0  # > 0: the ragged tile is rounded up to this many points and bounded
    block_points: int = 0  # > 0: a multiple of `quantum`

    @property
    def extent(self) -> int:
        return self.axis.size

    @property
    def full_tiles(self) -> int:
        return self.extent // self.quantum

    @property
    def rest(self) -> int:
        return self.extent % self.quantum

    @property
    def tiles(self) -> int:
        return self.full_tiles + (1 if self.rest else 0)

    @property
    def tiles_per_block(self) -> int:
        if self.block_points:
            return min(self.block_points // self.quantum, self.tiles)
        return -(-self.tiles // max(1, self.blocks))

    @property
    def programs(self) -> int:
        """Programs along this loop: blocks that hold at least one tile."""
        return max(1, -(-self.tiles // max(1, self.tiles_per_block))) if self.tiles else 1

    @property
    def points(self) -> tuple[int, ...]:
        """Points of the loop in each program."""
        size = self.tiles_per_block * self.quantum
        return tuple(min(size, self.extent - number * size) for number in range(self.programs))


def within(axis: Axis, points: int) -> Axis:
    """The place of a loop within its block of so many points."""
    return Axis(f"{axis.name} within its block", points)
