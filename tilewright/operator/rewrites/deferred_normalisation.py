"""Deferred normalisation: a product with the weights of a softmax divides its sums, and not the weights.

    Before:  m = max over i of x[i]     s = sum over i of exp(x[i] - m)
             y[j] = sum over i of exp(x[i] - m) / s * v[i, j]
    After:   the same m and s, z[j] = sum over i of exp(x[i] - m) * v[i, j], and y[j] = z[j] * (1 / s)
             when m becomes m',  z' = z exp(m - m') + sum over new elements of exp(x - m') v

Both sums follow m, so that a row may be taken in parts (Dao et al., "FlashAttention", 2022). Legal where
`online_softmax` is. Weights round to their type before they are multiplied, as they did; they are now in (0, 1].
On a CPU s is the sum of rounded weights then. A cast to integers is not deferred: nearly all weights would be 0.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.core import Apply, Cast, Const, Expr, Read, Tensor
from tilewright.expr.names import unique
from tilewright.expr.rewrite import replaced, transform
from tilewright.operator.rewrites.online_softmax import online_softmax
from tilewright.operator.statements import Statements, value_read, written_out
from tilewright.tiles.kernel import Follows, Statement


@dataclass(frozen=True)
class Deferred:
    """The rows of a softmax without its division: `rows` are the largest value, the sum and the weights, in order."""

    rows: Statements

    def with_weights_once(self) -> Statements:
        """Rows with the weights before their sum, which reads them: exponentials are computed once.

        Weights that are rounded are added up as they are multiplied; where one pass has the largest value and the
        sum, the sum is that of weights before they are rounded.
        """
        largest, total, weights = self.rows
        return largest, weights, replace(total, body=_cast(_value(weights), total.body.dtype))

    def product(self, statements: Statements) -> Statements:
        """A product whose factor the weights are, and perhaps its epilogue, which divides by their sum."""
        _, total, weights = self.rows
        follows = total.follows
        assert follows is not None, "it follows the largest value"
        sums, *after = statements
        running = replaced(weights.body, total.body, follows.term)
        term = transform(sums.body, lambda node: running if value_read(node) == weights.name else None)
        sums = replace(sums, follows=Follows(follows.reduction, term, follows.factor))
        if not after:
            name = unique(f"{sums.name}.sum", {each.name for each in (*self.rows, *statements)})
            stored = replace(sums, reduce=(), accum=None, follows=None)
            sums = replace(sums, tensor=Tensor(name, (), sums.tensor.dtype), address=None)
            after = [replace(stored, body=_value(sums))]
        dtype = sums.tensor.dtype
        inverse = Apply("div", (Const(1, dtype), _cast(_value(total), dtype)), dtype)
        divided = Apply("mul", (_value(sums), inverse), dtype)
        epilogue = [
            replace(each, body=transform(each.body, lambda node: divided if value_read(node) == sums.name else None))
            for each in after
        ]
        return (sums, *epilogue)


def deferred_normalisation(rows: Statements) -> Deferred | None:
    """The rows between two products, the last of which is a factor of the second; None where they are no softmax."""
    *others, weights = online_softmax(rows)
    values = {each.name: each for each in others if each.accum is None}
    reductions = {each.name: each for each in others if each.accum is not None}
    quotient = _without_casts(written_out(weights.body, values))
    if not isinstance(quotient, Apply) or quotient.function != "div":
        return None
    weight, divisor = quotient.args
    total = reductions.get(value_read(_without_casts(divisor)))
    follows = None if total is None else total.follows
    if total is None or follows is None or follows.factor is None or written_out(total.body, values) != weight:
        return None
    if set(reductions) != {follows.reduction, total.name} or any(each.address is not None for each in rows):
        return None
    largest = reductions[follows.reduction]
    return Deferred((
        replace(largest, body=written_out(largest.body, values)),
        replace(total, body=weight),
        replace(weights, body=replaced(written_out(weights.body, values), quotient, weight)),
    ))  # fmt: skip


def _value(statement: Statement) -> Read:
    """The value of a statement at the same point."""
    return Read(Tensor(statement.name, (), statement.tensor.dtype), ())


def _cast(value: Expr, dtype: str) -> Expr:
    return value if value.dtype == dtype else Cast(value, dtype)


def _without_casts(expr: Expr) -> Expr:
    """What an expression is before it is rounded to other types of real numbers."""
    while isinstance(expr, Cast) and dtypes.is_float(expr.dtype):
        expr = expr.arg
    return expr
