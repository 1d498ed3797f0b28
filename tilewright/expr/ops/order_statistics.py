"""Running extremes, running sums of exponentials, and elements by their rank: median, k-th smallest, most frequent.

NaN is larger than any number, as in `expr.ordered`. Positions are i64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.errors import InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, Tensor, apply, const, select, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, clamp, emit
from tilewright.expr.ops.nodes import cast_node, fold_over, normal_axis
from tilewright.expr.ops.reduce import arg_max, top_k
from tilewright.expr.ordered import PrefixScan

Names = tuple[str, str]


@operator
def cum_extreme(
    x: Tensor, *, axis: int, largest: bool = True, names: Names = ("cum_max", "index")
) -> tuple[Tensor, Tensor]:
    """The largest (or smallest) element up to each position along `axis`, and the last position that holds it.

    From a NaN on every value is NaN.
    """
    b = x.builder
    d = normal_axis(axis, x.rank, where=names[0])
    kind = "max" if largest else "min"
    axes, k = axes_of(x.shape), Axis("r0", x.shape[d])
    row = _at(axes, d, k)
    values = emit(b, axes, x[row], reduce=(k,), accum=PrefixScan(d, kind), name=names[0])
    here = x[row].eq(values[row])
    if dtypes.is_float(x.dtype):
        here = here | apply("isnan", x[row])
    index = emit(b, axes, select(here, k, 0), reduce=(k,), accum=PrefixScan(d, "max"), name=names[1], source=names[0])
    return values, index


def log_add_exp(v: Expr, w: Expr) -> Expr:
    """``log(exp(v) + exp(w))`` without overflow; equal infinities stay as they are."""
    top, apart = apply("max", v, w), -apply("abs", v - w)
    return select(v.eq(w) & apply("isinf", v), v, top + apply("log1p", apply("exp", apart)))


@operator
def log_cum_sum_exp(x: Tensor, *, axis: int, name: str = "log_cum_sum_exp") -> Tensor:
    """``log(sum of exp(x[k]) for k <= j)`` along `axis`, in as many steps as the extent has bits.

    Step s joins each element with the one ``2**s`` before it, so that nothing overflows or vanishes in a long row.
    """
    b = x.builder
    d = normal_axis(axis, x.rank, where=name)
    total = cast_node(b, x, dtypes.wide(x.dtype), name=f"{name}.in", source=name)
    axes, distance = axes_of(x.shape), 1
    while distance < static_shape(x.shape)[d]:
        before, here = total[_at(axes, d, axes[d] - distance)], total[axes]
        body = select(axes[d] < distance, here, log_add_exp(before, here))
        total = emit(b, axes, body, name=f"{name}.{distance}", source=name)
        distance *= 2
    return cast_node(b, total, x.dtype, name=name, source=name)


@operator
def kth_value(
    x: Tensor, k: int, *, axis: int = -1, keepdims: bool = False, names: Names = ("kth", "index")
) -> tuple[Tensor, Tensor]:
    """The k-th smallest element along `axis`, k counted from 1, and its position."""
    b = x.builder
    d = normal_axis(axis, x.rank, where=names[0])
    extent = static_shape(x.shape)[d]
    if not 1 <= k <= extent:
        raise InvalidExpression(f"element {k} of {extent} along dimension {d} of {x}", help=f"1 to {extent}")
    values, order = top_k(x, k, axis=d, largest=False, names=(f"{names[0]}.sorted", f"{names[0]}.order"))
    return _ranked(b, values, order, d, keepdims, lambda _: const(k - 1, INDEX), names)


@operator
def median(
    x: Tensor, *, axis: int = -1, keepdims: bool = False, skip_nan: bool = False,
    names: Names = ("median", "index"),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The lower of the two middle elements along `axis`, and its position.

    It is NaN where there is one, or with `skip_nan` where all elements are: then NaN are left out.
    """
    b = x.builder
    d = normal_axis(axis, x.rank, where=names[0])
    extent = static_shape(x.shape)[d]
    if not extent:
        raise InvalidExpression(f"the median of dimension {d} of {x}, which is empty", help="an extent of 1 or more")
    values, order = top_k(x, extent, axis=d, largest=False, names=(f"{names[0]}.sorted", f"{names[0]}.order"))
    if not dtypes.is_float(x.dtype):
        return _ranked(b, values, order, d, keepdims, lambda _: const((extent - 1) // 2, INDEX), names)
    numbers = fold_over(
        b, x, [d], "sum", lambda v: select(apply("isnan", v), const(0, INDEX), const(1, INDEX)),
        name=f"{names[0]}.numbers", source=names[0],
    )  # fmt: skip

    def rank(position: tuple[Axis, ...]) -> Expr:
        count = numbers[position]
        if skip_nan:
            return apply("max", count - 1, 0) // 2
        return select(count < extent, count, (extent - 1) // 2)  # the first NaN stands behind all numbers

    return _ranked(b, values, order, d, keepdims, rank, names)


@operator
def mode(
    x: Tensor, *, axis: int = -1, keepdims: bool = False, names: Names = ("mode", "index")
) -> tuple[Tensor, Tensor]:
    """The most frequent element along `axis`, the smallest of several, and its last position. A NaN equals nothing."""
    b = x.builder
    d = normal_axis(axis, x.rank, where=names[0])
    extent = static_shape(x.shape)[d]
    if not extent:
        raise InvalidExpression(f"the mode of dimension {d} of {x}, which is empty", help="an extent of 1 or more")
    values, order = top_k(x, extent, axis=d, largest=False, names=(f"{names[0]}.sorted", f"{names[0]}.order"))
    axes, k = axes_of(x.shape), Axis("r0", extent)
    row, before = _at(axes, d, k), _at(axes, d, apply("max", k - 1, 0))
    starts = select(values[row].ne(values[before]), k, 0)
    first = emit(b, axes, starts, reduce=(k,), accum=PrefixScan(d, "max"), name=f"{names[0]}.first", source=names[0])
    length = emit(b, axes, axes[d] - first[axes], name=f"{names[0]}.length", source=names[0])
    last = arg_max(length, axis=d, keepdims=False, name=f"{names[0]}.last")
    return _ranked(b, values, order, d, keepdims, lambda position: last[position], names)


def _at(axes: Sequence[Expr], d: int, place: Expr) -> tuple[Expr, ...]:
    return (*axes[:d], place, *axes[d + 1 :])


def _ranked(
    b: GraphBuilder, values: Tensor, order: Tensor, d: int, keepdims: bool,
    rank: Callable[[tuple[Axis, ...]], Expr], names: Names,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Elements of the sorted `values` and their positions in `order`, each at ``rank(position)`` of dimension `d`."""
    extent = static_shape(values.shape)[d]
    rest = axes_of([e for p, e in enumerate(values.shape) if p != d])
    place = clamp(rank(rest), 0, extent - 1)
    index = (*rest[:d], place, *rest[d:])
    axes = (*rest[:d], *[Axis("one", 1)] * keepdims, *rest[d:])
    return emit(b, axes, values[index], name=names[0]), emit(b, axes, order[index], name=names[1], source=names[0])
