"""Mean and squared deviations of a row in one pass over it, where a nest computes them in two.

A nest that sums its rows, divides by their length and sums the squares of what deviates from that reads every row
twice. A running mean and running squares per lane, merged at the end of the row, give both in one pass (Chan, Golub and
LeVeque, "Algorithms for computing the sample variance", 1983), with rounding errors no larger than those of two passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr.core import Apply, Const, Expr
from tilewright.operator.nest import Nest, NestNode, value_read, written_out


@dataclass(frozen=True)
class Moments:
    """Names of two reductions over the inner loops: a sum, and the sum of squared deviations from its mean."""

    total: str
    squares: str


def moments_of(nest: Nest) -> Moments | None:
    """The first two reductions of a nest that are the sum and the squared deviations of one value, in f32 or f64."""
    nodes = {node.tensor.name: node for node in nest.nodes}
    inlined = {name: node for name, node in nodes.items() if nest.covers_inner(node)}
    inner = prod(axis.size for axis in nest.inner)
    for squares in nest.nodes:
        deviation = _square_of(written_out(squares.body, inlined))
        if squares.accum != "sum" or not isinstance(deviation, Apply) or deviation.function != "sub":
            continue
        value, mean = deviation.args
        total = _summed(nodes[value_read(mean)], nodes, inner) if value_read(mean) in nodes else None
        if total is None or total.accum != "sum" or value.dtype not in ("f32", "f64"):
            continue
        same = total.tensor.dtype == squares.tensor.dtype == value.dtype
        if same and written_out(total.body, inlined) == value:
            return Moments(total.tensor.name, squares.tensor.name)
    return None


def _square_of(body: Expr) -> Expr | None:
    """What a body multiplies by itself."""
    if isinstance(body, Apply) and body.function == "mul" and body.args[0] == body.args[1]:
        return body.args[0]
    return None


def _summed(mean: NestNode, nodes: Mapping[str, NestNode], count: int) -> NestNode | None:
    """The reduction that a value per row divides by the number of inner points."""
    body = mean.body
    if mean.accum is not None or not isinstance(body, Apply) or body.function not in ("div", "mul"):
        return None
    total, factor = body.args
    if not isinstance(factor, Const) or value_read(total) not in nodes:
        return None
    exact = factor.value == count if body.function == "div" else factor.value == 1 / count
    return nodes[value_read(total)] if exact else None
