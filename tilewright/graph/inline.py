"""Element-wise work moves into its consumers: transposes and slices become indices, chains of maps one body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tilewright.expr.core import Apply, Axis, Cast, Compute, Expr, Read, static_shape, walk
from tilewright.expr.graph import Graph
from tilewright.expr.rewrite import inline

#: Bodies do not grow beyond this many nodes by inlining.
BODY_NODES = 400
#: Functions that cost more than reading their result back from memory.
COSTLY = frozenset({"exp", "log", "tanh", "erf", "sigmoid", "pow", "sin", "cos", "tan", "sqrt", "div"})


def inline_maps(graph: Graph, is_product: Callable[[Compute], bool]) -> Graph:
    """Inline every map that is free to recompute, or has one consumer that reads each element about once.

    `is_product` tells which computes level 3 will map to an intrinsic; those accept only what keeps them such.
    """
    outputs = {tensor.name for tensor in graph.outputs}
    nodes = {node.name: node for node in graph.nodes}
    users: dict[str, set[str]] = {name: set() for name in nodes}
    for node in graph.nodes:
        for tensor in node.inputs():
            if tensor.name in users:
                users[tensor.name].add(node.name)
    waiting = [node.name for node in graph.nodes]
    while waiting:
        producer = nodes.get(waiting.pop(0))
        if producer is None or producer.accum is not None or not users[producer.name]:
            continue
        for name in sorted(users[producer.name]):
            consumer = nodes[name]
            if not _may_inline(producer, consumer, len(users[producer.name]), producer.name in outputs):
                continue
            merged = inline(consumer, producer)
            if sum(1 for _ in walk(merged.body)) > BODY_NODES or (is_product(consumer) and not is_product(merged)):
                continue
            nodes[name] = merged
            users[producer.name].discard(name)
            for tensor in producer.inputs():
                if tensor.name in users:
                    users[tensor.name].add(name)
                    waiting.append(tensor.name)  # it has a new consumer, or one fewer
        if not users[producer.name] and producer.name not in outputs:
            del nodes[producer.name]
            for tensor in producer.inputs():
                if tensor.name in users:
                    users[tensor.name].discard(producer.name)
                    waiting.append(tensor.name)
    return replace(graph, nodes=tuple(nodes.values()))


def _may_inline(producer: Compute, consumer: Compute, consumers: int, is_output: bool) -> bool:
    free = is_free(producer.body)
    if free and not any(isinstance(n, Apply) for n in walk(producer.body) if not _in_index(n)):
        return True
    alone = consumers == 1 and not is_output
    if not alone:
        return free and consumers <= 2 and _size(producer.body) <= 40
    points = prod(int(axis.extent) for axis in consumer.loops)  # type: ignore[arg-type]
    elements = prod(static_shape(producer.output.shape))
    costly = any(isinstance(node, Apply) and node.function in COSTLY for node in walk(producer.body))
    if points > elements and costly:
        return False
    return points <= 2 * elements or consumer.accum is None


def is_free(body: Expr) -> bool:
    """Whether a body only moves data: reads, casts, and selects between them."""
    if isinstance(body, Read):
        return True
    if isinstance(body, Cast):
        return is_free(body.arg)
    if isinstance(body, Apply) and body.function == "select":
        return is_free(body.args[1]) and is_free(body.args[2])
    return not isinstance(body, Apply | Axis)


def _in_index(node: Expr) -> bool:
    return node.dtype in ("i64", "bool")


def _size(body: Expr) -> int:
    return sum(1 for _ in walk(body))
