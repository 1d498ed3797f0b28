"""Scans, sorts and scatters as maps and reductions, for machines that run nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import simplify
from tilewright.expr.core import ACCUMULATIONS, Apply, Axis, Compute, Const, Expr, Read, Tensor, apply, identity, select
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import claim
from tilewright.expr.ordered import PrefixScan, Scatter, Sort
from tilewright.expr.rewrite import substitute
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class OrderedAsReductions:
    """Replace every ordered accumulation, if `wanted`.

    Before:  s[j] += x[k] over k scanned j
    After:   s[j] += k <= j ? x[k] : 0 over k
    A sort becomes the rank of each element, then a search for each rank; a scatter a search of each element of the
    result for the updates that hit it. Always legal, and required on GPUs. Every element is independent, for work that
    grows with the square of an extent. Needs nothing before it. Afterwards, if wanted, no accumulation is ordered.
    """

    wanted: bool = True
    name: ClassVar[str] = "ordered-as-reductions"

    def apply(self, state: Rewritten) -> Rewritten:
        if not self.wanted or not any(node.ordered for node in state.graph.nodes):
            return state
        taken = set(state.graph.tensors())
        nodes = [each for node in state.graph.nodes for each in _replaced(node, taken)]
        return replace(state, graph=replace(state.graph, nodes=tuple(nodes)))


def _replaced(node: Compute, taken: set[str]) -> list[Compute]:
    accum = node.ordered
    if accum is None:
        return [node]
    made = _Made(node, taken)
    if isinstance(accum, PrefixScan):
        made.scan(accum)
    elif isinstance(accum, Sort):
        made.sort(accum)
    else:
        made.scatter(accum)
    return made.nodes


class _Made:
    """The nodes that replace one; the last one writes its result."""

    def __init__(self, node: Compute, taken: set[str]) -> None:
        self.node, self.taken = node, taken
        self.nodes: list[Compute] = []

    def add(
        self, suffix: str, axes: Sequence[Axis], body: Expr, reduce: Sequence[Axis] = (), accum: str = ""
    ) -> Tensor:
        """A node called by its suffix, or the last one."""
        name = claim(f"{self.node.name}.{suffix}", self.taken) if suffix else self.node.name
        output = Tensor(name, tuple(axis.extent for axis in axes), body.dtype)
        body = simplify(body)
        self.nodes.append(Compute(output, tuple(axes), body, tuple(reduce), accum or None, self.node.source))
        return output

    def elements(self, dim: int) -> Tensor:
        """The body along the reduction loop in the place of a dimension: computed once, for it is read many times."""
        axes = self.node.axes
        row = (*axes[:dim], *self.node.reduce, *axes[dim + 1 :])
        body = self.node.body
        if isinstance(body, Read) and body.indices == row and body.tensor.shape == tuple(axis.extent for axis in row):
            return body.tensor
        return self.add("elements", row, body)

    def scan(self, accum: PrefixScan) -> None:
        node, d = self.node, accum.dim
        x, (k,) = self.elements(d), node.reduce
        i = node.axes[d]
        counts = {
            (False, False): k <= i, (True, False): k < i, (False, True): k >= i, (True, True): k > i,
        }[accum.exclusive, accum.reverse]  # fmt: skip
        element = x[(*node.axes[:d], k, *node.axes[d + 1 :])]
        body = select(counts, element, identity(accum.combine, element.dtype))
        self.add("", node.axes, body, node.reduce, accum.combine)

    def sort(self, accum: Sort) -> None:
        node, d = self.node, accum.dim
        x, (r,) = self.elements(d), node.reduce
        k = Axis(f"{r.name}.own", r.extent)
        row = (*node.axes[:d], k, *node.axes[d + 1 :])
        mine, other = x[row], x[(*node.axes[:d], r, *node.axes[d + 1 :])]
        before = _above(other, mine) if accum.descending else _above(mine, other)
        tie = _same(mine, other)
        first = (before | (tie & (r < k))).cast(INDEX)
        rank = self.add("rank", row, first, node.reduce, "sum")
        ranked = rank[(*node.axes[:d], r, *node.axes[d + 1 :])]
        self.add("", node.axes, select(ranked.eq(node.axes[d]), r, 0), node.reduce, "max")

    def scatter(self, accum: Scatter) -> None:
        node, axes = self.node, self.node.axes
        assert isinstance(node.body, Apply)
        initial, value, *places = node.body.args
        hit: Expr = Const(True, "bool")
        for dim, place in zip(accum.dims, places, strict=True):
            hit = hit & place.eq(axes[dim])
        if accum.combine:
            body = select(hit, value, identity(accum.combine, value.dtype))
            total = self.add("total", axes, body, node.reduce, accum.combine)
            self.add("", axes, apply(ACCUMULATIONS[accum.combine], initial, total[axes]))
            return
        number: Expr = Const(0, INDEX)
        for loop in node.reduce:
            number = number * loop.size + loop
        last = self.add("last", axes, select(hit, number, -1), node.reduce, "max")
        rest: Expr = apply("max", last[axes], 0)
        chosen: dict[Axis, Expr] = {}
        for loop in reversed(node.reduce):
            chosen[loop] = rest if loop is node.reduce[0] else rest % loop.size
            rest = rest // loop.size if loop.size else rest
        self.add("", axes, select(last[axes] >= 0, substitute(value, chosen), initial))


def _above(a: Expr, b: Expr) -> Expr:
    """Whether a stands above b; NaN does above all numbers."""
    if a.dtype == "bool":
        return a & ~b
    return (a > b) | (apply("isnan", a) & ~apply("isnan", b)) if dtypes.is_float(a.dtype) else a > b


def _same(a: Expr, b: Expr) -> Expr:
    return a.eq(b) | (apply("isnan", a) & apply("isnan", b)) if dtypes.is_float(a.dtype) else a.eq(b)
