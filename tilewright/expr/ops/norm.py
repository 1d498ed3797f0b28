"""Softmax and normalisations.

Statistics and element-wise work of f16 and bf16 are in f32; the last node rounds. Variances are means of squared
deviations (two passes), not differences of means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.core import Axis, Expr, Tensor, apply, const, select, static_shape
from tilewright.expr.dtypes import DType, DTypeLike
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.conv import check_groups
from tilewright.expr.ops.elementwise import axes_of, element, emit
from tilewright.expr.ops.linalg import check_broadcasts_to
from tilewright.expr.ops.nodes import (
    accumulator,
    fold_over,
    normal_axis,
    pad_node,
    pointwise,
    require_float,
    require_rank,
)

#: The point-wise work after a normalisation: scale and bias of the element at these loops.
Affine = Callable[[Expr, tuple[Axis, ...]], Expr]


@operator
def softmax(
    x: Tensor,
    *,
    axis: int = -1,
    simplified: bool = False,
    out_dtype: DTypeLike | None = None,
    name: str = "softmax",
) -> Tensor:
    """``exp(x - max x) / sum exp(x - max x)`` along `axis`: nodes max, sub, exp, sum, div.

    `simplified` leaves out the maximum (nodes exp, sum, div) and overflows for elements above log of the largest f32.
    """
    b = x.builder
    d, exponential = _exponential(b, x, axis, simplified=simplified, name=name)[:2]
    total = fold_over(b, exponential, [d], "sum", _same, name=f"{name}.sum", source=name)
    axes = axes_of(x.shape)
    return emit(b, axes, (exponential[axes] / total[_without(axes, d)]).cast(out_dtype or x.dtype), name=name)


@operator
def log_softmax(x: Tensor, *, axis: int = -1, name: str = "log_softmax") -> Tensor:
    """``x - max x - log sum exp(x - max x)`` along `axis`."""
    b = x.builder
    d, exponential, shifted = _exponential(b, x, axis, simplified=False, name=name)
    total = fold_over(b, exponential, [d], "sum", _same, name=f"{name}.sum", source=name)
    axes = axes_of(x.shape)
    return emit(b, axes, (shifted[axes] - apply("log", total[_without(axes, d)])).cast(x.dtype), name=name)


@operator
def layer_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    name: str = "layer_norm",
) -> Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the dimensions from `axis` on."""
    return layer_norm_statistics(x, scale, bias, axis=axis, epsilon=epsilon, name=name)[0]


