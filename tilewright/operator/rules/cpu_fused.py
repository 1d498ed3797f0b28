"""Rules for several products in one kernel on a CPU: register tiles that go together, and blocks of shared loops.

Each product takes the register tile that is the fastest for it, among those whose rows make blocks together. A block
has as many rows as keep what one product of it touches in half of the bytes for blocks, and as threads have work; it
has all points of the loop that the last product sums over, where these fit, so that sums stay in registers. Where a
softmax between the products could go on from block to block, predicted cycles choose between all points, halves of them
and so on; there blocks of few rows may take all of the bytes. The bytes for blocks are those of L2, half of them with a
softmax. Of an image a block has whole rows where these are short.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import lcm, prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Const, Expr, Read, Tensor, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.hidden import hidden_part
from tilewright.machine.description import Cpu
from tilewright.operator.cycles import epilogue_cycles, nest_cycles, product_cycles, tiled_cycles
from tilewright.operator.product_loops import merge_product_loops
from tilewright.operator.product_point import ProductPoint, k_unroll
from tilewright.operator.product_tree import ProductTree
from tilewright.operator.products_tree import ProductsTree, Rows, products_tree, with_windows
from tilewright.operator.rewrites.maxima_without_nan import maxima_without_nan
from tilewright.operator.rewrites.nonpositive_exponentials import nonpositive_exponentials
from tilewright.operator.rules.cpu_product import EVEN, balance, choose_point, l2_bytes, tiles_that_fit
from tilewright.operator.rules.cpu_rows import rows_once, schedule_rows, vector_lanes
from tilewright.operator.rules.cpu_windows import (
    COPIED_BYTES,
    PROGRAMS,
    Cut,
    Windowed,
    points_of_blocks,
    windowed,
)
from tilewright.operator.statements import Statements, covering, inner_loops, outer_loops
from tilewright.tiles.build import rooted
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Product
from tilewright.tiles.tree import Leaf

MOST_ROWS = 128  # of a block, so that a thread has several of them
MOST_UNIT = 64  # points of the smallest block, which is whole register tiles of all products
COMPARED = 12  # register tiles of a product that are tried with those of the other
PASSES = 3  # of a link through the level beyond L2: lines are read before they are written, written back, read again
PASSES_BEHIND_READS = 0.75  # of a link smaller than what its kernel reads, written while that arrives: 0.5 to 1.6
PASSES_BEFORE_WINDOWS = 1.5  # of what a link that rows read through windows has beyond L2: of a Zen 3 core
ONWARD_CYCLES = 120  # of a row in a block: its lanes put together, the factor of its sums; of a Sapphire Rapids core
NOWHERE = Const(0, INDEX)  # the address of what is touched once
ROWS_AT_ONCE = 4  # most points beside a vector in a register tile of rows (`cpu_rows`)
LEAST_GAIN = 1.02  # by which one kernel must be faster than several: what predictions of one kind are off by


@dataclass(frozen=True)
class FusedPoint:
    """Register tiles of the products, and the blocks of the loops that they share, outermost first.

    Where blocks `keep` what they share, none computes again what windows of the block before touched.
    """

    points: tuple[ProductPoint, ...]
    blocks: tuple[SpatialLoop, ...]
    keep: bool = False

    def __str__(self) -> str:
        blocks = ", ".join(f"{loop.axis.name} in blocks of {loop.quantum}" for loop in self.blocks if loop.tiles > 1)
        kept = " that keep what they share" if self.keep else ""
        return f"{' and '.join(point.tile_text() for point in self.points)}{f', {blocks}{kept}' if blocks else ''}"


def fused_kernel(
    works: Sequence[Product],
    point: FusedPoint,
    epilogue_vectors: Sequence[int],
    rows: Mapping[int, Statements] | None = None,
    machine: Cpu | None = None,
    row_lanes: int = 0,
) -> Kernel:
    """The kernel that runs products as a point says; `epilogue_vectors` are those of `ProductTree`.

    `rows` are statements of rows, by the number of the product that they follow, -1 before the first one; a machine
    schedules them. Vectors of rows have `row_lanes` lanes where an instruction was chosen.
    """
    cut = {loop.axis.name: loop.quantum for loop in point.blocks if loop.tiles > 1}
    single = {loop.axis.name for loop in point.blocks if loop.quantum == 1}
    trees = []
    for work, each, vectors in zip(works, point.points, epilogue_vectors, strict=True):
        tile = {**each.tile(work), work.depth[-1].name: k_unroll(work)}
        order = [name for name in (*(axis.name for axis in work.outer), *each.order) if name not in single]
        spatial = {axis.name: axis for axis in work.spatial}
        lanes = {work.columns.name: work.lanes}
        outside = [
            SpatialLoop(spatial[name], tile.get(name, 1), 1, lanes.get(name, 0), cut.get(name, 0)) for name in order
        ]
        inside = {axis.name: cut[axis.name] for axis in work.depth if axis.name in cut}
        trees.append(ProductTree(work, tile, (), tuple(outside), epilogue_vectors=vectors, within=inside))
    scheduled = _scheduled(trees, point, rows or {}, machine, row_lanes)
    tree = ProductsTree(tuple(trees), point.blocks, scheduled)
    tree = with_windows(replace(tree, kept=tuple(tree.window_reads) if point.keep else ()))
    tree = replace(tree, seen=tree.last_seen is not None)
    statements = in_order(works, {number: each.statements for number, each in tree.rows.items()})
    return Kernel(maxima_without_nan(nonpositive_exponentials(statements)), tree.tree())


def in_order(works: Sequence[Product], rows: Mapping[int, Statements]) -> Statements:
    """The statements of one kernel: of products, and of rows before and between them."""
    found = [*rows.get(-1, ())]
    for number, work in enumerate(works):
        found += [*work.statements, *rows.get(number, ())]
    return tuple(found)


def _scheduled(
    trees: Sequence[ProductTree],
    point: FusedPoint,
    statements: Mapping[int, Statements],
    machine: Cpu | None,
    lanes: int,
) -> dict[int, Rows]:
    """Rows with their passes over one block, by the rule for kernels of rows."""
    if not statements:
        return {}
    assert machine is not None, "a machine's rule schedules rows"
    nothing = rooted(Leaf("rows"))
    open_ = ProductsTree(tuple(trees), point.blocks, {n: Rows(rows, nothing) for n, rows in statements.items()})
    single = {block.axis.name for block in point.blocks if block.quantum % ROWS_AT_ONCE}
    found = {}
    for number, rows in statements.items():
        stored = open_.stored_rows(number).statements
        filled = [each.name for each in stored[:-1] if each.address is not None and each.name in covering(stored)]
        if filled:
            step = step_of_rows(trees[number].work, trees[number].tile, machine)
            found[number] = Rows(rows, rows_once(stored, machine, filled, step))
            continue
        kernel, _ = schedule_rows(stored, machine, 1, "", lanes, single, whole=True)
        follows = {each.name: each.follows for each in kernel.statements}
        found[number] = Rows(tuple(replace(each, follows=follows[each.name]) for each in rows), kernel.tree)
    return found


def step_of_rows(work: Product, tile: Mapping[str, int], machine: Cpu) -> int:
    """Points of one step along rows that a product gives: whole register tiles of it, four vectors or more."""
    lanes, columns = vector_lanes(machine), work.columns
    width = tile[columns.name]
    step = width * -(-4 * lanes // width)
    return min(step, -(-columns.size // lanes) * lanes) if columns.size >= lanes else columns.size


def point_of(tree: ProductsTree) -> FusedPoint:
    """The point that a tree says."""
    points = []
    for each in tree.products:
        work, tile = each.work, each.tile
        walked = [loop.axis.name for loop in each.outside]
        names = [axis.name for axis in (*work.rows, work.columns)]
        order = (*(name for name in names if name not in walked), *(name for name in walked if name in names))
        rows = tuple(tile.get(axis.name, 1) for axis in work.rows)
        points.append(ProductPoint(rows, -(-tile[work.columns.name] // work.lanes), order))
    return FusedPoint(tuple(points), tree.blocks, bool(tree.kept))


def choose_fused(
    works: Sequence[Product], machine: Cpu, threads: int, rows: Mapping[int, Statements]
) -> FusedPoint | None:  # fmt: skip
    """Those of `fused_points` with the fewest predicted cycles; None where no blocks fit."""
    found = fused_points(works, machine, threads, rows)
    return min(found, key=lambda point: cycles_fused(works, point, machine, threads, rows), default=None)


def fused_points(
    works: Sequence[Product], machine: Cpu, threads: int, rows: Mapping[int, Statements]
) -> list[FusedPoint]:  # fmt: skip
    """Register tiles with all points of the sum of the last product in a block, and with blocks of it, where these fit.

    Of the loops that all products have, those that none of them tiles are walked point by point. With `rows` between
    the products these are in a block twice, and whole, unless the sums of the last product follow their values. Rows
    before the only product are whole. Where one product is read through windows, blocks that keep what they share and
    blocks that compute it again are those with the fewest predicted cycles (`cpu_windows`).
    """
    through = windowed(works, rows)
    if through is not None:
        return _windowed_points(through, machine, threads)
    *_, last = works
    first = outer_loops(rows[-1]) if -1 in rows else works[0].spatial
    shared = [axis for axis in first if all(axis in (*work.spatial, *work.depth) for work in works)]
    summed = [axis for axis in shared if axis in last.depth]
    cut = _loops_of_blocks(works, [axis for axis in shared if axis not in summed], 0 in rows)
    single = [axis for axis in shared if axis not in cut and axis not in summed]
    points = _tiles_together(works, cut, machine)
    if points is None:
        return []
    units = {axis: _unit(works, points, axis) for axis in shared}
    if goes_on(works):
        step = step_of_rows(works[0], points[0].tile(works[0]), machine)
        units |= {axis: lcm(units[axis], step) for axis in summed}
    if -1 in rows:
        units |= {axis: lcm(units[axis], ROWS_AT_ONCE) for axis in cut[-1:]}
    capacity = l2_bytes(machine) // (2 if 0 in rows else 1)
    least = {axis: min(axis.size, units[axis]) for axis in cut}

    def held(sizes: Mapping[Axis, int]) -> int:
        return block_bytes(works, single, sizes, points if len(works) > 2 else None)

    found, compared = [], goes_on(works)
    small = capacity // 4
    for sizes in _blocks_of_sums(summed, units, whole=bool(rows) and not compared):
        smallest = held({**least, **sizes})
        if smallest > (capacity if compared else small):
            continue
        around = [SpatialLoop(axis, 1, axis.size) for axis in single]
        inner: list[SpatialLoop] = []
        taken = {**least, **sizes}
        for axis in reversed(cut):
            limit = MOST_ROWS // prod(taken[each] for each in cut[cut.index(axis) + 1 :])
            fitting = min(capacity, max(capacity // 2, 2 * smallest))
            most = _rows_of_block(held, taken, axis, units[axis], fitting, limit)
            blocks = _even_blocks(axis, units[axis], most, around, threads if axis == cut[0] else 1)
            taken[axis] = blocks[0].quantum if blocks else axis.size
            inner = [*blocks, *inner]
        blocks = [*around, *inner, *(SpatialLoop(axis, sizes[axis]) for axis in summed if sizes[axis] < axis.size)]
        found.append(FusedPoint(points, tuple(blocks)))
        whole = sizes == {axis: axis.size for axis in summed}
        if not compared or (smallest <= small and not whole):
            break
    return found


def _windowed_points(each: Windowed, machine: Cpu, threads: int) -> list[FusedPoint]:
    """The points with the fewest predicted cycles whose blocks keep what they share, and whose blocks do not."""
    found: list[FusedPoint] = []
    whole = _tiles_together(each.works, (), machine)
    if whole is not None and sum(each.buffer_bytes(())) <= l2_bytes(machine) // 2:
        found.append(FusedPoint(whole, ()))
    for cut in each.cuts():
        found += _points_of_cut(each, cut, machine, threads)
    cycles = {points: _cycles_of_each(each.works, points, machine) for points in {point.points for point in found}}
    best = {}
    for keep in (False, True):
        alike = [point for point in found if point.keep == keep]
        if alike:
            costs = [_windowed_cycles(each, point, machine, threads, cycles[point.points]) for point in alike]
            best[keep] = alike[costs.index(min(costs))]
    return list(best.values())


def _points_of_cut(each: Windowed, cut: Cut, machine: Cpu, threads: int) -> list[FusedPoint]:
    """Points with blocks of one loop. Where none of whole register tiles fits L2, tiles have one point of the loop."""
    found: list[FusedPoint] = []
    moved = each.moved(cut.axis)
    for alone in (moved, [*moved, cut.axis]):
        points = None if found else _tiles_together(each.works, (cut.axis,), machine, alone)
        if points is None:
            continue
        unit = cut.unit([point.tile(work) for point, work in zip(points, each.works, strict=True)])
        sizes = points_of_blocks(each, cut, unit, ROWS_AT_ONCE, l2_bytes(machine))
        if cut.outside and sum(each.buffer_bytes(cut.blocks(cut.axis.size, 1))) <= l2_bytes(machine) // 2:
            sizes.append(cut.axis.size)
        for size in sizes:
            for programs in (1, *(times * threads for times in PROGRAMS if threads > 1)):
                blocks = cut.blocks(size, programs)
                found += [FusedPoint(points, blocks, keep) for keep in (False, True) if not keep or each.shares(blocks)]
    return found


def _loops_of_blocks(works: Sequence[Product], shared: Sequence[Axis], rows: bool) -> list[Axis]:
    """The shared loops of which a block has several points: columns, the innermost rows, and further rows around these
    where they make less than a block. With `rows` between the products these are along the innermost loop.
    """
    tiled = {axis for work in works for axis in (*work.rows[-1:], work.columns)}
    found = [axis for axis in shared if axis in tiled]
    around = [axis for axis in shared if axis not in tiled and all(axis in work.rows for work in works)]
    while around and not rows and prod(axis.size for axis in found) < MOST_ROWS:
        found = [around.pop(), *found]
    return found


def _blocks_of_sums(summed: Sequence[Axis], units: Mapping[Axis, int], whole: bool) -> Iterator[dict[Axis, int]]:
    """Points in a block of the loop that the last product sums over: all of them, or halves and halves of these."""
    sizes = {axis: axis.size for axis in summed}
    yield dict(sizes)
    while summed and not whole:
        (axis,) = summed
        fewer = _multiple(sizes[axis] // 2, units[axis])
        if fewer >= sizes[axis]:
            return
        sizes[axis] = fewer
        yield dict(sizes)


def goes_on(works: Sequence[Product]) -> bool:
    """Whether the sums of the last product follow values of the rows before it, so that blocks may cut these."""
    return works[-1].statements[0].follows is not None


def block_bytes(
    works: Sequence[Product],
    single: Sequence[Axis],
    sizes: Mapping[Axis, int],
    points: Sequence[ProductPoint] | None = None,
) -> int:
    """The most bytes that one product of a block touches: of both factors and the result, panels whole.

    With the points of the products, of a factor that columns index one panel counts, unless it is a link.
    """
    most, links = 0, {work.output.name for work in works[:-1]}
    for number, work in enumerate(works):
        found = 0
        for axes, tensor, index in (*_factors(work), ((*work.rows, work.columns), work.output, NOWHERE)):
            block = {axis: sizes.get(axis, axis.size) for axis in axes if axis not in single}
            if points is not None and axes[0] == work.columns and tensor.name not in links:
                block[work.columns] = min(block[work.columns], points[number].tile(work)[work.columns.name])
            found += touched_bytes(tensor, index, block)
        most = max(most, found)
    return most


def _factors(work: Product) -> tuple[tuple[tuple[Axis, ...], Tensor, Expr], ...]:
    """The loops of both factors but for `outer` ones, with what they read; panels and links have no element twice."""
    a, b = work.a, work.b
    return ((*work.rows, *work.depth), a.tensor, a.index), ((work.columns, *work.depth), b.tensor, NOWHERE)


def touched_bytes(tensor: Tensor, index: Expr, points: Mapping[Axis, int]) -> int:
    """Bytes of a tensor that are read over so many points of each loop: of windows that overlap once.

    They are all of a range at most, where the address says so.
    """
    form, elements = affine(index), prod(points.values())
    steps = [abs(form.coefficient(axis)) for axis in points] if form is not None else [0]
    if all(steps):
        elements = min(elements, 1 + sum(step * (size - 1) for step, size in zip(steps, points.values(), strict=True)))
    return elements * dtypes.size_bytes(tensor.dtype)


def fused_cycles(works: Sequence[Product], point: FusedPoint, machine: Cpu) -> float:
    """Cycles of products in one kernel with all data near, of all threads together."""
    return sum(_cycles_of_each(works, point.points, machine))


def _cycles_of_each(works: Sequence[Product], points: Sequence[ProductPoint], machine: Cpu) -> list[float]:
    """Cycles of each product and its epilogue on its register tile."""
    pairs = zip(works, points, strict=True)
    return [product_cycles(work, tiles, machine) + epilogue_cycles(work, machine) for work, tiles in pairs]


def kernel_cycles(kernel: Kernel, machine: Cpu) -> float:
    """Cycles of a kernel with products by its tree, of all threads together: their register tiles, and rows between."""
    tree = products_tree(kernel)
    total = sum(rows_cycles(tree, machine))
    for each in tree.products:
        work = each.work if each.skips_zeros else each.work.without_support_along(each.work.depth)
        rows = [each.tile.get(axis.name, 1) for axis in work.rows]
        vectors = -(-each.tile[work.columns.name] // work.lanes)
        total += tiled_cycles(work, rows, vectors, machine) + epilogue_cycles(work, machine)
    return seen_part([each.work for each in tree.products], point_of(tree)) * total


def rows_cycles(tree: ProductsTree, machine: Cpu) -> Iterator[float]:
    """Cycles of all blocks of the rows between products."""
    blocks = prod(loop.tiles for loop in tree.blocks)
    for number in tree.rows:
        yield blocks * nest_cycles(tree.stored_rows(number), machine)


def cycles_fused(
    works: Sequence[Product], point: FusedPoint, machine: Cpu, threads: int, rows: Mapping[int, Statements]
) -> float:  # fmt: skip
    """As `fused_cycles`, for uneven shares as if all threads had the largest, with what blocks bring into L2 again."""
    through = windowed(works, rows)
    if through is not None:
        return _windowed_cycles(through, point, machine, threads, _cycles_of_each(works, point.points, machine))
    even = min(EVEN, balance(point.blocks, threads)) if threads > 1 else 1.0
    cycles = (fused_cycles(works, point, machine) + _onward_cycles(works, point, machine)) / even
    return seen_part(works, point) * (cycles + _brought_again(works, point, machine))


def _windowed_cycles(
    each: Windowed, point: FusedPoint, machine: Cpu, threads: int, products: Sequence[float]
) -> float:  # fmt: skip
    """As `cycles_fused`, where the first of the `products`, which take so many cycles, is read through windows: with
    what is computed again, or copied.
    """
    first, *others = products
    even = min(EVEN, balance(point.blocks, threads)) if threads > 1 else 1.0
    copied = each.copied_bytes(point.blocks) / COPIED_BYTES if point.keep else 0.0
    cycles = first * each.computed(point.blocks, point.keep) + sum(others) + copied
    return cycles / even + _panels_again(each, point, machine)


def _panels_again(each: Windowed, point: FusedPoint, machine: Cpu) -> float:
    """Cycles in which factors that columns index come into L2 again for every block, where L2 does not keep them."""
    panels = sum(_points((work.columns, *work.depth)) * dtypes.size_bytes(work.b.tensor.dtype) for work in each.works)
    if panels + sum(each.buffer_bytes(point.blocks)) <= l2_bytes(machine):
        return 0.0
    return (prod(loop.tiles for loop in point.blocks) - 1) * panels / machine.rate_beyond_l2(panels)


def seen_part(works: Sequence[Product], point: FusedPoint) -> float:
    """About which part of the link is computed: tiles that a mask hides from all rows of a block are left out."""
    work = works[0]
    hidden = hidden_part(work.epilogue, work.columns) if goes_on(works) else 0.0
    if not hidden:
        return 1.0
    sizes = {loop.axis: loop.quantum for loop in point.blocks}
    beyond = sum(sizes.get(axis, axis.size) for axis in work.rows) + point.points[0].tile(work)[work.columns.name]
    return min(1.0, 1 - hidden + beyond / 2 / work.columns.size)


def _onward_cycles(works: Sequence[Product], point: FusedPoint, machine: Cpu) -> float:
    """Cycles in which sums and values of rows go on from block to block of the loop that the last product sums over."""
    last = works[-1]
    blocks = prod(loop.tiles for loop in point.blocks if loop.axis in last.depth)
    if blocks == 1 or not goes_on(works):
        return 0.0
    vectors = _points(last.spatial) / last.lanes
    moved = vectors * (1 / machine.loads_per_cycle + 1 / machine.fma_units + 1 / machine.stores_per_cycle)
    return blocks * (moved + ONWARD_CYCLES * _points((*last.outer, *last.rows)))


def rows_alike(works: Sequence[Product], rows: Mapping[int, Statements], machine: Cpu) -> float:
    """Cycles of rows that are about the same in one kernel and in several: before the only product, through windows."""
    if -1 in rows:
        return nest_cycles(schedule_rows(rows[-1], machine, 1, "")[0], machine)
    if not rows or windowed(works, rows) is None:
        return 0.0
    nothing = rooted(Leaf("rows"))
    whole = ProductsTree(tuple(map(_untiled, works)), (), {n: Rows(each, nothing) for n, each in rows.items()})
    return nest_cycles(schedule_rows(whole.stored_rows(0).statements, machine, 1, "")[0], machine)


def _untiled(work: Product) -> ProductTree:
    return ProductTree(work, {}, (), ())


def cycles_apart(works: Sequence[Product], machine: Cpu, threads: int, rows: Mapping[int, Statements]) -> float:
    """Cycles of the same products as kernels of their own, with what their link takes on its way through memory.

    With a softmax between them it goes there twice, in a kernel of its own, whose arithmetic is the same in both ways.
    Other rows, before a product, give a link too. One that L2 does not keep beside what its kernel reads is written to
    the level that holds all of these, for which lines are read first, and read from there: three times its bytes,
    during which arithmetic waits. It is written meanwhile, and costs less, where its kernel waits for more than it
    writes. Of a link that rows read through windows, the bytes beyond L2 count.
    """
    total = 0.0
    for work in works:
        _, _, decision = choose_point(merge_product_loops(work), machine, threads, _a_bytes(work), "")
        assert decision.cost is not None
        total += (decision.cost.cycles or 0.0) + epilogue_cycles(work, machine)
    links = [_link_of(work) for work in works[:-1]]
    softmax, windows = (0 in rows and runs_along(rows[0]) == along for along in (True, False))
    if -1 in rows:
        read = {each.tensor.name: each for each in _reads(rows[-1])}
        links.append(_LinkBytes(_result_bytes(rows[-1]), sum(map(_read_bytes, read.values()))))
    elif windows:
        links.append(_LinkBytes(_result_bytes(rows[0]), links[0].written, hidden=True))
    for number, link in enumerate(links):
        touched = link.written + link.read + link.panels
        beyond = touched - l2_bytes(machine) * threads
        if beyond <= 0:
            continue
        moved = PASSES_BEHIND_READS * link.written if link.is_hidden else PASSES * link.written
        if windows and not number:
            moved = PASSES_BEFORE_WINDOWS * min(link.written, beyond)
        total += (2 if softmax else 1) * moved / machine.rate_beyond_l2(touched)
    return total


@dataclass(frozen=True)
class _LinkBytes:
    """Bytes of a link, and of what the kernel that writes it reads: of rows, or of the factor that rows index, and of
    panels. What rows give behind windows is always `hidden` behind what they read.
    """

    written: int
    read: int
    panels: int = 0
    hidden: bool = False

    @property
    def is_hidden(self) -> bool:
        """Whether it is written while its kernel waits for what it reads."""
        return self.hidden or self.read > self.written


def _link_of(work: Product) -> _LinkBytes:
    panels = _points((*work.outer, work.columns, *work.depth)) * dtypes.size_bytes(work.b.tensor.dtype)
    return _LinkBytes(_points(work.spatial) * dtypes.size_bytes(work.output.dtype), _a_bytes(work), panels)


def runs_along(statements: Statements) -> bool:
    """Whether the last of rows has a value for every point of what they reduce, as a softmax has."""
    return bool({*inner_loops(statements)} & {*statements[-1].axes})


def _result_bytes(statements: Statements) -> int:
    """Bytes of what rows give to the product behind them."""
    *_, last = statements
    return _points(last.axes) * dtypes.size_bytes(last.tensor.dtype)


def _reads(statements: Statements) -> Iterator[Read]:
    """What statements read from memory."""
    for each in statements:
        yield from (part for part in walk(each.body) if isinstance(part, Read) and part.indices)


def _read_bytes(read: Read) -> int:
    """Bytes that a read takes over all its loops."""
    (index,) = read.indices
    return touched_bytes(read.tensor, index, {axis: axis.size for axis in walk(index) if isinstance(axis, Axis)})


def _brought_again(works: Sequence[Product], point: FusedPoint, machine: Cpu) -> float:
    """Cycles in which factors come into L2 again for every block that does not change them, where L2 does not keep them
    from block to block.
    """
    cut = [loop for loop in point.blocks if loop.tiles > 1 and loop.quantum > 1]
    single = {loop.axis for loop in point.blocks if loop.quantum == 1}
    sizes = {loop.axis: loop.quantum for loop in cut}
    links = {work.output.name for work in works[:-1]}
    kept = block_bytes(works, [*single], sizes)
    again = 0.0
    for work in works:
        for axes, tensor, index in _factors(work):
            if tensor.name in links:
                continue
            whole = touched_bytes(tensor, index, {axis: axis.size for axis in axes if axis not in single})
            trips = prod(loop.tiles for loop in cut if loop.axis not in axes)
            kept += whole if trips > 1 else 0
            again += whole * (trips - 1)
    if kept <= l2_bytes(machine):
        return 0.0
    return again * prod(axis.size for axis in single) / machine.rate_beyond_l2(kept)


def _points(axes: Iterable[Axis]) -> int:
    return prod(axis.size for axis in axes)


def _a_bytes(work: Product) -> int:
    """Bytes of the factor that rows index."""
    loops = {axis: axis.size for axis in (*work.rows, *work.depth)}
    return _points(work.outer) * touched_bytes(work.a.tensor, work.a.index, loops)


def _tiles_together(
    works: Sequence[Product], cut: Collection[Axis], machine: Cpu, alone: Collection[Axis] = ()
) -> tuple[ProductPoint, ...] | None:
    """The register tiles with the fewest cycles in all, of which few make a block of the loops to be `cut`.

    They have one point of loops that are `alone`.
    """
    ranked = []
    for work in works:
        fits = [each for each in tiles_that_fit(work) if _tiles_only(work, each[0], cut, alone)]
        order = (work.columns.name, *(axis.name for axis in work.rows))
        costs = sorted((tiled_cycles(work, *each, machine), -each[1] * prod(each[0]), each) for each in fits)
        ranked.append([(cycles, ProductPoint(*each, order)) for cycles, _, each in costs[:COMPARED]])
    best: tuple[float, tuple[ProductPoint, ...]] | None = None
    for found in product(*ranked):
        cycles, points = sum(each for each, _ in found), tuple(each for _, each in found)
        if best is not None and cycles >= best[0]:
            continue
        if prod(_unit(works, points, axis) for axis in cut) <= max(MOST_UNIT, min(_points(cut), MOST_ROWS)):
            best = cycles, points
    return None if best is None else best[1]


def _tiles_only(work: Product, rows: Sequence[int], cut: Collection[Axis], alone: Collection[Axis] = ()) -> bool:
    """Whether a register tile has several rows along the innermost loop and those that are cut into blocks only, and
    not along those that are `alone`.
    """
    several = [axis for axis, size in zip(work.rows, rows, strict=True) if size > 1]
    return all((axis in cut or axis == work.rows[-1]) and axis not in alone for axis in several)


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


def _even_blocks(axis: Axis, unit: int, most: int, around: Sequence[SpatialLoop], threads: int) -> list[SpatialLoop]:
    """A loop in blocks of no more than so many points, whole units, all of about one size; none where it is one block.

    For several threads the blocks are those, up to half as large, that are distributed most evenly.
    """
    if threads == 1:
        blocks = -(-axis.size // most)
        size = _multiple(-(-axis.size // blocks), unit)
        return [SpatialLoop(axis, size)] if size < axis.size else []
    sizes = range(most, most // 2, -unit)
    loops = [SpatialLoop(axis, size, -(-axis.size // size)) for size in sizes if size < axis.size]
    if not loops:
        return []
    return [max(loops, key=lambda loop: (round(balance([*around, loop], threads), 2), loop.quantum))]


def _rows_of_block(
    held: Callable[[Mapping[Axis, int]], int], sizes: Mapping[Axis, int], axis: Axis, unit: int, most: int, limit: int
) -> int:  # fmt: skip
    """The most points of a loop, up to a limit, in a block that holds no more than so many bytes, at least one unit."""
    found = unit
    while found + unit <= min(limit, axis.size + unit):
        if held({**sizes, axis: found + unit}) > most:
            break
        found += unit
    return found
