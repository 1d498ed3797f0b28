"""Set conflicts of the broadcast operand: where its rows lie in caches, and what it costs where they share few sets.

Rows whose distance is a multiple of a large power of two lie in few sets. A register tile whose rows share a set of L1
has lines that are fetched ahead evicted before they are used, once they take more than a part of its ways. With blocks
of k a program reads a slice of each of its rows for every tile of columns. Slices that share few sets of L2 do not stay
there, and what L1 has lost comes from further out. A copy with longer rows (a padded leading dimension) spreads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, prod
from typing import Any

import numpy as np

from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis
from tilewright.machine.description import Cache, Cpu
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Operand, Product

CROWDED = 3  # of the ways of L1, the part that rows may take beside panels and what is fetched ahead: Zen 5
SLICES = 0.7  # of the ways of L2, above which slices of rows do not stay beside panels: 4.6 of 8 do on Zen 3, 6 do not


def crowded(a: Operand, loops: Sequence[Axis], rows: Sequence[int], cache: Cache) -> bool:
    """Whether lines of `a` for the rows of a tile, so many along each of `loops`, take too many ways of one set."""
    return CROWDED * lines_in_one_set(a, loops, rows, cache) > cache.lines_per_set


def lines_in_one_set(a: Operand, loops: Sequence[Axis], rows: Sequence[int], cache: Cache) -> int:
    """The most rows of a tile whose elements of `a`, of one step of k, lie in one set of a cache."""
    return int(lines_by_set(a, loops, rows, cache).max())


def lines_of_parts(work: Product, rows: Sequence[int], parts: int, cache: Cache) -> int:
    """As `lines_in_one_set`, where a step takes an element of each of so many equal parts of the only sum."""
    form, (depth,) = affine(work.a.index), work.depth
    if form is None:
        return 1
    size = dtypes.size_bytes(work.a.tensor.dtype)
    steps = [(form.coefficient(axis) * size, count) for axis, count in zip(work.rows, rows, strict=True)]
    steps.append((form.coefficient(depth) * size * (depth.size // parts), parts))
    return int(_lines_by_set(tuple(steps), 1, cache.line_bytes, cache.sets).max())


def lines_by_set(
    a: Operand, loops: Sequence[Axis], rows: Sequence[int], cache: Cache, slice_bytes: int = 1
) -> np.ndarray[Any, Any]:  # fmt: skip
    """How many lines lie in each set of a cache, for a slice of each row: so many rows along each of `loops`."""
    form = affine(a.index)
    if form is None:
        return np.ones(1, np.int64)
    size = dtypes.size_bytes(a.tensor.dtype)
    steps = tuple((form.coefficient(axis) * size, count) for axis, count in zip(loops, rows, strict=True))
    return _lines_by_set(steps, -(-slice_bytes // cache.line_bytes), cache.line_bytes, cache.sets)


@lru_cache(maxsize=1 << 12)
def _lines_by_set(
    steps: tuple[tuple[int, int], ...], slice_lines: int, line_bytes: int, sets: int
) -> np.ndarray[Any, Any]:  # fmt: skip
    """The same for bytes from row to row with numbers of rows; tiles and layers of a network ask for equal ones."""
    starts = np.zeros(1, np.int64)
    for step, count in steps:
        starts = _distinct(np.add.outer(starts, step * np.arange(count)))
    lines = _distinct(np.add.outer(starts // line_bytes, np.arange(slice_lines)))
    return np.bincount(lines % sets)


def _distinct(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Each value once, in order; `np.unique` would import masked arrays, which no other part of a compilation needs."""
    ordered: np.ndarray[Any, Any] = np.sort(values, axis=None)
    first: np.ndarray[Any, Any] = ordered[np.append(True, np.diff(ordered) > 0)]
    return first


