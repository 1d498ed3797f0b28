"""The graph that kernels compute: its nodes as those that each runs as, every relayout once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.expr.core import Compute
from tilewright.expr.graph import Graph, loop_of


def with_mapped(graph: Graph, mapped: Mapping[str, Sequence[Compute]]) -> Graph:
    """The graph, bodies of loops too, with the nodes of `mapped` in place of the node of that name.

    Relayouts are named by their content, so two parts of the graph may have the same one. It is a node of the outermost
    graph that has all it reads, and loops there capture it.
    """
    nodes = {part.name: part for node in graph.nodes for part in mapped.get(node.name, (node,))}
    constants, loops = dict(graph.constants), []
    for loop in graph.loops:
        body = with_mapped(loop.body, mapped)
        inside = {tensor.name for tensor in loop.parameters()} | {node.name for node in loop.body.nodes}
        inside |= {tensor.name for inner in body.loops for tensor in inner.outputs()}
        kept: list[Compute] = []
        for node in body.nodes:
            read = {tensor.name for tensor in node.inputs()}
            if node.name in inside or read & inside:
                inside.add(node.name)
                kept.append(node)
            else:
                nodes.setdefault(node.name, node)
                constants.update((name, array) for name, array in body.constants.items() if name in read)
        rows = (loop.sliced, loop.carried, loop.stacked)
        loops.append(loop_of(loop.name, loop.trips, kept, body.loops, body.constants, *rows))
    return replace(graph, nodes=tuple(nodes.values()), constants=constants, loops=tuple(loops))
