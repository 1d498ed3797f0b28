"""Two classes of operators: those whose blocking creates reuse, and those that an array of multiply-adds runs."""

from __future__ import annotations

from tilewright.expr.core import Apply, Axis, Cast, Compute, Const, Expr, Read, walk


def is_compute_intensive(compute: Compute) -> bool:
    """Whether blocking creates reuse: a reduction, and two inputs each constant along a spatial loop (spec 1, §1.6)."""
    if not compute.reduce or compute.ordered is not None:
        return False
    constant = {read for read in compute.reads() if any(a.size != 1 and a not in _axes(read) for a in compute.axes)}
    return len(constant) >= 2


def is_matrix_operator(compute: Compute) -> bool:
    """Whether an array of multiply-adds runs it: compute-intensive, and the sum of a product of two elements.

    An element may be cast, and may be a constant outside of its tensor, as in the border of an image.
    """
    body = compute.body
    if compute.accum != "sum" or not isinstance(body, Apply) or body.function != "mul":
        return False
    return all(_is_element(factor) for factor in body.args) and is_compute_intensive(compute)


def _is_element(expr: Expr) -> bool:
    if isinstance(expr, Cast):
        return _is_element(expr.arg)
    if isinstance(expr, Apply) and expr.function == "select":
        _, *values = expr.args
        return all(isinstance(value, Const) or _is_element(value) for value in values)
    return isinstance(expr, Read)


def _axes(read: Read) -> set[Axis]:
    return {node for node in walk(read) if isinstance(node, Axis)}
