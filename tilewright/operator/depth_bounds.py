"""Steps of a sum that add zeros to every point of a register tile: which steps of depth loops are left.

A convolution reads a border of zeros around its image. A tile at the edge of the image meets nothing else in some taps
of the window: of 3 taps with a dilation of 12 and a border of 12, the first 12 rows need 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis
from tilewright.tiles.product import Product

# Of the steps of a loop, what may be left where it has bounds: 3x3 windows of 112 x 112 pixels, which leave out 0.3 and
# 0.6 %, took as long or longer with bounds, those of 28 x 28 (2.4 %) 0.98 of the time (Zen 1).
MOST_LEFT = 0.99


@dataclass(frozen=True)
class DepthBound:
    """Steps t of the loop `depth` with ``0 <= factor * t + stride * p + start < extent``, at the point p of `spatial`.

    Other steps add zeros.
    """

    depth: Axis
    factor: int
    spatial: Axis
    stride: int
    start: int
    extent: int

    @property
    def place(self) -> Affine:
        """Where the first step reads."""
        return Affine(self.start, {self.spatial: self.stride})

    def steps(self, first: int, points: int) -> int:
        """Steps that a tile needs which has so many points of `spatial` from `first` on."""
        places = self.stride * first + self.start, self.stride * (first + points - 1) + self.start
        low = max(0, -(max(places) // self.factor))
        high = min(self.depth.size, -(-(self.extent - min(places)) // self.factor))
        return max(0, high - low)


def depth_bounds(work: Product) -> tuple[DepthBound, ...]:
    """The bounds that the support of a product gives its depth loops, the innermost one excepted."""
    found = []
    for index, extent in work.statements[0].support:
        form = affine(index)
        terms = {} if form is None else form.terms
        depth = [axis for axis in terms if axis in work.depth[:-1]]
        spatial = [axis for axis in terms if axis in work.spatial]
        if form is not None and len(terms) == 2 and depth and spatial and terms[depth[0]] > 0:
            bound = DepthBound(depth[0], terms[depth[0]], spatial[0], terms[spatial[0]], form.constant, extent)
            found.append(bound)
    return tuple(found)


def bounds_of_tiles(work: Product, tile: Mapping[str, int]) -> tuple[DepthBound, ...]:
    """The bounds with which tiles of so many points of loops leave out enough of the steps (`MOST_LEFT`)."""
    return tuple(each for each in depth_bounds(work) if _part_left(each, tile) <= MOST_LEFT)


def steps_left(work: Product, tile: Mapping[str, int]) -> float:
    """The part of the steps of all sums that tiles with so many points of loops run where they leave out zeros."""
    return prod(_part_left(each, tile) for each in bounds_of_tiles(work, tile))


def bounded_loops(work: Product, tile: Mapping[str, int]) -> frozenset[Axis]:
    """The depth loops of which tiles with so many points of loops leave out steps."""
    return frozenset(each.depth for each in bounds_of_tiles(work, tile))


def _part_left(bound: DepthBound, tile: Mapping[str, int]) -> float:
    """The part of the steps of one loop that is left."""
    return _mean_steps(bound, tile.get(bound.spatial.name, 1)) / bound.depth.size


@lru_cache(maxsize=1 << 12)
def _mean_steps(bound: DepthBound, points: int) -> float:
    """The steps of a tile with so many points, the last one perhaps with fewer, at the mean.

    Tiles that need fewer than all steps lie at the ends of the loop.
    """
    size, all_steps = bound.spatial.size, bound.depth.size
    starts = range(0, size, points)
    lacking, begin = 0, 0
    for first in starts:
        lacks = all_steps - bound.steps(first, min(points, size - first))
        if not lacks:
            break
        lacking, begin = lacking + lacks, begin + 1
    for first in reversed(starts[begin:]):
        lacks = all_steps - bound.steps(first, min(points, size - first))
        if not lacks:
            break
        lacking += lacks
    return all_steps - lacking / len(starts)
