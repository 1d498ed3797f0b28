"""Reductions over chosen dimensions, arg-reductions, running sums, sorting.

`axes` None means all dimensions. With `keepdims` reduced dimensions stay with extent 1. Sums of f16 and bf16 are
formed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.errors import InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Const, Expr, Tensor, apply, const, select, static_shape
from tilewright.expr.dtypes import INDEX, DType
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, clamp, emit, map_elements
from tilewright.expr.ops.nodes import cast_node, normal_axis
from tilewright.expr.ordered import PrefixScan, Sort

Map = Callable[[Expr], Expr]


def _reduction(
    b: GraphBuilder, x: Tensor, axes: Sequence[int] | None, keepdims: bool, accum: str, before: Map, *, name: str,
    source: str,
) -> Tensor:  # fmt: skip
    """``accum over axes of before(x)`` in the dtype of `before`; a map where there is nothing to reduce."""
    over = set(range(x.rank)) if axes is None else {normal_axis(axis, x.rank, where=source) for axis in axes}
    index: list[Expr] = []
    spatial: list[Axis] = []
    ranges: list[Axis] = []
    for d, extent in enumerate(x.shape):
        if d in over:
            ranges.append(Axis(f"r{len(ranges)}", extent))
            index.append(ranges[-1])
            if keepdims:
                spatial.append(Axis(f"i{len(spatial)}", 1))
        else:
            spatial.append(Axis(f"i{len(spatial)}", extent))
            index.append(spatial[-1])
    return emit(b, spatial, before(x[tuple(index)]), reduce=ranges, accum=accum, name=name, source=source)


def _wide(dtype: DType) -> DType:
    return "f32" if dtype in ("f16", "bf16") else dtype


def _staged(
    b: GraphBuilder, x: Tensor, axes: Sequence[int] | None, keepdims: bool, accum: str, before: Map, after: Map | None,
    name: str,
) -> Tensor:  # fmt: skip
    """A reduction in the wide type, then `after` and the rounding as a second compute where there is one to do."""
    wide = _wide(x.dtype)
    if after is None and wide == x.dtype:
        return _reduction(b, x, axes, keepdims, accum, before, name=name, source=name)
    total = _reduction(b, x, axes, keepdims, accum, lambda v: before(v.cast(wide)), name=f"{name}.acc", source=name)
    if after is None:
        return cast_node(b, total, x.dtype, name=name, source=name)
    positions = axes_of(total.shape)
    return emit(b, positions, after(total[positions]).cast(x.dtype), name=name)


def _same(v: Expr) -> Expr:
    return v


def _count(x: Tensor, axes: Sequence[int] | None, where: str) -> int:
    over = range(x.rank) if axes is None else {normal_axis(axis, x.rank, where=where) for axis in axes}
    count = 1
    for d in over:
        count *= static_shape(x.shape)[d]
    return count


@operator
def reduce_sum(x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "sum") -> Tensor:
    b = x.builder
    return _staged(b, x, axes, keepdims, "sum", _same, None, name)


@operator
def reduce_mean(x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "mean") -> Tensor:
    """Sum divided by the number of elements; integers divide towards zero."""
    b = x.builder
    count = _count(x, axes, name)
    return _staged(b, x, axes, keepdims, "sum", _same, lambda total: total / count, name)


@operator
def reduce_max(x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "max") -> Tensor:
    b = x.builder
    return _reduction(b, x, axes, keepdims, "max", _same, name=name, source=name)


@operator
def reduce_min(x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "min") -> Tensor:
    b = x.builder
    return _reduction(b, x, axes, keepdims, "min", _same, name=name, source=name)


@operator
def reduce_prod(x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "prod") -> Tensor:
    b = x.builder
    return _staged(b, x, axes, keepdims, "prod", _same, None, name)


@operator
def reduce_l1(x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "l1") -> Tensor:
    """Sum of absolute values."""
    b = x.builder
    return _staged(b, x, axes, keepdims, "sum", lambda v: apply("abs", v), None, name)


@operator
def reduce_l2(x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "l2") -> Tensor:
    """Root of the sum of squares; integers take the root in f64."""
    b = x.builder
    root: Map = lambda v: apply("sqrt", v if dtypes.is_float(v.dtype) else v.cast("f64"))  # noqa: E731
    return _staged(b, x, axes, keepdims, "sum", lambda v: v * v, root, name)


@operator
def reduce_sum_square(
    x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "sum_square"
) -> Tensor:
    b = x.builder
    return _staged(b, x, axes, keepdims, "sum", lambda v: v * v, None, name)


@operator
def reduce_log_sum(
    x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "log_sum"
) -> Tensor:
    b = x.builder
    log: Map = lambda v: apply("log", v if dtypes.is_float(v.dtype) else v.cast("f64"))  # noqa: E731
    return _staged(b, x, axes, keepdims, "sum", _same, log, name)


@operator
def reduce_log_sum_exp(
    x: Tensor, axes: Sequence[int] | None = None, *, keepdims: bool = True, name: str = "log_sum_exp"
) -> Tensor:
    """``log(sum(exp(x)))``, relative to the largest element so that nothing overflows; integers go through f64."""
    b = x.builder
    if not dtypes.is_float(x.dtype):
        real = cast_node(b, x, "f64", name=f"{name}.real", source=name)
        total = reduce_log_sum_exp(real, axes, keepdims=keepdims, name=f"{name}.wide")
        return cast_node(b, total, x.dtype, name=name, source=name)
    wide = _wide(x.dtype)
    top = _reduction(
        b, x, axes, True, "max", lambda v: v.cast(wide), name=f"{name}.max", source=name
    )  # infinite where all elements are: then nothing is subtracted
    finite: Map = lambda v: select(apply("isinf", v), 0.0, v)  # noqa: E731
    shifted = map_elements([x, top], lambda v, m: apply("exp", v.cast(wide) - finite(m)), name=f"{name}.exp")
    total = _reduction(b, shifted, axes, True, "sum", _same, name=f"{name}.acc", source=name)
    if keepdims:
        return map_elements([total, top], lambda s, m: (apply("log", s) + finite(m)).cast(x.dtype), name=name)
    over = set(range(x.rank)) if axes is None else {normal_axis(axis, x.rank, where=name) for axis in axes}
    positions = axes_of([e for d, e in enumerate(x.shape) if d not in over])
    kept = iter(positions)
    index = tuple(const(0, INDEX) if d in over else next(kept) for d in range(x.rank))
    return emit(b, positions, (apply("log", total[index]) + finite(top[index])).cast(x.dtype), name=name)


# Positions -----------------------------------------------------------------------------------------------------


@operator
def arg_max(
    x: Tensor, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False,
    name: str = "arg_max",
) -> Tensor:  # fmt: skip
    """i64 index of the largest element along `axis`: the first of equals, or the last. A NaN counts as largest."""
    b = x.builder
    return _arg(b, x, "max", axis, keepdims, select_last_index, name)


@operator
def arg_min(
    x: Tensor, *, axis: int = 0, keepdims: bool = True, select_last_index: bool = False,
    name: str = "arg_min",
) -> Tensor:  # fmt: skip
    """i64 index of the smallest element along `axis`: the first of equals, or the last. A NaN counts as smallest."""
    b = x.builder
    return _arg(b, x, "min", axis, keepdims, select_last_index, name)


def _arg(b: GraphBuilder, x: Tensor, accum: str, axis: int, keepdims: bool, last: bool, name: str) -> Tensor:
    """First the extreme value, then the first or last index that holds it."""
    d = normal_axis(axis, x.rank, where=name)
    extent = static_shape(x.shape)[d]
    if extent == 0:
        raise InvalidExpression(f"{name} over dimension {d} of {x}, which is empty", help="an extent of 1 or more")
    extreme = _reduction(b, x, [d], False, accum, _same, name=f"{name}.value", source=name)
    spatial = axes_of([e for p, e in enumerate(x.shape) if p != d])
    k = Axis("r0", extent)
    value = x[_with(spatial, d, k)]
    here = value.eq(extreme[spatial])
    if dtypes.is_float(x.dtype):
        here = here | apply("isnan", value)
    written = _with(spatial, d, Axis("one", 1)) if keepdims else spatial
    body = select(here, k, -1 if last else extent - 1)
    return emit(b, written, body, reduce=(k,), accum="max" if last else "min", name=name)


def _with(axes: Sequence[Axis], d: int, inserted: Axis) -> tuple[Axis, ...]:
    return (*axes[:d], inserted, *axes[d:])


@operator
def hardmax(x: Tensor, *, axis: int = -1, name: str = "hardmax") -> Tensor:
    """1 at the first largest element along `axis`, 0 elsewhere."""
    b = x.builder
    d = normal_axis(axis, x.rank, where=name)
    first = arg_max(x, axis=d, keepdims=False, name=f"{name}.index")
    axes = axes_of(x.shape)
    here = axes[d].eq(first[(*axes[:d], *axes[d + 1 :])])
    return emit(b, axes, select(here, Const(1, x.dtype), Const(0, x.dtype)), name=name)


# Scans and sorting ---------------------------------------------------------------------------------------------


@operator
def cum_sum(x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False, name: str = "cum_sum") -> Tensor:
    """Running sum along `axis`, without the element itself if `exclusive`, from the end if `reverse`."""
    b = x.builder
    return _scan(b, x, "sum", axis, exclusive, reverse, name)


@operator
def cum_prod(x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False, name: str = "cum_prod") -> Tensor:
    """Running product along `axis`; options as for `cum_sum`."""
    b = x.builder
    return _scan(b, x, "prod", axis, exclusive, reverse, name)


def _scan(b: GraphBuilder, x: Tensor, accum: str, axis: int, exclusive: bool, reverse: bool, name: str) -> Tensor:
    d = normal_axis(axis, x.rank, where=name)
    axes = axes_of(x.shape)
    k = Axis("r0", x.shape[d])
    wide = _wide(x.dtype)
    element = x[(*axes[:d], k, *axes[d + 1 :])].cast(wide)
    stage = name if wide == x.dtype else f"{name}.acc"
    scan = PrefixScan(d, accum, exclusive, reverse)
    total = emit(b, axes, element, reduce=(k,), accum=scan, name=stage, source=name)
    return cast_node(b, total, x.dtype, name=name, source=name)


@operator
def top_k(
    x: Tensor, k: int, *, axis: int = -1, largest: bool = True,
    names: tuple[str, str] = ("topk", "index"),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The k largest (or smallest) elements along `axis`, sorted, and their i64 indices.

    Equal elements keep their order; NaN is larger than any number. With k of the whole extent this is a stable sort.
    """
    b = x.builder
    d = normal_axis(axis, x.rank, where=names[0])
    extent = static_shape(x.shape)[d]
    if not 0 <= k <= extent:
        raise InvalidExpression(f"top {k} of dimension {d} of {x}", help=f"k in [0, {extent}]")
    axes = axes_of([k if p == d else e for p, e in enumerate(x.shape)])
    r = Axis("r0", extent)
    element = x[(*axes[:d], r, *axes[d + 1 :])]
    index = emit(b, axes, element, reduce=(r,), accum=Sort(d, largest), name=names[1], source=names[0])
    place = clamp(index[axes], 0, max(extent - 1, 0))
    values = emit(b, axes, x[(*axes[:d], place, *axes[d + 1 :])], name=names[0])
    return values, index
