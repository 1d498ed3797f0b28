"""Nodes that read only constants."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.expr.core import Compute, Tensor, static_shape
from tilewright.expr.evaluate import evaluate_compute
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class FoldConstants:
    """Evaluate nodes that read only constants, or nothing.

    Before:  const w, m    s[k] = w[k] / sqrt(m[k] + 1e-5)    y[i, k] = x[i, k] * s[k]
    After:   const s       y[i, k] = x[i, k] * s[k]
    Legal where the evaluator's rounding is as good as the machine's. A node whose result has over `growth_elements`
    more elements than its operands stays: folding it would only cost memory. Needs nothing before it. Afterwards only
    such nodes read constants alone.
    """

    name: ClassVar[str] = "fold-constants"
    growth_elements: int = 1 << 16

    def apply(self, state: Rewritten) -> Rewritten:
        graph = state.graph
        constants = dict(graph.constants)
        nodes = []
        for node in graph.nodes:
            inputs = node.inputs()
            if all(tensor.name in constants for tensor in inputs) and self._is_small(node, inputs):
                constants[node.name] = evaluate_compute(node, constants)
            else:
                nodes.append(node)
        return replace(state, graph=replace(graph, nodes=tuple(nodes), constants=constants))

    def _is_small(self, node: Compute, inputs: tuple[Tensor, ...]) -> bool:
        return prod(static_shape(node.output.shape)) <= sum(tensor.size for tensor in inputs) + self.growth_elements
