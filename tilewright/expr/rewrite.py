"""Rebuild expressions: substitution of loops, inlining of a producer into its consumer, simplification hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import is_

from tilewright.expr import dtypes
from tilewright.expr.affine import simplify
from tilewright.expr.core import Apply, Axis, Cast, Compute, Const, Expr, Read, Tensor
from tilewright.expr.dtypes import DType


def transform(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expr` bottom-up; `rule` may replace a node whose children are already rebuilt."""
    children = expr.children()
    rebuilt = _with_children(expr, [transform(child, rule) for child in children]) if children else expr
    replacement = rule(rebuilt)
    return rebuilt if replacement is None else replacement


def rewritten(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expr` top-down; what `rule` gives stands instead of a node and of all that is below it."""
    replacement = rule(expr)
    if replacement is not None:
        return replacement
    return _with_children(expr, [rewritten(child, rule) for child in expr.children()])


def _with_children(expr: Expr, children: Sequence[Expr]) -> Expr:
    """The node with other children; the node itself where they are the same."""
    if _same(children, expr.children()):
        return expr
    if isinstance(expr, Read):
        return Read(expr.tensor, tuple(children))
    if isinstance(expr, Apply):
        return Apply(expr.function, tuple(children), expr.dtype)
    assert isinstance(expr, Cast), "other nodes have no children"
    return Cast(children[0], expr.dtype)


def replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The expression with `new` wherever `old` stands in it."""
    return transform(expr, lambda node: new if node == old else None)


def _same(left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    """Whether nothing was rebuilt: identity, since equality of deep expressions costs as much as another walk."""
    return all(map(is_, left, right))


def substitute(expr: Expr, loops: Mapping[Axis, Expr]) -> Expr:
    """Replace loop variables, then simplify the index expressions this touches."""
    return simplify(_substituted(expr, loops))


def _substituted(expr: Expr, loops: Mapping[Axis, Expr]) -> Expr:
    if all(axis == index for axis, index in loops.items()):
        return expr
    return transform(expr, lambda node: loops.get(node) if isinstance(node, Axis) else None)


def inline(consumer: Compute, producer: Compute) -> Compute:
    """Replace every read of `producer`'s output in `consumer` by its body. `producer` must not reduce."""
    assert producer.accum is None, "only a compute without reduction can be inlined"

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.tensor == producer.output:
            return _substituted(producer.body, dict(zip(producer.axes, node.indices, strict=True)))
        return None

    return replace(consumer, body=simplify(transform(consumer.body, rule)))


def copy_of(source: Tensor, target: Tensor) -> Compute:
    """The identity: what a relayout computes."""
    axes = tuple(Axis(f"i{dim}", extent) for dim, extent in enumerate(source.shape))
    return Compute(target, axes, source[axes])


def with_floats(compute: Compute, dtype: DType) -> Compute:
    """The compute with every floating-point tensor and value of this type; integers and conditions stay as they are."""

    def of(old: DType) -> DType:
        return dtype if dtypes.is_float(old) else old

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Read):
            return Read(replace(node.tensor, dtype=of(node.tensor.dtype)), node.indices)
        if isinstance(node, Apply):
            return Apply(node.function, node.args, of(node.dtype))
        if isinstance(node, Const):
            return Const(node.value, of(node.dtype))
        return Cast(node.arg, of(node.dtype)) if isinstance(node, Cast) else None

    output = replace(compute.output, dtype=of(compute.output.dtype))
    return replace(compute, output=output, body=transform(compute.body, rule))
