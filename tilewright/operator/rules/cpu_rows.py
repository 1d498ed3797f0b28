"""Rules for row reductions and pointwise kernels on CPUs: vector, register tile, programs, pipelines, prefetching.

The vector runs along the loop with stride 1 in the output (a reduction's: in its largest input). A pointwise
kernel that reads along another loop transposes squares, in the order that `crossed` says; one that reads lines in
another order than it writes them takes strips of a few lines (`strips`). Neighbours load points that their windows
share once, and channels may be in blocks (`cpu_window_reuse`). Loops are distributed so that each program has some
thousand elements. Rows that come from main memory are read and written in a pipeline where what is under way fits L1
or arithmetic is costly; else passes ask for the next row. A sum that can follow another one is computed in the pass of
that where this takes fewer predicted cycles. Outputs that no cache holds bypass the caches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import COSTLY, Apply, Axis, Read, Tensor, walk
from tilewright.machine.description import Cache, Cpu
from tilewright.machine.roofline import LaunchModel, busiest_share
from tilewright.operator.crossed import crossed_read, interleaved_loop, order_of_squares
from tilewright.operator.cycles import nest_cycles
from tilewright.operator.passes import passes_of, row_buffers, rows_in_use, walks_inner
from tilewright.operator.rewrites.following import with_following
from tilewright.operator.rewrites.maxima_without_nan import maxima_without_nan
from tilewright.operator.rewrites.nonpositive_exponentials import nonpositive_exponentials
from tilewright.operator.rules.cpu_product import l2_bytes
from tilewright.operator.rules.cpu_rows_time import RowTime
from tilewright.operator.rules.cpu_window_reuse import BEYOND_L2, near_blocks, shared_taps
from tilewright.operator.statements import (
    Statements,
    addresses,
    covering,
    inner_loops,
    outer_loops,
    point_count,
    values_in,
)
from tilewright.operator.strips import STRIP_LINES, strip_loops
from tilewright.tiles.build import in_program, register_tile, rooted, staged, tile
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.machines import CACHES, level_for
from tilewright.tiles.parts import program_of
from tilewright.tiles.tree import Hint, Kind, Leaf, Scope, TileTree

PROGRAMS_PER_THREAD = 4
PREFETCH_BYTES = 4096  # far enough to cover the latency of DRAM at its bandwidth
SQUARE_PREFETCH_BYTES = 256  # ahead along every line that a square reads
PIPELINE_PREFETCH_BYTES = 8192  # of a row that others are computed on and written beside
ROW_LEAD = 4  # of L1: what of the row after the next is on its way while the next one is asked for
WORTH = 1.05  # times longer that passes apart take, from which on sums are joined; less is not for the model to tell
EVEN_SHARES = 1.05  # times longer that the busiest thread may take, up to which parts of sums are not tried
ELEMENTS_PER_PROGRAM = 1 << 15  # some tens of microseconds of element-wise work


def vector_lanes(machine: Cpu) -> int:
    """Lanes of 32 bits in one vector."""
    return machine.vector_bits // 32


def schedule_rows(
    statements: Statements,
    machine: Cpu,
    threads: int,
    subject: str,
    lanes: int = 0,
    single: Collection[str] = (),
    whole: bool = False,
) -> tuple[Kernel, Decision]:
    """The kernel of these statements; vectors have `lanes` lanes where an instruction was chosen.

    Neighbours along loops in `single` do not share a register tile. With `whole` channels have no blocks of their own.
    """
    statements = maxima_without_nan(nonpositive_exponentials(with_following(statements)))
    lanes = lanes or vector_lanes(machine)
    outer, inner = outer_loops(statements), inner_loops(statements)
    vector = _vector_loop(statements, lanes)
    if vector is None:
        blocks = _programs(statements, outer, {}, threads)
        loops = [SpatialLoop(axis, 1, blocks.get(axis.name, 1)) for axis in outer]
        kernel = Kernel(statements, row_tree(statements, loops, caches=machine.caches))
        return kernel, Decision(f"vector of {subject}", "none", "no loop has stride 1 in the output")
    extent = vector.size
    inside = vector in inner
    length = _whole_vectors(extent, 4, lanes)
    unroll, unroll_extent = "", 1
    taps: tuple[Axis, ...] = ()
    order: tuple[str, ...] = ()
    crossed, strip = crossed_read(statements, vector, lanes), strip_loops(statements, vector)
    interleaved = interleaved_loop(statements, vector, lanes)
    if crossed is not None:
        unroll, unroll_extent, length = crossed[0].name, lanes, lanes
        order = order_of_squares(statements, vector, *crossed, machine.caches[0])
    elif interleaved is not None:
        unroll, unroll_extent = interleaved.name, interleaved.size
        length = _whole_vectors(extent, 8 // interleaved.size, lanes)
    elif strip is not None:
        unroll, unroll_extent = strip[0].name, min(STRIP_LINES, strip[0].size)
        outer = (*(axis for axis in outer if axis not in (*strip, vector)), *strip, vector)
        order = tuple(axis.name for axis in outer)
    elif inner and not inside:
        candidate = _reuse_loop(statements, vector, single)
        if candidate is not None:
            length = min(length, 2 * lanes)
            unroll, unroll_extent = candidate.name, min(4, candidate.size)
            taps = shared_taps(statements, candidate, unroll_extent)
        elif prod(axis.size for axis in outer) >= 8 * lanes * threads * PROGRAMS_PER_THREAD or threads == 1:
            length = _whole_vectors(extent, 8, lanes)
    tiled = {vector.name: length, unroll: unroll_extent}
    streams = _streams(statements, machine) if length % lanes == 0 else ()
    way = _way(statements, vector, length, lanes, machine, threads, streams)
    joined, stages = way.joined, way.starts
    near = {} if whole or not taps else near_blocks(statements, vector, tiled, machine)
    places = {name: place for place, name in enumerate(order or (unroll, vector.name))}
    ordered = sorted(outer, key=lambda axis: places.get(axis.name, -1))
    blocks = _programs(statements, ordered if order else outer, tiled, threads, len(stages), near)
    loops = [
        SpatialLoop(axis, tiled.get(axis.name, 1), blocks.get(axis.name, 1), lanes if axis == vector else 0)
        for axis in ordered
    ]
    asked = _prefetches(statements, vector, length, machine, bool(stages), joined)
    if crossed is not None:
        asked += _prefetches_of_squares(statements, vector, crossed[0], lanes, machine)
    hints = _hints(statements, streams, joined, asked)
    along = (vector.name, length) if inside else None
    tree = row_tree(statements, loops, along, lanes, hints, stages, joined, machine.caches, unrolled=taps)
    place = "an inner loop" if inside else "an outer loop"
    beside = f", {unroll_extent} points of {unroll} beside it" if unroll else ""
    beside += "".join(f", all {axis.size} of {axis.name} in a step" for axis in taps)
    beside += "".join(f", in {count} blocks whose windows L1 keeps" for count in near.values())
    beside += ", along the lines that are read" if order else ""
    decision = Decision(f"vector of {subject}", f"{length} points of {vector.name}{beside}", f"{place} with stride 1")
    return Kernel(statements, tree), way.explained(decision, prod(axis.size for axis in outer))


def predicted(statements: Statements, machine: Cpu, threads: int, lanes: int = 0) -> float:
    """Cycles of a kernel from its launch to its end, with its tensors in the smallest cache that holds them all."""
    kernel, _ = schedule_rows(statements, machine, threads, "", lanes)
    programs = programs_of(kernel)
    reads = {r.tensor.name: r.tensor for each in statements for r in walk(each.body) if isinstance(r, Read)}
    stored = [each.tensor for each in statements if each.address is not None]
    moved = sum(tensor.size_bytes for tensor in (*(t for t in reads.values() if t.shape), *stored))
    time = LaunchModel(machine, threads, moved).time(nest_cycles(kernel, machine), programs, moved)
    return time.seconds * machine.nominal_clock_hz


def is_even(statements: Statements, machine: Cpu, threads: int) -> bool:
    """Whether every thread has the same share of a kernel, so that parts of its sums would not spread it more."""
    programs = programs_of(schedule_rows(statements, machine, threads, "")[0])
    return busiest_share(programs, threads) * threads < EVEN_SHARES


def programs_of(kernel: Kernel) -> int:
    """The programs of the grid."""
    return prod(program_of(kernel.tree).grid.values())


def rows_once(statements: Statements, machine: Cpu, filled: Collection[str], step: int) -> TileTree:
    """The tree of rows in turn, a vector of `step` points along each; later passes compute stored values `filled`."""
    vector, loops = inner_loops(statements)[-1], [SpatialLoop(axis) for axis in outer_loops(statements)]
    return row_tree(statements, loops, (vector.name, step), vector_lanes(machine), filled=filled)


# The tree -------------------------------------------------------------------------------------------------------------


def row_tree(
    statements: Sequence[Statement],
    loops: Sequence[SpatialLoop],
    vector: tuple[str, int] | None = None,
    lanes: int = 1,
    hints: Mapping[str, Sequence[Hint]] | None = None,
    starts: Collection[int] = (),
    joined: Collection[str] = (),
    caches: Sequence[Cache] = (),
    filled: Collection[str] = (),
    unrolled: Sequence[Axis] = (),
) -> TileTree:
    """Tiles of the outer `loops` around the passes, which run in turn or in a pipeline of rows.

    `vector` is an inner loop with its points in one step; without it, vectors run along the outer loop that has lanes.
    `hints` are those of leaves, by name. `starts` numbers the passes over the inner loops with which the stages of a
    pipeline begin. Sums that are `joined` are in the pass of the reduction that they follow. Row buffers lie in the
    first of the `caches` that holds them beside the sums of the row, or in L1 where there are none. Stored values that
    are `filled` have no pass of their own: the first one that reads them computes them. A step has all points of the
    inner loops that are `unrolled`.
    """
    buffers, inner = row_buffers(statements, joined), inner_loops(statements)
    looped = [axis for axis in inner if axis not in unrolled]
    rows = [(loop.axis.name, loop.quantum) for loop in loops if loop.quantum > 1 and not loop.vector_lanes]
    across = next(((loop.axis.name, loop.quantum) for loop in loops if loop.vector_lanes), None)
    stages: list[list[list[Statement]]] = [[]]
    trees: list[list[TileTree]] = [[]]
    swept = 0
    for step in passes_of(statements, (*buffers, *filled), joined):
        sweeps = walks_inner(step[-1], statements)
        if sweeps and swept and swept in starts:
            stages.append([])
            trees.append([])
        swept += sweeps
        along = vector if sweeps and vector else across
        leaves = [Leaf(each.name, None, tuple((hints or {}).get(each.name, ()))) for each in step]
        points = [*((axis.name, axis.size) for axis in unrolled if sweeps), *rows]
        bodies = [register_tile(points, along, lanes, leaf) for leaf in leaves]
        body = bodies[0] if len(bodies) == 1 else Scope(Kind.SEQ, tuple(bodies))
        stages[-1].append(step)
        trees[-1].append(rooted(tile("L1", _trips(looped, vector) if sweeps else [], body)))
    groups = [group[0] if len(group) == 1 else Scope(Kind.SEQ, tuple(group)) for group in trees]
    tree = Scope(Kind.PIPE, tuple(groups)) if starts else groups[0]
    slots = rows_in_use(stages, statements)
    covers = covering(statements)
    extents = {axis: axis.size for axis in inner} | {loop.axis: loop.quantum for loop in loops}
    held = sum(
        (slots if each.name in buffers else 1) * _row_bytes(each, extents)
        for each in statements
        if each.name in buffers or (each.address is None and each.name not in covers)
    )
    level = level_for(held, caches) if caches else CACHES[0]
    return in_program(loops, loops, staged(buffers, level, tree, slots))


def _row_bytes(value: Statement, points: Mapping[Axis, int]) -> int:
    """Bytes of a value of one row: at all inner points that it has, for the outer points of one step."""
    return prod(points.get(axis, axis.size) for axis in value.axes) * dtypes.size_bytes(value.tensor.dtype)


def _trips(inner: Sequence[Axis], vector: tuple[str, int] | None) -> list[tuple[str, int]]:
    """The steps of a pass along the inner loops; the vector's runs innermost."""
    steps = {axis.name: axis.size for axis in inner}
    if vector is not None:
        name, extent = vector
        steps[name] = -(-steps.pop(name) // extent)
    return list(steps.items())


def _hints(
    statements: Sequence[Statement],
    streams: Collection[str],
    joined: Collection[str],
    asked: Sequence[tuple[int, Hint]],
) -> dict[str, list[Hint]]:
    """The hints of leaves by name: `streams` bypass the caches, and `asked` has what passes prefetch, by number."""
    found: dict[str, list[Hint]] = {each.name: [] for each in statements}
    for name in streams:
        found[name].append(Hint("stream"))
    passes = [step[-1] for step in passes_of(statements, row_buffers(statements, joined), joined)]
    if inner_loops(statements):
        passes = [each for each in passes if walks_inner(each, statements)]
    for number, hint in asked:
        if number < len(passes):
            found[passes[number].name].append(hint)
    return found


# Vectors and tiles ----------------------------------------------------------------------------------------------------


def _vector_loop(statements: Statements, lanes: int) -> Axis | None:
    """The loop with stride 1 in the last stored statement, else in the largest read; of the two of a window the longer.

    Loops that fill less than half a vector are passed over where another one is longer.
    """
    outer, inner, covers = outer_loops(statements), inner_loops(statements), covering(statements)
    candidates = [each.address for each in reversed(statements) if each.address is not None]
    reads = [
        (read.tensor.shape[0], read.indices[0])
        for each in statements
        for read in walk(each.body)
        if isinstance(read, Read) and read.indices
    ]
    largest = [index for _, index in sorted(reads, key=lambda item: -int(item[0]))]  # type: ignore[arg-type]
    if inner and not any(each.address is not None for each in covers.values()):
        candidates = largest[:1] + candidates + largest[1:]  # a pure reduction: follow what is read
    else:
        candidates = candidates + largest
    found = []
    for form in (affine(index) for index in candidates):
        axes = (*outer[::-1], *inner[::-1])
        steps = [axis for axis in axes if form is not None and form.coefficient(axis) == 1 and axis.size > 1]
        found += [max(steps, key=lambda axis: axis.size)] if steps else []
    long = [axis for axis in found if axis.size >= lanes // 2]
    return long[0] if long else max(found, key=lambda axis: axis.size, default=None)


def _whole_vectors(extent: int, most: int, lanes: int) -> int:
    """Points of so many vectors at most that cover an extent; the extent itself where it is less than one."""
    return min(most * lanes, -(-extent // lanes) * lanes) if extent >= lanes else extent


def _reuse_loop(statements: Statements, vector: Axis, single: Collection[str]) -> Axis | None:
    """A neighbour of the vector along which some read repeats: a shared weight, or windows one step apart.

    Windows of stride 2 share a third of their points: there neighbours take lines further apart than one vector behind
    the other.
    """
    inner = inner_loops(statements)
    for axis in reversed(outer_loops(statements)):
        if axis == vector or axis.size < 2 or axis.name in single:
            continue
        for each in statements:
            for index in addresses(each.body):
                form = affine(index)
                steps = {form.coefficient(loop) for loop in inner} - {0} if form is not None else set()
                if form is not None and steps and form.coefficient(axis) in {0, *steps}:
                    return axis
    return None


def _streams(statements: Statements, machine: Cpu) -> tuple[str, ...]:
    """Outputs so large that they leave the last cache before anyone reads them."""
    last = machine.caches[-1].bytes
    names = []
    for each in statements:
        if each.address is not None:
            elements = prod(axis.size for axis in each.axes)
            form = affine(each.address)
            dense = form is not None and 1 in form.terms.values()
            if dense and elements * dtypes.size_bytes(each.tensor.dtype) > last:
                names.append(each.name)
    return tuple(names)


def _streamed(statements: Statements, vector: Axis, machine: Cpu) -> list[tuple[Read, int]]:
    """Inputs that do not fit the last cache and are walked along the vector, and their step from row to row."""
    found: dict[str, tuple[Read, int]] = {}
    outer = outer_loops(statements)
    for each in statements:
        for read in walk(each.body):
            if isinstance(read, Read) and read.indices and read.tensor.name not in found:
                form = affine(read.indices[0])
                size = int(read.tensor.shape[0]) * dtypes.size_bytes(read.tensor.dtype)  # type: ignore[arg-type]
                if form is not None and form.coefficient(vector) == 1 and size > machine.caches[-1].bytes:
                    row = form.coefficient(outer[-1]) if outer else 0
                    found[read.tensor.name] = (read, row)
    return list(found.values())


@dataclass(frozen=True)
class _Way:
    """How a row is computed: sums `joined` to the reduction that they follow, or where the stages of a pipeline begin.

    `cycles` are predicted of a row, `others` those of the other way, by what it is.
    """

    joined: tuple[str, ...] = ()
    reduction: str = ""
    starts: tuple[int, ...] = ()
    cycles: float = 0.0
    others: tuple[str, float] | None = None

    def explained(self, decision: Decision, rows: int) -> Decision:
        """The decision with what was compared; fewer passes that are faster, but not by `WORTH`, are refused."""
        if self.others is None:
            return decision
        beside = f", {' and '.join(self.joined)} in one pass with {self.reduction}" if self.joined else ""
        name, cycles = self.others
        found = replace(
            decision,
            chosen=decision.chosen + beside,
            reason=f"{decision.reason}, and {self.cycles:.0f} predicted cycles of a row",
            cost=Cost(cycles=rows * self.cycles),
        )
        values, cost = f"{cycles:.0f} predicted cycles of a row", Cost(cycles=rows * cycles)
        if cycles < self.cycles:
            refusal = Refusal(name, f"it is {WORTH} times as fast", values, cost)
            return replace(found, refused=(*decision.refused, refusal))
        return replace(found, runner_up=name, runner_up_reason=values, runner_up_cost=cost)


def _way(
    statements: Statements, vector: Axis, length: int, lanes: int, machine: Cpu, threads: int, streams: Collection[str]
) -> _Way:
    """The way with the fewest predicted cycles of a row: a pass for every sum, maybe in a pipeline, or fewer passes."""
    starts = _stages(statements, vector, machine) if streams else ()
    rules = {each.name: each.follows.reduction for each in statements if each.follows is not None}
    first = next(iter(rules.values()), "")
    joined = tuple(name for name, reduction in rules.items() if reduction == first)
    if not joined or inner_loops(statements) != (vector,) or vector.size < length:
        return _Way(starts=starts)
    far = [*streams, *(read.tensor.name for read, _ in _streamed(statements, vector, machine))]
    rows = prod(axis.size for axis in outer_loops(statements))
    time = RowTime(statements, vector, lanes, machine, min(threads, max(1, rows)), far)
    apart, together = time.cycles((), starts), time.cycles(joined)
    if WORTH * together < apart:
        return _Way(joined, first, (), together, ("a pipeline of rows" if starts else "a pass for every sum", apart))
    return _Way((), first, starts, apart, (f"{' and '.join(joined)} in one pass with {first}", together))


def _prefetches(
    statements: Statements, vector: Axis, length: int, machine: Cpu, pipelined: bool, joined: Collection[str]
) -> list[tuple[int, Hint]]:
    """Which of the streamed inputs each step asks for, how far ahead, with the number of the pass.

    A single pass, and the first of a pipeline, ask a few kilobytes ahead. Several passes in turn ask for the next row,
    so that it arrives while this row is computed on and written: all but the first, each for its share of every step.
    With two passes, because one computes two sums, the second asks a part of L1 ahead of the next row, and the first as
    far ahead in its own, for lines that did not stay.
    """
    passes = sum(1 for each in statements if each.accum is not None or each.address is not None)
    passes -= len(joined)
    found = []
    for read, row in _streamed(statements, vector, machine):
        name, size = read.tensor.name, dtypes.size_bytes(read.tensor.dtype)
        lead, beyond = PREFETCH_BYTES // size, machine.caches[0].bytes // ROW_LEAD // size
        if pipelined or not (inner_loops(statements) == (vector,) and passes > 1 and row):
            distances = [(0, PIPELINE_PREFETCH_BYTES // size if pipelined else lead, length)]
        elif joined and passes == 2:
            distances = [(0, beyond, length), (1, row + beyond, length)]
        else:
            share = -(-length // (passes - 1))
            distances = [(turn, row + (turn - 1) * share, share) for turn in range(1, passes)]
        found += [(turn, Hint("prefetch", (name, distance, elements))) for turn, distance, elements in distances]
    return found


def _prefetches_of_squares(
    statements: Statements, vector: Axis, crossed: Axis, lanes: int, machine: Cpu
) -> list[tuple[int, Hint]]:  # fmt: skip
    """What a square asks for ahead, along all lines that it reads, of inputs that L2 does not hold by far.

    The lines are more than a processor follows by itself: as many as the vector loop has points. A tensor that is read
    along the vector too has its hint for that, if any.
    """
    steps: dict[str, list[int]] = {}
    tensors: dict[str, Tensor] = {}
    for each in statements:
        for read in walk(each.body):
            form = affine(read.indices[0]) if isinstance(read, Read) and read.indices else None
            if form is not None and isinstance(read, Read):
                along = form.coefficient(vector) if form.coefficient(crossed) == 1 else 1
                steps.setdefault(read.tensor.name, []).append(along)
                tensors[read.tensor.name] = read.tensor
    hints = []
    for name, found in steps.items():
        size = dtypes.size_bytes(tensors[name].dtype)
        far = int(tensors[name].shape[0]) * size > BEYOND_L2 * l2_bytes(machine)  # type: ignore[arg-type]
        if far and all(abs(step) >= lanes for step in found):
            hints.append((0, Hint("prefetch", (name, SQUARE_PREFETCH_BYTES // size, lanes))))
    return hints


def _stages(statements: Statements, vector: Axis, machine: Cpu) -> tuple[int, ...]:
    """The passes with which the stages of a pipeline of rows begin; none where the passes of a row run in turn.

    A pipeline needs one outer and one inner loop, a first pass that reads stored tensors only, and a last pass that
    alone writes. The last pass is a stage, so that a row is written while the next is read. Costly passes between are
    stages too, so that arithmetic goes on meanwhile; cheap ones follow the first, for they find their row in L1, and
    without costly ones the rows under way and what all rows read must fit in L1.
    """
    inner, covers = inner_loops(statements), covering(statements)
    first, last = statements[0], statements[-1]
    written = [each for each in statements if each.address is not None]
    if not (
        vector in inner
        and len(outer_loops(statements)) == len(inner) == 1
        and first.accum is not None
        and not values_in(first.body)
        and written == [last]
        and last.name in covers
    ):
        return ()
    costly = any(
        isinstance(e, Apply) and e.function in COSTLY
        for each in statements[:-1]
        if each.name in covers
        for e in walk(each.body)
    )
    passes = sum(1 for each in statements if each.accum is not None) + 1
    if costly:
        return tuple(range(passes))
    return (0, passes - 1) if _sweep_bytes(statements, vector) <= machine.caches[0].bytes else ()


def _sweep_bytes(statements: Statements, vector: Axis) -> int:
    """Bytes that a row of the last pass and the row that is read beside it touch, and what all rows read."""
    found: dict[str, int] = {}
    outer = outer_loops(statements)
    for each in statements:
        for read in walk(each.body):
            form = affine(read.indices[0]) if isinstance(read, Read) and read.indices else None
            if form is not None and form.coefficient(vector):
                assert isinstance(read, Read)
                rows = 2 if any(form.coefficient(axis) for axis in outer) else 1
                found[read.tensor.name] = rows * vector.size * dtypes.size_bytes(read.dtype)
    return sum(found.values())


def _programs(
    statements: Statements,
    loops: Sequence[Axis],
    tiled: Mapping[str, int],
    threads: int,
    stages: int = 0,
    near: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Distribute outer loops, outermost first, until programs are small or many; a pipeline wants long ones.

    Loops in `near` have so many blocks already.
    """
    work = point_count(statements) * _cost_per_point(statements)
    most = (2 * PROGRAMS_PER_THREAD if stages else 64) * threads
    wanted = min(max(1, work // ELEMENTS_PER_PROGRAM), most)
    wanted = -(-wanted // threads) * threads if wanted > 1 and threads > 1 else 1  # the same number for each thread
    blocks = dict(near or {})
    wanted = -(-wanted // prod(blocks.values()))
    for axis in loops:
        if axis.name in blocks:
            continue
        tiles = -(-axis.size // tiled.get(axis.name, 1))
        share = int(min(tiles, wanted))
        if share > 1:
            blocks[axis.name] = share
        wanted = -(-wanted // max(1, share))
    return blocks


def _cost_per_point(statements: Statements) -> int:
    """Rough weight of one point: reads and functions, so that heavier kernels have more programs."""
    operations = sum(1 for each in statements for e in walk(each.body) if isinstance(e, Apply | Read))
    return max(1, operations // 4)
