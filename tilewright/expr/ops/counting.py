"""Histograms, places in sorted boundaries, and sums over bags of rows."""

from __future__ import annotations

from typing import Literal

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Const, Expr, Tensor, apply, const, scatter_body, select, static_shape
from tilewright.expr.dtypes import INDEX, DType, DTypeLike
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, clamp, emit, identity, map_elements
from tilewright.expr.ops.indexing import wrapped
from tilewright.expr.ops.nodes import accumulator, cast_node, fold_over, require_rank
from tilewright.expr.ops.shape import reshape
from tilewright.expr.ordered import PrefixScan, Scatter

Bag = Literal["sum", "mean", "max"]


@operator
def histogram(x: Tensor, bins: int, low: float, high: float, *, name: str = "histogram") -> Tensor:
    """How many elements of the vector x lie in each of `bins` equal parts of [low, high], in the dtype of x.

    `high` belongs to the last part. Elements outside and NaN are not counted. With low equal to high the range is that
    of the elements; a range that is one number v becomes [v - 1, v + 1].
    """
    b = x.builder
    require_rank(x, 1, "a vector", where=name)
    if bins < 1:
        raise InvalidExpression(f"{bins} bins", where=name, help="1 or more")
    if not low <= high:
        raise InvalidExpression(f"bins from {low} to {high}", where=name, help="bounds in order")
    wide = dtypes.wide(x.dtype)
    k = Axis("r0", x.shape[0])
    first, last = _bounds(b, x, low, high, wide, name)
    value = x[k].cast(wide)
    inside = (value >= first) & (value <= last)
    place = select(inside, (value - first) * float(bins) / (last - first), -1.0).cast(INDEX)
    (i,) = axes_of((bins,))
    counted = scatter_body(Const(0, INDEX), Const(1, INDEX), (apply("min", place, bins - 1),))
    count = emit(b, (i,), counted, reduce=(k,), accum=Scatter((0,), "sum"), name=f"{name}.count", source=name)
    return cast_node(b, count, x.dtype, name=name, source=name)


def _bounds(b: GraphBuilder, x: Tensor, low: float, high: float, wide: DType, name: str) -> tuple[Expr, Expr]:
    if low < high:
        return const(low, wide), const(high, wide)
    if not x.size:
        return const(low - 1, wide), const(high + 1, wide)
    least, most = (
        fold_over(b, x, [0], kind, lambda v: v.cast(wide), name=f"{name}.{kind}", source=name)[()]
        for kind in ("min", "max")
    )
    one = least.eq(most)
    return select(one, least - 1.0, least), select(one, most + 1.0, most)


@operator
def search_sorted(
    boundaries: Tensor, x: Tensor, *, right: bool = False, dtype: DTypeLike = INDEX,
    name: str = "search_sorted",
) -> Tensor:  # fmt: skip
    """How many of the sorted `boundaries` stand before each element of x: those below it, with `right` also equal ones.

    `boundaries` is a vector for all of x, or has the dimensions of x up to the last, which may differ.
    """
    b = boundaries.builder
    lead = static_shape(boundaries.shape)[:-1]
    if not boundaries.rank or (lead and lead != static_shape(x.shape)[:-1]):
        raise ExtentMismatch(f"boundaries {boundaries} for {x}", where=name, help="a vector, or equal leading extents")
    axes, k = axes_of(x.shape), Axis("r0", boundaries.shape[-1])
    boundary, value = boundaries[(*axes[: len(lead)], k)], x[axes]
    behind = apply("gt" if right else "ge", boundary, value)  # never true of NaN, which is larger than all
    one = select(behind, Const(0, dtype), Const(1, dtype))
    return emit(b, axes, one, reduce=(k,), accum="sum", name=name)


