"""Blocks of products in one kernel where one value is read through windows: their points, and what they compute again.

One loop of rows that all statements follow is cut: of loops outside of it a block has one point, loops inside it are
whole. Of the value that is read through windows a block computes what its windows touch. What the block before computed
too is computed again, or copied within the buffer of the value. Blocks have as many points as make the predicted cycles
least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm, prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.core import Axis
from tilewright.operator.statements import Statements, outer_loops
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Product
from tilewright.tiles.windows import Window, window_reads

MOST_POINTS = 64  # of the loop that is cut, in a block: more save few points that are computed again
COPIED_BYTES = 16  # in a cycle, from L2 and back
PROGRAMS = (1, 2, 4)  # for each thread, along the loop that is cut


@dataclass(frozen=True)
class Cut:
    """The loop that blocks cut, and those `outside` of it, outermost first."""

    outside: tuple[Axis, ...]
    axis: Axis

    def blocks(self, points: int, programs: int) -> tuple[SpatialLoop, ...]:
        """Blocks of so many points, distributed to so many programs."""
        around = [SpatialLoop(axis, 1, axis.size) for axis in self.outside]
        return (*around, *([SpatialLoop(self.axis, points, programs)] if points < self.axis.size else []))

    def unit(self, tiles: Sequence[Mapping[str, int]]) -> int:
        """Points in the smallest block of whole register tiles."""
        return lcm(*(tile.get(self.axis.name, 1) for tile in tiles))


@dataclass(frozen=True)
class Windowed:
    """Products, and rows between them, of which one reads the result of the first product through windows.

    `windows` are those along each loop of that result.
    """

    works: tuple[Product, ...]
    rows: Mapping[int, Statements]
    windows: Mapping[Axis, Window]

    def cuts(self) -> list[Cut]:
        """The loops of rows that blocks may cut, outermost first, up to the first one that moves windows."""
        last = self.works[-1]
        follows = [axis for axis in (*last.outer, *last.rows) if self._is_followed(axis)]
        found = []
        for place, axis in enumerate(follows):
            if axis in last.rows:
                found.append(Cut(tuple(follows[:place]), axis))
                if self.moved(axis):
                    break
        return found

    def _is_followed(self, axis: Axis) -> bool:
        """Whether every statement has a loop, or one whose windows it moves."""
        moved = self.moved(axis)
        return all(axis in work.spatial or set(moved) & set(work.spatial) for work in self.works) and (
            0 not in self.rows or axis in outer_loops(self.rows[0])
        )

    def moved(self, axis: Axis) -> list[Axis]:
        """The loops of the value whose windows a loop moves."""
        return [each for each, window in self.windows.items() if window.is_cut({axis: 1})]

    def computed(self, blocks: Sequence[SpatialLoop], keep: bool) -> float:
        """How often the points of the value are computed, on average."""
        cut = self._moving(blocks)
        if cut is None:
            return 1.0
        moved = self.moved(cut.axis)
        return prod(sum(_points_of_blocks(self.windows[axis], cut, keep)) / axis.size for axis in moved)

    def copied_bytes(self, blocks: Sequence[SpatialLoop]) -> int:
        """Bytes that are copied within the buffer of the value where blocks of a program keep what they share."""
        cut = self._moving(blocks)
        if cut is None or not self.shares(blocks):
            return 0
        (axis,), points = self.moved(cut.axis), {cut.axis: cut.quantum}
        span, step = self.windows[axis].span(points), self.windows[axis].step(points)
        times = (cut.tiles - cut.programs) * prod(loop.tiles for loop in blocks if loop != cut)
        return times * (span - step) * self.buffer_bytes(blocks)[0] // span

    def shares(self, blocks: Sequence[SpatialLoop]) -> bool:
        """Whether neighbouring blocks of one program touch the same points."""
        cut = self._moving(blocks)
        if cut is None or cut.tiles_per_block == 1 or len(self.moved(cut.axis)) != 1:
            return False
        (axis,), points = self.moved(cut.axis), {cut.axis: cut.quantum}
        return self.windows[axis].span(points) > self.windows[axis].step(points)

    def buffer_bytes(self, blocks: Sequence[SpatialLoop]) -> list[int]:
        """Bytes of the buffers of one block: of the value, and of what rows make of it."""
        points = {loop.axis: loop.quantum for loop in blocks if loop.tiles > 1}
        first = self.works[0]
        found = [_bytes(first.output.dtype, [self._extent(axis, points) for axis in first.spatial])]
        if 0 in self.rows:
            *_, last = self.rows[0]
            found.append(_bytes(last.tensor.dtype, [points.get(axis, axis.size) for axis in last.axes]))
        return found

    def _extent(self, axis: Axis, points: Mapping[Axis, int]) -> int:
        window = self.windows.get(axis)
        if window is None:
            return points.get(axis, axis.size)
        return window.span(points) if window.is_cut(points) else window.before + axis.size + window.after

    def _moving(self, blocks: Sequence[SpatialLoop]) -> SpatialLoop | None:
        """The loop of blocks that moves windows."""
        return next((loop for loop in blocks if loop.tiles > 1 and self.moved(loop.axis)), None)


def windowed(works: Sequence[Product], rows: Mapping[int, Statements]) -> Windowed | None:
    """What is known of products of which one reads another through windows; None where none does."""
    statements = [each for part in (*(work.statements for work in works), *rows.values()) for each in part]
    axes = {work.output.name: work.spatial for work in works}
    reads = {name: read for name, read in window_reads(statements).items() if name in axes}
    windows = {window.axis: window for name, read in reads.items() for window in read.windows(axes[name])}
    return Windowed(tuple(works), rows, windows) if windows else None


def points_of_blocks(each: Windowed, cut: Cut, unit: int, at_once: int, l2_bytes: int) -> list[int]:
    """The points that a block may have which has not all of the loop that is cut: whole units.

    Buffers take half of L2 at most, or three quarters where no blocks take less. Rows take `at_once` points of their
    innermost loop together, or all where there are fewer.
    """
    innermost = 0 in each.rows and outer_loops(each.rows[0])[-2:-1] == (cut.axis,)
    sizes = range(unit, min(cut.axis.size, MOST_POINTS + 1), unit)
    held = {
        size: sum(each.buffer_bytes(cut.blocks(size, 1)))
        for size in sizes
        if not innermost or size <= at_once or size % at_once == 0
    }
    found = [size for size, taken in held.items() if taken <= l2_bytes // 2]
    return found or [size for size, taken in held.items() if taken <= l2_bytes * 3 // 4]


def _points_of_blocks(window: Window, cut: SpatialLoop, keep: bool) -> list[int]:
    """The points of a loop of the value that each block computes."""
    points, axis = {cut.axis: cut.quantum}, window.axis
    step, span, end = window.step(points), window.span(points), min(window.end, axis.size)
    found = []
    for number in range(cut.tiles):
        begin = window.form.constant + number * step
        kept = span - step if keep and number % cut.tiles_per_block else 0
        found.append(max(0, min(end, begin + span) - max(0, begin + kept)))
    return found


def _bytes(dtype: str, extents: Sequence[int]) -> int:
    return prod(extents) * dtypes.size_bytes(dtype)
