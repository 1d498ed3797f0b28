"""Parts of bodies that depend on constants and few loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.core import Apply, Axis, Cast, Compute, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.infer import stays_inside
from tilewright.graph.passes.rewritten import Rewritten

Constants = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class FoldConstantParts:
    """Compute ahead of time what part of a body takes from constants alone.

    Before:  y[i, k] = x[i, k] * (w[k] / sqrt(m[k] + 1e-5))
    After:   const y.folded0[k]    y[i, k] = x[i, k] * y.folded0[k]
    Legal where every read of the part stays in range for all values of its loops, guards or not. The new constant is no
    larger than the largest it is made from. Conversions to more bits stay: an instruction may do them. Needs nothing
    before it. Afterwards no arithmetic on constants alone is left, save where a guard or that size forbids folding it.
    """

    name: ClassVar[str] = "fold-constant-parts"

    def apply(self, state: Rewritten) -> Rewritten:
        graph = state.graph
        constants = dict(graph.constants)
        nodes = tuple(_folded(node, constants) for node in graph.nodes)
        return replace(state, graph=replace(graph, nodes=nodes, constants=constants))


def _folded(node: Compute, constants: dict[str, np.ndarray[Any, Any]]) -> Compute:
    count = 0

    def rule(expr: Expr) -> Expr:
        nonlocal count
        if isinstance(expr, Apply | Cast) and not _is_widening(expr) and _may_fold(expr, constants):
            axes = _axes(expr)
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


def _may_fold(expr: Expr, constants: Constants) -> bool:
    """Whether `expr` computes few values, from constants alone, in range for all values of its loops."""
    reads = [node for node in walk(expr) if isinstance(node, Read)]
    if not reads or not all(read.tensor.name in constants and stays_inside(read) for read in reads):
        return False
    largest = max(constants[read.tensor.name].size for read in reads)
    return prod(static_shape(tuple(axis.extent for axis in _axes(expr)))) <= largest


def _axes(expr: Expr) -> tuple[Axis, ...]:
    return tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Axis)))
