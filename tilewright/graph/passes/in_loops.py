"""Apply a pass that knows nodes only to a graph with loops: to the nodes around them, and to each body.

Results of loops are inputs to the pass and operands of loops are outputs, which every pass keeps.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.expr.core import Expr, Read, Tensor
from tilewright.expr.graph import Graph
from tilewright.expr.names import unique
from tilewright.expr.rewrite import transform
from tilewright.graph.passes.rewritten import GraphPass, Rewritten


def in_loops(each: GraphPass, state: Rewritten) -> Rewritten:
    """The state after the pass; borders and decisions of bodies are among those of the graph."""
    taken = set(state.graph.tensors()) | set(state.graph.all_constants())

    def applied(state: Rewritten) -> Rewritten:
        graph, known = state.graph, _names(state.graph.opened())
        found = _with_new_names(each.apply(replace(state, graph=graph.opened())), known, taken)
        taken.update(_names(found.graph))
        loops = []
        for loop in graph.loops:
            inner = applied(replace(found, graph=loop.taking(found.graph.constants).body))
            found = replace(inner, graph=found.graph)
            loops.append(loop.taking(found.graph.constants).with_body(inner.graph))
        return replace(found, graph=graph.closed(found.graph, loops))

    return applied(state)


def _names(graph: Graph) -> set[str]:
    return {node.name for node in graph.nodes} | set(graph.constants) | {tensor.name for tensor in graph.inputs}


def _with_new_names(state: Rewritten, known: set[str], taken: set[str]) -> Rewritten:
    """Rename what a pass has added and called like a tensor somewhere else in the graph."""
    graph = state.graph
    clashing = (_names(graph) - known) & taken
    if not clashing:
        return state
    free = taken | _names(graph)
    names = {name: unique(f"{name}.inner", free) for name in sorted(clashing)}

    def tensor(old: Tensor) -> Tensor:
        return replace(old, name=names.get(old.name, old.name))

    def moved(expr: Expr) -> Expr | None:
        return Read(tensor(expr.tensor), expr.indices) if isinstance(expr, Read) and expr.tensor.name in names else None

    nodes = tuple(replace(n, output=tensor(n.output), body=transform(n.body, moved)) for n in graph.nodes)
    constants = {names.get(name, name): array for name, array in graph.constants.items()}
    outputs = tuple(map(tensor, graph.outputs))
    borders = {names.get(name, name): border for name, border in state.borders.items()}
    parts = {name: replace(part, whole=names.get(part.whole, part.whole)) for name, part in state.parts.items()}
    renamed = replace(graph, nodes=nodes, constants=constants, outputs=outputs)
    return replace(state, graph=renamed, borders=borders, parts=parts)
