"""Resampling: resize by tables of positions and weights, and sampling at positions that are data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from math import gcd, lcm
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, Operand, Tensor, apply, const, select, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, clamp, emit, read
from tilewright.expr.ops.nodes import accumulator, cast_node, require_rank

Array = np.ndarray[Any, Any]

_LONGEST = 1 << 24  # elements of a resized dimension: its tables are formed when compiling

Position = tuple[Fraction, Fraction]
"""Slope and offset: where output element o lies in the input, ``slope * o + offset``."""

#: Positions by ONNX's names of the rules. Arguments: input extent, output extent, scale, and the region of interest as
#: two fractions of the input. Where an extent times its scale is not whole, "extent of the result" is the whole one, as
#: in onnxruntime, save in half_pixel_symmetric, whose definition is about the difference.
POSITIONS: dict[str, Callable[[int, int, Fraction, tuple[Fraction, Fraction]], Position]] = {
    "half_pixel": lambda n, m, s, roi: _centred(s),
    "asymmetric": lambda n, m, s, roi: (1 / s, Fraction(0)),
    "align_corners": lambda n, m, s, roi: (Fraction(n - 1, max(m - 1, 1)), Fraction(0)),
    "pytorch_half_pixel": lambda n, m, s, roi: _centred(s) if m > 1 else (Fraction(0), Fraction(0)),
    "half_pixel_symmetric": lambda n, m, s, roi: (1 / s, _centred(s)[1] + (n - m / s) / 2),
    "tf_crop_and_resize": lambda n, m, s, roi: _cropped(n, m, roi),
}


def _centred(scale: Fraction) -> Position:
    """Centres of elements on centres: ``(o + 1/2) / scale - 1/2``."""
    return 1 / scale, (1 / scale - 1) / 2


def _cropped(n: int, m: int, roi: tuple[Fraction, Fraction]) -> Position:
    first, span = roi[0] * (n - 1), (roi[1] - roi[0]) * (n - 1)
    return (span / (m - 1), first) if m > 1 else (Fraction(0), first + span / 2)


#: Whole positions, from numerators and the denominator.
_ROUNDINGS: dict[str, Callable[[Array, int], Array]] = {
    "round_prefer_floor": lambda p, q: -((q - 2 * p) // (2 * q)),
    "round_prefer_ceil": lambda p, q: (2 * p + q) // (2 * q),
    "floor": lambda p, q: p // q,
    "ceil": lambda p, q: -(-p // q),
}


def simplest(number: float) -> Fraction:
    """The fraction with the smallest denominator that is `number` in f32: 3/5 for what is 0.60000002 there.

    A number that f32 does not have is taken as one of f64.

    >>> simplest(float(np.float32(0.6))), simplest(2.5), simplest(7 / 3)
    (Fraction(3, 5), Fraction(5, 2), Fraction(7, 3))
    """
    exact = Fraction(number)
    single = float(np.float32(number)) == number
    for digits in range(20):
        found = exact.limit_denominator(10**digits)
        if (float(np.float32(float(found))) if single else float(found)) == number:
            return found
    return exact


@dataclass(frozen=True, eq=False)
class Table:
    """How one dimension is resampled: ``out[o] = sum over t of weights[o, t] * x[index[o, t]]``.

    `outside` marks outputs whose position is not in the input.
    """

    index: Array
    weights: Array
    outside: Array


def resize_table(
    extent: int,
    result: int,
    scale: float | Fraction,
    *,
    mode: str = "nearest",
    position: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic_a: float = -0.75,
    antialias: bool = False,
    exclude_outside: bool = False,
    roi: tuple[float, float] = (0.0, 1.0),
) -> Table:
    """The table from `extent` to `result` elements. `mode`: nearest, linear, cubic; the rest as in ONNX Resize.

    Positions are exact. A scale that is a float stands for the `simplest` fraction.
    """
    for value, known in ((position, POSITIONS), (rounding, _ROUNDINGS), (mode, ("nearest", "linear", "cubic"))):
        if value not in known:
            raise InvalidExpression(f"resize with {value!r}", help=f"one of {', '.join(known)}")
    if extent < 1 or not scale > 0 or not 0 <= result <= _LONGEST:
        raise InvalidExpression(
            f"resize of {extent} elements by {scale} to {result}", help=f"1 to {_LONGEST}, and a scale above 0"
        )
    fraction = scale if isinstance(scale, Fraction) else simplest(scale)
    region = (simplest(roi[0]), simplest(roi[1]))
    slope, offset = POSITIONS[position](extent, result, fraction, region)
    where, unit = _numerators(slope, offset, result)
    outside = np.asarray((where < 0) | (where > (extent - 1) * unit), bool)
    if mode == "nearest":
        index = np.clip(_ROUNDINGS[rounding](where, unit), 0, extent - 1).astype(np.int64)[:, None]
        return Table(index, np.ones(index.shape), outside)
    shrink = min(float(scale), 1.0) if antialias else 1.0
    radius = 1 if mode == "linear" else 2
    first = int(np.floor(-radius / shrink)) + 1
    offsets = np.arange(first, 2 - first if antialias or mode == "cubic" else 2)
    base = where // unit
    distance = np.abs(shrink * (offsets - ((where - base * unit) / unit).astype(np.float64)[:, None]))
    weights = np.clip(1 - distance, 0, 1) if mode == "linear" else _cubic(distance, cubic_a)
    places = (base[:, None] + offsets).astype(np.int64)
    if antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    if exclude_outside:
        weights = np.where((places >= 0) & (places < extent), weights, 0)
        weights = weights / weights.sum(axis=1, keepdims=True)
    return Table(np.clip(places, 0, extent - 1), weights, outside)


def _numerators(slope: Fraction, offset: Fraction, count: int) -> tuple[Array, int]:
    """``slope * o + offset`` for o below `count`, as integers over one denominator."""
    unit = lcm(slope.denominator, offset.denominator)
    a, c = int(slope * unit), int(offset * unit)
    small = 4 * (abs(a) * count + abs(c) + unit) < 1 << 63
    return np.arange(count, dtype=np.int64 if small else object) * a + c, unit


def _cubic(d: Array, a: float) -> Array:
    """Keys' cubic convolution kernel at distance d >= 0."""
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


