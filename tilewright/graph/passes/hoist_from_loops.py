"""What does not depend on the state of a loop is computed before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.core import COSTLY, Apply, Axis, Compute, Const, Expr, Read, Tensor, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Graph, Loop, Sliced, loop_of
from tilewright.expr.names import claim
from tilewright.expr.ordered import behind
from tilewright.expr.rewrite import transform
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class HoistFromLoops:
    """Compute sums over slices for all trips at once, and what is the same in every trip once, before the loop.

    Before:  in each trip t   p[k] += w[k, j] * x.t[j]    h.next[k] = tanh(p[k] + h[k])
    After:   p.all[t, k] += w[k, j] * x[t, j]    in each trip   h.next[k] = tanh(p[k] + h[k])   with slices p of p.all
    Always legal for nodes that no state reaches. Maps stay where they are read, unless a sum that moves reads them or
    they are costly and the same in every trip. A sum over slices stays if the values of all trips, its own and those of
    the nodes over slices that would move with it, take more than `most_bytes`. Needs nothing before it. Afterwards a
    loop holds no sum that depends on slices and captured tensors alone, those of such size aside.
    """

    name: ClassVar[str] = "hoist-from-loops"
    most_bytes: int = 1 << 28

    def apply(self, state: Rewritten) -> Rewritten:
        decisions: list[Decision] = []
        taken = set(state.graph.tensors()) | set(state.graph.all_constants())
        graph = self._hoisted(state.graph, taken, decisions)
        return replace(state, graph=graph, decisions=(*state.decisions, *decisions))

    def _hoisted(self, graph: Graph, taken: set[str], decisions: list[Decision]) -> Graph:
        """The graph after the pass; `taken` are the names of all tensors of the whole graph, to which it adds."""
        nodes, loops = {node.name: node for node in graph.nodes}, []
        before: dict[str, list[Compute]] = {}
        constants = dict(graph.constants)
        for loop in graph.loops:
            inner = loop.with_body(self._hoisted(loop.body, taken, decisions)) if loop.body.loops else loop
            moved, rest = self._split(inner, taken)
            before[loop.name] = moved
            loops.append(rest)
            read = {tensor.name for node in moved for tensor in node.inputs()}
            constants.update((name, array) for name, array in inner.body.constants.items() if name in read)
            if moved:
                names = ", ".join(node.name for node in moved)
                decisions.append(Decision(f"loop {loop.name}", f"{names} before it", "no state reaches what they read"))
        if not any(before.values()):
            return replace(graph, loops=tuple(loops))
        order: list[Compute] = []
        for step in graph.steps():
            order += [nodes[step.name]] if isinstance(step, Compute) else before[step.name]
        return replace(graph, nodes=tuple(order), constants=constants, loops=tuple(loops))

    def _split(self, loop: Loop, taken: set[str]) -> tuple[list[Compute], Loop]:
        """The nodes that move before a loop, and the loop without them."""
        parts = {sliced.part.name: sliced for sliced in loop.sliced}
        after = {carried.state.name for carried in loop.carried}
        after |= {tensor.name for inner in loop.body.loops for tensor in inner.outputs()}
        results = {tensor.name for tensor in loop.body.outputs}
        varying: dict[str, set[bool]] = {name: {sliced.backwards} for name, sliced in parts.items()}
        movable: dict[str, Compute] = {}
        for node in loop.body.nodes:
            inputs = {tensor.name for tensor in node.inputs()}
            if inputs & after or node.name in results:
                after.add(node.name)
                continue
            ways = set().union(*(varying.get(name, set()) for name in inputs))
            if ways:
                varying[node.name] = ways
            movable[node.name] = node
        moving = self._moving(movable, varying, loop.trips)
        if not moving:
            return [], loop
        moved: list[Compute] = []
        for node in movable.values():
            if node.name not in moving:
                continue
            if node.name in varying:
                backwards = varying[node.name] == {True}
                whole = Tensor(claim(f"{node.name}.all", taken), (loop.trips, *node.output.shape), node.output.dtype)
                moved.append(_of_all_trips(node, whole, parts, loop.trips, backwards))
                parts[node.name] = Sliced(node.output, whole, backwards)
            else:
                moved.append(node)
        rest = [node for node in loop.body.nodes if node.name not in moving]
        read = results | {tensor.name for node in rest for tensor in node.inputs()}
        read |= {tensor.name for inner in loop.body.loops for tensor in inner.inputs()}
        sliced = [part for part in parts.values() if part.part.name in read]
        constants = {name: array for name, array in loop.body.constants.items() if name in read}
        return moved, loop_of(
            loop.name, loop.trips, rest, loop.body.loops, constants, sliced, loop.carried, loop.stacked
        )

    def _moving(self, movable: Mapping[str, Compute], varying: Collection[str], trips: int) -> set[str]:
        """The names of the nodes that move: those worth it, and what they read of the others."""
        moving: set[str] = set()
        for node in reversed(list(movable.values())):
            if node.name not in moving and (node.accum is not None or (_is_costly(node) and node.name not in varying)):
                needed = _needed(node, movable, moving)
                stored = [movable[name].output.size_bytes for name in needed if name in varying]
                if trips * sum(stored) <= self.most_bytes:
                    moving |= needed
        return moving


def _needed(node: Compute, movable: Mapping[str, Compute], moving: Collection[str]) -> set[str]:
    """The names of a node and of the nodes that it reads, directly or not, those aside that move already."""
    needed, waiting = {node.name}, [node]
    while waiting:
        read = {tensor.name for tensor in waiting.pop().inputs()}
        added = [name for name in read if name in movable and name not in needed and name not in moving]
        needed.update(added)
        waiting += [movable[name] for name in added]
    return needed


def _is_costly(node: Compute) -> bool:
    return any(isinstance(part, Apply) and part.function in COSTLY for part in walk(node.body))


def _of_all_trips(node: Compute, whole: Tensor, parts: Mapping[str, Sliced], trips: int, backwards: bool) -> Compute:
    """A node for all trips: row t of `whole` is what trip t computes, or what trip ``trips - 1 - t`` does."""
    name = "trip"
    while any(axis.name == name for axis in node.loops):
        name += "_"
    trip = Axis(name, trips)

    def moved(expr: Expr) -> Expr | None:
        if not isinstance(expr, Read) or expr.tensor.name not in parts:
            return None
        part = parts[expr.tensor.name]
        row: Expr = trip if part.backwards == backwards else Const(trips - 1, INDEX) - trip
        return part.whole[(row, *expr.indices)]

    body, accum = transform(node.body, moved), behind(node.accum, 1)
    return replace(node, output=whole, axes=(trip, *node.axes), body=body, accum=accum)
