"""What builders of contractions, windows and norms share: sums in a wider type, guarded padding, checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, Extent, Tensor, const, select, static_shape
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.elementwise import axes_of, emit

#: Builds the body of a point-wise node from the loops of its output.
Body = Callable[[tuple[Axis, ...]], Expr]


def pointwise(b: GraphBuilder, shape: Sequence[Extent], body: Body, *, name: str, source: str = "") -> Tensor:
    """Append a node without reduction over `shape`."""
    axes = axes_of(shape)
    return emit(b, axes, body(axes), name=name, source=source)


def cast_node(b: GraphBuilder, x: Tensor, dtype: DType, *, name: str, source: str = "") -> Tensor:
    """`x` in another element type; `x` itself if it has it already."""
    if x.dtype == dtype:
        return x
    return pointwise(b, x.shape, lambda axes: x[axes].cast(dtype), name=name, source=source)


def accumulator(*element_types: DType) -> DType:
    """The type that sums of these elements are formed in: f32 for f16 and bf16, i32 for integers below 32 bits.

    Different types are joined first: the widest float if there is one, else the widest integer.
    """
    floats = [t for t in element_types if dtypes.is_float(t)]
    widest = max(floats or element_types, key=dtypes.bits)
    if widest in ("f16", "bf16"):
        return "f32"
    if dtypes.is_float(widest) or dtypes.bits(widest) >= 32:
        return widest
    return "i32"


def contract(
    b: GraphBuilder,
    axes: Sequence[Axis],
    factors: Sequence[Expr],
    reduce: Sequence[Axis],
    *,
    accumulate: DType | None,
    out_dtype: DType | None,
    epilogue: Callable[[Expr, tuple[Axis, ...]], Expr] | None = None,
    name: str,
) -> Tensor:
    """Sum of products of `factors`, formed in `accumulate`; then `epilogue` as a node; then a node that rounds.

    Without `accumulate` it is `accumulator` of the factors; without `out_dtype` the result has the type of float
    factors and the accumulator of integer ones.
    """
    wide = accumulate or accumulator(*(factor.dtype for factor in factors))
    element = factors[0].dtype
    uniform = all(factor.dtype == element for factor in factors) and dtypes.is_float(element)
    final = out_dtype or (element if uniform else wide)
    rounds = final != wide
    body = fold(lambda x, y: x * y, [factor.cast(wide) for factor in factors])
    stage = f"{name}.acc" if epilogue or rounds else name
    total = emit(b, axes, body, reduce=reduce, accum="sum", name=stage, source=name)
    if epilogue:
        stage = f"{name}.wide" if rounds else name
        total = emit(b, axes, epilogue(total[tuple(axes)], tuple(axes)), name=stage, source=name)
    return cast_node(b, total, final, name=name, source=name)


def named(shape: Sequence[Extent], names: Sequence[str]) -> tuple[Axis, ...]:
    """One axis per extent, with these names."""
    return tuple(Axis(name, extent) for name, extent in zip(names, shape, strict=True))


def pad_node(
    b: GraphBuilder,
    x: Tensor,
    begins: Sequence[int],
    shape: Sequence[Extent],
    *,
    value: Expr | float = 0,
    names: Sequence[str] = (),
    name: str,
    source: str = "",
) -> Tensor:
    """`x` shifted by `begins` inside `shape`, `value` elsewhere. A negative begin cuts elements off.

    The read is guarded along the dimensions in which the index may fall outside `x`.
    """
    axes = named(shape, names) if names else axes_of(shape)
    indices = [axis - begin if begin else axis for axis, begin in zip(axes, begins, strict=True)]
    inside: Expr = const(True, "bool")
    for axis, index, extent in zip(axes, indices, x.shape, strict=True):
        if index is not axis or axis.extent != extent:
            inside = inside & (index >= 0) & (index < static_shape((extent,))[0])
    return emit(b, axes, select(inside, x[tuple(indices)], value), name=name, source=source)


def fold_over(
    b: GraphBuilder,
    x: Tensor,
    dimensions: Sequence[int],
    accum: str,
    before: Callable[[Expr], Expr],
    *,
    name: str,
    source: str = "",
) -> Tensor:
    """``accum over dimensions of before(x)``; the result does not have the dimensions, which count from the front."""
    axes = [Axis(f"{'r' if d in dimensions else 'i'}{d}", extent) for d, extent in enumerate(x.shape)]
    kept, summed = [a for d, a in enumerate(axes) if d not in dimensions], [axes[d] for d in dimensions]
    return emit(b, kept, before(x[tuple(axes)]), reduce=summed, accum=accum, name=name, source=source)


def require_rank(x: Tensor, rank: int | tuple[int, int], meaning: str, *, where: str) -> None:
    """Raise ExtentMismatch unless `x` has `rank` dimensions, or between the two ranks given."""
    low, high = rank if isinstance(rank, tuple) else (rank, rank)
    if not low <= x.rank <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}" if high < 99 else f"at least {low}"
        raise ExtentMismatch(f"{x} has rank {x.rank}", where=where, help=f"give rank {wanted}: {meaning}")


def require_equal(left: Extent, right: Extent, message: str, *, where: str, help: str) -> None:
    """Raise ExtentMismatch unless the two extents are one."""
    if left != right:
        raise ExtentMismatch(message, where=where, help=help)


def normal_axis(axis: int, rank: int, *, where: str) -> int:
    """`axis` counted from the front."""
    if not -rank <= axis < rank:
        raise InvalidExpression(
            f"axis {axis} of a tensor of rank {rank}", where=where, help=f"an axis in [{-rank}, {rank - 1}]"
        )
    return axis % rank


def require_float(x: Tensor, *, where: str) -> None:
    """Raise InvalidExpression unless `x` holds floats."""
    if not dtypes.is_float(x.dtype):
        raise InvalidExpression(f"{x} is not of a float type", where=where, help="cast it to f32")
