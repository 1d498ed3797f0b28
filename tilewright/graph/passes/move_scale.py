"""Factors of what a product reads: those that run along its sum move to its other operand where that is smaller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Graph
from tilewright.expr.names import claim
from tilewright.expr.rewrite import substitute, transform
from tilewright.graph.passes.fold_scale import whole_dimension
from tilewright.graph.passes.rewritten import Rewritten

LEAST_FEWER = 4
"""How many times fewer elements the other operand has at least. It is packed in every run then, also where it is a
constant: that took 0.8 ns for each element on a Zen 3, where a map took 0.2.
"""


@dataclass(frozen=True)
class MoveScale:
    """Multiply the smaller operand of a product by the factors of the larger one.

    Before:  m[i, c] = x[i, c] * s[c]         A[i, k] += m[i, c] * W[k, c]
    After:   W.m[k, c] = W[k, c] * s[c]       A[i, k] += x[i, c] * W.m[k, c]
    Legal when
    - A sums products of two reads, `is_product`, all in f32;
    - m is a map, no output, read by A alone: an element of x times an expression s, which is computed;
    - x is an input or is read elsewhere too: else m is computed where x is, which costs nothing;
    - all loops of s but those of extent 1 are loops of A that index, alone and over the whole dimension, W and m.
    Done where W has at most a quarter of the elements of m. Rounding errors are others, of the same size; numbers that
    are not finite may be others too. Needs constant factors behind products folded, which give W other values.
    """

    is_product: Callable[[Compute], bool]
    name: ClassVar[str] = "move-scale"

    def apply(self, state: Rewritten) -> Rewritten:
        graph, decisions, nodes = state.graph, [], dict[str, Compute]()
        taken = graph.tensors().keys() | graph.constants.keys()
        readers = _readers(graph)
        for node in graph.nodes:
            nodes[node.name] = node
            move = next(_moves(readers, node), None) if self.is_product(node) else None
            if move is not None:
                scaled = move.scaled(claim(f"{move.other.tensor.name}.{move.map.name}", taken))
                del nodes[move.map.name]
                del nodes[node.name]
                nodes |= {scaled.name: scaled, node.name: move.product_of(scaled)}
                decisions.append(move.decision())
        changed = replace(graph, nodes=tuple(nodes.values()))
        return replace(state, graph=changed, decisions=(*state.decisions, *decisions))


@dataclass(frozen=True)
class _Move:
    """A product that reads `map`, which is `kept` times `scale`, and the `other` operand.

    `kept` is over the loops of the product, `scale` over those of `map`; `dims` has the dimension of the other operand
    for each loop of `scale`.
    """

    product: Compute
    map: Compute
    kept: Read
    scale: Expr
    other: Read
    dims: Mapping[Axis, int]

    def scaled(self, name: str) -> Compute:
        """The other operand times the scale."""
        tensor = replace(self.other.tensor, name=name)
        axes = tuple(Axis(f"d{dim}", extent) for dim, extent in enumerate(tensor.shape))
        places = {axis: axes[dim] for axis, dim in self.dims.items()}
        unit = {axis: Const(0, INDEX) for axis in self.map.axes if axis not in places}
        return Compute(tensor, axes, Read(self.other.tensor, axes) * substitute(self.scale, {**places, **unit}))

    def product_of(self, scaled: Compute) -> Compute:
        """The product, which reads that in place of the other operand."""

        def rule(expr: Expr) -> Expr | None:
            if isinstance(expr, Read) and expr.tensor == self.map.output:
                return self.kept
            return Read(scaled.output, expr.indices) if expr == self.other and isinstance(expr, Read) else None

        return replace(self.product, body=transform(self.product.body, rule))

    def decision(self) -> Decision:
        few, many = _elements(self.other.tensor), _elements(self.map.output)
        reason = f"that has {few:,} elements, {self.map.name} {many:,}"
        return Decision(f"factors of {self.map.name}", f"moved to {self.other.tensor.name}", reason)


@dataclass(frozen=True)
class _Readers:
    """What is read in a graph: `maps` in f32 that are no outputs and that one node reads, by name; the names of
    computed tensors that are read `once`, and of `constants`.
    """

    maps: Mapping[str, Compute]
    once: Collection[str]
    constants: Collection[str]


def _readers(graph: Graph) -> _Readers:
    found, outputs = graph.consumers(), {tensor.name for tensor in graph.outputs}
    once = [node for node in graph.nodes if len(found.get(node.name, ())) == 1 and node.name not in outputs]
    maps = {node.name: node for node in once if node.accum is None and node.output.dtype == "f32"}
    return _Readers(maps, {node.name for node in once}, graph.all_constants())


def _moves(readers: _Readers, product: Compute) -> Iterator[_Move]:
    """The ways to move a factor from one operand of a product to the other."""
    body = product.body
    if not isinstance(body, Apply) or body.function != "mul" or product.output.dtype != "f32":
        return
    first, second = body.args
    for read, other in ((first, second), (second, first)):
        if not isinstance(read, Read) or not isinstance(other, Read) or other.tensor.dtype != "f32":
            continue
        source = readers.maps.get(read.tensor.name)
        if source is None or LEAST_FEWER * _elements(other.tensor) > _elements(read.tensor):
            continue
        places = dict(zip(source.axes, read.indices, strict=True))
        for kept, scale in _factors(source):
            dims = _dims(source, scale, read, other)
            computed = any(isinstance(node, Read) and node.tensor.name not in readers.constants for node in walk(scale))
            if computed and dims is not None and kept.tensor.name not in readers.once:
                indices = tuple(substitute(index, places) for index in kept.indices)
                yield _Move(product, source, Read(kept.tensor, indices), scale, other, dims)


def _factors(source: Compute) -> Iterator[tuple[Read, Expr]]:
    """An element that a map reads, and what it is multiplied by."""
    body = source.body
    if isinstance(body, Apply) and body.function == "mul":
        first, second = body.args
        for kept, scale in ((first, second), (second, first)):
            if isinstance(kept, Read) and kept.tensor.dtype == "f32":
                yield kept, scale


def _dims(source: Compute, scale: Expr, read: Read, other: Read) -> dict[Axis, int] | None:
    """The dimension of the other operand that each loop of the scale indexes there; None where one indexes none."""
    found: dict[Axis, int] = {}
    for axis in dict.fromkeys(node for node in walk(scale) if isinstance(node, Axis) and node.extent != 1):
        index = read.indices[source.axes.index(axis)]
        dim = whole_dimension(other, index) if isinstance(index, Axis) and index.extent == axis.extent else None
        if dim is None:
            return None
        found[axis] = dim
    return found


def _elements(tensor: Tensor) -> int:
    return prod(static_shape(tensor.shape))
