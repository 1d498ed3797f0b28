"""Powers of two for the exponentials of a softmax, with the scale of its values in the exponent.

    Before:  x = c y      m = max x     s = sum of exp(x - m)
    After:   x = y        m = max x     s = sum of 2^(x k - m k),     k = c log2 e

A matrix unit's sums then take one multiply-add and one instruction for each exponential. Legal for c above 0, in f32:
the order of values stays, and a mask that hides them, minus infinity, is the same for every c. The exponent is
``(x - m) k`` with k above 1, since differences of the largest numbers fit where their multiples do not, and with a y
that is no bare sum of a product: a number that hides elements, as the lowest one is, may be added to it or stand for
it, and its multiple rounds by more than an exponential bears.
"""

from __future__ import annotations

from dataclasses import replace
from math import e, inf, log2

from tilewright.expr.core import Apply, Const, Expr
from tilewright.expr.rewrite import replaced, transform
from tilewright.operator.rewrites.deferred_normalisation import Deferred
from tilewright.operator.statements import value_read
from tilewright.tiles.kernel import Statement


def powers_of_two(link: Statement, softmax: Deferred) -> tuple[Statement, Deferred]:
    """What gives a softmax its values, and the softmax, with powers of two where its weights are exp(x - m)."""
    largest, total, weights = softmax.rows
    exponential = total.body
    if link.tensor.dtype != "f32" or not isinstance(exponential, Apply) or exponential.function != "exp":
        return link, softmax
    (difference,) = exponential.args
    if not isinstance(difference, Apply) or difference.function != "sub":
        return link, softmax
    scale, body = _positive_factor(link.body) if link.accum is None else (1.0, link.body)
    value, peak = difference.args
    if value_read(value) != link.name or value_read(largest.body) != link.name or value_read(peak) != largest.name:
        scale, body = 1.0, link.body
    power = _power(value, peak, scale * log2(e), bool(value_read(_shown(body))))
    rows = (largest, replace(total, body=power), replace(weights, body=replaced(weights.body, exponential, power)))
    follows = total.follows
    assert follows is not None, "it follows the largest value"
    assert follows.factor is not None, "its terms change with it"
    rule = replace(follows, term=_in_powers(follows.term, scale), factor=_in_powers(follows.factor, scale))
    return replace(link, body=body), Deferred((rows[0], replace(rows[1], follows=rule), rows[2]))


def _power(value: Expr, peak: Expr, factor: float, bare: bool) -> Expr:
    """2 to the difference of two values times a factor; `bare` values are sums of a product, with a mask perhaps."""
    k = Const(factor, "f32")
    exponent = value * k - peak * k if bare and factor <= 1 else (value - peak) * k
    return Apply("exp2", (exponent,), "f32")


def _in_powers(expr: Expr, scale: float) -> Expr:
    """An exponential of differences as a power of two, its argument times `scale`."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Apply) and node.function == "exp":
            return Apply("exp2", (node.args[0] * Const(scale * log2(e), "f32"),), node.dtype)
        return None

    return transform(expr, rule)


def _positive_factor(body: Expr) -> tuple[float, Expr]:
    """A number above 0 by which all of a body is multiplied but for minus infinities, and the body without it."""
    if not isinstance(body, Apply):
        return 1.0, body
    if body.function == "mul":
        for number, other in (body.args, body.args[::-1]):
            if isinstance(number, Const) and 0 < number.value < inf:
                return float(number.value), other
    if body.function == "select" and _is_hidden(body.args[2]):
        factor, seen = _positive_factor(body.args[1])
        return factor, Apply("select", (body.args[0], seen, body.args[2]), body.dtype)
    return 1.0, body


def _shown(body: Expr) -> Expr:
    """A body where no mask hides it."""
    while isinstance(body, Apply) and body.function == "select" and _is_hidden(body.args[2]):
        body = body.args[1]
    return body


def _is_hidden(value: Expr) -> bool:
    return isinstance(value, Const) and value.value == -inf
