"""Rules for products on CPUs: tile sizes from the machine description.

A register tile has MR rows (points of the m loops) and NR vectors along n, within one of the shapes for which the
chosen instruction has outer products of registers. Cycles of one step of k are the largest of: multiply-adds over
`fma_units`; MR broadcasts and NR loads over `loads_per_cycle`; the latency of a chain of multiply-adds. The tile with
the fewest cycles over the whole iteration space, ragged tiles included, wins; with few rows, the time in which panels
of b come from beyond L2 counts too. A program takes as many rows as keep its part of a in half of L2. It takes more
where k is cut in blocks and a panel of b would take too large a part of their time to come from beyond L2. It walks the
panels of b outside and the rows inside, so that a panel stays near while the rows pass by. For several threads, tiles
within a tenth of the fewest cycles compete by the time of the busiest thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, inf, prod

from tilewright.decision import Cost, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Read, walk
from tilewright.machine.description import Cpu
from tilewright.operator.cycles import (
    NOTHING_EXTRA,
    arriving_cycles,
    cycles_from_memory,
    extra_instructions,
    multiply_cycles,
    product_cycles,
    tiled_cycles,
)
from tilewright.operator.depth_bounds import bounded_loops, depth_bounds, steps_left
from tilewright.operator.product_point import ProductPoint, k_unroll
from tilewright.operator.product_tree import ProductTree
from tilewright.operator.row_lines import lines_in_one_set, lines_of_parts, row_bytes, walks_across_lines
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.machines import level_for
from tilewright.tiles.product import Product

PROGRAMS_PER_THREAD = 4
EVEN = 0.95  # share of the busiest thread's work that the others have on average, from which on it is fair
MOST_WORK = 1.1  # of all threads together, by the least: what even shares may cost
SHARED_CYCLES = 1024  # of a product: another thread begins some 500 cycles later and can take half of it
NEAR = 0.8  # of L1, what a panel and the rows of a tile may take
FEWEST_TILES = 5  # of rows that reuse a panel in L1, below which sums that come and go take what that saves: Zen 3
FEWEST_BLOCKS = 3  # of k in L1: with two, sums that come and go take more than that saves (Zen 3)
# Of the ways of L1, what rows of a tile may take of one set beside a panel, beside the rows of the next tile, and in
# all parts of a sum: 4 of 8, not 6 (Zen 3, Zen 1).
MOST_OF_SET = 0.5
HIDDEN = 0.25  # of a step, up to which L2 gives b beside the multiply-adds: Zen 3
ARRIVING = 1 / 32  # of the multiply-adds of a program, what bringing a panel from beyond L2 may take: Zen 3
MANY_PANELS = 8  # of b, from which on blocks leave L2 for rows of the result: Zen 1, where 8 and 32 gained, and 4 lost
LATE = 1 / 64  # of these, above which tiles ask for the next panel: Zen 3, where 49 and 196 rows gained
# Parts of a panel that are read side by side, the first that there can be: from L3 and from memory 4 are the fastest of
# 1, 2, 4 and 8, and 2 are faster than 1 (Zen 1).
STREAMS = 4, 2
STREAM_BYTES = 8192  # of a stream, at least: two pages
WORTH_ANOTHER = 0.97  # of the cycles of the usual tile, what another that leaves out more zeros may take: Zen 1
MOST_PROGRAMS = 64  # per thread whose distribution is followed one by one; more are even enough


def choose_point(
    work: Product, machine: Cpu, threads: int, a_bytes: int, subject: str
) -> tuple[ProductPoint, dict[str, int], Decision]:
    """The register tile with the fewest predicted cycles, and into how many blocks of the grid each loop is
    distributed.

    Blocks fit L2 and feed all threads. A product of fewer than `SHARED_CYCLES` is one program, which one thread runs.
    """
    order = (work.columns.name, *(axis.name for axis in work.rows))
    cost = cycles_from_memory if threads == 1 else tiled_cycles  # threads bring panels side by side, each its own
    ranked = _ranked(work, machine, cost)
    shared = ranked[0][0] >= SHARED_CYCLES
    threads = threads if shared else 1
    even, most = (EVEN, MOST_WORK * ranked[0][0]) if threads > 1 else (1.0, inf)
    wasteful = next((each for each in ranked if each[0] > most), None)
    ranked = [each for each in ranked if each[0] <= most]
    distributed: dict[tuple[tuple[int, ...], int], dict[str, int]] = {}
    compared: list[tuple[float, int, tuple[int, ...], int]] = []
    for cycles, fewer, rows, vectors in ranked:
        if compared and (threads == 1 or min(compared)[0] < cycles / even):
            break  # no tile from here on can be faster, however evenly it is distributed
        tile = ProductPoint(rows, vectors, order).tile(work)
        blocks = _blocks(work, machine, threads, tile, a_bytes) if shared else {}
        distributed[rows, vectors] = blocks
        compared.append((cycles / min(even, _balance(work, tile, blocks, threads)), fewer, rows, vectors))
    at_best = [(cycles / even, fewer, rows, vectors) for cycles, fewer, rows, vectors in ranked[len(distributed) :]]
    compared = sorted(compared + at_best[:1])
    cycles, _, rows, vectors = compared[0]
    point = ProductPoint(rows, vectors, order)
    second = compared[1] if len(compared) > 1 else None
    refused: tuple[Refusal, ...] = ()
    if wasteful:
        values = f"{wasteful[0]:.0f} cycles of all threads together, the fewest are {ranked[0][0]:.0f}"
        rule = f"at most {MOST_WORK} times the fewest"
        refused = (Refusal(ProductPoint(*wasteful[2:], order).tile_text(), rule, values, Cost(cycles=wasteful[0])),)
    decision = Decision(
        f"register tile of {subject}",
        point.tile_text(),
        f"{cycles:.0f} predicted cycles, fewest of {len(ranked)} tiles within {_shapes(work.shapes)} registers",
        ProductPoint(*second[2:], order).tile_text() if second else "",
        f"{'' if second[2:] in distributed else 'at least '}{second[0]:.0f} cycles" if second else "",
        refused,
        Cost(cycles=cycles),
        Cost(cycles=second[0]) if second else None,
    )
    return point, distributed[rows, vectors], decision


Ranked = tuple[float, int, tuple[int, ...], int]  # cycles, what decides between equal ones, rows and vectors


def _ranked(work: Product, machine: Cpu, cost: Callable[..., float]) -> list[Ranked]:
    """All register tiles, those with the fewest cycles first.

    The usual tile is the one with the fewest cycles where all steps of sums run. Others that are predicted to be faster
    since they leave out more zeros must be faster by `WORTH_ANOTHER`: predictions of tiles are not closer than that.
    """

    def sorted_for(product: Product) -> list[Ranked]:
        tiles = tiles_that_fit(work)
        return sorted(
            (cost(product, rows, vectors, machine), -vectors * prod(rows), rows, vectors) for rows, vectors in tiles
        )

    ranked = sorted_for(work)
    if not depth_bounds(work):
        return ranked
    first = sorted_for(work.without_support_along(work.depth))[0][2:]
    (usual,) = (each for each in ranked if each[2:] == first)
    return [each for each in ranked if each >= usual or each[0] < WORTH_ANOTHER * usual[0]]


def fewest_cycles(work: Product, machine: Cpu) -> float:
    """Predicted cycles of the best register tile (`tiled_cycles`), all threads together."""
    return min(tiled_cycles(work, rows, vectors, machine) for rows, vectors in tiles_that_fit(work))


def blocks_of(point: ProductPoint, work: Product, machine: Cpu, threads: int, a_bytes: int) -> dict[str, int]:
    """Into how many blocks each loop is distributed where a point was chosen by others than `choose_point`."""
    if threads == 1:
        return {axis.name: axis.size for axis in work.outer}
    if product_cycles(work, point, machine) < SHARED_CYCLES:
        return {}
    return _blocks(work, machine, threads, point.tile(work), a_bytes)


def scheduled_product(
    work: Product, point: ProductPoint, blocks: Mapping[str, int], machine: Cpu, *, epilogue_vectors: int = 0
) -> Kernel:
    """The kernel that runs a product as a point says, its loops distributed in `blocks` to the grid.

    A block of k asks for what comes next while it is computed, and so do the tiles of a panel that few rows read.
    Tiles of a program ask for the rows of the next one where each step of the sum reads other lines of them. With
    `epilogue_vectors` the epilogue is a loop that reads the sums of the register tile from scratch memory, so many
    vectors at a time; else it is unrolled over the tile.
    """
    tile = point.tile(work)
    spatial = {axis.name: SpatialLoop(axis, tile.get(axis.name, 1), blocks.get(axis.name, 1)) for axis in work.spatial}
    loops = [spatial[name] for name in (*(axis.name for axis in work.outer), *point.order)]
    k_block = point.k_block(work)
    cut = len(work.outer) + point.order.index(work.columns.name) + 1 if k_block else len(loops)
    tree = ProductTree(
        work=work,
        tile={**tile, work.depth[-1].name: k_unroll(work)},
        grid=tuple(spatial.values()),
        outside=tuple(loops[:cut]),
        inside=tuple(loops[cut:]),
        k_block=k_block,
        line_bytes=machine.caches[0].line_bytes if k_block or _asks_for_panels(work, loops, machine) else 0,
        sums_level=level_for(_sums_bytes(work, loops[cut:], tile), machine.caches, first=1) if k_block else "L2",
        epilogue_vectors=epilogue_vectors,
        skips_zeros=bool(bounded_loops(work, tile)),
    )
    if _asks_for_rows(tree, machine):
        tree = replace(tree, row_line_bytes=machine.caches[0].line_bytes)
    return Kernel(work.statements, tree.tree())


def _asks_for_rows(tree: ProductTree, machine: Cpu) -> bool:
    """Whether tiles ask for the rows that come next: of a block, where a set of L1 has lines of two tiles.

    Of a program, where each step of the sum reads other lines.
    """
    if tree.k_block:
        return tree.next_tile is not None and _leaves_half_of_sets(tree.work, tree.tile, machine)
    return walks_across_lines(tree.work, machine) and tree.next_rows(machine.caches[0].line_bytes) is not None


def _asks_for_panels(work: Product, loops: Sequence[SpatialLoop], machine: Cpu) -> bool:
    """Whether tiles ask for the next panel of b: L1 does not hold all of b, and several tiles of few rows read a panel.

    Rows of one program, where L2 does not hold b until the next program reads it. Even if it does, panels may come from
    further out first: the other kernels of a model run between two reads.
    """
    names = [loop.axis for loop in loops]
    behind = loops[names.index(work.columns) + 1 :]
    tiles, b_bytes = prod(loop.tiles_per_block for loop in behind), _b_bytes(work)
    rows = tiles * prod(loop.quantum for loop in behind)
    if b_bytes <= l2_bytes(machine):
        rows = max(rows, prod(axis.size for axis in work.rows))
    far = machine.caches[0].bytes < b_bytes and rows <= _rows_of_arriving(machine, LATE)
    return work.whole_panels and tiles > 1 and far


def _b_bytes(work: Product) -> int:
    """Bytes of b."""
    return work.columns.size * prod(axis.size for axis in work.depth) * dtypes.size_bytes(work.b.tensor.dtype)


def _epilogue_bytes(work: Product) -> int:
    """Bytes of the result of one row, and of what its epilogue reads that other rows do not."""
    found = {work.output.name: work.output}
    for read in walk(work.epilogue):
        form = affine(read.indices[0]) if isinstance(read, Read) and read.indices else None
        if form is not None and any(form.coefficient(axis) for axis in work.rows):
            assert isinstance(read, Read)
            found[read.tensor.name] = read.tensor
    return work.columns.size * sum(dtypes.size_bytes(tensor.dtype) for tensor in found.values())


def _sums_bytes(work: Product, inside: Sequence[SpatialLoop], tile: Mapping[str, int]) -> int:
    """Bytes of the sums that wait for the next block of k: of a program's rows, in as many columns as a tile has."""
    rows = prod(loop.tiles_per_block * loop.quantum for loop in inside)
    return rows * tile.get(work.columns.name, 1) * dtypes.size_bytes(work.total.dtype)


