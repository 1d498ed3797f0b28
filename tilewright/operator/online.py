"""The largest value of a row and the sum of exponentials beneath it in one pass, where a nest computes them in two.

A running sum is scaled down whenever a larger value comes (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018). It takes one reading of the row instead of two, and one exponential more for every value of the
running sum.
"""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.expr.core import Apply, Cast, Expr
from tilewright.operator.nest import Nest, value_read, written_out


@dataclass(frozen=True)
class Online:
    """Names of two reductions over the inner loops: the largest value, and the sum of ``exp(value - largest)``."""

    largest: str
    total: str


def online_of(nest: Nest) -> Online | None:
    """The first two reductions of a nest that one pass can make, the largest value not stored."""
    nodes = {node.tensor.name: node for node in nest.nodes}
    inlined = {name: node for name, node in nodes.items() if nest.covers_inner(node)}
    for node in nest.nodes:
        difference = _exponent(written_out(node.body, inlined))
        if node.accum != "sum" or not isinstance(difference, Apply) or difference.function != "sub":
            continue
        value, peak = (_plain(arg) for arg in difference.args)
        largest = nodes.get(value_read(peak))
        if largest is None or largest.accum != "max" or largest.index is not None:
            continue
        between = nest.nodes[nest.nodes.index(largest) + 1 : nest.nodes.index(node)]
        if any(each.tensor.name not in inlined or each.index is not None for each in between):
            continue  # it may need the largest value
        if difference.dtype == node.tensor.dtype == "f32" and _plain(written_out(largest.body, inlined)) == value:
            return Online(largest.tensor.name, node.tensor.name)
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
