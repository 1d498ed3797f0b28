"""Mean and squared deviations of a row in one pass over it, where a kernel computes them in two.

A kernel that sums its rows, divides by their length and sums the squares of what deviates from that reads every row
twice. A running mean and running squares per lane, merged at the end of the row, give both in one pass (Chan, Golub and
LeVeque, "Algorithms for computing the sample variance", 1983), with rounding errors no larger than those of two passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr.core import Apply, Const, Expr
from tilewright.operator.statements import covering, inner_loops, value_read, written_out
from tilewright.tiles.kernel import Statement


@dataclass(frozen=True)
class Moments:
    """Names of two reductions over the inner loops: a sum, and the sum of squared deviations from its mean."""

    total: str
    squares: str


def moments_of(statements: Sequence[Statement]) -> Moments | None:
    """The first two reductions of a kernel that are the sum and the squared deviations of one value, in f32 or f64."""
    values = {each.name: each for each in statements}
    inlined = covering(statements)
    inner = prod(axis.size for axis in inner_loops(statements))
    for squares in statements:
        deviation = _square_of(written_out(squares.body, inlined))
        if squares.accum != "sum" or not isinstance(deviation, Apply) or deviation.function != "sub":
            continue
        value, mean = deviation.args
        total = _summed(values[value_read(mean)], values, inner) if value_read(mean) in values else None
        if total is None or total.accum != "sum" or value.dtype not in ("f32", "f64"):
            continue
        same = total.tensor.dtype == squares.tensor.dtype == value.dtype
        if same and written_out(total.body, inlined) == value:
            return Moments(total.name, squares.name)
    return None


def _square_of(body: Expr) -> Expr | None:
    """What a body multiplies by itself."""
    if isinstance(body, Apply) and body.function == "mul" and body.args[0] == body.args[1]:
        return body.args[0]
    return None


def _summed(mean: Statement, values: Mapping[str, Statement], count: int) -> Statement | None:
    """The reduction that a value per row divides by the number of inner points."""
    body = mean.body
    if mean.accum is not None or not isinstance(body, Apply) or body.function not in ("div", "mul"):
        return None
    total, factor = body.args
    if not isinstance(factor, Const) or value_read(total) not in values:
        return None
    exact = factor.value == count if body.function == "div" else factor.value == 1 / count
    return values[value_read(total)] if exact else None
