"""Rules for products on CPUs: tile sizes from the machine description.

A register tile has MR rows (a box over the m loops) and NR vectors along n, within one of the shapes for
which the chosen instruction has outer products of registers. Cycles of one step of k are the largest of: multiply-adds
over `fma_units`; MR broadcasts and NR loads over `loads_per_cycle`; the latency of a chain of multiply-adds. The tile
with the fewest cycles over the whole iteration space, ragged tiles included, wins; with few rows, the time in which
panels of b come from beyond L2 counts too. A program takes as many rows as keep
its part of a in half of L2, walks the panels of b outside and the rows inside, so that a panel stays near while the
rows pass by. For several threads, tiles within a tenth of the fewest cycles compete by the time of the busiest thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf, prod

from tilewright.decision import Cost, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis
from tilewright.machine.description import Cpu
from tilewright.operator.contraction import ContractionSchedule
from tilewright.operator.cycles import cycles_from_memory, product_cycles, tiled_cycles
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Product

PROGRAMS_PER_THREAD = 4
EVEN = 0.95  # share of the busiest thread's work that the others have on average, from which on it is fair
MOST_WORK = 1.1  # of all threads together, by the least: what even shares may cost
SHARED_CYCLES = 1024  # of a product: another thread begins some 500 cycles later and can take half of it
MOST_PROGRAMS = 64  # per thread whose dealing is followed one by one; more are even enough


def schedule_contraction(
    work: Product, machine: Cpu, threads: int, a_bytes: int, subject: str
) -> tuple[ContractionSchedule, Decision]:
    """The register tile with the fewest predicted cycles, and blocks that fit L2 and feed all threads.

    A product of fewer than `SHARED_CYCLES` is one program, which one thread runs.
    """
    cost = cycles_from_memory if threads == 1 else tiled_cycles  # threads bring panels side by side, each its own
    ranked = sorted(
        (cost(work, rows, vectors, machine), -vectors * prod(rows), rows, vectors)
        for rows, vectors in tiles_that_fit(work)
    )
    shared = ranked[0][0] >= SHARED_CYCLES
    threads = threads if shared else 1
    even, most = (EVEN, MOST_WORK * ranked[0][0]) if threads > 1 else (1.0, inf)
    wasteful = next((each for each in ranked if each[0] > most), None)
    ranked = [each for each in ranked if each[0] <= most]
    dealt: dict[tuple[tuple[int, ...], int], tuple[dict[str, int], dict[str, int]]] = {}
    compared: list[tuple[float, int, tuple[int, ...], int]] = []
    for cycles, order, rows, vectors in ranked:
        if compared and (threads == 1 or min(compared)[0] < cycles / even):
            break  # no tile from here on can be faster, however evenly it is dealt
        tile = _tile(work, rows, vectors)
        blocks = _blocks(work, machine, threads, tile, a_bytes) if shared else {}
        dealt[rows, vectors] = tile, blocks
        compared.append((cycles / min(even, _balance(work, tile, blocks, threads)), order, rows, vectors))
    at_best = [(cycles / even, order, rows, vectors) for cycles, order, rows, vectors in ranked[len(dealt) :]]
    compared = sorted(compared + at_best[:1])
    cycles, _, rows, vectors = compared[0]
    tile, blocks = dealt[rows, vectors]
    outer, m_order = [axis.name for axis in work.outer], [axis.name for axis in work.rows]
    schedule = ContractionSchedule(
        tile=tile,
        order=(*outer, work.columns.name, *m_order),
        blocks=blocks,
        grid_order=(*outer, *m_order, work.columns.name),
        k_unroll=k_unroll(work),
        lanes=work.lanes,
    )
    second = compared[1] if len(compared) > 1 else None
    refused: tuple[Refusal, ...] = ()
    if wasteful:
        values = f"{wasteful[0]:.0f} cycles of all threads together, the fewest are {ranked[0][0]:.0f}"
        rule = f"at most {MOST_WORK} times the fewest"
        refused = (Refusal(_named(*wasteful[2:]), rule, values, Cost(cycles=wasteful[0])),)
    decision = Decision(
        f"register tile of {subject}",
        _named(rows, vectors),
        f"{cycles:.0f} predicted cycles, fewest of {len(ranked)} tiles within {_shapes(work.shapes)} registers",
        _named(*second[2:]) if second else "",
        f"{'' if second[2:] in dealt else 'at least '}{second[0]:.0f} cycles" if second else "",
        refused,
        Cost(cycles=cycles),
        Cost(cycles=second[0]) if second else None,
    )
    return schedule, decision


def _named(rows: Sequence[int], vectors: int) -> str:
    return f"{'x'.join(map(str, rows)) or '1'} rows by {vectors} vectors"


def dealt(
    schedule: ContractionSchedule, work: Product, machine: Cpu, threads: int, a_bytes: int
) -> ContractionSchedule:
    """A schedule that was chosen for one thread, its loops dealt to several as the rules deal theirs."""
    if threads == 1:
        return schedule
    if product_cycles(work, schedule, machine) < SHARED_CYCLES:
        return replace(schedule, blocks={})
    return replace(schedule, blocks=_blocks(work, machine, threads, dict(schedule.tile), a_bytes))


def _tile(work: Product, rows: Sequence[int], vectors: int) -> dict[str, int]:
    """Points along each loop of a register tile."""
    tile = {axis.name: extent for axis, extent in zip(work.rows, rows, strict=True) if extent > 1}
    extent, lanes = work.columns.size, work.lanes
    whole = min(vectors * lanes, -(-extent // lanes) * lanes)
    tile[work.columns.name] = extent if extent < lanes else whole
    return tile


def tiles_that_fit(work: Product) -> list[tuple[tuple[int, ...], int]]:
    """Every legal register tile: rows along each m loop, and vectors along n, within one of the shapes."""
    widest = -(-work.columns.size // work.lanes)
    tallest = max(rows for rows, _ in work.shapes)
    limits = [min(axis.size, tallest) for axis in work.rows]
    inner = range(1, limits[-1] + 1) if limits else range(1, 2)
    # Only the two innermost m loops are tiled: a box over more has ever more ragged parts.
    second = range(1, min(limits[-2], 8) + 1) if len(limits) > 1 else range(1, 2)
    found = []
    for p, q in product(second, inner):
        widths = [vectors for rows, vectors in work.shapes if rows >= p * q]
        rows = (*(1 for _ in limits[:-2]), p, q) if len(limits) > 1 else (q,) if limits else ()
        found += [(rows, vectors) for vectors in range(1, min(widest, max(widths, default=0)) + 1)]
    return found


def _shapes(shapes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{rows}x{vectors}" for rows, vectors in shapes)


def k_unroll(work: Product) -> int:
    """Steps of the last k loop in one product: about four groups of the instruction, so that few are left over.

    Fewer where neighbouring rows overlap (windows over few channels): what one step reads for a row and another for the
    next would be kept in registers between them.
    """
    last, group = work.depth[-1].size, work.group
    groups = -(-last // group)
    form = affine(work.a.index)
    stride = form.coefficient(work.rows[-1]) if form is not None and work.rows else 0
    if group > 1 and 0 < stride < 4 * group:
        return group * min(groups, max(1, stride // group))
    if groups <= 4 or group == 1:
        return group * min(4, groups)
    best = min(range(4, 7), key=lambda count: (groups - last // (count * group) * count, count))
    return group * best


def depth_block(work: Product, loops: Sequence[Axis], schedule: ContractionSchedule, machine: Cpu) -> int:
    """Points of the last of the k loops for which a panel of b, others whole, fills 0.3 of L2; 0 where all fit 0.4."""
    l2_bytes = machine.caches[1].bytes if len(machine.caches) > 1 else 4 * machine.caches[0].bytes
    others = prod(axis.size for axis in loops) // max(1, loops[-1].size)
    point_bytes = schedule.tile.get(work.columns.name, 1) * others * dtypes.size_bytes(work.b.tensor.dtype)
    if point_bytes * loops[-1].size <= 0.4 * l2_bytes:
        return 0
    return int(0.3 * l2_bytes / point_bytes)


def k_block(work: Product, schedule: ContractionSchedule, machine: Cpu) -> int:
    """Points of the first k loop per block, or 0 for no blocks (`_depth_blocks` says how many)."""
    blocks = _depth_blocks(work, schedule.tile, machine)
    if blocks == 1:
        return 0
    first = work.depth[0].size
    size = -(-first // blocks)
    if len(work.depth) == 1:
        size = -(-size // schedule.k_unroll) * schedule.k_unroll
    return size if size < first else 0


def _depth_blocks(work: Product, tile: Mapping[str, int], machine: Cpu) -> int:
    """Into how many blocks k is cut; 1 for none.

    Blocks are made where the panel of b outgrows 0.4 of L2 or the rows of a tile outgrow L1, there is more than one
    tile of rows to reuse them, and the sums of one panel fit in L2. They are made to fill 0.3 of L2 and half of L1.
    """
    l1_bytes = machine.caches[0].bytes
    l2_bytes = machine.caches[1].bytes if len(machine.caches) > 1 else 4 * l1_bytes
    rows = prod(axis.size for axis in work.rows)
    height = prod(tile.get(axis.name, 1) for axis in work.rows)
    width = tile.get(work.columns.name, 1)
    depth = prod(axis.size for axis in work.depth)
    panel_bytes = width * depth * dtypes.size_bytes(work.b.tensor.dtype)
    strip_bytes = height * depth * dtypes.size_bytes(work.a.tensor.dtype)
    if rows <= height or rows * width * dtypes.size_bytes(work.total.dtype) > l2_bytes:
        return 1
    if panel_bytes <= 0.4 * l2_bytes and strip_bytes <= l1_bytes:
        return 1
    return int(max(-(-panel_bytes // int(0.3 * l2_bytes)), -(-strip_bytes // (l1_bytes // 2))))


def _blocks(work: Product, machine: Cpu, threads: int, tile: dict[str, int], a_bytes: int) -> dict[str, int]:
    """Deal outer loops point by point, m loops so that a block of a fits half of L2, n loops if threads lack work."""
    blocks = {axis.name: axis.size for axis in work.outer}
    l2_bytes = machine.caches[1].bytes if len(machine.caches) > 1 else machine.caches[0].bytes
    rows = prod(axis.size for axis in work.rows)
    row_bytes = max(1, min(a_bytes / max(1, rows), _k_bytes(work)) / _depth_blocks(work, tile, machine))
    wanted_rows = max(1, int(l2_bytes / 2 / row_bytes))
    remaining = max(1, -(-rows // wanted_rows))
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
        dealt = {share: {**blocks, work.columns.name: share} for share in range(least, min(n_tiles, 2 * least) + 1)}
        share = max(dealt, key=lambda count: (_balance(work, tile, dealt[count], threads), -count))
        blocks[work.columns.name] = share
        programs *= share
        for axis in work.rows:
            tiles = -(-axis.size // tile.get(axis.name, 1))
            if programs < goal:
                grown = min(tiles, blocks[axis.name] * -(-goal // programs))
                programs = programs // blocks[axis.name] * grown
                blocks[axis.name] = grown
    return blocks


def _balance(work: Product, tile: Mapping[str, int], blocks: Mapping[str, int], threads: int) -> float:
    """Mean work of the threads by that of the busiest; each takes its share of the programs, then what others left."""
    if threads == 1:
        return 1.0
    loops = [
        SpatialLoop(axis, tile.get(axis.name, 1), blocks.get(axis.name, 1))
        for axis in (*work.outer, *work.rows, work.columns)
    ]
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


def _k_bytes(work: Product) -> int:
    return prod(axis.size for axis in work.depth) * dtypes.size_bytes(work.a.tensor.dtype)
