"""Exponentials of differences from the largest value, as those of numbers that are at most 0.

    Before:  m = max over i of x[i]     w[i] = exp(x[i] - m)
    After:   the same, with w[i] = exp_nonpositive(x[i] - m)

No power overflows then, and one below the smallest normal number is 0, which a softmax does not tell from what it was:
its sum is at least 1. Half of the instructions of `exp` are left where none gives powers of two. Legal in f32, also of
the factor of a sum that follows the largest value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.expr.core import Apply, Expr
from tilewright.expr.rewrite import transform
from tilewright.operator.rewrites.online_softmax import without_conversions
from tilewright.operator.statements import Statements, covering, value_read, written_out
from tilewright.tiles.kernel import AFTER, BEFORE, ELEMENT, Follows, Statement

BELOW = ((ELEMENT, AFTER), (BEFORE, AFTER))  # running values of a maximum, of which the first is at most the second


def nonpositive_exponentials(statements: Statements) -> Statements:
    """The statements, in which exponentials of what is at most 0 are computed as such."""
    values, inlined = {each.name: each for each in statements}, covering(statements)
    return tuple(_rewritten(each, values, inlined) for each in statements)


def _rewritten(each: Statement, values: Mapping[str, Statement], inlined: Mapping[str, Statement]) -> Statement:
    def below_largest(value: Expr, peak: Expr) -> bool:
        largest = values.get(value_read(without_conversions(peak)))
        if largest is None or largest.accum != "max":
            return False
        body, value = (without_conversions(written_out(expr, inlined)) for expr in (largest.body, value))
        return body == value

    def rule(expr: Expr) -> Expr | None:
        difference = _difference(expr)
        return _nonpositive(expr) if difference is not None and below_largest(*difference) else None

    follows = each.follows
    if follows is not None and values[follows.reduction].accum == "max":
        follows = _following(follows)
    return replace(each, body=transform(each.body, rule), follows=follows)


def _following(rule: Follows) -> Follows:
    """How a sum follows a maximum."""

    def nonpositive(expr: Expr) -> Expr | None:
        difference = _difference(expr)
        return _nonpositive(expr) if difference is not None and tuple(map(value_read, difference)) in BELOW else None

    factor = None if rule.factor is None else transform(rule.factor, nonpositive)
    return replace(rule, term=transform(rule.term, nonpositive), factor=factor)


def _difference(expr: Expr) -> tuple[Expr, Expr] | None:
    """Both sides of a difference whose exponential an expression is, in f32."""
    if not (isinstance(expr, Apply) and expr.function == "exp" and expr.dtype == "f32"):
        return None
    argument = without_conversions(expr.args[0])
    if not (isinstance(argument, Apply) and argument.function == "sub"):
        return None
    value, peak = argument.args
    return value, peak


def _nonpositive(expr: Expr) -> Expr:
    assert isinstance(expr, Apply)
    return Apply("exp_nonpositive", expr.args, expr.dtype)
