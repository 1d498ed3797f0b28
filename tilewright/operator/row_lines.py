"""Where the rows of a register tile lie in L1, and what it costs where they share few of its sets.

Rows whose distance is a multiple of the size of a way lie in one set. Their lines are asked for ahead of time and
evicted before they are used, once they take more than a part of its ways. A copy with longer rows spreads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis
from tilewright.machine.description import Cache, Cpu
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Operand, Product

CROWDED = 3  # of the ways of L1, the part that rows may take beside panels and what is fetched ahead: Zen 5


def crowded(a: Operand, loops: Sequence[Axis], rows: Sequence[int], cache: Cache) -> bool:
    """Whether lines of `a` for the rows of a tile, so many along each of `loops`, take too many ways of one set."""
    return CROWDED * lines_in_one_set(a, loops, rows, cache) > cache.lines_per_set


def lines_in_one_set(a: Operand, loops: Sequence[Axis], rows: Sequence[int], cache: Cache) -> int:
    """The most rows of a tile whose elements of `a`, of one step of k, lie in one set of a cache."""
    form = affine(a.index)
    if form is None:
        return 1
    size = dtypes.size_bytes(a.tensor.dtype)
    steps = [form.coefficient(axis) * size for axis in loops]
    lines = {
        sum(step * place for step, place in zip(steps, places, strict=True)) // cache.line_bytes
        for places in product(*map(range, rows))
    }
    return max(Counter(line % cache.sets for line in lines).values())


def waiting_cycles(
    work: Product, tile: Mapping[str, int], blocks: Mapping[str, int], a_bytes: int, machine: Cpu
) -> float:  # fmt: skip
    """Cycles that crowded rows wait for, all threads together; 0 where nothing evicts them, or L2 has them.

    Every tile of columns but the first reads all of a again, from the cache that holds the part of one program.
    """
    first, *outer = machine.caches
    rows = [tile.get(axis.name, 1) for axis in work.rows]
    if not outer or not crowded(work.a, work.rows, rows, first):
        return 0.0
    loops = [SpatialLoop(axis, size, blocks.get(axis.name, 1)) for axis, size in zip(work.rows, rows, strict=True)]
    share = a_bytes * prod(loop.points[0] / loop.extent for loop in loops)
    if share <= outer[0].bytes:
        return 0.0
    level = next((cache for cache in outer if share <= cache.bytes), None)
    rate = level.bytes_per_cycle if level else machine.dram.bytes_per_second / machine.nominal_clock_hz
    again = -(-work.columns.size // tile[work.columns.name]) - 1
    return again * a_bytes / (rate or machine.vector_bits / 8)
