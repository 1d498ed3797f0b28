"""Plans of the chain solver for two products, access by access through simulated caches.

The tile tree of a plan is walked down to the blocks of its innermost level; each is multiplied as `replay` says, from
blocks that are stored in the order in which the program first touches them. The block of C that is under way stays in
one place. Kernels apart walk the same tree twice, once for each product, and C is a tensor in memory between them: the
difference is fusion alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, prod

import numpy as np

from tilewright.graph.chain.solve import ChainPlan
from tilewright.machine.description import Cache
from tilewright.reproduce.chimera.replay import ELEMENT_BYTES, LINE_BYTES, OPERANDS, Run, product_pattern
from tilewright.runtime.cache_simulator import CacheSimulator, Counted
from tilewright.tiles.tree import ONCE, Leaf, Scope, Stage, Tile, TileTree

Ranges = Mapping[str, tuple[int, int]]


def count(plan: ChainPlan, caches: Sequence[Cache], *, fused: bool) -> tuple[Counted, ...]:
    """What a plan moves into every cache, and out of it, from empty caches to none that is dirty.

    `caches` are innermost first. Without `fused`, its two products are kernels apart.
    """
    simulator, walk = CacheSimulator(caches), _Walk(plan, fused)
    for operators in (("C", "E"),) if fused else (("C",), ("E",)):
        for pattern, bases in walk.runs(operators):
            simulator.run(pattern, bases)
    simulator.write_back()
    return simulator.counts


class _Walk:
    """Where the blocks of a plan lie, and the order in which its tree multiplies them."""

    def __init__(self, plan: ChainPlan, fused: bool) -> None:
        self.plan, self.fused = plan, fused
        self.levels = tuple(plan.tiles)  # those on chip, outermost first
        self.extents = plan.chain.extents
        self.places: dict[tuple[object, ...], int] = {}
        self.lines = 0

    def runs(self, operators: Sequence[str]) -> Iterator[Run]:
        """The accesses of some products in order."""
        whole = {loop: (0, extent) for loop, extent in self.extents.items()}
        for name, ranges, origin in self._leaves(self.plan.tree, whole, None):
            if name in operators:
                for batch in range(*ranges.get("b", (0, 1))):
                    operands = OPERANDS[name]
                    bases = [self._place(tensor, loops, batch, ranges, origin) for tensor, loops in operands]
                    (_, (rows, sums)), (_, (_, columns)), _ = operands
                    sizes = (ranges[loop][1] - ranges[loop][0] for loop in (rows, sums, columns))
                    yield product_pattern(*sizes), np.array([bases])

    def _leaves(
        self, node: TileTree | Leaf, ranges: Ranges, origin: Ranges | None
    ) -> Iterator[tuple[str, Ranges, Ranges]]:
        """Every leaf in order with the ranges of its loops, and those of the block of C that it is in."""
        if isinstance(node, Leaf):
            yield node.op, ranges, ranges if origin is None else origin
        elif isinstance(node, Scope):
            for child in node.children:
                yield from self._leaves(child, ranges, origin)
        elif isinstance(node, Stage) or node.level == self.levels[-1]:
            yield from self._leaves(node.child, ranges, origin)
        else:
            outside = self.levels.index(node.level) + 1 if node.level in self.levels else 0
            if origin is None and outside > self.levels.index(self.plan.fused_in):
                origin = ranges
            for steps in self._steps(node, self.plan.tiles[self.levels[outside]], ranges):
                yield from self._leaves(node.child, {**ranges, **steps}, origin)

    @staticmethod
    def _steps(tile: Tile, sizes: Mapping[str, int], ranges: Ranges) -> Iterator[Ranges]:
        loops = [loop.name for loop in tile.loops if loop.name != ONCE]
        for begins in product(*(range(*ranges[loop], sizes[loop]) for loop in loops)):
            yield {loop: (b, min(b + sizes[loop], ranges[loop][1])) for loop, b in zip(loops, begins, strict=True)}

    def _place(self, tensor: str, loops: tuple[str, str], batch: int, ranges: Ranges, origin: Ranges) -> int:
        """The line where a block begins; the next free one for a block that has no place yet."""
        stays = tensor == "C" and self.fused
        key = (tensor, 0 if stays else batch, *(ranges[v][0] - (origin[v][0] if stays else 0) for v in loops))
        if key not in self.places:
            self.places[key] = self.lines
            largest = prod(self.plan.tiles[self.levels[-1]][loop] for loop in loops)
            self.lines += ceil(largest * ELEMENT_BYTES / LINE_BYTES)
        return self.places[key]
