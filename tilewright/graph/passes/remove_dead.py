"""Dead nodes and constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.expr.core import Compute
from tilewright.expr.graph import Graph
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class RemoveDead:
    """Keep the nodes and constants that some output depends on.

    Before:  a[i] = x[i] + 1.0    b[i] = x[i] * 2.0    output b
    After:   b[i] = x[i] * 2.0    output b
    Always legal. Needs nothing before it. Afterwards every node and constant has a reader or is an output.
    """

    name: ClassVar[str] = "remove-dead"

    def apply(self, state: Rewritten) -> Rewritten:
        return replace(state, graph=remove_dead(state.graph))


def remove_dead(graph: Graph) -> Graph:
    needed = {tensor.name for tensor in graph.outputs}
    kept: list[Compute] = []
    for node in reversed(graph.nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(tensor.name for tensor in node.inputs())
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)
