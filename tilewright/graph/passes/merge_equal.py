"""Equal nodes and equal constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis, Compute, Expr, Read, Tensor
from tilewright.expr.graph import Graph
from tilewright.expr.rewrite import transform
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class MergeEqual:
    """Keep one of several nodes that compute the same value, and one of several equal constants.

    Before:  a[i] = x[i] + 1.0    b[j] = x[j] + 1.0    c[i] = a[i] * b[i]
    After:   a[i] = x[i] + 1.0    c[i] = a[i] * a[i]
    Always legal; nodes are compared up to the names of their loops, constants of up to `constant_bytes` by content.
    Needs nothing before it. Afterwards two equal nodes or small constants only occur where both are outputs.
    """

    name: ClassVar[str] = "merge-equal"
    constant_bytes: int = 1 << 16

    def apply(self, state: Rewritten) -> Rewritten:
        graph = state.graph
        kept = {tensor.name for tensor in graph.outputs}
        constants, renamed = _merged_constants(graph, kept, self.constant_bytes)
        nodes = []
        seen: dict[tuple[Any, ...], Tensor] = {}
        for node in graph.nodes:
            body = transform(node.body, lambda e: _renamed_read(e, renamed))
            key = _key(node, body)
            if key in seen and node.name not in kept:
                renamed[node.name] = seen[key]
                continue
            seen.setdefault(key, node.output)
            nodes.append(node if body == node.body else replace(node, body=body))
        return replace(state, graph=replace(graph, nodes=tuple(nodes), constants=constants))


def _merged_constants(
    graph: Graph, kept: set[str], limit_bytes: int
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Tensor]]:
    """The constants that stay, and what reads of the others become."""
    tensors = graph.tensors()
    constants: dict[str, np.ndarray[Any, Any]] = {}
    renamed: dict[str, Tensor] = {}
    first_of: dict[tuple[Any, ...], str] = {}
    for name, array in graph.constants.items():
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= limit_bytes else (name,)
        first = first_of.setdefault(key, name)
        if first == name or name in kept:
            constants[name] = array
        elif name in tensors:
            renamed[name] = replace(tensors[name], name=first)
    return constants, renamed


def _renamed_read(expr: Expr, renamed: dict[str, Tensor]) -> Expr | None:
    if isinstance(expr, Read) and expr.tensor.name in renamed:
        return Read(renamed[expr.tensor.name], expr.indices)
    return None


def _key(node: Compute, body: Expr) -> tuple[Any, ...]:
    """What two equal nodes share: everything but names."""
    numbered: dict[Expr, Axis] = {axis: Axis(f"l{place}", axis.extent) for place, axis in enumerate(node.loops)}
    plain = transform(body, lambda e: numbered[e] if isinstance(e, Axis) else None)
    return (node.output.shape, node.output.dtype, node.accum, len(node.axes), tuple(numbered.values()), plain)
