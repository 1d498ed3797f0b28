"""Blocks of products in one kernel where one value is read through windows: their points, and what they compute again.

The outermost loop of rows that all statements follow is cut; loops inside it are whole in a block. Of the value that is
read through windows a block computes what its windows touch. What the block before computed too is computed again, or
copied within the buffer of the value. Blocks have as many points as make the predicted cycles least.
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
class Windowed:
    """Products, and rows between them, of which one reads the result of the first product through windows.

    `windows` are those along each loop of that result. `cut` is the loop that blocks cut, if there is one, of those
    `outside` it a block has one point.
    """

    works: tuple[Product, ...]
    rows: Mapping[int, Statements]
    windows: Mapping[Axis, Window]
    cut: Axis | None
    outside: tuple[Axis, ...]

    def moved(self) -> list[Axis]:
        """The loops of the value whose windows are cut."""
        return [axis for axis, window in self.windows.items() if self.cut is not None and window.is_cut({self.cut: 1})]

    def blocks(self, points: int, programs: int) -> tuple[SpatialLoop, ...]:
        """Blocks of so many points of the loop that is cut, distributed to so many programs."""
        around = [SpatialLoop(axis, 1, axis.size) for axis in self.outside]
        whole = self.cut is None or points >= self.cut.size
        return (*around, *([] if self.cut is None or whole else [SpatialLoop(self.cut, points, programs)]))

    def computed(self, blocks: Sequence[SpatialLoop], keep: bool) -> float:
        """How often the points of the value are computed, on average."""
        cut = self._cut(blocks)
        if cut is None:
            return 1.0
        found = 1.0
        for axis, window in self.windows.items():
            if window.is_cut({cut.axis: cut.quantum}):
                found *= sum(_points_of_blocks(window, axis, cut, keep)) / axis.size
        return found

    def copied_bytes(self, blocks: Sequence[SpatialLoop]) -> int:
        """Bytes that are copied within the buffer of the value where blocks of a program keep what they share."""
        cut = self._cut(blocks)
        if cut is None or not self.shares(blocks):
            return 0
        points = {cut.axis: cut.quantum}
        (moved,) = (window for window in self.windows.values() if window.is_cut(points))
        span = moved.span(points)
        times = (cut.tiles - cut.programs) * prod(axis.size for axis in self.outside)
        return times * (span - moved.step(points)) * self.buffer_bytes(points)[0] // span

    def shares(self, blocks: Sequence[SpatialLoop]) -> bool:
        """Whether neighbouring blocks of one program touch the same points."""
        cut = self._cut(blocks)
        if cut is None or cut.tiles_per_block == 1:
            return False
        points = {cut.axis: cut.quantum}
        moved = [window for window in self.windows.values() if window.is_cut(points)]
        return len(moved) == 1 and moved[0].span(points) > moved[0].step(points)

    def buffer_bytes(self, points: Mapping[Axis, int]) -> list[int]:
        """Bytes of the buffers of one block, with so many points of the loop that is cut: of what each part gives."""
        first, found = self.works[0], []
        extents = [self._extent(axis, points) for axis in first.spatial if axis not in self.outside]
        found.append(prod(extents) * dtypes.size_bytes(first.output.dtype))
        if 0 in self.rows:
            result = self.rows[0][-1]
            extents = [points.get(axis, axis.size) for axis in result.axes if axis not in self.outside]
            found.append(prod(extents) * dtypes.size_bytes(result.tensor.dtype))
        return found

    def _extent(self, axis: Axis, points: Mapping[Axis, int]) -> int:
        window = self.windows.get(axis)
        if window is None:
            return points.get(axis, axis.size)
        return window.span(points) if window.is_cut(points) else window.before + axis.size + window.after

    def _cut(self, blocks: Sequence[SpatialLoop]) -> SpatialLoop | None:
        return next((loop for loop in blocks if loop.axis == self.cut and loop.tiles > 1), None)


def windowed(works: Sequence[Product], rows: Mapping[int, Statements]) -> Windowed | None:
    """What is known of products of which one reads another through windows; None where none does."""
    statements = [each for part in (*(work.statements for work in works), *rows.values()) for each in part]
    axes = {work.output.name: work.spatial for work in works}
    windows = {
        window.axis: window
        for name, read in window_reads(statements).items()
        if name in axes
        for window in read.windows(axes[name])
    }
    if not windows:
        return None
    last = works[-1]
    follows = [
        axis for axis in (*last.outer, *last.rows)
        if all(axis in work.spatial or any(axis in windows[each].form.terms for each in work.spatial if each in windows)
               for work in works[:-1])
        and (0 not in rows or axis in outer_loops(rows[0]))
    ]  # fmt: skip
    cut = next((axis for axis in last.rows if axis in follows), None)
    return Windowed(tuple(works), rows, windows, cut, tuple(axis for axis in follows if axis in last.outer))


def points_of_blocks(each: Windowed, unit: int, at_once: int, l2_bytes: int, whole: bool) -> list[int]:
    """The points of the loop that is cut which a block may have: whole units, or all where the loop is `whole`.

    Buffers take half of L2 at most, or three quarters where no blocks take less. Rows take `at_once` points of the loop
    together, or all where there are fewer.
    """
    cut = each.cut
    if cut is None or whole:
        sizes = [1 if cut is None else cut.size] if whole else []
    else:
        innermost = 0 in each.rows and outer_loops(each.rows[0])[-2:-1] == (cut,)
        sizes = list(range(unit, min(cut.size, MOST_POINTS + 1), unit))
        sizes = [size for size in sizes if not innermost or size <= at_once or size % at_once == 0]
    held = {size: sum(each.buffer_bytes({} if cut is None or whole else {cut: size})) for size in sizes}
    found = [size for size in sizes if held[size] <= l2_bytes // 2]
    return found or [size for size in sizes if held[size] <= l2_bytes * 3 // 4]


def unit_of(each: Windowed, tiles: Sequence[Mapping[str, int]]) -> int:
    """Points of the loop that is cut in the smallest block of whole register tiles."""
    return lcm(*(tile.get(each.cut.name, 1) for tile in tiles)) if each.cut is not None else 1


def _points_of_blocks(window: Window, axis: Axis, cut: SpatialLoop, keep: bool) -> list[int]:
    """The points of a loop of the value that each block computes."""
    points = {cut.axis: cut.quantum}
    step, span, end = window.step(points), window.span(points), min(window.end, axis.size)
    found = []
    for number in range(cut.tiles):
        begin = window.form.constant + number * step
        kept = span - step if keep and number % cut.tiles_per_block else 0
        low, high = max(0, begin + max(0, kept)), min(end, begin + span)
        found.append(max(0, high - low))
    return found
