"""Operators that only move elements: every output element is one guarded read at an index computed from its position.

Index expressions stay as affine as the shapes allow; see `reshape_indices`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.affine import simplify
from tilewright.expr.core import Axis, Const, Expr, Operand, Tensor, const, select, static_shape
from tilewright.expr.dtypes import INDEX, DTypeLike
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, broadcast_shapes, clamp, element, emit, only, read
from tilewright.expr.ops.nodes import normal_axis


def normal_axes(axes: Sequence[int], rank: int, *, where: str) -> tuple[int, ...]:
    """Distinct axes counted from the front, in the order given."""
    found = tuple(normal_axis(axis, rank, where=where) for axis in axes)
    if len(set(found)) != len(found):
        raise InvalidExpression(f"axes {list(axes)} name a dimension twice", where=where, help="give each axis once")
    return found


@operator
def move(
    x: Tensor, shape: Sequence[int], index: Callable[[tuple[Axis, ...]], Sequence[Operand]],
    *, name: str,
) -> Tensor:  # fmt: skip
    """``out[axes] = x[index(axes)]``."""
    b = x.builder
    axes = axes_of(shape)
    return emit(b, axes, read(x, index(axes)), name=name)


# Views ---------------------------------------------------------------------------------------------------------


@operator
def transpose(x: Tensor, perm: Sequence[int] | None = None, *, name: str = "transpose") -> Tensor:
    """Output dimension d is input dimension ``perm[d]``; without `perm` the order is reversed."""
    order = tuple(reversed(range(x.rank))) if perm is None else tuple(normal_axis(p, x.rank, where=name) for p in perm)
    if sorted(order) != list(range(x.rank)):
        raise InvalidExpression(f"permutation {list(order)} of a tensor of rank {x.rank}", help="every dimension once")
    shape = static_shape(x.shape)
    return move(x, [shape[p] for p in order], lambda axes: [axes[order.index(d)] for d in range(x.rank)], name=name)


def reshape_indices(source: Sequence[int], axes: Sequence[Axis]) -> tuple[Expr, ...]:
    """The index into a row-major tensor of shape `source` of each position `axes` of its reshape.

    Dimensions are matched from the left in the smallest groups of equal product, and only inside a group are
    positions linearised: an unchanged dimension reads ``d``, a split one ``h*64 + d``, merged ones ``e // 64, e % 64``.
    """
    target = static_shape(tuple(axis.extent for axis in axes))
    indices: list[Expr] = [const(0, INDEX)] * len(source)
    old = [d for d, extent in enumerate(source) if extent != 1]
    new = [d for d, extent in enumerate(target) if extent != 1]
    while old and new:
        olds, news = [old.pop(0)], [new.pop(0)]
        while (left := prod(source[d] for d in olds)) != (right := prod(target[d] for d in news)):
            if left < right:
                olds.append(old.pop(0))
            else:
                news.append(new.pop(0))
        position: Expr = const(0, INDEX)
        for d in news:
            position = position * target[d] + axes[d]
        stride = left
        for d in olds:
            stride //= source[d]
            quotient = position // stride
            indices[d] = simplify(quotient if d == olds[0] else quotient % source[d])
    return tuple(indices)


@operator
def reshape(x: Tensor, shape: Sequence[int], *, name: str = "reshape") -> Tensor:
    """Row-major reinterpretation; one extent may be -1: what the others leave."""
    source, target = static_shape(x.shape), _without_unknown(x, shape)
    if prod(source) != prod(target):
        raise ExtentMismatch(
            f"cannot reshape {x} to {list(target)}", help=f"a shape of {prod(source)} elements, not {prod(target)}"
        )
    b, axes = x.builder, axes_of(target)
    if prod(target) == 0:
        return emit(b, axes, Const(0, x.dtype), name=name)
    return emit(b, axes, x[reshape_indices(source, axes)], name=name)


def _without_unknown(x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` with the extent that -1 stands for."""
    if -1 not in shape:
        return tuple(shape)
    size, known = prod(static_shape(x.shape)), prod(extent for extent in shape if extent != -1)
    if list(shape).count(-1) > 1 or known <= 0 or size % known:
        fact = f"cannot reshape {x} to {list(shape)}"
        raise ExtentMismatch(fact, help=f"one -1, beside extents of which the product divides {size}")
    return tuple(size // known if extent == -1 else extent for extent in shape)


@operator
def flatten(x: Tensor, *, axis: int = 1, name: str = "flatten") -> Tensor:
    """To a matrix: dimensions before `axis` become rows, the others columns."""
    shape = static_shape(x.shape)
    cut = axis if axis == x.rank else normal_axis(axis, x.rank, where=name)
    return reshape(x, (prod(shape[:cut]), prod(shape[cut:])), name=name)


@operator
def squeeze(x: Tensor, axes: Sequence[int] | None = None, *, name: str = "squeeze") -> Tensor:
    """Drop dimensions of extent 1: those in `axes`, or all."""
    if axes is None:
        drop = {d for d, extent in enumerate(x.shape) if extent == 1}
    else:
        drop = set(normal_axes(axes, x.rank, where=name))
        for d in sorted(drop):
            if x.shape[d] != 1:
                raise ExtentMismatch(f"squeeze of dimension {d} of {x}", help="only extents of 1 can be squeezed")
    return reshape(x, [e for d, e in enumerate(static_shape(x.shape)) if d not in drop], name=name)


@operator
def unsqueeze(x: Tensor, axes: Sequence[int], *, name: str = "unsqueeze") -> Tensor:
    """Insert dimensions of extent 1 so that they have the positions `axes` in the result."""
    places = normal_axes(axes, x.rank + len(axes), where=name)
    kept = iter(static_shape(x.shape))
    return reshape(x, [1 if d in places else next(kept) for d in range(x.rank + len(places))], name=name)


@operator
def expand(x: Tensor, shape: Sequence[int], *, name: str = "expand") -> Tensor:
    """Broadcast x and a tensor of `shape` with each other, and return x at the common shape."""
    b = x.builder
    axes = axes_of(broadcast_shapes(x.shape, tuple(shape)))
    return emit(b, axes, element(x, axes), name=name)


@operator
def tile(x: Tensor, repeats: Sequence[int], *, name: str = "tile") -> Tensor:
    """Repeat the whole tensor `repeats[d]` times along dimension d."""
    if len(repeats) != x.rank or any(r < 0 for r in repeats):
        raise InvalidExpression(f"{list(repeats)} repeats of {x}", help=f"{x.rank} counts of 0 or more")
    shape = static_shape(x.shape)
    target = [extent * count for extent, count in zip(shape, repeats, strict=True)]
    return move(x, target, lambda axes: [a % max(e, 1) for a, e in zip(axes, shape, strict=True)], name=name)


@operator
def flip(x: Tensor, axes: Sequence[int], *, name: str = "flip") -> Tensor:
    """Reverse the order along `axes`."""
    chosen, shape = normal_axes(axes, x.rank, where=name), static_shape(x.shape)
    return move(x, shape, lambda all_: [shape[d] - 1 - a if d in chosen else a for d, a in enumerate(all_)], name=name)


@operator
def roll(x: Tensor, shifts: Sequence[int], axes: Sequence[int], *, name: str = "roll") -> Tensor:
    """Rotate by ``shifts[i]`` towards larger indices along ``axes[i]``."""
    shape = static_shape(x.shape)
    _require_lengths({"shifts": shifts}, len(axes), "one per axis", name)
    by = dict(zip(normal_axes(axes, x.rank, where=name), shifts, strict=True))

    def index(positions: tuple[Axis, ...]) -> list[Expr]:
        return [(a + (-by.get(d, 0)) % e) % e if by.get(d) and e else a
                for d, (a, e) in enumerate(zip(positions, shape, strict=True))]  # fmt: skip

    return move(x, shape, index, name=name)


# Parts ---------------------------------------------------------------------------------------------------------


@operator
def slice_(
    x: Tensor, starts: Sequence[int], extents: Sequence[int], steps: Sequence[int] | None = None,
    *, name: str = "slice",
) -> Tensor:  # fmt: skip
    """``out[i] = x[starts + steps * i]``, one start, extent and step (may be negative) per dimension."""
    shape, steps = static_shape(x.shape), steps or [1] * x.rank
    _require_lengths({"starts": starts, "extents": extents, "steps": steps}, x.rank, "one per dimension", name)
    for d, (start, count, step) in enumerate(zip(starts, extents, steps, strict=True)):
        last = start + step * (count - 1)
        if count and not (0 <= start < shape[d] and 0 <= last < shape[d]):
            raise InvalidExpression(
                f"slice of dimension {d} of {x}: {count} elements from {start} by {step}",
                help=f"stay in [0, {shape[d]})",
            )
    return move(x, extents, lambda axes: [a * s + c for a, s, c in zip(axes, steps, starts, strict=True)], name=name)


def _require_lengths(lists: Mapping[str, Sequence[int]], count: int, meaning: str, where: str) -> None:
    """Raise ExtentMismatch for a list that has not `count` numbers."""
    for label, numbers in lists.items():
        if len(numbers) != count:
            raise ExtentMismatch(f"{len(numbers)} {label}: {list(numbers)}", where=where, help=f"{count}, {meaning}")


def slice_bounds(extent: int, start: int, stop: int, step: int) -> tuple[int, int]:
    """First index and number of elements of ``range(extent)[start:stop:step]``, by Python's rules."""
    if step == 0:
        raise InvalidExpression("a slice with step 0", help="a step other than 0")
    chosen = range(extent)[slice(start, stop, step)] if step > 0 else _reversed_range(extent, start, stop, step)
    return (chosen[0], len(chosen)) if len(chosen) else (0, 0)


def _reversed_range(extent: int, start: int, stop: int, step: int) -> range:
    """Negative steps: `stop` below ``-extent`` means "before the first", as ONNX has it."""
    first = min(start + extent if start < 0 else start, extent - 1)
    last = max(stop + extent if stop < 0 else stop, -1)
    return range(max(first, -1), last, step)


@operator
def narrow(x: Tensor, axis: int, start: int, extent: int, *, name: str = "narrow") -> Tensor:
    """`extent` elements from `start` along one axis."""
    d, shape = normal_axis(axis, x.rank, where=name), static_shape(x.shape)
    starts = [start if p == d else 0 for p in range(x.rank)]
    return slice_(x, starts, [extent if p == d else e for p, e in enumerate(shape)], name=name)


@operator
def split(
    x: Tensor, sizes: Sequence[int], *, axis: int = 0, names: Sequence[str] | None = None,
    name: str = "split",
) -> list[Tensor]:  # fmt: skip
    """Consecutive parts of `sizes` along `axis`."""
    d = normal_axis(axis, x.rank, where=name)
    if sum(sizes) != static_shape(x.shape)[d] or any(size < 0 for size in sizes):
        raise ExtentMismatch(
            f"split of dimension {d} of {x} into {list(sizes)}", help=f"sizes that add to {x.shape[d]}"
        )
    labels = names or [name] * len(sizes)
    return [
        narrow(x, d, sum(sizes[:i]), size, name=label)
        for i, (size, label) in enumerate(zip(sizes, labels, strict=True))
    ]


@operator
def concat(tensors: Sequence[Tensor], *, axis: int, name: str = "concat") -> Tensor:
    """Join along `axis`: a balanced tree of selects, each part read only in its range."""
    if not tensors:
        raise InvalidExpression("concat of no tensors", help="give at least one")
    first = tensors[0]
    d = normal_axis(axis, first.rank, where=name)
    for other in tensors[1:]:
        rest = [s.shape[:d] + s.shape[d + 1 :] for s in (first, other)]
        if other.rank != first.rank or rest[0] != rest[1] or other.dtype != first.dtype:
            raise ExtentMismatch(
                f"concat of {first} and {other} along dimension {d}", help="equal dtypes, and equal extents elsewhere"
            )
    parts = [(t, int(static_shape(t.shape)[d])) for t in tensors]
    starts = list(accumulate((size for _, size in parts), initial=0))
    axes = axes_of([starts[-1] if p == d else e for p, e in enumerate(static_shape(first.shape))])
    filled = [i for i, (_, size) in enumerate(parts) if size]

    def choose(these: list[int]) -> Expr:
        if len(these) == 1:
            index = [a - starts[these[0]] if p == d else a for p, a in enumerate(axes)]
            return parts[these[0]][0][tuple(index)]
        half = len(these) // 2
        return select(axes[d] < starts[these[half]], choose(these[:half]), choose(these[half:]))

    return emit(first.builder, axes, choose(filled) if filled else Const(0, first.dtype), name=name)


@operator
def stack(tensors: Sequence[Tensor], *, axis: int = 0, name: str = "stack") -> Tensor:
    """Join along a new dimension at `axis`."""
    rows = [unsqueeze(t, [axis], name=f"{name}.part") for t in tensors]
    return concat(rows, axis=axis, name=name)


@operator
def pad(
    x: Tensor,
    before: Sequence[int],
    after: Sequence[int],
    *,
    mode: str = "constant",
    value: Tensor | float | bool = 0,
    name: str = "pad",
) -> Tensor:
    """Add (or, where negative, remove) positions at both ends of every dimension.

    `mode` says what they hold: "constant" (`value`), "reflect" (mirror, border not repeated), "symmetric" (border
    repeated), "edge" (nearest element) or "wrap" (from the other end).
    """
    b = x.builder
    _require_lengths({"before": before, "after": after}, x.rank, "one per dimension", name)
    shape = static_shape(x.shape)
    target = [low + e + high for low, e, high in zip(before, shape, after, strict=True)]
    axes = axes_of(target)
    positions = [a - low for a, low in zip(axes, before, strict=True)]
    if mode == "constant":
        outside = only(value) if isinstance(value, Tensor) else const(value, x.dtype)
        inside: Expr = const(True, "bool")
        for p, e, low, high in zip(positions, shape, before, after, strict=True):
            if low > 0:
                inside = inside & (p >= 0)
            if high > 0:
                inside = inside & (p < e)
        return emit(b, axes, select(inside, x[tuple(positions)], outside), name=name)
    if mode not in ("reflect", "symmetric", "edge", "wrap"):
        raise InvalidExpression(f"pad mode {mode!r}", help="constant, reflect, symmetric, edge or wrap")
    if any(e == 0 and t for e, t in zip(shape, target, strict=True)):
        raise InvalidExpression(f"{mode} padding of {x}, which is empty", help="constant padding, or a larger tensor")
    index = [
        p if low <= 0 and high <= 0 else _inside(p, e, low, high, mode)
        for p, e, low, high in zip(positions, shape, before, after, strict=True)
    ]
    return emit(b, axes, x[tuple(index)], name=name)


def _inside(p: Expr, extent: int, low: int, high: int, mode: str) -> Expr:
    """The index in [0, extent) that position p, from -low to extent + high, is filled from."""
    if mode == "wrap":
        return p % extent
    if mode == "edge":
        return clamp(p, 0, extent - 1)
    border = 1 if mode == "reflect" else 0
    period = max(2 * extent - 2 * border, 1)
    if max(low, high) >= extent + 1 - border:  # more than one reflection
        p = p % period
    mirrored = select(p < 0, -p - (1 - border), select(p > extent - 1, (2 * extent - 1 - border) - p, p))
    return clamp(mirrored, 0, extent - 1)


# Generated tensors ---------------------------------------------------------------------------------------------


@operator
def trilu(x: Tensor, k: Tensor | int = 0, *, upper: bool = True, name: str = "trilu") -> Tensor:
    """Zero what is below (`upper`) or above the k-th diagonal of the last two dimensions."""
    b = x.builder
    if x.rank < 2:
        raise InvalidExpression(f"a triangle of {x}", help="a tensor of rank 2 or more")
    axes = axes_of(x.shape)
    diagonal = only(k) if isinstance(k, Tensor) else const(k, INDEX)
    offset = axes[-1] - axes[-2]
    keep = offset >= diagonal if upper else offset <= diagonal
    return emit(b, axes, select(keep, x[axes], 0), name=name)


@operator
def eye(b: GraphBuilder, rows: int, columns: int, *, k: int = 0, dtype: DTypeLike = "f32", name: str = "eye") -> Tensor:
    """Ones on the k-th diagonal."""
    i, j = axes_of((rows, columns))
    return emit(b, (i, j), select((j - i).eq(k), Const(1, dtype), Const(0, dtype)), name=name)


@operator
def iota(
    b: GraphBuilder, extent: int, *, start: float = 0, step: float = 1, dtype: DTypeLike = INDEX, name: str = "iota"
) -> Tensor:
    """``start + step * i`` for i in [0, extent)."""
    (i,) = axes_of((extent,))
    value = i.cast(dtype) * step + start
    return emit(b, (i,), value, name=name)


@operator
def reverse_sequence(
    x: Tensor, lengths: Tensor, *, time_axis: int = 0, batch_axis: int = 1, name: str = "reverse"
) -> Tensor:
    """Reverse the first ``lengths[batch]`` positions along `time_axis`; the rest stay."""
    b = x.builder
    t, n = normal_axis(time_axis, x.rank, where=name), normal_axis(batch_axis, x.rank, where=name)
    shape = static_shape(x.shape)
    axes = axes_of(shape)
    length = lengths[axes[n]].cast(INDEX)
    mirrored = select(axes[t] < length, length - 1 - axes[t], axes[t])
    index = [clamp(mirrored, 0, max(shape[t] - 1, 0)) if d == t else a for d, a in enumerate(axes)]
    return emit(b, axes, x[tuple(index)], name=name)