def tiles_that_fit(work: Product) -> list[tuple[tuple[int, ...], int]]:
    """Every legal register tile: rows along each m loop, and vectors along n, within one of the shapes."""
    widest = -(-work.columns.size // work.lanes)
    tallest = max(rows for rows, _ in work.shapes)
    limits = [min(axis.size, tallest) for axis in work.rows]
    inner = range(1, limits[-1] + 1) if limits else range(1, 2)
    # Only the two innermost m loops are tiled: rows of more loops have ever more ragged parts.
    second = range(1, min(limits[-2], 8) + 1) if len(limits) > 1 else range(1, 2)
    found = []
    for p, q in product(second, inner):
        widths = [vectors for rows, vectors in work.shapes if rows >= p * q]
        rows = (*(1 for _ in limits[:-2]), p, q) if len(limits) > 1 else (q,) if limits else ()
        found += [(rows, vectors) for vectors in range(1, min(widest, max(widths, default=0)) + 1)]
    return found


def _shapes(shapes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{rows}x{vectors}" for rows, vectors in shapes)


def depth_block(work: Product, loops: Sequence[Axis], point: ProductPoint, machine: Cpu) -> int:
    """Points of the last of the k loops for which a panel of b, others whole, fills 0.3 of L2; 0 where all fit 0.4."""
    near_bytes = l2_bytes(machine)
    others = prod(axis.size for axis in loops) // max(1, loops[-1].size)
    point_bytes = point.tile(work)[work.columns.name] * others * dtypes.size_bytes(work.b.tensor.dtype)
    if point_bytes * loops[-1].size <= 0.4 * near_bytes:
        return 0
    return int(0.3 * near_bytes / point_bytes)


def streams_of_depth(work: Product, tile: Mapping[str, int], machine: Cpu) -> int:
    """Points of a single k loop in each of the parts that a panel of b is read in, side by side; 0 for one part.

    It is where products wait for b, which comes from beyond L2 once: what prefetches along one stream of lines stops at
    every page.
    """
    first, (depth,), rows = machine.caches[0], work.depth, [tile.get(axis.name, 1) for axis in work.rows]
    waits = arriving_cycles(work, machine) > _multiplying_cycles(work, machine)
    if work.group > 1 or prod(axis.size for axis in work.rows) > prod(rows) or not waits:
        return 0
    for parts in STREAMS:
        long = depth.size % parts == 0 and _panel_bytes(work, tile) >= parts * STREAM_BYTES
        if long and lines_of_parts(work, rows, parts, first) <= MOST_OF_SET * first.lines_per_set:
            return depth.size // parts
    return 0


def decision_of_streams(work: Product, part: int, machine: Cpu, subject: str) -> Decision:
    """What says that a panel of b is read in parts of so many points of the sum (`streams_of_depth`)."""
    (depth,) = work.depth
    arriving, multiplying = arriving_cycles(work, machine), _multiplying_cycles(work, machine)
    reason = f"{work.b.tensor.name} arrives in {arriving:.0f} cycles, multiply-adds take {multiplying:.0f}"
    chosen = f"{depth.size // part} streams along {depth.name}, a step takes a point of each"
    return Decision(f"streams of {subject}", chosen, reason, "one", "each page of it is waited for")


def decision_of_zeros(work: Product, point: ProductPoint, machine: Cpu, subject: str) -> Decision | None:
    """What says that tiles leave out steps that add only zeros to their points; None where there are none."""
    tile = point.tile(work)
    loops = bounded_loops(work, tile)
    if not loops:
        return None
    cycles = product_cycles(work, point, machine)
    whole = product_cycles(work.without_support_along(work.depth), point, machine)
    names = ", ".join(axis.name for axis in work.depth if axis in loops)
    chosen = f"tiles leave out steps of {names} that add only zeros"
    reason = f"{1 - steps_left(work, tile):.1%} of the steps: {cycles:.0f} predicted cycles"
    usual = f"all steps of {', '.join(axis.name for axis in work.depth)}"
    costs = Cost(cycles=cycles), Cost(cycles=whole)
    return Decision(f"zeros of {subject}", chosen, reason, usual, f"{whole:.0f} cycles", (), *costs)


def _multiplying_cycles(work: Product, machine: Cpu) -> float:
    """Cycles of multiply-adds at the full rate."""
    return prod(axis.size for axis in (*work.spatial, *work.depth)) / work.lanes * multiply_cycles(work, machine)


def depth_blocks(work: Product, tile: Mapping[str, int], machine: Cpu) -> int:
    """Into how many blocks k is cut; 1 for none.

    Blocks are made where the panel of b outgrows 0.4 of L2 or the rows of a tile outgrow L1, there is more than one
    tile of rows to reuse them, and the sums of one panel fit in L2. They are made to fill 0.3 of L2 and half of L1.
    Where L2 gives a panel more slowly than a part of a step takes, they are made for panel and rows to stay in L1, if
    they are `FEWEST_BLOCKS` or more.
    """
    far = _far_blocks(work, tile, machine)
    if not (
        _walks_along_lines(work, tile, machine)
        and _reuses_panels(work, tile, machine, FEWEST_TILES)
        and _waits_for_panels(work, tile, machine)
    ):
        return far
    near = -(-(_panel_bytes(work, tile) + _strip_bytes(work, tile)) // int(NEAR * machine.caches[0].bytes))
    return max(far, near if near >= FEWEST_BLOCKS else 1)


def _far_blocks(work: Product, tile: Mapping[str, int], machine: Cpu) -> int:
    """The blocks of k that L2 and the rows of a tile ask for."""
    l1_bytes, near_bytes = machine.caches[0].bytes, l2_bytes(machine)
    panel_bytes, strip_bytes = _panel_bytes(work, tile), _strip_bytes(work, tile)
    if not _reuses_panels(work, tile, machine) or (panel_bytes <= 0.4 * near_bytes and strip_bytes <= l1_bytes):
        return 1
    return int(max(-(-panel_bytes // int(0.3 * near_bytes)), -(-strip_bytes // (l1_bytes // 2))))


def _reuses_panels(work: Product, tile: Mapping[str, int], machine: Cpu, tiles: int = 2) -> bool:
    """Whether so many tiles of rows read a panel, and L2 holds its sums."""
    rows, height = prod(axis.size for axis in work.rows), prod(tile.get(axis.name, 1) for axis in work.rows)
    sums_bytes = rows * tile.get(work.columns.name, 1) * dtypes.size_bytes(work.total.dtype)
    return rows > (tiles - 1) * height and sums_bytes <= l2_bytes(machine)


def _walks_along_lines(work: Product, tile: Mapping[str, int], machine: Cpu) -> bool:
    """Whether a single sum walks along lines of a, and rows do not crowd sets of L1: they would evict the panel."""
    first, form = machine.caches[0], affine(work.a.index)
    if len(work.depth) > 1 or form is None:
        return False
    near = abs(form.coefficient(work.depth[0])) * dtypes.size_bytes(work.a.tensor.dtype) < first.line_bytes
    return near and _leaves_half_of_sets(work, tile, machine)


def _leaves_half_of_sets(work: Product, tile: Mapping[str, int], machine: Cpu) -> bool:
    """Whether the rows of a tile take no more than `MOST_OF_SET` of a set of L1."""
    first, rows = machine.caches[0], [tile.get(axis.name, 1) for axis in work.rows]
    return lines_in_one_set(work.a, work.rows, rows, first) <= MOST_OF_SET * first.lines_per_set


def _waits_for_panels(work: Product, tile: Mapping[str, int], machine: Cpu) -> bool:
    """Whether the bytes of b in one step take L2 more than `HIDDEN` of the cycles of its multiply-adds.

    Never where factors are widened, which takes longer than L2.
    """
    widened = extra_instructions(work) != NOTHING_EXTRA
    if widened or len(machine.caches) < 2 or not machine.caches[1].bytes_per_cycle:
        return False
    width, height = tile.get(work.columns.name, 1), prod(tile.get(axis.name, 1) for axis in work.rows)
    moved = width * work.group * dtypes.size_bytes(work.b.tensor.dtype) / machine.caches[1].bytes_per_cycle
    return moved > HIDDEN * height * -(-width // work.lanes) * multiply_cycles(work, machine)


def _panel_bytes(work: Product, tile: Mapping[str, int]) -> int:
    depth = prod(axis.size for axis in work.depth)
    return tile.get(work.columns.name, 1) * depth * dtypes.size_bytes(work.b.tensor.dtype)


def _strip_bytes(work: Product, tile: Mapping[str, int]) -> int:
    return prod(tile.get(axis.name, 1) for axis in work.rows) * row_bytes(work)


def l2_bytes(machine: Cpu) -> int:
    """Bytes of the cache in which blocks stay: L2, or what would follow the only cache."""
    return machine.caches[1].bytes if len(machine.caches) > 1 else 4 * machine.caches[0].bytes


def _blocks(work: Product, machine: Cpu, threads: int, tile: dict[str, int], a_bytes: int) -> dict[str, int]:
    """Deal outer loops point by point, m loops so that a block of a fits half of L2, n loops if threads lack work.

    Where L2 keeps b, and b has many panels, rows of the result and of what the epilogue reads count too. Each panel
    leads to other lines of them, and lines whose neighbours were used a short time before are near.
    """
    blocks = {axis.name: axis.size for axis in work.outer}
    near_bytes = machine.caches[min(1, len(machine.caches) - 1)].bytes
    rows = prod(axis.size for axis in work.rows)
    bytes_of_row = max(1, min(a_bytes / max(1, rows), row_bytes(work)))
    if _b_bytes(work) <= near_bytes / 2 and work.columns.size >= MANY_PANELS * tile[work.columns.name]:
        bytes_of_row += _epilogue_bytes(work)
    wanted_rows = max(1, int(near_bytes / 2 / bytes_of_row))
    remaining = -(-rows // wanted_rows)
    if depth_blocks(work, tile, machine) > 1:
        arriving = 1 if _b_bytes(work) <= l2_bytes(machine) else _rows_of_arriving(machine, ARRIVING)
        remaining = min(remaining, max(1, rows // arriving))
    programs = prod(blocks.values())
    goal = threads * PROGRAMS_PER_THREAD
    n_tiles = -(-work.columns.size // tile[work.columns.name])
    for axis in work.rows:
        tiles = -(-axis.size // tile.get(axis.name, 1))
        share = min(tiles, remaining)
        blocks[axis.name] = share
        remaining = -(-remaining // share)
        programs *= share
    if programs < goal and threads > 1:
        least = min(n_tiles, -(-goal // programs))
        counts = range(least, min(n_tiles, 2 * least) + 1)
        distributed = {count: {**blocks, work.columns.name: count} for count in counts}
        share = max(distributed, key=lambda count: (_balance(work, tile, distributed[count], threads), -count))
        blocks[work.columns.name] = share
        programs *= share
        for axis in work.rows:
            tiles = -(-axis.size // tile.get(axis.name, 1))
            if programs < goal:
                grown = min(tiles, blocks[axis.name] * -(-goal // programs))
                programs = programs // blocks[axis.name] * grown
                blocks[axis.name] = grown
    return blocks


def _rows_of_arriving(machine: Cpu, share: float) -> int:
    """So many rows that a panel of b arrives in this share of the time of their products; 1 where nothing is far."""
    if len(machine.caches) < 3:
        return 1
    vector_bytes = machine.vector_bits / 8
    return ceil(vector_bytes / (machine.caches[2].bytes_per_cycle or vector_bytes) * machine.fma_units / share)


def _balance(work: Product, tile: Mapping[str, int], blocks: Mapping[str, int], threads: int) -> float:
    """Mean work of the threads by that of the busiest, for a register tile and blocks of the grid."""
    loops = [
        SpatialLoop(axis, tile.get(axis.name, 1), blocks.get(axis.name, 1))
        for axis in (*work.outer, *work.rows, work.columns)
    ]
    return balance(loops, threads)


def balance(loops: Sequence[SpatialLoop], threads: int) -> float:
    """Mean work of the threads by that of the busiest, where these loops are distributed to programs.

    Each thread takes its share of the programs, then what others left.
    """
    if threads == 1:
        return 1.0
    programs = prod(loop.programs for loop in loops)
    if programs > MOST_PROGRAMS * threads:
        return 1.0
    sizes = [prod(points) for points in product(*(loop.points for loop in loops))]
    left = [list(range(programs * t // threads, programs * (t + 1) // threads)) for t in range(threads)]
    busy = [0] * threads
    for _ in sizes:
        thread = min(range(threads), key=busy.__getitem__)
        own = left[thread] or next(others for others in left if others)
        busy[thread] += sizes[own.pop(0)]
    return sum(busy) / threads / max(busy)
