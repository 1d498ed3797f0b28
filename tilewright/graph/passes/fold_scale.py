"""Batch normalisation into weights: a factor per channel behind a product moves into its constant operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.decision import Decision, Refusal
from tilewright.expr.core import Apply, Axis, Cast, Compute, Const, Expr, Read, Tensor, walk
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.graph import Graph
from tilewright.expr.names import claim
from tilewright.expr.rewrite import transform
from tilewright.graph.passes.inline_maps import reads_own_points
from tilewright.graph.passes.rewritten import Rewritten

Constants = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class FoldScale:
    """Multiply a constant operand by the factors that its product is scaled with.

    Before:  A[i, k] += x[i, c] * W[k, c]     y[i, k] = max((A[i, k] - m[k]) * s[k] + b[k], 0.0) + r[i, k]
    After:   A[i, k] += x[i, c] * W.y[k, c]   y[i, k] = max(A[i, k] + A.shift[k], 0.0) + r[i, k]
             with const W.y[k, c] = W[k, c] * s[k] and A.shift[k] = b[k] - m[k] * s[k]
    Legal when
    - A sums products of two reads, `is_product`, in f32, one of them of an f32 constant W, and nothing else reads W;
    - one map, and no output, reads A, at the points it writes;
    - all its reads of A are inside one and the same expression ``alpha * A + beta``, with alpha and beta made of
    constants and
      loops that index, alone and over the whole dimension, W and A;
    - alpha, the new W and beta are finite.
    alpha, beta and the new W are computed in f64 and rounded once. Needs maps inlined, which brings the chain of a
    normalisation into one body. Afterwards no such factor is left.
    """

    is_product: Callable[[Compute], bool]
    name: ClassVar[str] = "fold-scale"

    def apply(self, state: Rewritten) -> Rewritten:
        folding = _Folding(state.graph)
        decisions = []
        for product in state.graph.nodes:
            product = folding.nodes[product.name]
            if not self.is_product(product):
                continue
            found = _find(folding, product)
            if isinstance(found, Refusal):
                if found.rule:
                    decisions.append(
                        Decision(f"scale of {product.name}", "left in place", "it cannot be folded", refused=(found,))
                    )
                continue
            folding.fold(found)
            chosen = f"folded into {found.weights.tensor.name}"
            decisions.append(
                Decision(f"scale of {product.name}", chosen, f"its factors are constants per {found.loop_names()}")
            )
        return replace(state, graph=folding.finished(), decisions=(*state.decisions, *decisions))


class _Folding:
    """The nodes, their readers and the constants of a graph while scales are folded."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.producers()
        self.constants = dict(graph.constants)
        self.outputs = {tensor.name for tensor in graph.outputs}
        self._readers = {name: {node.name: None for node in found} for name, found in graph.consumers().items()}
        self._taken = graph.tensors().keys() | graph.constants.keys()

    def readers(self, name: str) -> list[Compute]:
        """The nodes that read a tensor, in order."""
        return [self.nodes[reader] for reader in self._readers.get(name, ())]

    def finished(self) -> Graph:
        return replace(self.graph, nodes=tuple(self.nodes.values()), constants=self.constants)

    def fold(self, scale: _Scale) -> None:
        old = scale.weights.tensor
        weights = Tensor(claim(f"{old.name}.{scale.map.name}", self._taken), old.shape, old.dtype)
        del self.constants[old.name]
        self.constants[weights.name] = scale.scaled
        scaled: Expr = scale.read
        if scale.shift is not None:
            extents = tuple(axis.extent for axis in scale.shift_axes)
            shift = Tensor(claim(f"{scale.product.name}.shift", self._taken), extents, "f32")
            self.constants[shift.name] = scale.shift
            scaled = scale.read + Read(shift, scale.shift_axes)

        def rule(expr: Expr) -> Expr | None:
            return Read(weights, expr.indices) if isinstance(expr, Read) and expr.tensor == old else None

        self._replace(scale.product, transform(scale.product.body, rule))
        self._replace(scale.map, _replaced(scale.map.body, scale.whole, scaled))

    def _replace(self, node: Compute, body: Expr) -> None:
        changed = self.nodes[node.name] = replace(node, body=body)
        for tensor in node.inputs():
            self._readers[tensor.name].pop(node.name)
        for tensor in changed.inputs():
            self._readers.setdefault(tensor.name, {})[node.name] = None


