"""Splits of loops carried on: what reads a merged result reads the parts, up to products that take it apart again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
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
        merges = {node.name: split for node in state.graph.nodes if (split := _merged(node)) is not None}
        if not merges or state.graph.loops:
            return state
        carrying, decisions = _Carrying(state.graph, self.is_product), list(state.decisions)
        for name, split in merges.items():
            ends = carrying.carry(name, split)
            if ends:
                decisions.append(Decision(f"storage of {name}", "in parts", f"{ends} takes it apart again"))
        return replace(state, graph=carrying.finished(), decisions=tuple(decisions))


def _merged(node: Compute) -> LoopSplit | None:
    """How a map merges dimensions of what it reads; None for one that does something else."""
    if node.accum is not None or not isinstance(node.body, Read) or len(node.body.indices) <= len(node.axes):
        return None
    split = LoopSplit({axis: strides_of(node.body, axis) for axis in node.axes})
    places = split.places(node.axes)
    if not any(split.strides.values()) or len(places) != len(node.body.indices):  # dimensions of extent 1 aside
        return None
    return split if simplify(node.body.tensor[places]) == node.body else None


class _Carrying:
    """The nodes of a graph while some go on in parts."""

    def __init__(self, graph: Graph, is_product: Callable[[Compute], bool]) -> None:
        self.graph, self.is_product = graph, is_product
        self.outputs = {tensor.name for tensor in graph.outputs}
        self._taken = set(graph.tensors()) | set(graph.constants)
        self._nodes: dict[str, Compute | None] = {node.name: node for node in graph.nodes}  # None: it is left out
        self._places = {node.name: place for place, node in enumerate(graph.nodes)}
        self._readers = {name: [node.name for node in found] for name, found in graph.consumers().items()}

    def finished(self) -> Graph:
        return replace(self.graph, nodes=tuple(node for node in self._nodes.values() if node is not None))

    def carry(self, name: str, split: LoopSplit) -> str:
        """Leave out a merge; gives the names of the products that take its parts, "" where that is not legal."""
        merge = self._nodes[name]
        assert merge is not None, "each merge is looked at once"
        assert isinstance(merge.body, Read), "it was looked at"
        if name in self.outputs:
            return ""
        parts: dict[str, tuple[Tensor, LoopSplit]] = {name: (merge.body.tensor, split)}
        made: dict[str, Compute | None] = {name: None}
        ends, waiting = list[str](), self._after(name)
        while waiting:  # in the order of the graph: what a node reads is in parts by then
            _, reader = heappop(waiting)
            node = self._nodes[reader]
            if reader in made or node is None:
                continue
            found = self._of_parts(node, parts)
            if found is None:
                return ""
            made[reader], own = found
            if own is None:
                ends.append(reader)
                continue
            parts[reader] = found[0].output, own
            for each in self._after(reader):
                heappush(waiting, each)
        self._nodes.update(made if ends else {})
        return ", ".join(ends)

    def _after(self, name: str) -> list[tuple[int, str]]:
        return sorted((self._places[reader], reader) for reader in self._readers.get(name, ()))

    def _of_parts(
        self, node: Compute, parts: dict[str, tuple[Tensor, LoopSplit]]
    ) -> tuple[Compute, LoopSplit | None] | None:
        """A node that reads parts: a product that takes them apart, or one in parts too; None where it is neither."""
        if node.ordered:
            return None
        body = simplify(transform(node.body, lambda expr: _of_parts(expr, parts)))
        own = LoopSplit({axis: strides_of(body, axis) for axis in node.axes})
        if not any(own.strides.values()):
            return (replace(node, body=body), None) if self.is_product(node) and _is_affine(body) else None
        if node.name in self.outputs or self.is_product(node):
            return None
        inner, _ = own.apply(replace(node, body=body), claim(f"{node.name}.split", self._taken))
        inner = replace(inner, body=simplify(inner.body))
        return (inner, own) if _is_affine(inner.body) else None


def _of_parts(expr: Expr, parts: dict[str, tuple[Tensor, LoopSplit]]) -> Expr | None:
    """A read of a tensor that is in parts, of these."""
    if not isinstance(expr, Read) or expr.tensor.name not in parts:
        return None
    tensor, split = parts[expr.tensor.name]
    return tensor[split.places(expr.indices)]


def _is_affine(body: Expr) -> bool:
    return all(affine(index) is not None for node in walk(body) if isinstance(node, Read) for index in node.indices)
