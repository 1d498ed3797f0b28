"""Loops without trips."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis, Compute, Const, Tensor
from tilewright.expr.graph import Graph, Loop
from tilewright.expr.rewrite import copy_of
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class RemoveEmptyLoops:
    """Replace loops that run no trip.

    Before:  a loop of 0 trips with a state `h` of `h0`, at last `h1`, that stacks `rows`
    After:   h1[i] = h0[i]    rows[t, i] = 0.0, of extent 0 along t
    Always legal, and required: a plan says where the last trip leaves its states. Needs nothing before it. Afterwards
    every loop runs once or more.
    """

    name: ClassVar[str] = "remove-empty-loops"

    def apply(self, state: Rewritten) -> Rewritten:
        return replace(state, graph=_without_empty(state.graph))


def _without_empty(graph: Graph) -> Graph:
    empty = [loop for loop in graph.loops if loop.trips == 0]
    copies = [copy_of(each.initial, each.final) for loop in empty for each in loop.carried]
    copies += [_nothing(each.whole) for loop in empty for each in loop.stacked]
    loops = [replace(e, body=_without_empty(e.body)) if e.body.loops else e for e in graph.loops if e.trips]
    if not empty:
        return replace(graph, loops=tuple(loops))
    known = {node.name: node for node in (*graph.nodes, *copies)}
    placed = [name for step in graph.steps() for name in _written(step, known)]  # copies where their loop was
    return replace(graph, nodes=tuple(known[name] for name in placed), loops=tuple(loops))


def _written(step: Compute | Loop, known: dict[str, Compute]) -> list[str]:
    tensors = (step.output,) if isinstance(step, Compute) else step.outputs()
    return [tensor.name for tensor in tensors if tensor.name in known]


def _nothing(whole: Tensor) -> Compute:
    axes = tuple(Axis(f"i{dim}", extent) for dim, extent in enumerate(whole.shape))
    return Compute(whole, axes, Const(0, whole.dtype))