@dataclass(frozen=True)
class _Scale:
    """An affine expression around all reads of a product, and the constants that its folding makes."""

    product: Compute
    map: Compute
    whole: Expr  # alpha * A + beta, as it stands in the body of the map
    read: Read  # of A
    weights: Read
    loops: tuple[Axis, ...]  # of the map, that alpha uses
    scaled: np.ndarray[Any, Any]
    shift: np.ndarray[Any, Any] | None
    shift_axes: tuple[Axis, ...]

    def loop_names(self) -> str:
        return ", ".join(axis.name for axis in self.loops) or "tensor"


_NOTHING = Refusal("", "")
"""There is no factor to fold, so there is nothing to say."""


def _find(graph: _Folding, product: Compute) -> _Scale | Refusal:
    """The scale behind a product, or the rule that keeps it where it is."""
    readers = graph.readers(product.name)
    if len(readers) != 1 or product.name in graph.outputs or readers[0].accum is not None:
        return _NOTHING
    reader = readers[0]
    if not reads_own_points(reader, product.output):
        return _NOTHING
    largest = _affine_around(reader, product.output, graph.constants)
    if largest is None or largest.alpha == Const(1.0, "f32"):
        return _NOTHING
    what = f"the factor in {reader.name}"
    weights = _weights(product, graph.constants)
    if weights is None:
        if not any(read.tensor.name in graph.constants for read in product.reads()):
            return _NOTHING
        return Refusal(what, "one operand is an f32 constant, and the sum is f32")
    if weights.tensor.name in graph.outputs or len(graph.readers(weights.tensor.name)) > 1:
        return Refusal(what, "no other node reads the constant", weights.tensor.name)
    used = (node for node in walk(largest.alpha) if isinstance(node, Axis))
    loops = tuple(dict.fromkeys(axis for axis in used if axis.extent != 1))
    own = _own_axes(reader, product)
    dims = []
    for axis in loops:
        dim = whole_dimension(weights, own[axis])
        if dim is None:
            return Refusal(what, "its loops index whole dimensions of the constant", axis.name)
        dims.append(dim)
    alpha = _evaluated(largest.alpha, loops, graph.constants)
    shift_axes = tuple(axis for axis in reader.axes if any(node == axis for node in walk(largest.beta)))
    shift = None
    if largest.beta != Const(0.0, "f32"):
        shift = _evaluated(largest.beta, shift_axes, graph.constants).astype(np.float32)
    array = graph.constants[weights.tensor.name]
    ordered = np.transpose(alpha, np.argsort(dims)) if dims else alpha
    ordered = ordered.reshape([array.shape[dim] if dim in dims else 1 for dim in range(array.ndim)])
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.empty(array.shape, np.float32)  # rounded once; the products in f64 are never there as a whole
        np.multiply(array, ordered, out=scaled, dtype=np.float64, casting="same_kind")
    if not (np.isfinite(alpha).all() and np.isfinite(scaled).all() and (shift is None or np.isfinite(shift).all())):
        return Refusal(what, "the folded constants are finite")
    return _Scale(product, reader, largest.whole, largest.read, weights, loops, scaled, shift, shift_axes)


def _weights(product: Compute, constants: Constants) -> Read | None:
    """The read of the f32 constant that a product of two plain reads multiplies with."""
    if product.output.dtype != "f32" or not isinstance(product.body, Apply):
        return None
    reads = [factor for factor in product.body.args if isinstance(factor, Read) and factor.tensor.dtype == "f32"]
    found = [read for read in reads if read.tensor.name in constants]
    return found[0] if len(reads) == 2 and len(found) == 1 else None


def _own_axes(reader: Compute, product: Compute) -> dict[Axis, Axis]:
    """The loops of the product by those of the map that reads it at the points it writes."""
    pairs = zip((a for a in reader.axes if a.extent != 1), (a for a in product.axes if a.extent != 1), strict=True)
    return dict(pairs)


def whole_dimension(weights: Read, axis: Axis) -> int | None:
    """The one dimension of an operand that `axis` indexes, over its whole extent."""
    found = [dim for dim, index in enumerate(weights.indices) if any(node == axis for node in walk(index))]
    if len(found) == 1 and weights.indices[found[0]] == axis and weights.tensor.shape[found[0]] == axis.extent:
        return found[0]
    return None


