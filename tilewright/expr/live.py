"""What the outputs of a graph depend on."""

from __future__ import annotations

from dataclasses import replace

from tilewright.expr.core import Compute
from tilewright.expr.graph import Graph, Loop, loop_of, results_of


def live(graph: Graph) -> Graph:
    """The graph without what no output depends on; all inputs stay."""
    needed = {tensor.name for tensor in graph.outputs}
    nodes: set[str] = set()
    loops: list[Loop] = []
    for step in reversed(graph.steps()):
        kept: Compute | Loop | None = step if step.name in needed else None
        if isinstance(step, Loop):
            kept = _live(step, needed)
            loops += [kept] if kept is not None else []
        elif kept is not None:
            nodes.add(step.name)
        if kept is not None:
            needed.update(tensor.name for tensor in kept.inputs())
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    return replace(
        graph, nodes=tuple(n for n in graph.nodes if n.name in nodes), constants=constants, loops=tuple(reversed(loops))
    )


def _live(loop: Loop, needed: set[str]) -> Loop | None:
    """The loop with what `needed` results depend on; None where there are none."""
    stacked = [each for each in loop.stacked if each.whole.name in needed]
    carried = [each for each in loop.carried if each.final.name in needed]
    while True:
        body = live(replace(loop.body, outputs=results_of(carried, stacked)))
        read = {tensor.name for step in body.steps() for tensor in step.inputs()} | {t.name for t in body.outputs}
        further = [each for each in loop.carried if each in carried or each.state.name in read]
        if further == carried:
            break
        carried = further
    if not carried and not stacked:
        return None
    sliced = [each for each in loop.sliced if each.part.name in read]
    return loop_of(loop.name, loop.trips, body.nodes, body.loops, body.constants, sliced, carried, stacked)
