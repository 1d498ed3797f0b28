"""What does not depend on the state of a loop is computed before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.decision import Decision
from tilewright.expr.core import COSTLY, Apply, Axis, Compute, Const, Expr, Read, Tensor, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Graph, Loop, Sliced, loop_of
from tilewright.expr.ordered import behind
from tilewright.expr.rewrite import transform
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class HoistFromLoops:
    """Compute sums over slices for all trips at once, and what is the same in every trip once, before the loop.

    Before:  in each trip t   p[k] += w[k, j] * x.t[j]    h.next[k] = tanh(p[k] + h[k])
    After:   p.all[t, k] += w[k, j] * x[t, j]    in each trip   h.next[k] = tanh(p[k] + h[k])   with slices p of p.all
    Always legal for nodes that no state reaches. Maps stay where they are read, unless a sum that moves needs them or
    they are costly and the same in every trip; a sum stays whose results take over `most_bytes`. Needs nothing before
    it. Afterwards a loop holds no sum that depends on slices and captured tensors alone, those of such size aside.
    """

    name: ClassVar[str] = "hoist-from-loops"
    most_bytes: int = 1 << 28

    def apply(self, state: Rewritten) -> Rewritten:
        decisions: list[Decision] = []
        graph = self._hoisted(state.graph, decisions)
        return replace(state, graph=graph, decisions=(*state.decisions, *decisions))

    def _hoisted(self, graph: Graph, decisions: list[Decision]) -> Graph:
        nodes, loops = {node.name: node for node in graph.nodes}, []
        before: dict[str, list[Compute]] = {}
        constants = dict(graph.constants)
        for loop in graph.loops:
            inner = replace(loop, body=self._hoisted(loop.body, decisions)) if loop.body.loops else loop
            moved, rest = self._split(_relinked(inner))
            before[loop.name] = moved
            loops.append(rest)
            read = {tensor.name for node in moved for tensor in node.inputs()}
            constants.update((n, array) for n, array in loop.body.constants.items() if n in read)
            if moved:
                names = ", ".join(node.name for node in moved)
                decisions.append(Decision(f"loop {loop.name}", f"{names} before it", "no state reaches what they read"))
        if not any(before.values()):
            return replace(graph, loops=tuple(loops))
        order: list[Compute] = []
        for step in graph.steps():
            order += [nodes[step.name]] if isinstance(step, Compute) else before[step.name]
        return replace(graph, nodes=tuple(order), constants=constants, loops=tuple(loops))

    def _split(self, loop: Loop) -> tuple[list[Compute], Loop]:
        """The nodes that move before a loop, and the loop without them."""
        slices = {each.part.name: each for each in loop.sliced}
        after = {each.state.name for each in loop.carried}
        after |= {tensor.name for inner in loop.body.loops for tensor in inner.outputs()}
        results = {tensor.name for tensor in loop.body.outputs}
        varying: dict[str, set[bool]] = {name: {each.backwards} for name, each in slices.items()}
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
        moving: set[str] = set()
        for node in reversed(list(movable.values())):
            if node.name in moving or self._is_worth_moving(node, node.name in varying, loop.trips):
                moving.add(node.name)
                moving.update(tensor.name for tensor in node.inputs() if tensor.name in movable)
        if not moving:
            return [], loop
        parts = dict(slices)
        moved: list[Compute] = []
        for node in movable.values():
            if node.name not in moving:
                continue
            if node.name in varying:
                backwards = varying[node.name] == {True}
                whole = Tensor(f"{node.name}.all", (loop.trips, *node.output.shape), node.output.dtype)
                moved.append(_of_all_trips(node, whole, parts, loop.trips, backwards))
                parts[node.name] = Sliced(node.output, whole, backwards)
            else:
                moved.append(node)
        rest = [node for node in loop.body.nodes if node.name not in moving]
        read = results | {tensor.name for node in rest for tensor in node.inputs()}
        read |= {tensor.name for inner in loop.body.loops for tensor in inner.inputs()}
        sliced = [each for each in parts.values() if each.part.name in read]
        constants = {name: array for name, array in loop.body.constants.items() if name in read}
        made = loop_of(loop.name, loop.trips, rest, loop.body.loops, constants, sliced, loop.carried, loop.stacked)
        return moved, made

    def _is_worth_moving(self, node: Compute, varies: bool, trips: int) -> bool:
        if node.accum is not None:
            return not varies or trips * node.output.size_bytes <= self.most_bytes
        costly = any(isinstance(each, Apply) and each.function in COSTLY for each in walk(node.body))
        return costly and not varies


def _relinked(loop: Loop) -> Loop:
    """The loop with its captures found again."""
    body = loop.body
    return loop_of(
        loop.name, loop.trips, body.nodes, body.loops, body.constants, loop.sliced, loop.carried, loop.stacked
    )


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
