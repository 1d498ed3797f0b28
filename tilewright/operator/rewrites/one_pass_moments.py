"""Moments in one pass: a sum of squared deviations follows the mean of a row, so that one pass can compute both.

    Before:  t = sum over i of x[i]     m = t / n     q = sum over i of (x[i] - m)^2
    After:   the same, and q follows the mean so far
             when m becomes m',  q' = q + sum over new elements of (x - m)(x - m')

Parts of a row are put together by ``q + count (m - m')^2`` (Welford, 1962; Chan, Golub and LeVeque, "Algorithms for
computing the sample variance", 1983), with rounding errors no larger than those of two passes. Legal in f32 and f64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilewright.expr.core import Apply, Const, Expr
from tilewright.operator.statements import Statements, covering, inner_loops, value_read, written_out
from tilewright.tiles.kernel import AFTER, BEFORE, ELEMENT, Follows, Statement, placeholder


def one_pass_moments(statements: Statements) -> Statements:
    """The statements, in which sums of squared deviations from the mean follow the sum that the mean is made of."""
    values, inlined = {each.name: each for each in statements}, covering(statements)
    points = prod(axis.size for axis in inner_loops(statements))
    return tuple(_following(each, values, inlined, points) for each in statements)


def _following(
    squares: Statement, values: Mapping[str, Statement], inlined: Mapping[str, Statement], points: int
) -> Statement:
    deviation = _square_of(written_out(squares.body, inlined)) if squares.accum == "sum" else None
    if not isinstance(deviation, Apply) or deviation.function != "sub":
        return squares
    value, mean = deviation.args
    total, dtype = _summed(values.get(value_read(mean)), values, points), squares.tensor.dtype
    if total is None or total.accum != "sum" or value.dtype not in ("f32", "f64"):
        return squares
    if not total.tensor.dtype == dtype == value.dtype or written_out(total.body, inlined) != value:
        return squares
    element, before, after = (placeholder(name, dtype) for name in (ELEMENT, BEFORE, AFTER))
    term, offset = (element - before) * (element - after), (before - after) * (before - after)
    return replace(squares, follows=Follows(total.name, term, offset=offset))


def _square_of(body: Expr) -> Expr | None:
    """What a body multiplies by itself."""
    if isinstance(body, Apply) and body.function == "mul" and body.args[0] == body.args[1]:
        return body.args[0]
    return None


def _summed(mean: Statement | None, values: Mapping[str, Statement], count: int) -> Statement | None:
    """The reduction that a value per row divides by the number of inner points."""
    body = None if mean is None or mean.accum is not None else mean.body
    if not isinstance(body, Apply) or body.function not in ("div", "mul"):
        return None
    total, factor = body.args
    if not isinstance(factor, Const) or value_read(total) not in values:
        return None
    exact = factor.value == count if body.function == "div" else factor.value == 1 / count
    return values[value_read(total)] if exact else None
