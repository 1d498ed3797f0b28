"""The neighbourhood of a product: the nodes around it as far as the next products, as a graph of their own.

The nodes around a product decide how it runs: products whose neighbourhoods have the same structure run alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from tilewright.expr import serialize
from tilewright.expr.graph import Graph

AROUND = 6  # nodes in one direction that may come before the next product


def neighbourhood(graph: Graph, node: str, products: Collection[str]) -> Graph:
    """The part of a graph around a product, as far as the next products: what decides how its tensors are stored."""
    producers, consumers = graph.producers(), graph.consumers()

    def before(name: str) -> list[str]:
        return [tensor.name for tensor in producers[name].inputs() if tensor.name in producers]

    def after(name: str) -> list[str]:
        return [each.name for each in consumers.get(name, ())]

    kept = {node}
    _grow(kept, node, after, products)
    readers = [each.name for each in graph.nodes if each.name in kept and each.name not in products]
    for name in (node, *readers):
        _grow(kept, name, before, products)
    nodes = tuple(each for each in graph.nodes if each.name in kept)
    read = {tensor.name: tensor for each in nodes for tensor in each.inputs() if tensor.name not in kept}
    wanted = {tensor.name for tensor in graph.outputs}
    wanted |= {name for name in kept if not after(name) or not kept.issuperset(after(name))}
    return Graph(
        tuple(tensor for name, tensor in read.items() if name not in graph.constants),
        tuple(each.output for each in nodes if each.name in wanted),
        nodes,
        {name: graph.constants[name] for name in read if name in graph.constants},
        node,
    )


def _grow(kept: set[str], start: str, step: Callable[[str], list[str]], products: Collection[str]) -> None:
    """Add what `step` reaches, breadth first, up to the products on the way and no more than `AROUND` of the rest."""
    frontier, left = [start], AROUND
    while frontier and left:
        for other in step(frontier.pop(0)):
            if other in kept or not left:
                continue
            kept.add(other)
            if other not in products:
                frontier.append(other)
                left -= 1


def structural_hash(part: Graph, node: str) -> str:
    """Equal for products whose neighbourhoods differ in names and in values of large constants only."""
    place = [each.name for each in part.nodes].index(node)
    loops = [axis.name for axis in part.nodes[place].loops]
    return f"{shape_digest(part)} {place} {loops}"


def shape_digest(graph: Graph) -> str:
    """A digest of what a graph computes, with the values of single numbers among its constants and no others."""
    constants = graph.constants.items()
    values = {name: array if array.size == 1 else np.zeros(array.shape, array.dtype) for name, array in constants}
    return serialize.content_digest(replace(graph, constants=values))


def tensor_names(part: Graph) -> list[str]:
    """In an order that is the same for neighbourhoods of the same structure."""
    constants = dict.fromkeys(
        tensor.name for node in part.nodes for tensor in node.inputs() if tensor.name in part.constants
    )
    return [*(tensor.name for tensor in part.inputs), *constants, *(node.name for node in part.nodes)]