@operator
def resample(
    x: Tensor,
    tables: Mapping[int, Table],
    *,
    extrapolation: float | None = None,
    name: str = "resize",
) -> Tensor:
    """Resample the dimensions of `tables`. Outputs whose position is outside have the value `extrapolation`, if given.

    Dimensions with one source element per output are read at once; the others are weighted sums, one node each.
    """
    b = x.builder
    for d in tables:
        if not 0 <= d < x.rank:
            raise InvalidExpression(f"a table for dimension {d} of {x}", where=name, help=f"within [0, {x.rank})")
    direct = {d: table for d, table in tables.items() if table.index.shape[1] == 1}
    wide = accumulator(x.dtype) if dtypes.is_float(x.dtype) else "f32"
    stages: list[partial[Tensor]] = []
    if direct or not tables:
        stages.append(partial(_direct, b, tables=direct, source=name))
    for d, table in tables.items():
        if d not in direct:
            stages.append(partial(_weighted, b, d=d, table=table, wide=wide, source=name))
    marked = {d: table.outside for d, table in tables.items() if table.outside.any()}
    if extrapolation is not None and marked:
        stages.append(partial(_extrapolated, b, marked=marked, value=extrapolation, source=name))
    if len(direct) < len(tables) and wide != x.dtype:
        stages.append(partial(cast_node, b, dtype=x.dtype, source=name))
    y = x
    for number, stage in enumerate(stages, start=1):
        y = stage(y, name=name if number == len(stages) else f"{name}.{number}")
    return y


def _extrapolated(
    b: GraphBuilder, x: Tensor, *, marked: Mapping[int, Array], value: float, name: str, source: str
) -> Tensor:
    axes = axes_of(x.shape)
    inside: Expr = const(True, "bool")
    for d, outside in marked.items():
        inside = inside & b.constant(~outside, f"{source}.inside")[axes[d]]
    return emit(b, axes, select(inside, x[axes], const(value, x.dtype)), name=name, source=source)


def _direct(b: GraphBuilder, x: Tensor, *, tables: Mapping[int, Table], name: str, source: str) -> Tensor:
    shape = static_shape(x.shape)
    axes = axes_of([len(tables[d].index) if d in tables else e for d, e in enumerate(shape)])
    index: list[Operand] = list(axes)
    for d, table in tables.items():
        index[d] = _index(b, axes[d], shape[d], table.index[:, 0], f"{name}.index")
    return emit(b, axes, read(x, index), name=name, source=source)


def _index(b: GraphBuilder, axis: Axis, extent: int, places: Array, name: str) -> Expr:
    """``(axis * p + c) // q`` where that gives `places`, else a read of a constant."""
    if len(places) == 0:
        return axis
    common = gcd(extent, len(places))
    p, q = extent // common, len(places) // common
    o = np.arange(len(places))
    low, high = int((places * q - o * p).max()), int(((places + 1) * q - o * p).min()) - 1
    if low <= high:
        return (axis * p + (0 if low <= 0 <= high else low)) // q
    return b.constant(places, name)[axis]


