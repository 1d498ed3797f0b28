"""Ordered accumulations on a CPU: vectors along independent neighbours, and the method of a sort that costs least.

A scan whose outer loops have no neighbours in memory takes several neighbours of a row at once. Programs share out
the longest outer loop.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.decision import Cost, Decision
from tilewright.expr.core import Axis, walk
from tilewright.expr.ordered import PrefixScan, Sort
from tilewright.machine.description import Cpu
from tilewright.operator.ordered import leading, merged, stride, trailing, value_and_places
from tilewright.operator.ordered_tree import OrderedTree
from tilewright.operator.sorting import sort_methods
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.tree import Hint

VECTORS = 4  # side by side: more than the latency of an addition
STEPS_PER_PROGRAM = 1 << 14  # some ten microseconds
PROGRAMS_PER_THREAD = 4


def ordered_kernel(statement: Statement, machine: Cpu, threads: int, subject: str) -> tuple[Kernel, Decision]:
    """The kernel of an ordered accumulation, with loops that addresses walk as one fused."""
    statement = merged(statement)
    choose = _sort if isinstance(statement.accum, Sort) else _scan_or_scatter
    vector, hints, decision = choose(statement, machine)
    loops = {axis: vector if vector and axis == vector.axis else SpatialLoop(axis) for axis in statement.axes}
    blocks = _blocks(statement, loops, threads)
    loops |= {axis: replace(loops[axis], blocks=count) for axis, count in blocks.items()}
    lead, trail = (
        sorted((loops[axis] for axis in axes), key=lambda loop: loop.vector_lanes)  # the vector last
        for axes in (leading(statement), trailing(statement))
    )
    shared = "".join(f", {count} blocks of {axis.name}" for axis, count in blocks.items())
    decision = replace(decision, subject=f"order of {subject}", chosen=decision.chosen + shared)
    tree = OrderedTree(statement, tuple(lead), tuple(trail), tuple(hints))
    return Kernel((statement,), tree.tree()), decision


def _sort(statement: Statement, machine: Cpu) -> tuple[SpatialLoop | None, list[Hint], Decision]:
    """The method that costs least."""
    lanes = machine.vector_bits // 32
    ((wanted, _),), rows = statement.dims, prod(axis.size for axis in statement.axes)
    (cycles, method), *others = sort_methods(statement, lanes, machine)
    vector = next((SpatialLoop(axis, lanes, 1, lanes) for axis in statement.axes if axis.name == method.vector), None)
    hints = [Hint("sort", (method.word,)), *([] if vector else [Hint("lanes", (lanes,))])]
    reason = f"{wanted} wanted of rows of {statement.reduce[0].size}: {cycles / rows:.0f} cycles a row"
    decision = Decision("", str(method), reason, cost=Cost(cycles=cycles))
    if others:
        more, second = others[0]
        why, cost = f"{more / rows:.0f} cycles a row", Cost(cycles=more)
        decision = replace(decision, runner_up=str(second), runner_up_reason=why, runner_up_cost=cost)
    return vector, hints, decision


def _scan_or_scatter(statement: Statement, machine: Cpu) -> tuple[SpatialLoop | None, list[Hint], Decision]:
    """Vectors along independent neighbours; else, of a scan whose rows fill a vector, along these."""
    lanes = machine.vector_bits // 32
    axis = _vector(statement)
    if axis is not None:
        extent = min(lanes * VECTORS, -(-axis.size // lanes) * lanes)
        why = "neighbours in memory are independent"
        return SpatialLoop(axis, extent, 1, lanes), [], Decision("", f"vectors of {extent} along {axis.name}", why)
    why = "no loop has neighbours in memory that are independent"
    hints = [Hint("lanes", (lanes,))]
    if isinstance(statement.accum, PrefixScan) and statement.reduce[0].size >= lanes:
        hints = [Hint("neighbours", (lanes,)), *hints]
        return None, hints, Decision("", f"{lanes} neighbours in a row at once", why)
    return None, hints, Decision("", "one element after the other", why)


def _vector(statement: Statement) -> Axis | None:
    """The outer loop along which results are neighbours in memory, if places do not depend on it."""
    _, places = value_and_places(statement)
    for axis in statement.axes:
        if stride(statement, axis) == 1 and axis.size > 1 and not any(axis in walk(place) for place in places):
            return axis
    return None


def _blocks(statement: Statement, loops: dict[Axis, SpatialLoop], threads: int) -> dict[Axis, int]:
    """Blocks of the longest outer loop, in tiles: some for each thread, each with enough to do."""
    points = prod(axis.size for axis in (*statement.axes, *statement.reduce))
    if threads == 1 or not loops or points < 2 * STEPS_PER_PROGRAM:
        return {}
    longest = max(sorted(loops.values(), key=lambda loop: loop.vector_lanes), key=lambda loop: loop.tiles)
    count = min(longest.tiles, threads * PROGRAMS_PER_THREAD, max(threads, points // STEPS_PER_PROGRAM))
    return {longest.axis: count} if count > 1 else {}