def line_cycles(work: Product, rows: Sequence[int], vectors: int, machine: Cpu) -> float:
    """How long lines of a tile's rows come in one step of k; no time where L1 keeps most of them for the next tile,
    beside the panel of so many vectors.

    Where every sum walks from line to line, as in an image whose channels are outermost, each step reads as many lines
    as the rows lie in. They come from L2, or from the last cache where L2 does not hold the rows of a program.
    Multiply-adds hide little of that time: of 960 steps over 33 x 33 pixels, a step took 4.4 cycles more than one over
    channels that lie innermost, where a line takes 2 (Zen 1).
    """
    first, *outer = machine.caches
    if not outer or not walks_across_lines(work, machine):
        return 0.0
    panel_bytes = vectors * work.lanes * prod(axis.size for axis in work.depth) * dtypes.size_bytes(work.b.tensor.dtype)
    if _mean_lines(work, rows, first) <= first.lines_per_set * (1 - panel_bytes / first.bytes):
        return 0.0
    moved = int(lines_by_set(work.a, work.rows, rows, first).sum()) * first.line_bytes
    near = _mean_lines(work, _rows_of_half(outer[0], work), outer[0]) <= SLICES * outer[0].lines_per_set
    return moved / ((outer[0] if near else outer[-1]).bytes_per_cycle or machine.vector_bits / 8)


def row_bytes(work: Product) -> int:
    """Bytes of `a` that one row of sums reads."""
    return prod(axis.size for axis in work.depth) * dtypes.size_bytes(work.a.tensor.dtype)


def _mean_lines(work: Product, rows: Sequence[int], cache: Cache) -> float:
    """How many lines share a set in the mean, of so many rows and all steps of k."""
    steps = (axis.size for axis in work.depth)
    return _mean_of_lines(lines_by_set(work.a, (*work.rows, *work.depth), (*rows, *steps), cache))


def _mean_of_lines(counts: np.ndarray[Any, Any]) -> float:
    """The mean over lines, not over sets, of how many a set has."""
    return float(np.average(counts, weights=counts))


def _rows_of_half(cache: Cache, work: Product) -> list[int]:
    """Rows along each loop, the innermost first, that half of a cache has space for: about those of a program."""
    left = max(1, cache.bytes // 2 // row_bytes(work))
    rows: list[int] = []
    for axis in reversed(work.rows):
        rows.insert(0, min(axis.size, left))
        left = max(1, left // axis.size)
    return rows


def walks_across_lines(work: Product, machine: Cpu) -> bool:
    """Whether every sum walks from line to line of the broadcast operand."""
    form = affine(work.a.index)
    if form is None:
        return False
    nearest = min(abs(form.coefficient(axis)) for axis in work.depth)
    return nearest * dtypes.size_bytes(work.a.tensor.dtype) >= machine.caches[0].line_bytes


def slices_leave(
    a: Operand, work: Product, tile: Mapping[str, int], blocks: Mapping[str, int], k_block: int, machine: Cpu
) -> bool:  # fmt: skip
    """Whether L1 and L2 lose what a program reads of `a` in one block of k, since it lies in few of their sets.

    L2 by the lines that share a set with one of them, in the mean.
    """
    if not k_block or len(work.depth) > 1 or len(machine.caches) < 2:
        return False
    first, near, *_ = machine.caches
    if not crowded(a, work.rows, [tile.get(axis.name, 1) for axis in work.rows], first):
        return False
    rows = [loop.points[0] for loop in _row_loops(work, tile, blocks)]
    counts = lines_by_set(a, work.rows, rows, near, k_block * dtypes.size_bytes(a.tensor.dtype))
    return _mean_of_lines(counts) > SLICES * near.lines_per_set


def waiting_cycles(work: Product, tile: Mapping[str, int], blocks: Mapping[str, int], machine: Cpu) -> float:
    """Cycles, all threads together, in which slices that leave L2 come again for each tile of columns but the first.

    They come from the cache that holds the rows of one program.
    """
    rows, depth = (prod(axis.size for axis in axes) for axes in (work.rows, work.depth))
    a_bytes = rows * depth * dtypes.size_bytes(work.a.tensor.dtype)
    share = a_bytes * prod(loop.points[0] / loop.extent for loop in _row_loops(work, tile, blocks))
    again = -(-work.columns.size // tile[work.columns.name]) - 1
    return prod(axis.size for axis in work.outer) * again * a_bytes / machine.rate_beyond_l2(ceil(share))


def _row_loops(work: Product, tile: Mapping[str, int], blocks: Mapping[str, int]) -> list[SpatialLoop]:
    return [SpatialLoop(axis, tile.get(axis.name, 1), blocks.get(axis.name, 1)) for axis in work.rows]
