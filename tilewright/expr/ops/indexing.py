"""Operators whose indices are data: gather, scatter, one-hot.

A negative index counts from the end. An index outside the dimension is moved to its nearest end, so that no input can
make compiled code read or write foreign memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, Operand, Tensor, const, scatter_body, select, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, clamp, emit, read
from tilewright.expr.ops.nodes import accumulator, cast_node, normal_axis
from tilewright.expr.ordered import Scatter


def wrapped(value: Expr, extent: int) -> Expr:
    """`value` as an index into a dimension of `extent`: negative from the end, limited to the range."""
    index = value.cast(INDEX)
    return clamp(select(index < 0, index + extent, index), 0, max(extent - 1, 0))


@operator
def gather(x: Tensor, indices: Tensor, *, axis: int = 0, name: str = "gather") -> Tensor:
    """Replace dimension `axis` of x by the dimensions of `indices`: whole slices of x are picked."""
    b = x.builder
    d = normal_axis(axis, x.rank, where=name)
    shape, picks = static_shape(x.shape), static_shape(indices.shape)
    _check_not_empty(x, shape[d], prod(picks), name)
    axes = axes_of([*shape[:d], *picks, *shape[d + 1 :]])
    index = wrapped(indices[axes[d : d + len(picks)]], shape[d])
    return emit(b, axes, x[(*axes[:d], index, *axes[d + len(picks) :])], name=name)


@operator
def gather_at(x: Tensor, start: int, step: int, count: int | None, *, axis: int = 0, name: str = "gather") -> Tensor:
    """`gather` with the known indices ``start + step * i``; `count` None: one index, which drops the dimension."""
    b = x.builder
    d = normal_axis(axis, x.rank, where=name)
    shape = static_shape(x.shape)
    last = start + step * ((count or 1) - 1)
    if count != 0 and not (0 <= start < shape[d] and 0 <= last < shape[d]):
        raise InvalidExpression(f"indices {start} to {last} into dimension {d} of {x}", help=f"within [0, {shape[d]})")
    axes = axes_of([*shape[:d], *([] if count is None else [count]), *shape[d + 1 :]])
    index: Operand = start if count is None else axes[d] * step + start
    return emit(b, axes, read(x, (*axes[:d], index, *axes[d + (count is not None) :])), name=name)


@operator
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0, name: str = "gather_elements") -> Tensor:
    """``out[p] = x[p with p[axis] = indices[p]]``."""
    b = x.builder
    d = normal_axis(axis, x.rank, where=name)
    shape, picks = static_shape(x.shape), static_shape(indices.shape)
    if len(picks) != len(shape) or any(p > e for q, (p, e) in enumerate(zip(picks, shape, strict=True)) if q != d):
        raise ExtentMismatch(
            f"indices {indices} into {x} along {d}", help="equal ranks, and extents not above those of the input"
        )
    _check_not_empty(x, shape[d], prod(picks), name)
    axes = axes_of(picks)
    return emit(b, axes, x[(*axes[:d], wrapped(indices[axes], shape[d]), *axes[d + 1 :])], name=name)


@operator
def gather_nd(x: Tensor, indices: Tensor, *, batch: int = 0, name: str = "gather_nd") -> Tensor:
    """The last dimension of `indices` holds positions in x after its first `batch` dimensions, which both share."""
    b = x.builder
    shape, picks = static_shape(x.shape), static_shape(indices.shape)
    depth = _depth(x, indices, batch, name)
    axes = axes_of([*picks[:-1], *shape[batch + depth :]])
    lead = len(picks) - 1
    index = [wrapped(indices[(*axes[:lead], const(q, INDEX))], shape[batch + q]) for q in range(depth)]
    return emit(b, axes, x[(*axes[:batch], *index, *axes[lead:])], name=name)


def _depth(x: Tensor, indices: Tensor, batch: int, name: str) -> int:
    shape, picks = static_shape(x.shape), static_shape(indices.shape)
    if not picks or not 0 <= batch < len(picks) or batch > len(shape) or picks[:batch] != shape[:batch]:
        raise ExtentMismatch(
            f"{name}: indices {indices} into {x} with {batch} batch dimensions", help="equal batch extents"
        )
    depth = picks[-1]
    if batch + depth > len(shape):
        raise ExtentMismatch(f"{name}: positions of {depth} numbers into {x}", help=f"at most {len(shape) - batch}")
    if 0 in shape[batch : batch + depth] and 0 not in picks[:-1]:
        raise InvalidExpression(f"{name}: elements of {x}, which is empty", help="no indices, or a larger tensor")
    return depth


def _check_not_empty(x: Tensor, extent: int, picks: int, name: str) -> None:
    if extent == 0 and picks:
        raise InvalidExpression(f"{name}: elements of {x}, which is empty there", help="no indices, or a larger tensor")


@operator
def compress(x: Tensor, chosen: Sequence[int], *, axis: int, name: str = "compress") -> Tensor:
    """The slices of `axis` listed in `chosen`, known when compiling."""
    b = x.builder
    import numpy as np

    extent = static_shape(x.shape)[normal_axis(axis, x.rank, where=name)]
    if not all(-extent <= place < extent for place in chosen):
        raise InvalidExpression(f"slices {list(chosen)} of {x}", where=name, help=f"within [{-extent}, {extent})")
    return gather(x, b.constant(np.asarray(chosen, np.int64), f"{name}.index"), axis=axis, name=name)


# Scatter -------------------------------------------------------------------------------------------------------

_REDUCTIONS = {"none": "", "add": "sum", "mul": "prod", "max": "max", "min": "min"}


@operator
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none",
    name: str = "scatter_elements",
) -> Tensor:  # fmt: skip
    """x with ``x[p with p[axis] = indices[p]]`` replaced by, or reduced with, ``updates[p]``; later updates win."""
    b = x.builder
    d = normal_axis(axis, x.rank, where=name)
    shape, picks = static_shape(x.shape), static_shape(indices.shape)
    if picks != static_shape(updates.shape) or len(picks) != len(shape) or any(
        p > e for q, (p, e) in enumerate(zip(picks, shape, strict=True)) if q != d
    ):  # fmt: skip
        raise ExtentMismatch(
            f"{name}: indices {indices} and updates {updates} into {x}",
            help="equal ranks, equal indices and updates, extents not above those of the input",
        )
    axes = axes_of(shape)
    k = Axis("r0", picks[d])
    point = (*axes[:d], k, *axes[d + 1 :])
    place = _place(indices[point], shape[d])
    value: Expr = updates[point]
    for q, a in enumerate(axes):
        if q != d and picks[q] < shape[q]:
            place = select(a < picks[q], place, -1)
            value = select(a < picks[q], value, const(0, value.dtype))
    return _scatter(b, x, axes, (k,), value, {d: place}, reduction, name)


@operator
def scatter_nd(
    x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none", name: str = "scatter_nd"
) -> Tensor:
    """x with the slices at the positions in the last dimension of `indices` replaced by, or reduced with, `updates`."""
    b = x.builder
    shape, picks = static_shape(x.shape), static_shape(indices.shape)
    depth = _depth(x, indices, 0, name)
    if static_shape(updates.shape) != (*picks[:-1], *shape[depth:]):
        raise ExtentMismatch(
            f"{name}: updates {updates} for indices {indices} into {x}",
            help=f"updates of shape {[*picks[:-1], *shape[depth:]]}",
        )
    axes, lead = axes_of(shape), axes_of(picks[:-1], "r")
    places = {q: _place(indices[(*lead, const(q, INDEX))], shape[q]) for q in range(depth)}
    value = updates[(*lead, *axes[depth:])]
    if not places:  # every update is of the whole tensor
        wide = emit(b, (Axis("one", 1), *axes), x[axes], name=f"{name}.row", source=name)
        whole = _scatter(
            b, wide, (Axis("one", 1), *axes), lead or (Axis("r0", 1),), value, {0: const(0, INDEX)}, reduction, name
        )
        return emit(b, axes, whole[(const(0, INDEX), *axes)], name=name)
    return _scatter(b, x, axes, lead or (Axis("r0", 1),), value, places, reduction, name)


def _place(value: Expr, extent: int) -> Expr:
    """An index that may count from the end as a position; one that is out of range stays so."""
    index = value.cast(INDEX)
    return select(index < 0, index + extent, index)


def _scatter(
    b: GraphBuilder, x: Tensor, axes: Sequence[Axis], ranges: Sequence[Axis], value: Expr, places: Mapping[int, Expr],
    reduction: str, name: str,
) -> Tensor:  # fmt: skip
    """Sums and products of f16 and bf16 are formed in f32 and rounded once."""
    if reduction not in _REDUCTIONS:
        raise InvalidExpression(f"{name}: reduction {reduction!r}", help=", ".join(_REDUCTIONS))
    combine = _REDUCTIONS[reduction]
    wide = accumulator(x.dtype) if combine in ("sum", "prod") and dtypes.is_float(x.dtype) else x.dtype
    body = scatter_body(x[tuple(axes)].cast(wide), value.cast(wide), tuple(places.values()))
    stage = name if wide == x.dtype else f"{name}.acc"
    written = emit(b, axes, body, reduce=ranges, accum=Scatter(tuple(places), combine), name=stage, source=name)
    return cast_node(b, written, x.dtype, name=name, source=name)


@operator
def update_cache(
    cache: Tensor, update: Tensor, starts: Tensor | None = None, *, axis: int = -2,
    circular: bool = False, name: str = "update_cache",
) -> Tensor:  # fmt: skip
    """`cache` with `update` written along `axis` from ``starts[batch]``, or from 0; around the end if `circular`."""
    b = cache.builder
    d = normal_axis(axis, cache.rank, where=name)
    shape, count = static_shape(cache.shape), static_shape(update.shape)
    if shape[:d] + shape[d + 1 :] != count[:d] + count[d + 1 :] or count[d] > shape[d]:
        raise ExtentMismatch(f"{name}: {update} does not fit into {cache} along dimension {d}")
    axes = axes_of(shape)
    start = const(0, INDEX) if starts is None else starts[axes[0]].cast(INDEX)
    offset = axes[d] - start
    if circular:
        offset = offset % shape[d]
    inside = (offset >= 0) & (offset < count[d])
    index = (*axes[:d], clamp(offset, 0, max(count[d] - 1, 0)), *axes[d + 1 :])
    return emit(b, axes, select(inside, update[index], cache[axes]), name=name)


# One-hot -------------------------------------------------------------------------------------------------------


def _hits(value: Expr, extent: int, axis: Expr) -> Expr:
    """Does this index value, which may count from the end, name position `axis`? Values out of range hit nothing."""
    index = value.cast(INDEX)
    return index.eq(axis) | index.eq(axis - extent)


@operator
def one_hot(indices: Tensor, depth: int, values: Tensor, *, axis: int = -1, name: str = "one_hot") -> Tensor:
    """A new dimension `axis` of extent `depth`: ``values[1]`` where it equals the index, ``values[0]`` elsewhere."""
    b = indices.builder
    d = normal_axis(axis, indices.rank + 1, where=name)
    picks = static_shape(indices.shape)
    axes = axes_of([*picks[:d], depth, *picks[d:]])
    hit = _hits(indices[(*axes[:d], *axes[d + 1 :])], depth, axes[d])
    return emit(b, axes, select(hit, read(values, [1]), read(values, [0])), name=name)
