"""Tile sizes from the machine description, by rule.

*Products.* A register tile has MR rows (a box over the m loops) and NR vectors along n, within one of the shapes for
which the chosen instruction has outer products of registers. Cycles of one step of k are the largest of: multiply-adds
over `fma_units`; MR broadcasts and NR loads over `loads_per_cycle`; the latency of a chain of multiply-adds. The tile
with the fewest cycles over the whole iteration space, ragged tiles included, wins; with few rows, the time in which
panels of b come from beyond L2 counts too. A program takes as many rows as keep
its part of a in half of L2, walks the panels of b outside and the rows inside, so that a panel stays near while the
rows pass by. For several threads, tiles within a tenth of the fewest cycles compete by the time of the busiest thread.

*Nests.* The vector runs along the loop with stride 1 in the output (a reduction's: in its largest input). A map that
reads along another loop transposes squares, in the order that `crossed` says. Programs are
dealt so that each has some thousand elements. Rows that come from main memory are read and written in a pipeline where
what is under way fits L1 or arithmetic is costly; else a mean and squared deviations take one pass, and passes ask for
the next row. Outputs that no cache holds bypass the caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf, prod

from tilewright.decision import Cost, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import COSTLY, Apply, Axis, Read, walk
from tilewright.machine.description import Cpu, Gpu
from tilewright.operator.contraction import Contraction, ContractionSchedule
from tilewright.operator.crossed import crossed_read, order_of_squares
from tilewright.operator.cycles import cycles_from_memory, product_cycles, tiled_cycles
from tilewright.operator.moments import moments_of
from tilewright.operator.nest import Nest, NestSchedule, Prefetch, addresses
from tilewright.operator.nest_blocks import NestBlocks, schedule_nest_blocks
from tilewright.tiles.loops import SpatialLoop

PROGRAMS_PER_THREAD = 4
EVEN = 0.95  # share of the busiest thread's work that the others have on average, from which on it is fair
MOST_WORK = 1.1  # of all threads together, by the least: what even shares may cost
SHARED_CYCLES = 1024  # of a product: another thread begins some 500 cycles later and can take half of it
MOST_PROGRAMS = 64  # per thread whose dealing is followed one by one; more are even enough
PREFETCH_BYTES = 4096  # far enough to cover the latency of DRAM at its bandwidth
PIPELINE_PREFETCH_BYTES = 8192  # of a row that others are computed on and written beside
ROW_LEAD = 4  # of L1: what of the row after the next is on its way while the next one is asked for
ELEMENTS_PER_PROGRAM = 1 << 15  # some tens of microseconds of element-wise work


def vector_lanes(machine: Cpu) -> int:
    """Lanes of 32 bits in one vector."""
    return machine.vector_bits // 32


# Products -------------------------------------------------------------------------------------------------------------


def schedule_contraction(
    work: Contraction, machine: Cpu, threads: int, a_bytes: int, subject: str
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
    outer, m_order = [axis.name for axis in work.outer], [axis.name for axis in work.m_loops]
    schedule = ContractionSchedule(
        tile=tile,
        order=(*outer, work.n_loop.name, *m_order),
        blocks=blocks,
        grid_order=(*outer, *m_order, work.n_loop.name),
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
    schedule: ContractionSchedule, work: Contraction, machine: Cpu, threads: int, a_bytes: int
) -> ContractionSchedule:
    """A schedule that was chosen for one thread, its loops dealt to several as the rules deal theirs."""
    if threads == 1:
        return schedule
    if product_cycles(work, schedule, machine) < SHARED_CYCLES:
        return replace(schedule, blocks={})
    return replace(schedule, blocks=_blocks(work, machine, threads, dict(schedule.tile), a_bytes))


def _tile(work: Contraction, rows: Sequence[int], vectors: int) -> dict[str, int]:
    """Points along each loop of a register tile."""
    tile = {axis.name: extent for axis, extent in zip(work.m_loops, rows, strict=True) if extent > 1}
    extent, lanes = work.n_loop.size, work.lanes
    whole = min(vectors * lanes, -(-extent // lanes) * lanes)
    tile[work.n_loop.name] = extent if extent < lanes else whole
    return tile


def tiles_that_fit(work: Contraction) -> list[tuple[tuple[int, ...], int]]:
    """Every legal register tile: rows along each m loop, and vectors along n, within one of the shapes."""
    widest = -(-work.n_loop.size // work.lanes)
    tallest = max(rows for rows, _ in work.shapes)
    limits = [min(axis.size, tallest) for axis in work.m_loops]
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


def k_unroll(work: Contraction) -> int:
    """Steps of the last k loop in one product: about four groups of the instruction, so that few are left over.

    Fewer where neighbouring rows overlap (windows over few channels): what one step reads for a row and another for the
    next would be kept in registers between them.
    """
    last, group = work.k_loops[-1].size, work.group
    groups = -(-last // group)
    form = affine(work.a.index)
    stride = form.coefficient(work.m_loops[-1]) if form is not None and work.m_loops else 0
    if group > 1 and 0 < stride < 4 * group:
        return group * min(groups, max(1, stride // group))
    if groups <= 4 or group == 1:
        return group * min(4, groups)
    best = min(range(4, 7), key=lambda count: (groups - last // (count * group) * count, count))
    return group * best


def depth_block(work: Contraction, schedule: ContractionSchedule, machine: Cpu) -> int:
    """Points of the last k loop for which a panel of b, other k loops whole, fills 0.3 of L2; 0 where all fit 0.4."""
    l2_bytes = machine.caches[1].bytes if len(machine.caches) > 1 else 4 * machine.caches[0].bytes
    others = prod(axis.size for axis in work.k_loops) // max(1, work.k_loops[-1].size)
    point_bytes = schedule.tile.get(work.n_loop.name, 1) * others * dtypes.size_bytes(work.b.tensor.dtype)
    if point_bytes * work.k_loops[-1].size <= 0.4 * l2_bytes:
        return 0
    return int(0.3 * l2_bytes / point_bytes)


def k_block(work: Contraction, schedule: ContractionSchedule, machine: Cpu) -> int:
    """Points of the first k loop per block, or 0 for no blocks (`_depth_blocks` says how many)."""
    blocks = _depth_blocks(work, schedule.tile, machine)
    if blocks == 1:
        return 0
    first = work.k_loops[0].size
    size = -(-first // blocks)
    if len(work.k_loops) == 1:
        size = -(-size // schedule.k_unroll) * schedule.k_unroll
    return size if size < first else 0


def _depth_blocks(work: Contraction, tile: Mapping[str, int], machine: Cpu) -> int:
    """Into how many blocks k is cut; 1 for none.

    Blocks are made where the panel of b outgrows 0.4 of L2 or the rows of a tile outgrow L1, there is more than one
    tile of rows to reuse them, and the sums of one panel fit in L2. They are made to fill 0.3 of L2 and half of L1.
    """
    l1_bytes = machine.caches[0].bytes
    l2_bytes = machine.caches[1].bytes if len(machine.caches) > 1 else 4 * l1_bytes
    rows = prod(axis.size for axis in work.m_loops)
    height = prod(tile.get(axis.name, 1) for axis in work.m_loops)
    width = tile.get(work.n_loop.name, 1)
    depth = prod(axis.size for axis in work.k_loops)
    panel_bytes = width * depth * dtypes.size_bytes(work.b.tensor.dtype)
    strip_bytes = height * depth * dtypes.size_bytes(work.a.tensor.dtype)
    if rows <= height or rows * width * dtypes.size_bytes(work.accumulator.dtype) > l2_bytes:
        return 1
    if panel_bytes <= 0.4 * l2_bytes and strip_bytes <= l1_bytes:
        return 1
    return int(max(-(-panel_bytes // int(0.3 * l2_bytes)), -(-strip_bytes // (l1_bytes // 2))))


def _blocks(work: Contraction, machine: Cpu, threads: int, tile: dict[str, int], a_bytes: int) -> dict[str, int]:
    """Deal outer loops point by point, m loops so that a block of a fits half of L2, n loops if threads lack work."""
    blocks = {axis.name: axis.size for axis in work.outer}
    l2_bytes = machine.caches[1].bytes if len(machine.caches) > 1 else machine.caches[0].bytes
    rows = prod(axis.size for axis in work.m_loops)
    row_bytes = max(1, min(a_bytes / max(1, rows), _k_bytes(work)) / _depth_blocks(work, tile, machine))
    wanted_rows = max(1, int(l2_bytes / 2 / row_bytes))
    remaining = max(1, -(-rows // wanted_rows))
    programs = prod(blocks.values())
    goal = threads * PROGRAMS_PER_THREAD
    n_tiles = -(-work.n_loop.size // tile[work.n_loop.name])
    for axis in work.m_loops:
        tiles = -(-axis.size // tile.get(axis.name, 1))
        share = min(tiles, remaining)
        blocks[axis.name] = share
        remaining = -(-remaining // share)
        programs *= share
    if programs < goal and threads > 1:
        least = min(n_tiles, -(-goal // programs))
        dealt = {share: {**blocks, work.n_loop.name: share} for share in range(least, min(n_tiles, 2 * least) + 1)}
        share = max(dealt, key=lambda count: (_balance(work, tile, dealt[count], threads), -count))
        blocks[work.n_loop.name] = share
        programs *= share
        for axis in work.m_loops:
            tiles = -(-axis.size // tile.get(axis.name, 1))
            if programs < goal:
                grown = min(tiles, blocks[axis.name] * -(-goal // programs))
                programs = programs // blocks[axis.name] * grown
                blocks[axis.name] = grown
    return blocks


def _balance(work: Contraction, tile: Mapping[str, int], blocks: Mapping[str, int], threads: int) -> float:
    """Mean work of the threads by that of the busiest; each takes its share of the programs, then what others left."""
    if threads == 1:
        return 1.0
    loops = [
        SpatialLoop(axis, tile.get(axis.name, 1), blocks.get(axis.name, 1))
        for axis in (*work.outer, *work.m_loops, work.n_loop)
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


def _k_bytes(work: Contraction) -> int:
    return prod(axis.size for axis in work.k_loops) * dtypes.size_bytes(work.a.tensor.dtype)


# Nests ----------------------------------------------------------------------------------------------------------------


def schedule_nest(
    nest: Nest, machine: Cpu | Gpu, threads: int, subject: str, lanes: int = 0
) -> tuple[NestSchedule | NestBlocks, Decision]:
    """Vector loop, unrolled loop, blocks; `lanes` of a vector where an instruction was chosen. On a GPU, tiles."""
    if isinstance(machine, Gpu):
        return schedule_nest_blocks(nest, machine, subject)
    lanes = lanes or vector_lanes(machine)
    vector = _vector_loop(nest, lanes)
    if vector is None:
        return (
            NestSchedule(blocks=_nest_blocks(nest, {}, threads), lanes=lanes),
            Decision(f"vector of {subject}", "none", "no loop has stride 1 in the output"),
        )
    extent = vector.size
    inside = vector in nest.inner
    length = min(4 * lanes, -(-extent // lanes) * lanes) if extent >= lanes else extent
    unroll, unroll_extent = "", 1
    order: tuple[str, ...] = ()
    crossed = crossed_read(nest, vector, lanes)
    if crossed is not None:
        unroll, unroll_extent, length = crossed[0].name, lanes, lanes
        order = order_of_squares(nest, vector, *crossed, machine.caches[0])
    elif nest.inner and not inside:
        candidate = _reuse_loop(nest, vector)
        if candidate is not None:
            length = min(length, 2 * lanes)
            unroll, unroll_extent = candidate.name, min(4, candidate.size)
    if inside and extent < lanes:
        length = extent
    tiled = {vector.name: length, unroll: unroll_extent}
    streams = _streams(nest, machine) if length % lanes == 0 else ()
    stages = _stages(nest, vector, machine) if streams else ()
    moments = None if stages else _moments(nest, vector, length, machine)
    schedule = NestSchedule(
        vector=vector.name,
        vector_extent=length,
        unroll=unroll,
        unroll_extent=unroll_extent,
        order=order,
        blocks=_nest_blocks(nest, tiled, threads, len(stages)),
        nontemporal=streams,
        prefetch=_prefetches(nest, vector, length, machine, bool(stages), moments),
        moments=moments,
        stages=stages,
        lanes=lanes,
    )
    place = "an inner loop" if inside else "an outer loop"
    beside = f", {unroll_extent} points of {unroll} beside it" if unroll else ""
    beside += ", along the lines that are read" if order else ""
    beside += f", {moments[0]} and {moments[1]} in one pass, for rows come from main memory" if moments else ""
    return schedule, Decision(
        f"vector of {subject}", f"{length} points of {vector.name}{beside}", f"{place} with stride 1"
    )


def _vector_loop(nest: Nest, lanes: int) -> Axis | None:
    """The loop with stride 1 in the last stored node, else in the largest read; of the two of a window the longer.

    Loops that fill less than half a vector are passed over where another one is longer.
    """
    stored = [node for node in nest.nodes if node.index is not None]
    candidates = [index for node in reversed(stored) if node.index is not None for index in [node.index]]
    reads = [
        (read.tensor.shape[0], read.indices[0])
        for node in nest.nodes
        for read in walk(node.body)
        if isinstance(read, Read) and read.indices
    ]
    largest = [index for _, index in sorted(reads, key=lambda item: -int(item[0]))]  # type: ignore[arg-type]
    if nest.inner and not any(nest.covers_inner(node) for node in stored):
        candidates = largest[:1] + candidates + largest[1:]  # a pure reduction: follow what is read
    else:
        candidates = candidates + largest
    found = []
    for form in (affine(index) for index in candidates):
        axes = (*nest.outer[::-1], *nest.inner[::-1])
        steps = [axis for axis in axes if form is not None and form.coefficient(axis) == 1 and axis.size > 1]
        found += [max(steps, key=lambda axis: axis.size)] if steps else []
    long = [axis for axis in found if axis.size >= lanes // 2]
    return long[0] if long else max(found, key=lambda axis: axis.size, default=None)


def _reuse_loop(nest: Nest, vector: Axis) -> Axis | None:
    """A neighbour of the vector along which some read repeats (a window, a shared weight).

    Worth keeping in registers.
    """
    for axis in reversed(nest.outer):
        if axis == vector or axis.size < 2:
            continue
        for node in nest.nodes:
            for index in addresses(node.body):
                form = affine(index)
                if form is not None and any(form.coefficient(inner) for inner in nest.inner):
                    return axis
    return None


def _streams(nest: Nest, machine: Cpu) -> tuple[str, ...]:
    """Outputs so large that they leave the last cache before anyone reads them."""
    last = machine.caches[-1].bytes
    names = []
    for node in nest.nodes:
        if node.index is not None:
            points = prod(axis.size for axis in (*nest.outer, *(nest.inner if nest.covers_inner(node) else ())))
            form = affine(node.index)
            dense = form is not None and 1 in form.terms.values()
            if dense and points * dtypes.size_bytes(node.tensor.dtype) > last:
                names.append(node.tensor.name)
    return tuple(names)


def _streamed(nest: Nest, vector: Axis, machine: Cpu) -> list[tuple[Read, int]]:
    """Inputs that do not fit the last cache and are walked along the vector, and their step from row to row."""
    found: dict[str, tuple[Read, int]] = {}
    for node in nest.nodes:
        for read in walk(node.body):
            if isinstance(read, Read) and read.indices and read.tensor.name not in found:
                form = affine(read.indices[0])
                size = int(read.tensor.shape[0]) * dtypes.size_bytes(read.tensor.dtype)  # type: ignore[arg-type]
                if form is not None and form.coefficient(vector) == 1 and size > machine.caches[-1].bytes:
                    row = form.coefficient(nest.outer[-1]) if nest.outer else 0
                    found[read.tensor.name] = (read, row)
    return list(found.values())


def _moments(nest: Nest, vector: Axis, length: int, machine: Cpu) -> tuple[str, str] | None:
    """Sum and squared deviations that take one pass: of rows longer than a vector that come from main memory."""
    if nest.inner != (vector,) or vector.size < length or not _streamed(nest, vector, machine):
        return None
    found = moments_of(nest)
    return (found.total, found.squares) if found is not None else None


def _prefetches(
    nest: Nest, vector: Axis, length: int, machine: Cpu, pipelined: bool, moments: tuple[str, str] | None
) -> tuple[Prefetch, ...]:
    """Which of the streamed inputs to ask for, how far ahead, and in which pass.

    A single pass, and the first of a pipeline, ask a few kilobytes ahead. Several passes in turn ask for the next row,
    so that it arrives while this row is computed on and written: all but the first, each for its share of every step.
    With two passes, because moments take one, the second asks a part of L1 ahead of the next row, and the first as far
    ahead in its own, for lines that did not stay.
    """
    passes = sum(1 for node in nest.nodes if node.accum is not None or node.index is not None)
    passes -= 1 if moments is not None else 0
    found = []
    for read, row in _streamed(nest, vector, machine):
        name, size = read.tensor.name, dtypes.size_bytes(read.tensor.dtype)
        lead, beyond = PREFETCH_BYTES // size, machine.caches[0].bytes // ROW_LEAD // size
        if pipelined or not (nest.inner == (vector,) and passes > 1 and row):
            found.append(Prefetch(name, PIPELINE_PREFETCH_BYTES // size if pipelined else lead, length))
        elif moments is not None and passes == 2:
            found += [Prefetch(name, beyond, length, 0), Prefetch(name, row + beyond, length, 1)]
        else:
            share = -(-length // (passes - 1))
            found += [Prefetch(name, row + (turn - 1) * share, share, turn) for turn in range(1, passes)]
    return tuple(found)


def _stages(nest: Nest, vector: Axis, machine: Cpu) -> tuple[int, ...]:
    """The passes with which the stages of a pipeline of rows begin; none where the passes of a row run in turn.

    A pipeline needs one outer and one inner loop, a first pass that reads stored tensors only, and a last pass that
    alone writes. The last pass is a stage, so that a row is written while the next is read. Costly passes between are
    stages too, so that arithmetic goes on meanwhile; cheap ones follow the first, for they find their row in L1, and
    without costly ones the rows under way and what all rows read must fit in L1.
    """
    first, last = nest.nodes[0], nest.nodes[-1]
    own_reads = any(isinstance(e, Read) and not e.indices for e in walk(first.body))
    written = [node for node in nest.nodes if node.index is not None]
    if not (
        vector in nest.inner
        and len(nest.outer) == len(nest.inner) == 1
        and first.accum is not None
        and not own_reads
        and written == [last]
        and nest.covers_inner(last)
    ):
        return ()
    costly = any(
        isinstance(e, Apply) and e.function in COSTLY
        for node in nest.nodes[:-1]
        if nest.covers_inner(node)
        for e in walk(node.body)
    )
    passes = sum(1 for node in nest.nodes if node.accum is not None) + 1
    if costly:
        return tuple(range(passes))
    return (0, passes - 1) if _sweep_bytes(nest, vector) <= machine.caches[0].bytes else ()


def _sweep_bytes(nest: Nest, vector: Axis) -> int:
    """Bytes that a row of the last pass and the row that is read beside it touch, and what all rows read."""
    found: dict[str, int] = {}
    for node in nest.nodes:
        for read in walk(node.body):
            form = affine(read.indices[0]) if isinstance(read, Read) and read.indices else None
            if form is not None and form.coefficient(vector):
                assert isinstance(read, Read)
                rows = 2 if any(form.coefficient(axis) for axis in nest.outer) else 1
                found[read.tensor.name] = rows * vector.size * dtypes.size_bytes(read.dtype)
    return sum(found.values())


def _nest_blocks(nest: Nest, tiled: dict[str, int], threads: int, stages: int = 0) -> dict[str, int]:
    """Deal the outer loops, outermost first, until programs are small or many; a pipeline wants long ones."""
    inner = prod(axis.size for axis in nest.inner)
    work = inner * prod(axis.size for axis in nest.outer) * _cost_per_point(nest)
    most = (2 * PROGRAMS_PER_THREAD if stages else 64) * threads
    wanted = min(max(1, work // ELEMENTS_PER_PROGRAM), most)
    if threads == 1:
        wanted = 1
    blocks: dict[str, int] = {}
    for axis in nest.outer:
        tiles = -(-axis.size // tiled.get(axis.name, 1))
        share = int(min(tiles, wanted))
        if share > 1:
            blocks[axis.name] = share
        wanted = -(-wanted // max(1, share))
    return blocks


def _cost_per_point(nest: Nest) -> int:
    """Rough weight of one point: reads and functions, so that heavier nests are dealt finer."""
    operations = sum(1 for node in nest.nodes for e in walk(node.body) if isinstance(e, Apply | Read))
    return max(1, operations // 4)
