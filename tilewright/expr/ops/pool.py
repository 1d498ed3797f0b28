"""Pooling over the last dimensions: maximum, average, p-norm; windowed, global and adaptive.

A windowed pool is a padding node where it pads, a reduction over the window, and a point-wise node where the sum needs
one. `kernel` has one extent per pooled dimension; those before them are batch and channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, Unpack

import numpy as np

from tilewright.errors import InvalidExpression
from tilewright.expr.core import Axis, Expr, Tensor, apply, const, identity, select, static_shape
from tilewright.expr.dtypes import INDEX, DType, numpy_dtype
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, emit
from tilewright.expr.ops.nodes import accumulator, pointwise, require_float, require_rank
from tilewright.expr.ops.reduce import reduce_max, reduce_mean
from tilewright.expr.ops.window import Sliding, Window

_MOST_WINDOWS = 1 << 24  # of an adaptive pool, along one dimension: their extents are listed when compiling


class Pooling(Sliding, total=False):
    """How a window slides, and whether a last window that is partly outside counts."""

    ceil_mode: bool  # extents of results are rounded up; False by default


@operator
def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    *,
    name: str = "max_pool",
    **sliding: Unpack[Pooling],
) -> Tensor:
    """The maximum of every window; padding never wins. A window without an element has the least value of the type."""
    b = x.builder
    window = _window(x, kernel, where=name, **sliding)
    return _pool(b, x, window, "max", _same, name=name)


@operator
def max_pool_indices(
    x: Tensor,
    kernel: Sequence[int],
    *,
    column_major: bool = False,
    per_plane: bool = False,
    name: str = "max_pool",
    **sliding: Unpack[Pooling],
) -> tuple[Tensor, Tensor]:
    """`max_pool`, and the i64 position of the first maximum of each window.

    Positions count through all of x, row-major; with `column_major` the pooled dimensions count the other way round,
    with `per_plane` they count within the pooled dimensions only. A window without a maximum (NaN) has the position -1.
    """
    b = x.builder
    window = _window(x, kernel, where=name, **sliding)
    values = _pool(b, x, window, "max", _same, name=name)
    lead = x.rank - len(kernel)
    spatial, places = window.axes()
    outer = axes_of(x.shape[:lead])
    inputs = [p - begin for p, begin in zip(window.places(spatial, places), window.begins, strict=True)]
    shape = static_shape(x.shape)
    order = list(range(lead)) if not per_plane else []
    order += reversed(range(lead, x.rank)) if column_major else range(lead, x.rank)
    index: dict[int, Expr] = dict(enumerate((*outer, *inputs)))
    flat: Expr = const(0, INDEX)
    for d in order:
        flat = flat * shape[d] + index[d]
    inside: Expr = const(True, "bool")
    for place, size in zip(inputs, window.sizes, strict=True):
        inside = inside & (place >= 0) & (place < size)
    none = identity("min", INDEX)
    found = select(x[(*outer, *inputs)].eq(values[(*outer, *spatial)]), flat, none)
    first = emit(
        b,
        (*outer, *spatial),
        select(inside, found, none),
        reduce=places,
        accum="min",
        name=f"{name}.first",
        source=name,
    )
    indices = pointwise(
        b, first.shape, lambda i: select(first[i].eq(none), -1, first[i]), name=f"{name}.indices", source=name
    )
    return values, indices


@operator
def average_pool(
    x: Tensor,
    kernel: Sequence[int],
    *,
    count_include_pad: bool = False,
    name: str = "average_pool",
    **sliding: Unpack[Pooling],
) -> Tensor:
    """The mean of every window: of its elements, or with `count_include_pad` of its elements and the padding's zeros.

    What `ceil_mode` adds beyond the padding is never counted.
    """
    b = x.builder
    require_float(x, where=name)
    window = _window(x, kernel, where=name, **sliding)
    wide = accumulator(x.dtype)
    total = _pool(b, x, window, "sum", lambda v: v.cast(wide), name=f"{name}.sum", source=name)
    lead = x.rank - len(kernel)
    fixed, tables = 1, {}
    for d, counts in enumerate(_counts(window, count_include_pad)):
        if counts.size and counts.min() != counts.max():
            tables[lead + d] = b.constant(counts.astype(numpy_dtype(wide)), f"{name}.count")
        elif counts.size:
            fixed *= int(counts[0])

    def mean(axes: tuple[Axis, ...]) -> Expr:
        divisor: Expr = const(float(fixed), wide)
        for d, table in tables.items():
            divisor = table[axes[d]] if divisor == const(1.0, wide) else divisor * table[axes[d]]
        return (total[axes] / divisor).cast(x.dtype)

    return pointwise(b, total.shape, mean, name=name)


@operator
def lp_pool(
    x: Tensor,
    kernel: Sequence[int],
    *,
    p: int = 2,
    name: str = "lp_pool",
    **sliding: Unpack[Pooling],
) -> Tensor:
    """The p-norm of every window, ``(sum |x|**p) ** (1/p)``."""
    b = x.builder
    require_float(x, where=name)
    window = _window(x, kernel, where=name, **sliding)
    total = _pool(b, x, window, "sum", _power(p, accumulator(x.dtype), where=name), name=f"{name}.sum", source=name)
    return pointwise(b, total.shape, lambda i: _root(total[i], p).cast(x.dtype), name=name)


@operator
def global_average_pool(x: Tensor, *, name: str = "global_average_pool") -> Tensor:
    """The mean over the spatial dimensions of x [b, C, …], kept with extent 1."""
    require_float(x, where=name)
    return reduce_mean(x, _spatial(x, where=name), name=name)


@operator
def global_max_pool(x: Tensor, *, name: str = "global_max_pool") -> Tensor:
    """The maximum over the spatial dimensions of x [b, C, …], kept with extent 1."""
    return reduce_max(x, _spatial(x, where=name), name=name)


@operator
def global_lp_pool(x: Tensor, *, p: int = 2, name: str = "global_lp_pool") -> Tensor:
    """The p-norm over the spatial dimensions of x [b, C, …], kept with extent 1."""
    _spatial(x, where=name)
    return lp_pool(x, static_shape(x.shape[2:]), p=p, name=name)


@operator
def adaptive_average_pool(x: Tensor, outputs: Sequence[int], *, name: str = "adaptive_average_pool") -> Tensor:
    """Means of `outputs` windows per dimension: window i of o has elements ``i*n//o`` to before ``ceil((i+1)*n/o)``."""
    b = x.builder
    require_float(x, where=name)
    kernel = _even_kernel(x, outputs, where=name)
    if kernel is not None:
        return average_pool(x, kernel, strides=kernel, name=name)
    wide = accumulator(x.dtype)
    total = _adaptive(b, x, outputs, "sum", lambda v: v.cast(wide), name=f"{name}.sum", source=name)
    lead = x.rank - len(outputs)
    counts = np.ones(())
    for n, o in zip(static_shape(x.shape[lead:]), outputs, strict=True):
        counts = np.multiply.outer(counts, [_end(i, n, o) - i * n // o for i in range(o)])
    table = b.constant(counts.astype(numpy_dtype(wide)), f"{name}.count")
    return pointwise(b, total.shape, lambda i: (total[i] / table[i[lead:]]).cast(x.dtype), name=name)


@operator
def adaptive_max_pool(x: Tensor, outputs: Sequence[int], *, name: str = "adaptive_max_pool") -> Tensor:
    """Maxima over the windows of `adaptive_average_pool`."""
    b = x.builder
    kernel = _even_kernel(x, outputs, where=name)
    if kernel is not None:
        return max_pool(x, kernel, strides=kernel, name=name)
    return _adaptive(b, x, outputs, "max", _same, name=name, source=name)


def _window(
    x: Tensor, kernel: Sequence[int], *, where: str, ceil_mode: bool = False, **sliding: Unpack[Sliding]
) -> Window:
    require_rank(x, (max(1, len(kernel)), 99), f"a dimension for each of the {len(kernel)} kernel extents", where=where)
    return Window.read(x.shape[x.rank - len(kernel) :], kernel, ceil=ceil_mode, where=where, **sliding)


def _pool(
    b: GraphBuilder,
    x: Tensor,
    window: Window,
    accum: str,
    before: Callable[[Expr], Expr],
    *,
    name: str,
    source: str = "",
) -> Tensor:
    """``accum over the window of before(x)``, where padding leaves the result unchanged."""
    lead = x.rank - len(window.kernel)
    border = identity(accum, x.dtype)
    padded, places, spatial, kernel = window.slide(b, x, lead, value=border, name=source or name)
    outer = axes_of(x.shape[:lead])
    value = padded[(*outer, *places)]
    return emit(b, (*outer, *spatial), before(value), reduce=kernel, accum=accum, name=name, source=source)


def _counts(window: Window, include_pad: bool) -> list[np.ndarray[Any, Any]]:
    """How many elements each window divides by: one factor per spatial dimension, over its output extent."""
    found: list[np.ndarray[Any, Any]] = []
    for n, k, s, d, begin, end, o in zip(
        window.sizes, window.kernel, window.strides, window.dilations, window.begins, window.ends, window.outputs,
        strict=True,
    ):  # fmt: skip
        low, high = (-begin, n + end) if include_pad else (0, n)
        first = np.arange(o, dtype=np.int64) * s - begin  # position of the window's first place
        skipped = np.clip(-((first - low) // d), 0, k)  # places before low
        reached = np.clip(-((first - high) // d), 0, k)  # places before high
        found.append(np.maximum(reached - skipped, 1))
    return found


def _power(p: int, wide: DType, *, where: str) -> Callable[[Expr], Expr]:
    """``|v| ** p`` in `wide`."""
    if p < 1:
        raise InvalidExpression(f"a norm of order {p}", where=where, help="1 or more")
    if p == 1:
        return lambda v: apply("abs", v.cast(wide))
    if p == 2:
        return lambda v: v.cast(wide) * v.cast(wide)
    return lambda v: apply("pow", apply("abs", v.cast(wide)), float(p))


def _root(total: Expr, p: int) -> Expr:
    if p == 1:
        return total
    return apply("sqrt", total) if p == 2 else apply("pow", total, 1 / p)


def _spatial(x: Tensor, *, where: str) -> range:
    require_rank(x, (3, 99), "[b, C, …]", where=where)
    return range(2, x.rank)


def _even_kernel(x: Tensor, outputs: Sequence[int], *, where: str) -> list[int] | None:
    """The common window extents where every extent is a multiple of its number of windows."""
    require_rank(x, (max(1, len(outputs)), 99), f"a dimension for each of the {len(outputs)} outputs", where=where)
    sizes = static_shape(x.shape[x.rank - len(outputs) :])
    for n, o in zip(sizes, outputs, strict=True):
        if not 1 <= o <= _MOST_WINDOWS or n < 1:
            raise InvalidExpression(
                f"{o} windows over an extent of {n}",
                where=where,
                help=f"1 to {_MOST_WINDOWS} windows of 1 element or more",
            )
    if all(n % o == 0 for n, o in zip(sizes, outputs, strict=True)):
        return [n // o for n, o in zip(sizes, outputs, strict=True)]
    return None


def _adaptive(
    b: GraphBuilder,
    x: Tensor,
    outputs: Sequence[int],
    accum: str,
    before: Callable[[Expr], Expr],
    *,
    name: str,
    source: str,
) -> Tensor:
    """Windows of different extents: the longest one's loop, guarded by each one's end."""
    lead = x.rank - len(outputs)
    sizes = static_shape(x.shape[lead:])
    axes = axes_of((*x.shape[:lead], *outputs))
    # a window begins at n i / o, of which the fraction is any multiple of gcd(n, o) / o below 1
    longest = [-(-(n + o - gcd(n, o)) // o) for n, o in zip(sizes, outputs, strict=True)]
    places = tuple(Axis(f"r{d}", extent) for d, extent in enumerate(longest))
    inside: Expr = const(True, "bool")
    indices: list[Expr] = []
    for axis, place, n, o in zip(axes[lead:], places, sizes, outputs, strict=True):
        indices.append(axis * n // o + place)
        inside = inside & (indices[-1] < ((axis + 1) * n + (o - 1)) // o)
    value = before(x[(*axes[:lead], *indices)])
    guarded = select(inside, value, identity(accum, value.dtype))
    return emit(b, axes, guarded, reduce=places, accum=accum, name=name, source=source)


def _end(i: int, n: int, o: int) -> int:
    return -(-(i + 1) * n // o)


def _same(v: Expr) -> Expr:
    return v
