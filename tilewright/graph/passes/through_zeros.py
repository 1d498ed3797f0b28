"""What sums over windows read of tensors with zeros around or between the elements of another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read
from tilewright.expr.rewrite import transform


def keeps_zeros(body: Expr) -> bool:
    """Whether every operation of a body is a multiplication or a conversion of a value, so that zeros give zero."""
    if isinstance(body, Read):
        return True
    if isinstance(body, Apply) and body.function != "mul":
        return False
    return bool(body.children()) and all(keeps_zeros(child) for child in body.children())


def through_zeros(read: Read, producers: Mapping[str, Compute]) -> tuple[Read, list[Expr]]:
    """The read of which `read` gives the element where all the conditions hold, and zero elsewhere."""
    conditions: list[Expr] = []
    while (producer := producers.get(read.tensor.name)) is not None and producer.accum is None:
        places = dict(zip(producer.axes, read.indices, strict=True))
        body, guards = producer.body, []
        while isinstance(body, Apply) and body.function == "select" and is_zero(body.args[2]):
            guards.append(body.args[0])
            body = body.args[1]
        if not guards or not isinstance(body, Read):
            break
        body, *guards = (
            transform(each, lambda node: places.get(node) if isinstance(node, Axis) else None)  # noqa: B023
            for each in (body, *guards)
        )
        assert isinstance(body, Read)
        read = body
        conditions += guards
        if any(isinstance(index, Apply) and index.function == "floordiv" for index in read.indices):
            break
    return read, [term for condition in conditions for term in _conjuncts(condition)]


def interval(condition: Expr, form: Affine) -> tuple[int, int] | None:
    """The interval to which a comparison restricts `form`, or None if it is about something else."""
    if not isinstance(condition, Apply) or condition.function not in ("lt", "le", "gt", "ge"):
        return None
    difference = affine(condition.args[0] - condition.args[1])
    if difference is None or difference.terms != form.terms:
        return None
    bound = form.constant - difference.constant  # the comparison is `form` with `bound`
    strict = 1 if condition.function in ("lt", "gt") else 0
    if condition.function in ("lt", "le"):
        return -(1 << 62), bound - strict
    return bound + strict, 1 << 62


def kernel_dimension(weights: Read, kernel: Axis) -> int | None:
    """The dimension of the weights that a kernel loop runs through, forwards or backwards, if any."""
    for dimension, index in enumerate(weights.indices):
        form = affine(index)
        if form is not None and list(form.terms) == [kernel] and abs(form.coefficient(kernel)) == 1:
            return dimension
    return None


def is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Apply) and condition.function == "and":
        for arg in condition.args:
            yield from _conjuncts(arg)
    else:
        yield condition
