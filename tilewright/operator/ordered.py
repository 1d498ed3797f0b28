"""Ordered accumulations on a CPU: their loops and addresses, and how they run.

A program walks *outer* loops, whose points are independent of each other. At each of them a scan carries its total
along the inner loop, a scatter takes its updates in order, and a sort orders a row in scratch memory, by the method of
`sorting.py` that costs least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Expr, Tensor, walk
from tilewright.expr.ordered import Ordered, PrefixScan, Scatter, Sort
from tilewright.machine.description import Cpu
from tilewright.operator.nest import Nest, NestNode, drop_unit_loops, merge_loops, renamed
from tilewright.operator.sorting import Rows, SortMethod, sort_methods
from tilewright.tiles.loops import SpatialLoop

VECTORS = 4  # side by side: more than the latency of an addition
STEPS_PER_PROGRAM = 1 << 14  # some ten microseconds
PROGRAMS_PER_THREAD = 4


@dataclass(frozen=True)
class OrderedWork:
    """One ordered accumulation over storage.

    `parts` are the body, or the value and the places of a scatter, over `outer` and `inner` loops. The element of the
    result at places p of its own dimensions, which have these `extents`, lies at ``base + sum p * strides``.
    """

    tensor: Tensor
    accum: Ordered
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    parts: tuple[Expr, ...]
    base: Expr
    strides: tuple[int, ...]
    extents: tuple[int, ...]

    def renamed(self, names: Mapping[str, str]) -> OrderedWork:
        """The same work on tensors with other names."""
        tensor = replace(self.tensor, name=names[self.tensor.name])
        return replace(self, tensor=tensor, parts=tuple(renamed(part, names) for part in self.parts))

    def stride(self, axis: Axis) -> int:
        """Elements between neighbours along an outer loop in the result."""
        form = affine(self.base)
        assert form is not None, "the address of a result is affine"
        return form.coefficient(axis)


@dataclass(frozen=True)
class OrderedSchedule:
    """How it runs: the outer loop that is a vector, if any; blocks of the grid per outer loop.

    `neighbours` are the elements of a row that a scan takes at once, `sort` is the method of a sort.
    """

    vector: str = ""
    extent: int = 1
    blocks: Mapping[str, int] = field(default_factory=dict)
    lanes: int = 16
    neighbours: int = 1
    sort: SortMethod | None = None

    def loops(self, axes: Sequence[Axis]) -> list[SpatialLoop]:
        """Outer loops as they are tiled, in their order; the vector last."""
        found = []
        for axis in axes:
            lanes = self.lanes if axis.name == self.vector else 0
            found.append(SpatialLoop(axis, self.extent if lanes else 1, self.blocks.get(axis.name, 1), lanes))
        return sorted(found, key=lambda loop: loop.axis.name == self.vector)


def merged(work: OrderedWork) -> OrderedWork:
    """With neighbouring loops that every address walks as one fused, and without those of extent 1."""
    nodes = tuple(NestNode(work.tensor, part, None, work.base) for part in work.parts)
    nest = merge_loops(drop_unit_loops(Nest(work.outer, work.inner, nodes)))
    assert nest.nodes[0].index is not None
    inner = nest.inner or (Axis("once", 1),)
    parts = tuple(node.body for node in nest.nodes)
    return replace(work, outer=nest.outer, inner=inner, parts=parts, base=nest.nodes[0].index)


def leading(work: OrderedWork) -> tuple[Axis, ...]:
    """The outer loops around the inner ones, largest steps first; of a scatter those with larger steps than its own."""
    axes = sorted(work.outer, key=lambda axis: -work.stride(axis))
    if not isinstance(work.accum, Scatter):
        return tuple(axes)
    return tuple(axis for axis in axes if work.stride(axis) > max(work.strides))


def trailing(work: OrderedWork) -> tuple[Axis, ...]:
    """The outer loops inside of those over updates, so that an update writes along memory."""
    lead = leading(work)
    return tuple(sorted((axis for axis in work.outer if axis not in lead), key=lambda axis: -work.stride(axis)))


def schedule_ordered(work: OrderedWork, machine: Cpu, threads: int, subject: str) -> tuple[OrderedSchedule, Decision]:
    """The schedule by rule."""
    schedule, decision = _schedule_sort(work, machine) if isinstance(work.accum, Sort) else _schedule(work, machine)
    blocks = _blocks(work, schedule, threads)
    shared = f", {' x '.join(f'{count} blocks of {name}' for name, count in blocks.items())}" if blocks else ""
    decision = replace(decision, subject=f"order of {subject}", chosen=decision.chosen + shared)
    return replace(schedule, blocks=blocks), decision


def _schedule_sort(work: OrderedWork, machine: Cpu) -> tuple[OrderedSchedule, Decision]:
    """The method that costs least."""
    lanes = machine.vector_bits // 32
    (inner,), (wanted,) = work.inner, work.extents
    rows = Rows(work.parts[0], work.outer, inner, wanted)
    (cycles, method), *others = sort_methods(rows, lanes, machine.vector_registers)
    schedule = OrderedSchedule(lanes=lanes, sort=method, vector=method.vector, extent=lanes if method.vector else 1)
    decision = Decision(
        "", str(method), f"{wanted} wanted of rows of {inner.size}: {cycles / rows.count:.0f} cycles a row"
    )
    if others:
        more, second = others[0]
        decision = replace(decision, runner_up=str(second), runner_up_reason=f"{more / rows.count:.0f} cycles a row")
    return schedule, decision


def _schedule(work: OrderedWork, machine: Cpu) -> tuple[OrderedSchedule, Decision]:
    """Vectors along independent neighbours; else, of a scan whose rows fill a vector, along these."""
    lanes = machine.vector_bits // 32
    vector = _vector(work)
    schedule = OrderedSchedule(lanes=lanes)
    if vector is not None:
        extent = min(lanes * VECTORS, -(-vector.size // lanes) * lanes)
        schedule = replace(schedule, vector=vector.name, extent=extent)
        how, reason = f"vectors of {extent} along {vector.name}", "neighbours in memory are independent"
    else:
        how, reason = "one element after the other", "no loop has neighbours in memory that are independent"
        if isinstance(work.accum, PrefixScan) and work.inner[0].size >= lanes:
            schedule = replace(schedule, neighbours=lanes)
            how = f"{lanes} neighbours in a row at once"
    return schedule, Decision("", how, reason)


def _vector(work: OrderedWork) -> Axis | None:
    """The outer loop along which results are neighbours in memory, if places do not depend on it."""
    places = work.parts[1:] if isinstance(work.accum, Scatter) else ()
    for axis in work.outer:
        if work.stride(axis) == 1 and axis.size > 1 and not any(axis in walk(place) for place in places):
            return axis
    return None


def _blocks(work: OrderedWork, schedule: OrderedSchedule, threads: int) -> dict[str, int]:
    """Blocks of the longest outer loop, in tiles: some for each thread, each with enough to do."""
    points = prod(axis.size for axis in (*work.outer, *work.inner))
    if threads == 1 or not work.outer or points < 2 * STEPS_PER_PROGRAM:
        return {}
    tiles = {loop.axis.name: loop.tiles for loop in schedule.loops(work.outer)}
    name = max(tiles, key=lambda each: tiles[each])
    count = min(tiles[name], threads * PROGRAMS_PER_THREAD, max(threads, points // STEPS_PER_PROGRAM))
    return {name: count} if count > 1 else {}