def _weighted(b: GraphBuilder, x: Tensor, *, d: int, table: Table, wide: str, name: str, source: str) -> Tensor:
    places = b.constant(table.index, f"{name}.index")
    weights = b.constant(table.weights.astype(dtypes.numpy_dtype(wide)), f"{name}.weights")
    axes = axes_of([len(table.index) if p == d else e for p, e in enumerate(static_shape(x.shape))])
    t = Axis("t", table.index.shape[1])
    element = x[(*axes[:d], places[axes[d], t], *axes[d + 1 :])].cast(wide)
    return emit(b, axes, weights[axes[d], t] * element, reduce=(t,), accum="sum", name=name, source=source)


@operator
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    name: str = "grid_sample",
) -> Tensor:
    """x [N, C, D…] at the positions of `grid` [N, O…, d], whose last dimension counts from the innermost of D….

    Positions run from -1 to 1 over the input: between the centres of its first and last elements with `align_corners`,
    else between its edges. `mode` is nearest, linear or cubic; `padding` zeros, border or reflection. With cubic and
    border, positions are limited before they are interpolated, as ONNX has it; PyTorch limits each element instead.
    """
    b = x.builder
    require_rank(x, (3, 99), "[N, C, D…]", where=name)
    sizes, dims = static_shape(x.shape)[2:], x.rank - 2
    if grid.rank != x.rank or grid.shape[-1] != dims or grid.shape[0] != x.shape[0]:
        raise ExtentMismatch(f"{name}: grid {grid} for {x}", help=f"a grid [{x.shape[0]}, …, {dims}] of rank {x.rank}")
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise InvalidExpression(f"{name}: {mode} with {padding}")
    outputs = static_shape(grid.shape)[1:-1]
    axes = axes_of([*static_shape(x.shape)[:2], *outputs])
    wide = accumulator(x.dtype) if dtypes.is_float(x.dtype) else "f32"
    taps: list[list[tuple[Expr, Expr, Expr | None]]] = []
    for d, n in enumerate(sizes):
        at = grid[(axes[0], *axes[2:], const(dims - 1 - d, INDEX))].cast(wide)
        place = (at + 1.0) * (0.5 * (n - 1)) if align_corners else ((at + 1.0) * float(n) - 1.0) * 0.5
        taps.append(_grid_taps(place, n, mode, padding, align_corners))

    def total(d: int, chosen: tuple[Expr, ...]) -> Expr:
        if d == dims:
            return x[(axes[0], axes[1], *chosen)].cast(wide)
        parts: Expr | None = None
        for index, weight, inside in taps[d]:
            value = total(d + 1, (*chosen, index))
            value = value if inside is None else select(inside, value, const(0, wide))
            value = value if mode == "nearest" else value * weight
            parts = value if parts is None else parts + value
        assert parts is not None, "every mode has taps"
        return parts

    return emit(b, axes, total(0, ()).cast(x.dtype), name=name)


def _grid_taps(
    place: Expr, n: int, mode: str, padding: str, align_corners: bool
) -> list[tuple[Expr, Expr, Expr | None]]:
    """Index, weight and, for zero padding, validity of each element that contributes at `place` along one dimension."""
    low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
    if mode == "nearest":
        place = apply("round", place)
    if padding == "border":
        place = select((place < low) | (place > high), clamp(place, 0.0, n - 1.0), place)
    elif padding == "reflection":
        place = _reflect(place, low, high)
    base = apply("floor", place)
    fraction = place - base
    offsets: Sequence[int] = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
    found: list[tuple[Expr, Expr, Expr | None]] = []
    for offset in offsets:
        distance = apply("abs", fraction - float(offset))
        weight = 1.0 - distance if mode != "cubic" else _cubic_expr(distance, near=offset in (0, 1))
        where = base + float(offset)
        inside = (where >= 0.0) & (where <= n - 1.0) if padding == "zeros" else None
        if padding == "reflection":
            where = _reflect(where, low, high)
        index = clamp(where, 0.0, n - 1.0).cast(INDEX)
        found.append((index, weight, inside))
    return found


def _cubic_expr(d: Expr, *, near: bool, a: float = -0.75) -> Expr:
    if near:
        return ((d * (a + 2) - (a + 3)) * d) * d + 1.0
    return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a


def _reflect(place: Expr, low: float, high: float) -> Expr:
    """Mirror at both borders until within them."""
    span = high - low
    if span <= 0:
        return place * 0.0
    inside = apply("mod", place - low, 2 * span)
    return select(inside > span, 2 * span - inside, inside) + low