@operator
def layer_norm_statistics(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    name: str = "layer_norm",
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_norm`, and the mean and ``1 / sqrt(variance + epsilon)``, with extent 1 in the normalised dimensions."""
    b = x.builder
    dimensions = range(normal_axis(axis, x.rank, where=name), x.rank)
    affine = _affine(x, scale, bias, where=name)
    result = _normalise(b, x, dimensions, _inverse_root(epsilon), affine, name=name)
    return result[0], result[1], result[3]


@operator
def rms_norm(
    x: Tensor,
    scale: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    name: str = "rms_norm",
) -> Tensor:
    """``x / sqrt(mean of x*x + epsilon) * scale`` over the dimensions from `axis` on."""
    b = x.builder
    require_float(x, where=name)
    wide = accumulator(x.dtype)
    first = normal_axis(axis, x.rank, where=name)
    dimensions = range(first, x.rank)
    affine = _affine(x, scale, None, where=name)
    count = prod(static_shape(x.shape[first:]))
    squares = fold_over(b, x, dimensions, "sum", _square(wide), name=f"{name}.squares", source=name)
    inverse = pointwise(
        b, squares.shape, lambda i: _inverse_root(epsilon)(squares[i] / count), name=f"{name}.inverse", source=name
    )
    axes = axes_of(x.shape)
    return emit(b, axes, affine(x[axes].cast(wide) * inverse[axes[:first]], axes).cast(x.dtype), name=name)


@operator
def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    name: str = "batch_norm",
) -> Tensor:
    """Inference: ``x * factor + shift`` per channel of x [b, C, …]; everything else is [C].

    ``factor = scale / sqrt(variance + epsilon)`` and ``shift = bias - mean * factor`` are nodes of their own, which
    fold where their operands are constants.
    """
    b = x.builder
    require_float(x, where=name)
    require_rank(x, (2, 99), "[b, C, …]", where=name)
    for parameter in (scale, bias, mean, variance):
        _check_per_channel(parameter, x, where=name)
    wide = accumulator(x.dtype)
    factor = pointwise(
        b,
        scale.shape,
        lambda c: scale[c].cast(wide) / apply("sqrt", variance[c].cast(wide) + epsilon),
        name=f"{name}.factor",
        source=name,
    )
    shift = pointwise(
        b, scale.shape, lambda c: bias[c].cast(wide) - mean[c].cast(wide) * factor[c], name=f"{name}.shift", source=name
    )
    axes = axes_of(x.shape)
    return emit(b, axes, (x[axes].cast(wide) * factor[axes[1]] + shift[axes[1]]).cast(x.dtype), name=name)


@operator
def batch_norm_training(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    name: str = "batch_norm",
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by the batch's own statistics; also returns the running mean and variance.

    These are ``old * momentum + own * (1 - momentum)``.
    """
    b = x.builder
    require_rank(x, (2, 99), "[b, C, …]", where=name)
    for parameter in (mean, variance):
        _check_per_channel(parameter, x, where=name)
    count = prod(static_shape(x.shape)[d] for d in _but_channels(x))
    output, own_mean, squares = _by_batch(b, x, scale, bias, epsilon, name=name)
    running = []
    for old, own, divisor, what in ((mean, own_mean, 1, "mean"), (variance, squares, count, "variance")):
        (c,) = axes_of(old.shape)
        current = own[tuple(c if d == 1 else 0 for d in range(own.rank))] / divisor
        blended = old[c].cast(own.dtype) * momentum + current * (1 - momentum)
        running.append(emit(b, [c], blended.cast(old.dtype), name=f"{name}.running_{what}", source=name))
    return output, running[0], running[1]


@operator
def batch_norm_by_batch(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    name: str = "batch_norm",
) -> Tensor:
    """Normalise each channel of x [b, C, …] by the batch's own statistics, without running ones."""
    b = x.builder
    return _by_batch(b, x, scale, bias, epsilon, name=name)[0]


def _by_batch(
    b: GraphBuilder, x: Tensor, scale: Tensor | None, bias: Tensor | None, epsilon: float, *, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and the mean and the sum of squared deviations of every channel, with extent 1 elsewhere."""
    require_rank(x, (2, 99), "[b, C, …]", where=name)
    affine = _per_channel(x, scale, bias, where=name)
    return _normalise(b, x, _but_channels(x), _inverse_root(epsilon), affine, name=name)[:3]


def _but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.rank)]


def _per_channel(x: Tensor, scale: Tensor | None, bias: Tensor | None, *, where: str) -> Affine:
    """Scale and bias of shape [C] as point-wise work."""
    for parameter in (scale, bias):
        if parameter is not None:
            _check_per_channel(parameter, x, where=where)

    def affine(value: Expr, axes: tuple[Axis, ...]) -> Expr:
        scaled = value if scale is None else value * scale[axes[1]].cast(value.dtype)
        return scaled if bias is None else scaled + bias[axes[1]].cast(value.dtype)

    return affine


@operator
def group_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    groups: int,
    epsilon: float = 1e-5,
    name: str = "group_norm",
) -> Tensor:
    """Normalise x [b, C, …] over each group of C/groups channels and all that follows.

    Scale and bias are [C] or [groups].
    """
    b = x.builder
    require_float(x, where=name)
    require_rank(x, (2, 99), "[b, C, …]", where=name)
    wide = accumulator(x.dtype)
    channels, *sizes = static_shape(x.shape[1:])
    check_groups(x, channels, groups, where=name)
    per_group = channels // groups
    count = per_group * prod(sizes)
    stats = (Axis("b", x.shape[0]), Axis("g", groups))
    summed = (Axis("c", per_group), *(Axis(f"r{d}", e) for d, e in enumerate(sizes)))
    channel = stats[1] * per_group + summed[0]
    axes = axes_of(x.shape)
    group = (axes[0], axes[1] // per_group)
    total = emit(
        b, stats, x[(stats[0], channel, *summed[1:])].cast(wide), reduce=summed, accum="sum", name=f"{name}.total",
        source=name,
    )  # fmt: skip
    mean = pointwise(b, total.shape, lambda i: total[i] / count, name=f"{name}.mean", source=name)
    centred = emit(b, axes, x[axes].cast(wide) - mean[group], name=f"{name}.centred", source=name)
    deviation = centred[(stats[0], channel, *summed[1:])]
    squares = emit(b, stats, deviation * deviation, reduce=summed, accum="sum", name=f"{name}.squares", source=name)
    inverse = pointwise(
        b, squares.shape, lambda i: _inverse_root(epsilon)(squares[i] / count), name=f"{name}.inverse", source=name
    )
    value = centred[axes] * inverse[group]
    for parameter, function in ((scale, "mul"), (bias, "add")):
        if parameter is not None:
            if parameter.shape not in ((channels,), (groups,)):
                raise ExtentMismatch(f"{parameter} for {x}", where=name, help=f"give shape [{channels}] or [{groups}]")
            index = axes[1] if parameter.shape == (channels,) else group[1]
            value = apply(function, value, parameter[index].cast(wide))
    return emit(b, axes, value.cast(x.dtype), name=name)


@operator
def instance_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    name: str = "instance_norm",
) -> Tensor:
    """Normalise every channel of every element of the batch of x [b, C, …] over its spatial dimensions."""
    b = x.builder
    require_rank(x, (3, 99), "[b, C, …]", where=name)
    affine = _per_channel(x, scale, bias, where=name)
    return _normalise(b, x, range(2, x.rank), _inverse_root(epsilon), affine, name=name)[0]


@operator
def mean_variance_norm(x: Tensor, *, axes: Sequence[int] = (0, 2, 3), name: str = "mean_variance_norm") -> Tensor:
    """``(x - mean) / (standard deviation + 1e-9)`` over `axes` (ONNX MeanVarianceNormalization)."""
    b = x.builder
    dimensions = [normal_axis(axis, x.rank, where=name) for axis in axes]

    def inverse(variance: Expr) -> Expr:
        return 1.0 / (apply("sqrt", variance) + 1e-9)

    return _normalise(b, x, dimensions, inverse, lambda value, _: value, name=name)[0]


@operator
def lp_norm(x: Tensor, *, axis: int = -1, p: int = 2, name: str = "lp_norm") -> Tensor:
    """x divided by its 1-norm or 2-norm along `axis`; 0 where the norm is 0."""
    b = x.builder
    require_float(x, where=name)
    if p not in (1, 2):
        raise InvalidExpression(f"a norm of order {p}", where=name, help="1 or 2")
    wide = accumulator(x.dtype)
    d = normal_axis(axis, x.rank, where=name)
    before = _square(wide) if p == 2 else lambda v: apply("abs", v.cast(wide))
    total = fold_over(b, x, [d], "sum", before, name=f"{name}.total", source=name)
    norm = total
    if p == 2:
        norm = pointwise(b, total.shape, lambda i: apply("sqrt", total[i]), name=f"{name}.norm", source=name)
    axes = axes_of(x.shape)
    divisor = norm[_without(axes, d)]
    return emit(b, axes, select(divisor.eq(0), 0.0, x[axes].cast(wide) / divisor).cast(x.dtype), name=name)


@operator
def local_response_norm(
    x: Tensor,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    name: str = "local_response_norm",
) -> Tensor:
    """``x / (bias + alpha/size * sum of x*x over size neighbouring channels) ** beta``.

    The window of channel c begins at ``c - (size-1)//2``; channels outside x [b, C, …] count as 0.
    """
    b = x.builder
    require_float(x, where=name)
    require_rank(x, (2, 99), "[b, C, …]", where=name)
    if size < 1:
        raise InvalidExpression(f"a window of {size} channels", where=name, help="1 or more")
    wide = accumulator(x.dtype)
    (channels,) = static_shape(x.shape[1:2])
    begins = [(size - 1) // 2 if d == 1 else 0 for d in range(x.rank)]
    padded = pad_node(b, x, begins, (x.shape[0], channels + size - 1, *x.shape[2:]), name=f"{name}.pad", source=name)
    axes, r = axes_of(x.shape), Axis("r", size)
    value = padded[(axes[0], axes[1] + r, *axes[2:])].cast(wide)
    squares = emit(b, axes, value * value, reduce=[r], accum="sum", name=f"{name}.squares", source=name)
    divisor = apply("pow", squares[axes] * (alpha / size) + bias, const(beta, wide))
    return emit(b, axes, (x[axes].cast(wide) / divisor).cast(x.dtype), name=name)


def _exponential(b: GraphBuilder, x: Tensor, axis: int, *, simplified: bool, name: str) -> tuple[int, Tensor, Tensor]:
    """The axis from the front, ``exp(x - max x)``, and ``x - max x`` (x itself if simplified)."""
    require_float(x, where=name)
    wide = accumulator(x.dtype)
    d = normal_axis(axis, x.rank, where=name)
    axes = axes_of(x.shape)
    shifted = x
    if not simplified:
        peak = fold_over(b, x, [d], "max", _same, name=f"{name}.max", source=name)
        difference = x[axes].cast(wide) - peak[_without(axes, d)].cast(wide)
        shifted = emit(b, axes, difference, name=f"{name}.sub", source=name)
    exponential = emit(b, axes, apply("exp", shifted[axes].cast(wide)), name=f"{name}.exp", source=name)
    return d, exponential, shifted


def _normalise(
    b: GraphBuilder,
    x: Tensor,
    dimensions: Sequence[int],
    inverse_of: Callable[[Expr], Expr],
    affine: Affine,
    *,
    name: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``affine((x - mean) * inverse_of(variance))``: the result, the mean, the sum of squared deviations, the inverse.

    The last three have extent 1 in `dimensions`.
    """
    require_float(x, where=name)
    wide = accumulator(x.dtype)
    count = prod(static_shape(tuple(x.shape[d] for d in dimensions)))
    axes = axes_of(x.shape)
    kept = tuple(Axis(axis.name, 1) if d in dimensions else axis for d, axis in enumerate(axes))
    ranges = {d: Axis(f"r{d}", x.shape[d]) for d in dimensions}
    place = tuple(ranges.get(d, axis) for d, axis in enumerate(axes))
    reduce = list(ranges.values())
    total = emit(b, kept, x[place].cast(wide), reduce=reduce, accum="sum", name=f"{name}.total", source=name)
    mean = pointwise(b, total.shape, lambda i: total[i] / count, name=f"{name}.mean", source=name)
    centred = emit(b, axes, x[axes].cast(wide) - element(mean, axes), name=f"{name}.centred", source=name)
    deviation = centred[place]
    squares = emit(b, kept, deviation * deviation, reduce=reduce, accum="sum", name=f"{name}.squares", source=name)
    inverse = pointwise(b, squares.shape, lambda i: inverse_of(squares[i] / count), name=f"{name}.inverse", source=name)
    value = affine(centred[axes] * element(inverse, axes), axes)
    return emit(b, axes, value.cast(x.dtype), name=name), mean, squares, inverse


def _inverse_root(epsilon: float) -> Callable[[Expr], Expr]:
    return lambda variance: 1.0 / apply("sqrt", variance + epsilon)


def _square(wide: DType) -> Callable[[Expr], Expr]:
    return lambda v: v.cast(wide) * v.cast(wide)


def _same(v: Expr) -> Expr:
    return v


def _without(axes: tuple[Axis, ...], d: int) -> tuple[Axis, ...]:
    return (*axes[:d], *axes[d + 1 :])


def _affine(x: Tensor, scale: Tensor | None, bias: Tensor | None, *, where: str) -> Affine:
    """Scale and bias that broadcast to `x`."""
    for parameter in (scale, bias):
        if parameter is not None:
            check_broadcasts_to(parameter, x.shape, where=where)

    def affine(value: Expr, axes: tuple[Axis, ...]) -> Expr:
        scaled = value if scale is None else value * element(scale, axes).cast(value.dtype)
        return scaled if bias is None else scaled + element(bias, axes).cast(value.dtype)

    return affine


def _check_per_channel(parameter: Tensor, x: Tensor, *, where: str) -> None:
    if parameter.shape != (x.shape[1],):
        raise ExtentMismatch(
            f"{parameter} for {x.shape[1]} channels of {x}", where=where, help=f"give shape [{x.shape[1]}]"
        )
