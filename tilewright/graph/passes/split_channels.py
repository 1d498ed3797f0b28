"""Products whose channel loops are split, so that indices become affine: grouped ones, sums over permuted channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Compute, Expr, Extent, Read, Tensor, static_shape
from tilewright.expr.graph import Graph
from tilewright.expr.names import claim
from tilewright.expr.rewrite import transform
from tilewright.expr.rewrites.flat_to_split import LoopSplit, find_split, split_sums
from tilewright.graph.passes.inline_maps import reads_own_points
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class SplitChannels:
    """Split the loops of a reduction that occur under ``//`` and ``%``, and those of the map that follows it.

    Before:  A[k, i] += x[k//2*3 + c, i] * W[k, c]    y[k, i] = max(A[k, i] + b[k], 0.0)
    After:   A.split[g, j, i] += x[g*3 + c, i] * W.split[g, j, c]
             y.split[g, j, i] = max(A.split[g, j, i] + b.split[g, j], 0.0)    y[k, i] = y.split[k//2, k%2, i]
    Before:  A[k, i] += x[c%2*4 + c//2, i] * W[k, c]
    After:   A[k, i] += x[c_1*4 + c_0, i] * W[k, c_0, c_1] over c_1, c_0
    Legal where the constants divide the extents of the loops; the map is the only reader of A, at the points it writes.
    Constants get the dimensions that they are read with. Needs maps inlined, which makes what follows one map, and
    would take the last node apart. Afterwards it moves nothing if both tensors are stored alike.
    """

    name: ClassVar[str] = "split-channels"

    def apply(self, state: Rewritten) -> Rewritten:
        splitting, decisions = _Splitting(state.graph), list(state.decisions)
        for node in state.graph.nodes:
            sums = split_sums(node)
            if sums is not node:
                splitting.split_sums(node, sums)
                order = ", ".join(axis.name for axis in sums.reduce)
                decisions.append(Decision(f"sums of {node.name}", f"over {order}", "every index is affine then"))
                continue
            split = find_split(node)
            if split is None:
                continue
            splitting.split(node, split)
            cuts = (f"{axis.name} at {' and '.join(map(str, at))}" for axis, at in split.strides.items() if at)
            decisions.append(Decision(f"loops of {node.name}", f"cut {', '.join(cuts)}", "every index is affine then"))
        return replace(state, graph=splitting.finished(), decisions=tuple(decisions))


class _Splitting:
    """The nodes of a graph while some are replaced by several."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants = dict(graph.constants)
        self.outputs = {tensor.name for tensor in graph.outputs}
        self._taken = set(graph.tensors()) | set(self.constants)
        self._pieces = {node.name: [node] for node in graph.nodes}  # what became of each node, in order
        self._origin = {node.name: node.name for node in graph.nodes}  # the node that a piece comes from
        self._readers = {name: {node.name: node for node in found} for name, found in graph.consumers().items()}

    def finished(self) -> Graph:
        nodes = tuple(piece for pieces in self._pieces.values() for piece in pieces)
        return replace(self.graph, nodes=nodes, constants=self.constants)

    def split(self, node: Compute, split: LoopSplit) -> None:
        """Replace `node`, and the map that follows it if there is one, by nodes over loops in pieces."""
        inner, merge = split.apply(node, claim(f"{node.name}.split", self._taken))
        inner = _with_split_constants(inner, self.constants)
        following = self._following(node)
        if following is None:
            self._replace(node, [inner, merge])
            return

        def rule(expr: Expr) -> Expr | None:
            if isinstance(expr, Read) and expr.tensor == node.output:
                return inner.output[split.places(expr.indices)]
            return None

        strides = dict(zip(_live(following), (split.strides[axis] for axis in _live(node)), strict=True))
        outer = LoopSplit({axis: strides.get(axis, ()) for axis in following.axes})
        over_points = replace(following, body=transform(following.body, rule))
        epilogue, merge = outer.apply(over_points, claim(f"{following.name}.split", self._taken))
        self._replace(node, [inner])
        self._replace(following, [_with_split_constants(epilogue, self.constants), merge])

    def split_sums(self, node: Compute, sums: Compute) -> None:
        """Replace `node` by `sums`, which has its reduction loops in pieces."""
        self._replace(node, [_with_split_constants(sums, self.constants)])

    def _following(self, node: Compute) -> Compute | None:
        """The map that alone reads a reduction, at the points it writes."""
        readers = list(self._readers.get(node.name, {}).values())
        if len(readers) != 1 or node.name in self.outputs or readers[0].accum is not None:
            return None
        return readers[0] if reads_own_points(readers[0], node.output) else None

    def _replace(self, node: Compute, pieces: list[Compute]) -> None:
        origin = self._origin[node.name]
        place = self._pieces[origin].index(node)
        self._pieces[origin][place : place + 1] = pieces
        for tensor in node.inputs():
            self._readers[tensor.name].pop(node.name)
        for piece in pieces:
            self._origin[piece.name] = origin
            for tensor in piece.inputs():
                self._readers.setdefault(tensor.name, {})[piece.name] = piece


def _live(node: Compute) -> list[Axis]:
    return [axis for axis in node.axes if axis.extent != 1]


# Constants ------------------------------------------------------------------------------------------------------------


def _with_split_constants(node: Compute, constants: dict[str, np.ndarray[Any, Any]]) -> Compute:
    """The node reading constants along one loop per dimension; `constants` receives those that this makes."""

    def rule(expr: Expr) -> Expr | None:
        if not isinstance(expr, Read) or expr.tensor.name not in constants:
            return None
        places = [_digits(index, extent) for index, extent in zip(expr.indices, expr.tensor.shape, strict=True)]
        if all(len(place) == 1 for place in places):
            return None
        indices = tuple(index for place in places for index, _ in place)
        shape = tuple(extent for place in places for _, extent in place)
        name = f"{expr.tensor.name}.{'x'.join(map(str, shape))}"
        constants[name] = constants[expr.tensor.name].reshape(shape)
        return Tensor(name, shape, expr.dtype)[indices]

    return replace(node, body=transform(node.body, rule))


def _digits(index: Expr, extent: Extent) -> list[tuple[Expr, int]]:
    """The loops that count together through a whole dimension, outermost first; the index itself where none do."""
    (room,) = static_shape((extent,))
    form = affine(index)
    digits: list[tuple[Expr, int]] = []
    if form is not None and not form.constant and len(form.terms) > 1:
        inside = 1
        for axis, stride in sorted(form.terms.items(), key=lambda term: term[1]):
            if stride != inside:
                break
            (count,) = static_shape((axis.extent,))
            digits.insert(0, (axis, count))
            inside *= count
        if inside == room and len(digits) == len(form.terms):
            return digits
    return [(index, room)]
