"""Graph clean-up: dead nodes, common subexpressions, constant folding (whole nodes and parts of bodies)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewright.expr import dtypes
from tilewright.expr.core import Apply, Axis, Cast, Compute, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.graph import Graph
from tilewright.expr.rewrite import transform

#: A constant larger than its operands by more than this many elements is not folded: it would only cost memory.
GROWTH_ELEMENTS = 1 << 16


def simplify_graph(graph: Graph) -> Graph:
    """Fold constants, merge equal computes, drop what no output needs."""
    graph = remove_dead(graph)
    graph = fold_constants(graph)
    graph = fold_constant_parts(graph)
    graph = merge_equal(graph)
    return remove_dead(graph)


def remove_dead(graph: Graph) -> Graph:
    """Keep the nodes and constants that some output depends on."""
    needed = {tensor.name for tensor in graph.outputs}
    kept: list[Compute] = []
    for node in reversed(graph.nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(tensor.name for tensor in node.inputs())
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def fold_constants(graph: Graph) -> Graph:
    """Evaluate nodes that read only constants (or nothing)."""
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        inputs = node.inputs()
        if all(tensor.name in constants for tensor in inputs) and _worth_folding(node, inputs):
            constants[node.name] = evaluate_compute(node, constants)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _worth_folding(node: Compute, inputs: tuple[Tensor, ...]) -> bool:
    size = prod(static_shape(node.output.shape))
    return size <= sum(tensor.size for tensor in inputs) + GROWTH_ELEMENTS


def fold_constant_parts(graph: Graph) -> Graph:
    """Replace the parts of a body that depend on constants and few loops by reads of folded constants.

    Batch normalisation's ``scale[k] / sqrt(variance[k] + epsilon)`` becomes one constant per channel.
    """
    constants: dict[str, np.ndarray[Any, Any]] = dict(graph.constants)
    nodes = [_fold_parts(node, constants) for node in graph.nodes]
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _fold_parts(node: Compute, constants: dict[str, np.ndarray[Any, Any]]) -> Compute:
    count = 0

    def rule(expr: Expr) -> Expr:
        nonlocal count
        if isinstance(expr, Apply | Cast) and not _is_widening(expr) and _is_constant_part(expr, constants):
            axes = tuple(dict.fromkeys(a for a in walk(expr) if isinstance(a, Axis)))
            size = prod(int(axis.extent) for axis in axes)  # type: ignore[arg-type]
            largest = max(constants[r.tensor.name].size for r in walk(expr) if isinstance(r, Read))
            if size <= largest:
                tensor = Tensor(f"{node.name}.folded{count}", tuple(axis.extent for axis in axes), expr.dtype)
                count += 1
                constants[tensor.name] = evaluate_compute(Compute(tensor, axes, expr), constants)
                return Read(tensor, axes)
        if isinstance(expr, Apply):
            return Apply(expr.function, tuple(rule(arg) for arg in expr.args), expr.dtype)
        if isinstance(expr, Cast):
            return Cast(rule(expr.arg), expr.dtype)
        return expr

    body = rule(node.body)
    return node if count == 0 else replace(node, body=body)


def _is_widening(expr: Expr) -> bool:
    """A conversion of a stored value to more bits: an instruction may do it, and the constant stays small."""
    return (
        isinstance(expr, Cast) and isinstance(expr.arg, Read) and dtypes.bits(expr.dtype) > dtypes.bits(expr.arg.dtype)
    )


def _is_constant_part(expr: Expr, constants: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    """A computation (not a mere read) over constants only, with all its loops free."""
    reads = [node for node in walk(expr) if isinstance(node, Read)]
    return bool(reads) and all(read.tensor.name in constants for read in reads)


def merge_equal(graph: Graph) -> Graph:
    """Keep one of several nodes that compute the same value, and one of several equal constants."""
    renamed: dict[str, Tensor] = {}
    constants: dict[str, np.ndarray[Any, Any]] = {}
    first_constant: dict[tuple[Any, ...], str] = {}
    tensors = graph.tensors()
    for name, array in graph.constants.items():
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= 1 << 16 else (name,)
        first = first_constant.setdefault(key, name)
        if first == name:
            constants[name] = array
        elif name in tensors:
            renamed[name] = replace(tensors[name], name=first)
    kept: list[Compute] = []
    seen: dict[tuple[Any, ...], Tensor] = {}
    outputs = {tensor.name for tensor in graph.outputs}
    for node in graph.nodes:
        body = transform(
            node.body,
            lambda e: Read(renamed[e.tensor.name], e.indices) if isinstance(e, Read) and e.tensor.name in renamed else None,
        )
        key = (node.output.shape, node.output.dtype, tuple(a.name for a in node.loops), body, node.accum)
        if key in seen and node.name not in outputs:
            renamed[node.name] = seen[key]
            continue
        seen.setdefault(key, node.output)
        kept.append(node if body == node.body else replace(node, body=body))
    return Graph(
        graph.inputs,
        tuple(renamed.get(t.name, t) if t.name in constants or t.name not in outputs else t for t in graph.outputs),
        tuple(kept),
        {**constants, **{t.name: graph.constants[t.name] for t in graph.outputs if t.name in graph.constants}},
        graph.name,
    )
