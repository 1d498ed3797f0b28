"""The largest value of a row and the sum of exponentials beneath it in one pass, where a kernel computes them in two.

A running sum is scaled down whenever a larger value comes (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018). It takes one reading of the row instead of two, and one exponential more for every value of the
running sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataclass import dataclass
from tilewright.expr.core import Apply, Cast, Expr
from tilewright.operator.statements import covering, value_read, written_out
from tilewright.tiles.kernel import Statement


@dataclass(frozen=True)
class Online:
    """Names of two reductions over the inner loops: the largest value, and the sum of ``exp(value - largest)``."""

    largest: str
    total: str


def online_of(statements: Sequence[Statement]) -> Online | None:
    """The first two reductions of a kernel that one pass can make, the largest value not stored."""
    values, inlined = {each.name: each for each in statements}, covering(statements)
    for number, total in enumerate(statements):
        difference = _exponent(written_out(total.body, inlined))
        if total.accum != "sum" or not isinstance(difference, Apply) or difference.function != "sub":
            continue
        value, peak = (_plain(arg) for arg in difference.args)
        largest = values.get(value_read(peak))
        if largest is None or largest.accum != "max" or largest.address is not None:
            continue
        between = statements[statements.index(largest) + 1 : number]
        if any(each.name not in inlined or each.address is not None for each in between):
            continue  # it may need the largest value
        if difference.dtype == total.tensor.dtype == "f32" and _plain(written_out(largest.body, inlined)) == value:
            return Online(largest.name, total.name)
    return None


def _exponent(body: Expr) -> Expr | None:
    """What a body takes the exponential of."""
    plain = _plain(body)
    return _plain(plain.args[0]) if isinstance(plain, Apply) and plain.function == "exp" else None


def _plain(expr: Expr) -> Expr:
    """A value without conversions to f32, which change nothing."""
    while isinstance(expr, Cast) and expr.dtype == "f32" and expr.arg.dtype in ("f16", "bf16", "f32"):
        expr = expr.arg
    return expr
