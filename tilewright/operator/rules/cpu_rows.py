"""Rules for nests on CPUs: the vector, the tile beside it, blocks of the grid, pipelines, what is fetched ahead.

The vector runs along the loop with stride 1 in the output (a reduction's: in its largest input). A map that
reads along another loop transposes squares, in the order that `crossed` says. Programs are
dealt so that each has some thousand elements. Rows that come from main memory are read and written in a pipeline where
what is under way fits L1 or arithmetic is costly; else a mean and squared deviations take one pass, and passes ask for
the next row. Outputs that no cache holds bypass the caches.
"""

from __future__ import annotations

from math import prod

from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import COSTLY, Apply, Axis, Read, walk
from tilewright.machine.description import Cpu, Gpu
from tilewright.operator.crossed import crossed_read, order_of_squares
from tilewright.operator.moments import moments_of
from tilewright.operator.nest import Nest, NestSchedule, Prefetch, addresses
from tilewright.operator.rules.gpu_rows import schedule_on_blocks
from tilewright.tiles.kernel import Kernel

PROGRAMS_PER_THREAD = 4
PREFETCH_BYTES = 4096  # far enough to cover the latency of DRAM at its bandwidth
PIPELINE_PREFETCH_BYTES = 8192  # of a row that others are computed on and written beside
ROW_LEAD = 4  # of L1: what of the row after the next is on its way while the next one is asked for
ELEMENTS_PER_PROGRAM = 1 << 15  # some tens of microseconds of element-wise work


def vector_lanes(machine: Cpu) -> int:
    """Lanes of 32 bits in one vector."""
    return machine.vector_bits // 32


def schedule_nest(
    nest: Nest, machine: Cpu | Gpu, threads: int, subject: str, lanes: int = 0
) -> tuple[NestSchedule | Kernel, Decision]:
    """Vector loop, unrolled loop, blocks; `lanes` of a vector where an instruction was chosen. On a GPU, tiles."""
    if isinstance(machine, Gpu):
        return schedule_on_blocks(nest, machine, subject)
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
