"""Splits of loops carried on: what reads a merged result reads the parts, up to products that take it apart again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.affine import affine, simplify
from tilewright.expr.core import Compute, Expr, Read, Tensor, walk
from tilewright.expr.graph import Graph
from tilewright.expr.names import claim
from tilewright.expr.rewrite import transform
from tilewright.expr.rewrites.flat_to_split import LoopSplit, strides_of
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class CarrySplits:
    """Leave out a map that merges dimensions, where all that follows from it ends in products that split them again.

    Before:  S[g, j, i] += …    m[h, i] = S[h//2, h%2, i]    w[h, i] = exp(m[h, i])
             y[g, j] += w[g*2 + j, i] * v[g, i]
    After:   S[g, j, i] += …    w.split[g, j, i] = exp(S[g, j, i])    y[g, j] += w.split[g, j, i] * v[g, i]
    Legal where none of what is between is an output, sums over a merged loop, is a product or runs in order. Heads of
    queries that share those of keys are such: both products have a loop over groups, the softmax between them has not.
    Needs split-channels, which makes these maps. What reads the merged result stays as it was where that is not legal.
    """

    is_product: Callable[[Compute], bool]
    name: ClassVar[str] = "carry-splits"

    def apply(self, state: Rewritten) -> Rewritten:
        graph, decisions = state.graph, list(state.decisions)
        for merge in state.graph.nodes:
            split = _merged(merge)
            if split is None or graph.loops:
                continue
            carried = _carried(graph, merge, split, self.is_product)
            if carried is not None:
                graph, ends = carried
                decisions.append(Decision(f"storage of {merge.name}", "in parts", f"{ends} takes it apart again"))
        return replace(state, graph=graph, decisions=tuple(decisions))


def _merged(node: Compute) -> LoopSplit | None:
    """How a map merges dimensions of what it reads; None for one that does something else."""
    if node.accum is not None or not isinstance(node.body, Read) or len(node.body.indices) <= len(node.axes):
        return None
    split = LoopSplit({axis: strides_of(node.body, axis) for axis in node.axes})
    places = split.places(node.axes)
    if not any(split.strides.values()) or len(places) != len(node.body.indices):  # dimensions of extent 1 aside
        return None
    return split if simplify(node.body.tensor[places]) == node.body else None


def _carried(
    graph: Graph, merge: Compute, split: LoopSplit, is_product: Callable[[Compute], bool]
) -> tuple[Graph, str] | None:
    """The graph without a merge, and the names of the products that take its parts; None where that is not legal."""
    assert isinstance(merge.body, Read), "it was looked at"
    outputs, taken = {tensor.name for tensor in graph.outputs}, set(graph.tensors()) | set(graph.constants)
    parts: dict[str, tuple[Tensor, LoopSplit]] = {merge.name: (merge.body.tensor, split)}
    made: dict[str, Compute] = {}
    ends: list[str] = []
    for node in graph.nodes:
        if node.name == merge.name or not any(tensor.name in parts for tensor in node.inputs()):
            continue
        if node.ordered:
            return None
        body = simplify(transform(node.body, lambda expr: _of_parts(expr, parts)))
        own = LoopSplit({axis: strides_of(body, axis) for axis in node.axes})
        if not any(own.strides.values()):
            if not is_product(node) or not _is_affine(body):
                return None
            made[node.name] = replace(node, body=body)
            ends.append(node.name)
            continue
        if node.name in outputs or is_product(node):
            return None
        inner, _ = own.apply(replace(node, body=body), claim(f"{node.name}.split", taken))
        inner = replace(inner, body=simplify(inner.body))
        if not _is_affine(inner.body):
            return None
        made[node.name], parts[node.name] = inner, (inner.output, own)
    if not ends or merge.name in outputs:
        return None
    nodes = tuple(made.get(node.name, node) for node in graph.nodes if node.name != merge.name)
    return replace(graph, nodes=nodes), ", ".join(ends)


def _of_parts(expr: Expr, parts: dict[str, tuple[Tensor, LoopSplit]]) -> Expr | None:
    """A read of a tensor that is in parts, of these."""
    if not isinstance(expr, Read) or expr.tensor.name not in parts:
        return None
    tensor, split = parts[expr.tensor.name]
    return tensor[split.places(expr.indices)]


def _is_affine(body: Expr) -> bool:
    return all(affine(index) is not None for node in walk(body) if isinstance(node, Read) for index in node.indices)
