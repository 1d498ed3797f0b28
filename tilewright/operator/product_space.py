"""The space of schedules of one product on a CPU: register tiles, orders of the loops, blocks of k.

A point says what a person would: the rows and the vectors of the register tile, the loops outermost first, and
into how many blocks the sums are cut. `ProductSpace` has every valid point once, in an order that is the same on every
run. A mapping restricts the space to tiles with several rows along its own loops.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from itertools import permutations, product
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.rules.cpu_product import tiles_that_fit
from tilewright.tiles.product import Product

BLOCK_COUNTS = (1, 2, 4, 8, 16, 32)  # of k


@dataclass(frozen=True)
class ProductSpace:
    """All points of a product, before its vector operand is packed; a `Space` of level 2.

    With `rows`, register tiles have several rows along every loop among them, and one row along others.
    """

    work: Product
    rows: frozenset[Axis] | None = None

    @cached_property
    def points(self) -> tuple[ProductPoint, ...]:
        work = self.work
        n, m_loops = work.columns.name, tuple(axis.name for axis in work.rows)
        extents = [axis.size for axis in work.rows]
        found: list[ProductPoint] = []
        for (rows, vectors), order in product(self._tiles(), permutations((n, *m_loops))):
            # Blocks of k run between the columns and the rows, which need more than one tile to share them.
            most = work.depth[0].size if order[0] == n and prod(rows) < prod(extents) else 1
            counts = [count for count in BLOCK_COUNTS if count <= most]
            found += [ProductPoint(rows, vectors, order, count) for count in counts]
        return tuple(found)

    def _tiles(self) -> list[tuple[tuple[int, ...], int]]:
        """Rows along each m loop, and vectors."""
        if self.rows is None:
            return tiles_that_fit(self.work)
        tallest = max(rows for rows, _ in self.work.shapes)
        widest = -(-self.work.columns.size // self.work.lanes)
        sizes = []
        for axis in self.work.rows:
            several = bool(self.rows.intersection(self.work.stands_for(axis)))
            sizes.append(range(2, min(axis.size, tallest) + 1) if several else range(1, 2))
        found = []
        for rows in product(*sizes):
            widths = [vectors for height, vectors in self.work.shapes if height >= prod(rows)]
            found += [(rows, vectors) for vectors in range(1, min(widest, max(widths, default=0)) + 1)]
        return found

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[ProductPoint]:
        return iter(self.points)

    def sample(self, count: int, seed: int = 0) -> list[ProductPoint]:
        """Points drawn uniformly, each at most once; all of them where there are no more."""
        return random.Random(seed).sample(self.points, min(count, len(self)))
