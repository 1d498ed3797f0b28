"""Rules for several products in one kernel on a CPU: register tiles that go together, and blocks of the loops they share.

Each product takes the register tile that is the fastest for it, among those whose rows make blocks together. A block
has as many rows as keep what one product of it touches in half of L2, and as threads have work; it has all points of
the loop that the last product sums over, where these fit, so that sums stay in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import lcm, prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.core import Axis
from tilewright.machine.description import Cpu
from tilewright.operator.cycles import epilogue_cycles, product_cycles, tiled_cycles
from tilewright.operator.product_point import ProductPoint, k_unroll
from tilewright.operator.product_tree import ProductTree
from tilewright.operator.products_tree import ProductsTree
from tilewright.operator.rules.cpu_product import PROGRAMS_PER_THREAD, tiles_that_fit
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Product

MOST_ROWS = 128  # of a block, so that a thread has several of them
COMPARED = 12  # register tiles of a product that are tried with those of the other


@dataclass(frozen=True)
class FusedPoint:
    """Register tiles of the products, and the blocks of the loops that they share, outermost first."""

    points: tuple[ProductPoint, ...]
    blocks: tuple[SpatialLoop, ...]

    def __str__(self) -> str:
        blocks = ", ".join(f"{loop.axis.name} in blocks of {loop.quantum}" for loop in self.blocks if loop.tiles > 1)
        return f"{' and '.join(point.tile_text() for point in self.points)}{f', {blocks}' if blocks else ''}"


def fused_kernel(works: Sequence[Product], point: FusedPoint, in_loop: Sequence[bool]) -> Kernel:
    """The kernel that runs products as a point says; `in_loop`: whose epilogues are loops."""
    cut = {loop.axis.name: loop.quantum for loop in point.blocks if loop.tiles > 1}
    single = {loop.axis.name for loop in point.blocks if loop.quantum == 1}
    trees = []
    for work, each, loop in zip(works, point.points, in_loop, strict=True):
        tile = {**each.tile(work), work.depth[-1].name: k_unroll(work)}
        order = [name for name in (*(axis.name for axis in work.outer), *each.order) if name not in single]
        spatial = {axis.name: axis for axis in work.spatial}
        lanes = {work.columns.name: work.lanes}
        outside = [
            SpatialLoop(spatial[name], tile.get(name, 1), 1, lanes.get(name, 0), cut.get(name, 0)) for name in order
        ]
        inside = {axis.name: cut[axis.name] for axis in work.depth if axis.name in cut}
        trees.append(ProductTree(work, tile, (), tuple(outside), epilogue_loop=loop, within=inside))
    statements = tuple(statement for work in works for statement in work.statements)
    return Kernel(statements, ProductsTree(tuple(trees), point.blocks).tree())


def choose_fused(works: Sequence[Product], machine: Cpu, threads: int) -> FusedPoint | None:
    """Register tiles and blocks of products with shared loops; None where no blocks fit.

    Of the loops that all products have, those that none of them tiles are walked point by point.
    """
    points = _tiles_together(works, machine)
    if points is None:
        return None
    *_, last = works
    shared = [axis for axis in works[0].spatial if all(axis in (*work.spatial, *work.depth) for work in works)]
    summed = [axis for axis in shared if axis in last.depth]
    tiled = {axis for work in works for axis in (*work.rows[-1:], work.columns)}
    single = [axis for axis in shared if axis not in tiled and axis not in summed]
    cut = [axis for axis in shared if axis in tiled and axis not in summed]
    units = {axis: _unit(works, points, axis) for axis in shared}
    l2_bytes = machine.caches[1].bytes if len(machine.caches) > 1 else 4 * machine.caches[0].bytes
    whole = {axis: axis.size for axis in (*cut, *summed)}
    sizes = {**whole, **{axis: min(axis.size, units[axis]) for axis in cut}}
    while summed and block_bytes(works, single, sizes) > l2_bytes // 4:
        (axis,) = summed
        fewer = _multiple(sizes[axis] // 2, units[axis])
        if fewer >= sizes[axis]:
            return None
        sizes[axis] = fewer
    programs = prod(axis.size for axis in single)
    for axis in cut:
        sizes[axis] = _rows_of_block(works, single, sizes, axis, units[axis], l2_bytes // 2)
        if threads > 1 and programs < threads * PROGRAMS_PER_THREAD:
            wanted = -(-threads * PROGRAMS_PER_THREAD // programs)
            sizes[axis] = min(sizes[axis], _multiple(-(-axis.size // wanted), units[axis]))
        if sizes[axis] < axis.size:  # blocks of one size
            blocks = -(-axis.size // sizes[axis])
            sizes[axis] = _multiple(-(-axis.size // blocks), units[axis])
        programs *= -(-axis.size // sizes[axis])
    if any(units[axis] > axis.size and sizes[axis] < axis.size for axis in cut):
        return None
    blocks = [SpatialLoop(axis, 1, axis.size) for axis in single]
    for axis in (*cut, *summed):
        size = min(sizes[axis], axis.size)
        if size < axis.size:
            blocks.append(SpatialLoop(axis, size, 1 if axis in summed or threads == 1 else -(-axis.size // size)))
    return FusedPoint(points, tuple(blocks))


def block_bytes(works: Sequence[Product], single: Sequence[Axis], sizes: Mapping[Axis, int]) -> int:
    """The most bytes that one product of a block touches: of both factors and the result, panels whole."""
    most = 0
    for work in works:
        operands = (
            ((*work.rows, *work.depth), work.a.tensor),
            ((work.columns, *work.depth), work.b.tensor),
            ((*work.rows, work.columns), work.output),
        )
        found = 0
        for axes, tensor in operands:
            points = prod(sizes.get(axis, axis.size) for axis in axes if axis not in single)
            found += points * dtypes.size_bytes(tensor.dtype)
        most = max(most, found)
    return most


def fused_cycles(works: Sequence[Product], point: FusedPoint, machine: Cpu) -> float:
    """Cycles of products in one kernel with all data near, of all threads together."""
    each = zip(works, point.points, strict=True)
    return sum(product_cycles(work, tiles, machine) + epilogue_cycles(work, machine) for work, tiles in each)


def _tiles_together(works: Sequence[Product], machine: Cpu) -> tuple[ProductPoint, ...] | None:
    """The register tiles with the fewest cycles in all whose rows and columns make blocks of a few of them."""
    ranked = []
    for work in works:
        fits = [each for each in tiles_that_fit(work) if prod(each[0][:-1]) == 1]
        order = (work.columns.name, *(axis.name for axis in work.rows))
        costs = sorted((tiled_cycles(work, *each, machine), -each[1] * prod(each[0]), each) for each in fits)
        ranked.append([(cycles, ProductPoint(*each, order)) for cycles, _, each in costs[:COMPARED]])
    best: tuple[float, tuple[ProductPoint, ...]] | None = None
    for found in product(*ranked):
        cycles, points = sum(each for each, _ in found), tuple(each for _, each in found)
        if best is not None and cycles >= best[0]:
            continue
        axes = {axis for work in works for axis in work.spatial}
        if all(_unit(works, points, axis) <= MOST_ROWS for axis in axes):
            best = cycles, points
    return None if best is None else best[1]


def _unit(works: Sequence[Product], points: Sequence[ProductPoint], axis: Axis) -> int:
    """The fewest points of a loop that are whole register tiles, or whole steps of a sum, in every product."""
    units = [1]
    for work, point in zip(works, points, strict=True):
        if axis in work.depth:
            units.append(k_unroll(work) if axis == work.depth[-1] else 1)
        elif axis in work.spatial:
            units.append(point.tile(work).get(axis.name, 1))
    return lcm(*units)


def _multiple(size: int, unit: int) -> int:
    """The size rounded up to whole units."""
    return -(-max(size, 1) // unit) * unit


def _rows_of_block(
    works: Sequence[Product], single: Sequence[Axis], sizes: Mapping[Axis, int], axis: Axis, unit: int, most: int
) -> int:
    """The most points of a loop in a block that takes no more than so many bytes, at least one unit."""
    found = unit
    while found + unit <= min(MOST_ROWS, axis.size + unit):
        if block_bytes(works, single, {**sizes, axis: found + unit}) > most:
            break
        found += unit
    return found
