"""What builders of contractions, windows and norms share: sums in a wider type, guarded padding, checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.affine import simplify
from tilewright.expr.core import Axis, Expr, Extent, Tensor, select
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
    stage = f"{name}_acc" if epilogue or rounds else name
    total = emit(b, axes, body, reduce=reduce, accum="sum", name=stage, source=name)
    if epilogue:
        stage = f"{name}_wide" if rounds else name
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

    The read is guarded along the dimensions in which an index may fall outside `x`.
    """
    axes = named(shape, names) if names else axes_of(shape)
    guards: list[Expr] = []
    indices: list[Expr] = []
    for axis, begin, extent in zip(axes, begins, x.shape, strict=True):
        index = simplify(axis - begin) if begin else axis
        indices.append(index)
        if begin > 0:
            guards.append(index >= 0)
        if axis.extent != extent and isinstance(axis.extent, int) and isinstance(extent, int):
            if axis.extent - begin > extent:
                guards.append(index < extent)
        elif begin < 0:
            guards.append(index < extent)  # type: ignore[operator]
    read: Expr = x[tuple(indices)]
    if guards:
        read = select(fold(lambda p, q: p & q, guards), read, value)
    return emit(b, axes, read, name=name, source=source)


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
