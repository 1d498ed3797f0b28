"""Scheduled kernels from nests and schedules: their statements, and the tile tree that has every decision.

Blocks of the grid are `par` loops over data in DRAM, the tiles that one program walks are loops at L2, reduction loops
are at L1, and REG holds one vector or register tile. Levels say for which memory the schedule's rules choose the sizes;
they do not prove that it fits. Each pass of a nest is a sibling. Ragged tiles make factors imperfect: their product may
exceed an extent. `lower.schedules` reads nests and schedules from kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.expr.core import COSTLY, Apply, Read, walk
from tilewright.operator.nest import Nest, NestNode, NestSchedule, nest_loops, statements_of
from tilewright.tiles.build import in_program, register_tile, rooted, staged, tile
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.tree import Hint, Kind, Leaf, Scope, TileTree


def kernel_of(nest: Nest, schedule: NestSchedule) -> Kernel:
    """The scheduled kernel: loops and tensors have the names that they have in the nest."""
    return Kernel(statements_of(nest), _nest_tree(nest, schedule))


def row_buffers(nest: Nest) -> tuple[str, ...]:
    """Costly values per inner point that several passes read: the first one writes them to scratch for the others."""
    readers: dict[str, int] = {}
    for node in nest.nodes:
        for name in {read.tensor.name for read in walk(node.body) if isinstance(read, Read) and not read.indices}:
            readers[name] = readers.get(name, 0) + 1
    return tuple(
        node.tensor.name
        for node in nest.nodes
        if nest.inner and nest.covers_inner(node) and node.index is None and readers.get(node.tensor.name, 0) > 1
        and any(isinstance(e, Apply) and e.function in COSTLY for e in walk(node.body))
    )  # fmt: skip


# Nests ----------------------------------------------------------------------------------------------------------------


def _nest_tree(nest: Nest, schedule: NestSchedule) -> TileTree:
    loops = nest_loops(nest, schedule)
    stages: list[list[TileTree]] = [[]]
    numbers = PassNumbers(nest, schedule.moments)
    for step in _passes(nest):
        if numbers.swept and walks_inner(step[-1], nest) and numbers.swept in schedule.stages:
            stages.append([])
        hints = _hints(step[-1], numbers.next(step[-1]), schedule)
        stages[-1].append(_pass_tree(step, nest, schedule, hints))
    groups = [group[0] if len(group) == 1 else Scope(Kind.SEQ, tuple(group)) for group in stages]
    tree = Scope(Kind.PIPE, tuple(groups)) if schedule.stages else groups[0]
    return in_program(loops, loops, staged(row_buffers(nest), "L1", tree))


def walks_inner(node: NestNode, nest: Nest) -> bool:
    """Whether a node has a pass over the inner loops; a row buffer is filled in the pass of another node."""
    return node.accum is not None or (nest.covers_inner(node) and node.index is not None)


class PassNumbers:
    """The numbers of passes that walk the inner loops, from 0; without inner loops, of the only pass."""

    def __init__(self, nest: Nest, moments: tuple[str, str] | None) -> None:
        self.nest, self.moments = nest, moments
        self.swept = 0  # passes so far

    def next(self, node: NestNode) -> int | None:
        """The number of the pass of a node, None where it has none: a value per row, the second of two moments."""
        if not self.nest.inner:
            self.swept += 1
            return 0 if self.swept == 1 else None
        if not walks_inner(node, self.nest) or (self.moments is not None and node.tensor.name == self.moments[1]):
            return None
        self.swept += 1
        return self.swept - 1


def _hints(node: NestNode, number: int | None, schedule: NestSchedule) -> tuple[Hint, ...]:
    """The hints of the leaf of a node, whose pass has this number."""
    name = node.tensor.name
    found = [Hint("stream")] if name in schedule.nontemporal else []
    found += [Hint("one_pass")] if name in (schedule.moments or ()) else []
    asked = [ahead for ahead in schedule.prefetch if ahead.pass_number == number]
    found += [Hint("prefetch", (ahead.tensor, ahead.distance, ahead.elements)) for ahead in asked]
    return tuple(found)


def _pass_tree(step: Sequence[NestNode], nest: Nest, schedule: NestSchedule, hints: tuple[Hint, ...]) -> TileTree:
    """One pass: its last node, and before it the row buffers that it fills."""
    sweeps = walks_inner(step[-1], nest)
    loops = {axis.name: axis.size for axis in nest.inner if sweeps}
    rows = [(axis.name, schedule.unroll_extent) for axis in nest.outer if axis.name == schedule.unroll]
    inside = any(axis.name == schedule.vector for axis in nest.inner)
    vector = (schedule.vector, schedule.vector_extent) if schedule.vector and inside <= sweeps else None
    if vector is not None and inside:
        loops[schedule.vector] = -(-loops.pop(schedule.vector) // schedule.vector_extent)  # runs innermost
    bodies = [
        register_tile(rows, vector, schedule.lanes, Leaf(node.tensor.name, None, hints if node is step[-1] else ()))
        for node in step
    ]
    body = Scope(Kind.SEQ, tuple(bodies)) if len(bodies) > 1 else bodies[0]
    return rooted(tile("L1", list(loops.items()), body))


def _passes(nest: Nest) -> list[list[NestNode]]:
    """The passes of a nest: in each, the row buffers that it is the first to read, in order, and the node it is for."""
    buffers = row_buffers(nest)
    inlined = {node.tensor.name for node in nest.nodes if nest.covers_inner(node)} - set(buffers)
    waiting = {node.tensor.name: node for node in nest.nodes if node.tensor.name in buffers}
    needed: dict[str, dict[str, None]] = {}  # row buffers that a node reads, those behind other buffers first
    for node in nest.nodes:
        own: dict[str, None] = {}
        for read in walk(node.body):
            if isinstance(read, Read) and not read.indices:
                name = read.tensor.name
                own.update(needed.get(name, {}) if name in inlined or name in buffers else {})
                own.update({name: None} if name in buffers else {})
        needed[node.tensor.name] = own
    steps = []
    for node in nest.nodes:
        if node.tensor.name not in buffers and (node.tensor.name not in inlined or node.index is not None):
            fills = [waiting.pop(name) for name in needed[node.tensor.name] if name in waiting]
            steps.append([*fills, node])
    return steps
