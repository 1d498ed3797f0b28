"""A small search problem that has the form of the real ones: factors of three loops at three levels of memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod

from tilewright.search.cost import Evaluation
from tilewright.search.factor_space import FactorSpace, Open, Row, Table

LEVELS = 3  # entries of a row: steps over data in DRAM, over data in cache, in registers


@dataclass(frozen=True)
class Product:
    """C[m, n] += A[m, k] * B[k, n] in tiles: seconds by the traffic of two levels, whose tiles have to fit.

    It pickles, so that workers can evaluate it.
    """

    extents: tuple[int, int, int]  # m, n, k
    capacities: tuple[int, int]  # elements in cache and in registers

    def space(self) -> FactorSpace:
        rows = tuple(Row(name, extent, (None,) * LEVELS) for name, extent in zip("mnk", self.extents, strict=True))
        return FactorSpace(rows, self.refuses, {"capacities": list(self.capacities)})

    def refuses(self, table: Open) -> bool:
        """Whether a tile does not fit; an open factor is 1 at least."""
        return any(sum(self._tiles(table, level)) > capacity for level, capacity in enumerate(self.capacities, 1))

    def __call__(self, table: Table) -> Evaluation:
        if self.refuses(table):
            return Evaluation.refused("a tile does not fit")
        seconds = prod(self.extents) * 1e-9
        for level, per_second in ((1, 1e8), (2, 1e9)):
            steps = [prod(row[:level]) for row in table]
            a, b, c = self._tiles(table, level)
            moved = (a + b) * prod(steps) + 2 * c * steps[0] * steps[1]
            seconds += moved / per_second
        registers = [row[-1] for row in table]
        return Evaluation(seconds * (1 + 0.5 * (registers[1] % 4 != 0)))

    def _tiles(self, table: Open, level: int) -> tuple[int, int, int]:
        """Elements of A, B and C in one step of the loops above `level`."""
        m, n, k = (prod(factor or 1 for factor in row[level:]) for row in table)
        return m * k, k * n, m * n


@dataclass(frozen=True)
class Valley(Product):
    """The same space with a cost that grows smoothly with the distance from one table, in logarithms of factors."""

    lowest: Table = ()

    def __call__(self, table: Table) -> Evaluation:
        if self.refuses(table):
            return Evaluation.refused("a tile does not fit")
        pairs = [(a, b) for row, low in zip(table, self.lowest, strict=True) for a, b in zip(row, low, strict=True)]
        return Evaluation(1e-6 * (1 + sum(log2(a / b) ** 2 for a, b in pairs)))


PRODUCTS = (
    Product((16, 12, 8), (60, 12)),
    Product((32, 15, 4), (100, 20)),
    Product((36, 6, 5), (100, 16)),
    Product((64, 8, 2), (100, 50)),
)
VALLEYS = (
    Valley((16, 12, 8), (60, 12), ((4, 2, 2), (3, 2, 2), (4, 2, 1))),
    Valley((32, 15, 4), (100, 20), ((4, 2, 4), (3, 5, 1), (2, 2, 1))),
    Valley((36, 6, 5), (100, 16), ((3, 4, 3), (3, 1, 2), (5, 1, 1))),
    Valley((64, 8, 2), (100, 50), ((4, 4, 4), (2, 2, 2), (1, 1, 2))),
)