def _evaluated(expr: Expr, axes: tuple[Axis, ...], constants: Constants) -> np.ndarray[Any, Any]:
    """An f32 expression over constants, computed in f64."""
    unit = {node: Const(0, "i64") for node in walk(expr) if isinstance(node, Axis) and node not in axes}
    plain = transform(expr, lambda e: unit.get(e) if isinstance(e, Axis) else None)
    compute = Compute(Tensor("value", tuple(axis.extent for axis in axes), "f32"), axes, plain)
    return evaluate_compute(compute, constants, precise=True, wide=True)


# Affine expressions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AffineIn:
    """``whole = alpha * read + beta``."""

    whole: Expr
    read: Read
    alpha: Expr
    beta: Expr


def _affine_around(node: Compute, tensor: Tensor, constants: Constants) -> _AffineIn | None:
    """The largest expression that is affine in `tensor` and contains each of its reads in the body of a map."""
    chains = []
    for path in _paths(node.body, tensor):
        chains.append(_chain(path, constants))
    shared = [link for link in chains[0] if all(any(link.whole == other.whole for other in chain) for chain in chains)]
    return shared[-1] if shared else None


def _paths(body: Expr, tensor: Tensor) -> list[list[Expr]]:
    """For every read of `tensor`: the expressions from it to the root."""
    found: list[list[Expr]] = []

    def visit(expr: Expr, above: list[Expr]) -> None:
        if isinstance(expr, Read) and expr.tensor == tensor:
            found.append([expr, *reversed(above)])
        for child in expr.children():
            visit(child, [*above, expr])

    visit(body, [])
    return found


def _chain(path: list[Expr], constants: Constants) -> list[_AffineIn]:
    """The affine expressions around a read, innermost first: as far as each step is one with constants."""
    read = path[0]
    assert isinstance(read, Read)
    links = [_AffineIn(read, read, Const(1.0, read.dtype), Const(0.0, read.dtype))]
    for parent in path[1:]:
        following = _step(links[-1], parent, constants)
        if following is None:
            break
        links.append(following)
    return links


def _step(link: _AffineIn, parent: Expr, constants: Constants) -> _AffineIn | None:
    """The affine form of `parent`, of which `link` is an operand."""
    if not isinstance(parent, Apply) or parent.dtype != "f32":
        return None
    alpha, beta = link.alpha, link.beta
    if parent.function == "neg":
        return _AffineIn(parent, link.read, _times(alpha, Const(-1.0, "f32")), _times(beta, Const(-1.0, "f32")))
    if parent.function not in ("add", "sub", "mul", "div"):
        return None
    left, right = parent.args
    first = left == link.whole
    other = right if first else left
    if not _is_constant(other, constants):
        return None
    if parent.function == "add":
        return _AffineIn(parent, link.read, alpha, _plus(beta, other))
    if parent.function == "sub" and first:
        return _AffineIn(parent, link.read, alpha, _plus(beta, _times(other, Const(-1.0, "f32"))))
    if parent.function == "sub":
        minus = Const(-1.0, "f32")
        return _AffineIn(parent, link.read, _times(alpha, minus), _plus(_times(beta, minus), other))
    if parent.function == "mul":
        return _AffineIn(parent, link.read, _times(alpha, other), _times(beta, other))
    if first:
        return _AffineIn(parent, link.read, alpha / other, beta if beta == Const(0.0, "f32") else beta / other)
    return None


def _is_constant(expr: Expr, constants: Constants) -> bool:
    """Whether an expression reads constants at single loops, and nothing else: its values need no guard."""
    for node in walk(expr):
        if isinstance(node, Read):
            if node.tensor.name not in constants:
                return False
            for index, extent in zip(node.indices, node.tensor.shape, strict=True):
                whole = isinstance(index, Axis) and index.extent == extent
                if not whole and not (isinstance(index, Const) and 0 <= index.value < extent):  # type: ignore[operator]
                    return False
        elif isinstance(node, Apply) and node.dtype != "f32":
            return False
    return True


def _times(left: Expr, right: Expr) -> Expr:
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(float(left.value) * float(right.value), "f32")
    if left == Const(1.0, "f32"):
        return right
    return left if left == Const(0.0, "f32") else left * right


def _plus(left: Expr, right: Expr) -> Expr:
    return right if left == Const(0.0, "f32") else left + right


def _replaced(body: Expr, old: Expr, new: Expr) -> Expr:
    """`body` with every `old` replaced, outermost first."""
    if body == old:
        return new
    if isinstance(body, Apply):
        return Apply(body.function, tuple(_replaced(arg, old, new) for arg in body.args), body.dtype)
    if isinstance(body, Cast):
        return Cast(_replaced(body.arg, old, new), body.dtype)
    return body
