"""Online softmax: a sum of exponentials follows the largest value of a row, so that one pass can compute both.

    Before:  m = max over i of x[i]     s = sum over i of exp(x[i] - m)
    After:   the same, and s follows m
             when m becomes m',  s' = s exp(m - m') + sum over new elements of exp(x - m')

One reading of the row instead of two takes one exponential more for every value of the running sum (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018). Legal in f32 and f64 where m is not stored: a row of
nothing but minus infinity has another m, with the same sums of its exponentials relative to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.expr.core import Apply, Expr
from tilewright.operator.statements import Statements, covering, value_read, without_conversions, written_out
from tilewright.tiles.kernel import AFTER, BEFORE, ELEMENT, Follows, Statement, placeholder


def online_softmax(statements: Statements) -> Statements:
    """The statements, in which sums of exponentials below the largest value follow it."""
    values, inlined = {each.name: each for each in statements}, covering(statements)
    return tuple(_following(each, values, inlined) for each in statements)


def _following(total: Statement, values: Mapping[str, Statement], inlined: Mapping[str, Statement]) -> Statement:
    difference = _exponent(written_out(total.body, inlined)) if total.accum == "sum" else None
    if not isinstance(difference, Apply) or difference.function != "sub":
        return total
    value, peak = (without_conversions(arg) for arg in difference.args)
    largest, dtype = values.get(value_read(peak)), total.tensor.dtype
    if largest is None or largest.accum != "max" or largest.address is not None:
        return total
    if (
        difference.dtype != dtype
        or dtype not in ("f32", "f64")
        or without_conversions(written_out(largest.body, inlined)) != value
    ):
        return total
    element, before, after = (placeholder(name, dtype) for name in (ELEMENT, BEFORE, AFTER))
    term, factor = (Apply("exp", (each - after,), dtype) for each in (element, before))
    return replace(total, follows=Follows(largest.name, term, factor, least=1.0))  # exp(0), of the largest value


def _exponent(body: Expr) -> Expr | None:
    """What a body takes the exponential of."""
    plain = without_conversions(body)
    return without_conversions(plain.args[0]) if isinstance(plain, Apply) and plain.function == "exp" else None