@operator
def embedding_bag(
    table: Tensor, indices: Tensor, offsets: Tensor, *, mode: Bag = "sum",
    weights: Tensor | None = None, include_last: bool = False, padding: int | None = None, name: str = "embedding_bag",
) -> Tensor:  # fmt: skip
    """Sums, means or maxima of the rows ``table[indices]`` over bags: ``out[bag, f]``.

    Bag i begins at ``offsets[i]`` of the vector `indices` and ends where the next begins; with `include_last` the last
    offset is the end of the last bag, and indices behind it are in none. Rows are multiplied by `weights` before they
    are added. An index that equals `padding` is left out, of the count of a mean too. An empty bag is 0.
    """
    b = table.builder
    if mode not in ("sum", "mean", "max"):
        raise InvalidExpression(f"bags by {mode!r}", where=name, help="sum, mean or max")
    for tensor, rank, meaning in ((table, 2, "[rows, features]"), (indices, 1, "a vector"), (offsets, 1, "a vector")):
        require_rank(tensor, rank, meaning, where=name)
    if weights is not None and (mode != "sum" or weights.shape != indices.shape):
        raise InvalidExpression(f"weights {weights} for bags by {mode}", where=name, help="one per index, mode sum")
    (count,), (starts,), (rows, features) = (static_shape(t.shape) for t in (indices, offsets, table))
    bags = starts - include_last
    if not rows and count:
        raise InvalidExpression(f"rows of {table}, which has none", where=name, help="no indices, or a larger table")
    bag = _bag_of(b, offsets, starts, count, name)
    i, f, k = Axis("i0", bags), Axis("i1", features), Axis("r0", count)
    kept: Expr = bag[k]
    if padding is not None:
        kept = select(wrapped(indices[k], rows).eq(padding % max(rows, 1)), -1, kept)
    wide = accumulator(table.dtype)
    value: Expr = table[wrapped(indices[k], rows), f].cast(wide)
    if weights is not None:
        value = value * weights[k].cast(wide)
    start = Const(float("-inf") if mode == "max" else 0.0, wide)
    total = emit(
        b, (i, f), scatter_body(start, value, (kept,)), reduce=(k,),
        accum=Scatter((0,), "max" if mode == "max" else "sum"), name=f"{name}.total", source=name,
    )  # fmt: skip
    if mode == "sum":
        return cast_node(b, total, table.dtype, name=name, source=name)
    counts = emit(
        b, (i,), scatter_body(Const(0, INDEX), Const(1, INDEX), (kept,)), reduce=(k,), accum=Scatter((0,), "sum"),
        name=f"{name}.counts", source=name,
    )  # fmt: skip
    result = total[i, f] if mode == "max" else total[i, f] / apply("max", counts[i], 1).cast(wide)
    return emit(b, (i, f), select(counts[i].eq(0), 0.0, result).cast(table.dtype), name=name)


def _bag_of(b: GraphBuilder, offsets: Tensor, starts: int, count: int, name: str) -> Tensor:
    """The bag of each of `count` indices: one less than the number of offsets at it or before it."""
    (i,), k = axes_of((count,)), Axis("r0", starts)
    begins = scatter_body(Const(0, INDEX), Const(1, INDEX), (offsets[k].cast(INDEX),))
    marks = emit(b, (i,), begins, reduce=(k,), accum=Scatter((0,), "sum"), name=f"{name}.begins", source=name)
    j = Axis("r0", count)
    begun = emit(b, (i,), marks[j], reduce=(j,), accum=PrefixScan(0, "sum"), name=f"{name}.begun", source=name)
    return map_elements([begun], lambda v: v - 1, name=f"{name}.bag")


@operator
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor, *, name: str = "masked_scatter") -> Tensor:
    """x with the elements where `mask` (of the shape of x) is true replaced by those of the vector `source`, in order.

    The last element of `source` stands for those that it lacks; an empty one replaces nothing.
    """
    b = x.builder
    require_rank(source, 1, "a vector", where=name)
    if mask.shape != x.shape:
        raise ExtentMismatch(f"a mask {mask} for {x}", where=name, help="equal shapes")
    if not source.size:
        return identity(x, name=name)
    line = reshape(mask, (x.size,), name=f"{name}.line")
    (i,), k = axes_of(line.shape), Axis("r0", x.size)
    flag = line[k].cast(INDEX)
    rank = emit(b, (i,), flag, reduce=(k,), accum=PrefixScan(0, "sum"), name=f"{name}.rank", source=name)
    rank = reshape(rank, static_shape(x.shape), name=f"{name}.place")
    axes = axes_of(x.shape)
    place = clamp(rank[axes] - 1, 0, source.size - 1)
    return emit(b, axes, select(mask[axes], source[place], x[axes]), name=name)
