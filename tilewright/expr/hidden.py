"""Elements that a mask hides: which of a loop's points an expression is minus infinity at, whatever it reads."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Apply, Axis, Const, Expr

# Comparisons as ``left <= right - distance``, with the sides that are left and right.
_BELOW = {"le": (0, 1, 0), "lt": (0, 1, 1), "ge": (1, 0, 0), "gt": (1, 0, 1)}


def last_seen(body: Expr, loop: Axis) -> Affine | None:
    """The last point of a loop at which a body may be more than minus infinity, as a form of other loops.

    None where no condition of the body says so.

    >>> from tilewright.expr.core import const, select
    >>> i, l = Axis("i", 64), Axis("l", 64)
    >>> last_seen(select(l <= i + 3, const(1.0, "f32"), const(-inf, "f32")), l)
    Affine(constant=3, terms={i:64: 1})
    """
    if not isinstance(body, Apply) or body.function != "select":
        return None
    condition, seen, hidden = body.args
    if not isinstance(hidden, Const) or hidden.value != -inf:
        return None
    found = [last for each in _conjuncts(condition) if (last := _largest(each, loop)) is not None]
    return found[0] if found else last_seen(seen, loop)


def without_mask(body: Expr, loop: Axis) -> Expr:
    """A body at points of a loop up to the last one that it shows, where its only condition is that one; else the body.

    >>> from tilewright.expr.core import const, select
    >>> i, l = Axis("i", 64), Axis("l", 64)
    >>> without_mask(select(l <= i, const(1.0, "f32"), const(-inf, "f32")), l)
    Const(value=1.0, dtype='f32')
    """
    if last_seen(body, loop) is None:
        return body
    assert isinstance(body, Apply), "it is a choice"
    condition, seen, _ = body.args
    if _largest(condition, loop) is not None:
        return seen
    return body


def hidden_part(body: Expr, loop: Axis) -> float:
    """About which part of the points of a loop a body hides: that behind the last one it shows, at the mean.

    >>> from tilewright.expr.core import const, select
    >>> i, l = Axis("i", 64), Axis("l", 64)
    >>> hidden_part(select(l <= i, const(1.0, "f32"), const(-inf, "f32")), l)
    0.4921875
    """
    last = last_seen(body, loop)
    if last is None or len(last.terms) > 1:
        return 0.0
    steps = [(axis.size, step) for axis, step in last.terms.items()] or [(1, 0)]
    ((size, step),) = steps
    seen = [min(max(last.constant + step * point + 1, 0), loop.size) for point in range(size)]
    return 1 - sum(seen) / (size * loop.size)


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Apply) and condition.function == "and":
        for each in condition.args:
            yield from _conjuncts(each)
    else:
        yield condition


def _largest(condition: Expr, loop: Axis) -> Affine | None:
    """The largest point of a loop at which a comparison holds."""
    if not isinstance(condition, Apply) or condition.function not in _BELOW:
        return None
    left, right, distance = _BELOW[condition.function]
    low, high = affine(condition.args[left]), affine(condition.args[right])
    if low is None or high is None:
        return None
    difference = high + low.scaled(-1)
    if difference.coefficient(loop) != -1:
        return None
    return difference + Affine(-distance, {loop: 1})
