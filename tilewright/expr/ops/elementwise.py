"""Elementwise operators with NumPy broadcasting, activations, casts and quantisation.

Every builder appends computes to the `GraphBuilder` of its tensors and returns the output tensor. `emit`, `axes_of`,
`broadcast_shapes` and `element` are what the other operator files build with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.affine import simplify
from tilewright.expr.core import (
    EXACT,
    Apply,
    Axis,
    Cast,
    Compute,
    Const,
    Expr,
    Extent,
    Operand,
    Read,
    Tensor,
    apply,
    as_expr,
    const,
    select,
    walk,
)
from tilewright.expr.dtypes import INDEX, DType, DTypeLike
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ordered import Ordered, Sort


def axes_of(shape: Sequence[Extent], prefix: str = "i") -> tuple[Axis, ...]:
    """One axis per extent: ``i0, i1, …``."""
    return tuple(Axis(f"{prefix}{position}", extent) for position, extent in enumerate(shape))


@operator
def emit(
    b: GraphBuilder,
    axes: Sequence[Axis],
    body: Expr,
    *,
    reduce: Sequence[Axis] = (),
    accum: str | Ordered | None = None,
    name: str,
    source: str = "",
) -> Tensor:
    """Append ``name[axes] = accum over reduce of body``, simplified; without `reduce` there is no accumulation.

    A body that rounds in f16 or bf16 is computed in f32 and rounded once, at its end; sums round their total.
    """
    dtype = INDEX if isinstance(accum, Sort) else body.dtype
    output = Tensor(b.unique(name), tuple(axis.extent for axis in axes), dtype)
    kind = accum if reduce else None
    body = simplify(body)
    if kind not in ("sum", "prod") and not isinstance(kind, Ordered):  # these round what they give
        body = rounded_once(body)
    return b.add(Compute(output, tuple(axes), body, tuple(reduce), kind, source or name))


def rounded_once(body: Expr) -> Expr:
    """`body` with all its f16 and bf16 arithmetic in f32; `body` itself where no operation on those types rounds."""
    applied = [node for node in walk(body) if isinstance(node, Apply) and node.function not in EXACT]
    if all(node.dtype == dtypes.wide(node.dtype) for node in applied):
        return body
    return _widened(body).cast(body.dtype)


def _widened(expr: Expr) -> Expr:
    """`expr` computed in f32 where it is f16 or bf16; explicit conversions still round."""
    dtype = dtypes.wide(expr.dtype)
    if isinstance(expr, Const):
        return Const(expr.value, dtype)
    if isinstance(expr, Cast):
        return _widened(expr.arg).cast(expr.dtype).cast(dtype)
    if isinstance(expr, Apply):
        return Apply(expr.function, tuple(_widened(arg) for arg in expr.args), dtype)
    return expr.cast(dtype)


def broadcast_shapes(*shapes: Sequence[Extent]) -> tuple[Extent, ...]:
    """The common shape of `shapes` by NumPy's rule; raises ExtentMismatch where two extents differ and neither is 1."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Extent] = [1] * rank
    for shape in shapes:
        for position, extent in enumerate(shape, start=rank - len(shape)):
            if result[position] == 1:
                result[position] = extent
            elif extent not in (1, result[position]):
                raise ExtentMismatch(
                    f"shapes {' and '.join(_brackets(s) for s in shapes)} do not broadcast",
                    help=f"extents {result[position]} and {extent} must be equal, or one of them 1",
                )
    return tuple(result)


def element(x: Tensor, axes: Sequence[Expr]) -> Read:
    """The element of `x` that broadcasts to the output position `axes`: trailing dimensions match, extent 1 reads 0."""
    tail = axes[len(axes) - x.rank :]
    return x[tuple(const(0, dtypes.INDEX) if e == 1 else axis for e, axis in zip(x.shape, tail, strict=True))]


def read(x: Tensor, indices: Sequence[Operand]) -> Read:
    """The element of `x` at these indices, of which all may be numbers; ``x[0]`` is a part of x."""
    return Read(x, tuple(as_expr(index, INDEX) for index in indices))


def only(x: Tensor) -> Read:
    """The element of `x` that has one, or the first."""
    return read(x, (0,) * x.rank)


@operator
def map_elements(tensors: Sequence[Tensor], body: Callable[..., Expr], *, name: str = "map") -> Tensor:
    """``out = body(elements of tensors)``, broadcast."""
    _require_any(tensors, name)
    axes = axes_of(broadcast_shapes(*(tensor.shape for tensor in tensors)))
    return emit(tensors[0].builder, axes, body(*(element(tensor, axes) for tensor in tensors)), name=name)


@operator
def unary(x: Tensor, function: str, *, name: str = "") -> Tensor:
    """A one-argument function of `expr.core.FUNCTIONS`."""
    return map_elements([x], lambda v: apply(function, v), name=name or function)


@operator
def binary(x: Tensor, y: Tensor, function: str, *, name: str = "") -> Tensor:
    """A two-argument function of `expr.core.FUNCTIONS`; both tensors have one dtype, except for comparisons' result."""
    return map_elements([x, y], lambda v, w: apply(function, v, w), name=name or function)


_MOST_OPERANDS = 64  # of one node: passes visit bodies by recursion, and kernels have as many arguments


@operator
def variadic(tensors: Sequence[Tensor], function: str, *, name: str = "") -> Tensor:
    """``function`` folded over one or more tensors from the first to the last, many of them in several computes."""

    def fold(*values: Expr) -> Expr:
        total = values[0]
        for value in values[1:]:
            total = apply(function, total, value)
        return total

    name = name or function
    _require_any(tensors, name)
    tensors = list(tensors)
    total, begin = tensors[:1], 1
    while len(tensors) - begin >= _MOST_OPERANDS:
        following = tensors[begin : begin + _MOST_OPERANDS - 1]
        total = [map_elements([*total, *following], fold, name=f"{name}.{begin}")]
        begin += len(following)
    return map_elements([*total, *tensors[begin:]], fold, name=name)


def _require_any(tensors: Sequence[Tensor], name: str) -> None:
    if not tensors:
        raise InvalidExpression("no tensors", where=name, help="one or more")


@operator
def mean(tensors: Sequence[Tensor], *, name: str = "mean") -> Tensor:
    """Elementwise arithmetic mean of tensors."""
    _require_any(tensors, name)
    if len(tensors) >= _MOST_OPERANDS:
        total = variadic(tensors, "add", name=f"{name}.sum")
        return map_elements([total], lambda value: value / len(tensors), name=name)

    def average(*values: Expr) -> Expr:
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total / len(values)

    return map_elements(tensors, average, name=name)


@operator
def where(condition: Tensor, x: Tensor, y: Tensor, *, name: str = "where") -> Tensor:
    return map_elements([condition, x, y], select, name=name)


@operator
def power(x: Tensor, y: Tensor, *, name: str = "pow") -> Tensor:
    """``x ** y`` in the wider of both dtypes, returned in the dtype of x."""
    wide = promote(x.dtype, y.dtype)
    return map_elements([x, y], lambda v, w: apply("pow", v.cast(wide), w.cast(wide)).cast(x.dtype), name=name)


@operator
def power_constant(x: Tensor, exponent: float, *, name: str = "pow") -> Tensor:
    """``x ** exponent``, by products, a root or a division where that is exact."""

    def body(v: Expr) -> Expr:
        cheap: dict[float, Callable[[], Expr]] = {1: lambda: v, 2: lambda: v * v, 3: lambda: v * v * v}
        if dtypes.is_float(x.dtype):
            cheap |= {0.5: lambda: apply("sqrt", v), -1: lambda: 1.0 / v}
        if exponent in cheap:
            return cheap[exponent]()
        wide = x.dtype if dtypes.is_float(x.dtype) or float(exponent).is_integer() else "f64"
        return apply("pow", v.cast(wide), const(exponent, wide)).cast(x.dtype)

    return map_elements([x], body, name=name)


def promote(a: DType, c: DType) -> DType:
    """The dtype that both convert to: the wider of two of one kind, the float of a float and an integer."""
    if a == c:
        return a
    if dtypes.is_float(a) != dtypes.is_float(c):
        return a if dtypes.is_float(a) else c
    if {a, c} == {"bf16", "f16"}:
        return "f32"
    if dtypes.is_float(a):
        return max(a, c, key=dtypes.bits)
    return dtypes.from_numpy(np.result_type(dtypes.numpy_dtype(a), dtypes.numpy_dtype(c)))


@operator
def cast(x: Tensor, dtype: DTypeLike, *, name: str = "cast") -> Tensor:
    """Conversion by the rules of `expr.core.Cast`."""
    return map_elements([x], lambda v: v.cast(dtype), name=name)


@operator
def identity(x: Tensor, *, name: str = "copy") -> Tensor:
    return map_elements([x], lambda v: v, name=name)


# Activations ---------------------------------------------------------------------------------------------------


@operator
def relu(x: Tensor, *, name: str = "relu") -> Tensor:
    return map_elements([x], lambda v: apply("max", v, 0), name=name)


@operator
def leaky_relu(x: Tensor, *, alpha: float = 0.01, name: str = "leaky_relu") -> Tensor:
    return map_elements([x], lambda v: select(v < 0, v * alpha, v), name=name)


@operator
def prelu(x: Tensor, slope: Tensor, *, name: str = "prelu") -> Tensor:
    """``x < 0 ? slope * x : x``; `slope` broadcasts to x, not the other way."""
    if broadcast_shapes(x.shape, slope.shape) != x.shape:
        raise ExtentMismatch(
            f"slope {slope} does not broadcast to {x}", help="every extent 1 or equal, rank not above that of x"
        )
    return map_elements([x, slope], lambda v, s: select(v < 0, v * s, v), name=name)


@operator
def elu(x: Tensor, *, alpha: float = 1.0, name: str = "elu") -> Tensor:
    return map_elements([x], lambda v: select(v < 0, apply("expm1", v) * alpha, v), name=name)


@operator
def selu(
    x: Tensor,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
    name: str = "selu",
) -> Tensor:
    """``gamma * (x > 0 ? x : alpha * (exp(x) - 1))``; the defaults are those of the ONNX operator."""
    return map_elements([x], lambda v: select(v > 0, v * gamma, apply("expm1", v) * (alpha * gamma)), name=name)


@operator
def celu(x: Tensor, *, alpha: float = 1.0, name: str = "celu") -> Tensor:
    return map_elements(
        [x],
        lambda v: apply("max", v, 0.0) + apply("min", apply("expm1", v / alpha) * alpha, 0.0),
        name=name,
    )


@operator
def gelu(x: Tensor, *, approximate: str = "none", name: str = "gelu") -> Tensor:
    """``x * Phi(x)``, the distribution of normal numbers, or its approximation by tanh (`approximate` "tanh")."""
    if approximate not in ("none", "tanh"):
        raise InvalidExpression(f"gelu approximation {approximate!r}", help="none or tanh")
    function = "normal_cdf" if approximate == "none" else "normal_cdf_tanh"
    return map_elements([x], lambda v: v * apply(function, v), name=name)


def softplus_of(v: Expr) -> Expr:
    """``log(1 + exp(v))`` without overflow."""
    return apply("max", v, 0.0) + apply("log1p", apply("exp", -apply("abs", v)))


@operator
def softplus(x: Tensor, *, name: str = "softplus") -> Tensor:
    return map_elements([x], softplus_of, name=name)


@operator
def softsign(x: Tensor, *, name: str = "softsign") -> Tensor:
    return map_elements([x], lambda v: v / (apply("abs", v) + 1), name=name)


@operator
def mish(x: Tensor, *, name: str = "mish") -> Tensor:
    """``x * tanh(log(1 + exp(x)))``, which is ``x n / (n + 2)`` with ``n = exp(x) (exp(x) + 2)``."""

    def body(v: Expr) -> Expr:
        e = apply("exp", apply("min", v, 20.0))  # the quotient is 1 from there on
        n = e * (e + 2.0)
        return v * (n / (n + 2.0))

    return map_elements([x], body, name=name)


@operator
def swish(x: Tensor, *, alpha: float = 1.0, name: str = "swish") -> Tensor:
    """``x * sigmoid(alpha * x)``; `alpha` 1 is also called SiLU."""
    return map_elements([x], lambda v: v * apply("sigmoid", v if alpha == 1.0 else v * alpha), name=name)


@operator
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5, name: str = "hard_sigmoid") -> Tensor:
    return map_elements([x], lambda v: clamp(v * alpha + beta, 0.0, 1.0), name=name)


@operator
def hard_swish(x: Tensor, *, name: str = "hard_swish") -> Tensor:
    """``x * min(max(x + 3, 0), 6) / 6``: the sum is exact where the factor is small."""
    return map_elements([x], lambda v: v * (clamp(v + 3.0, 0.0, 6.0) * (1 / 6)), name=name)


@operator
def thresholded_relu(x: Tensor, *, alpha: float = 1.0, name: str = "thresholded") -> Tensor:
    return map_elements([x], lambda v: select(v > alpha, v, 0), name=name)


@operator
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5, name: str = "shrink") -> Tensor:
    """``x < -lambd ? x + bias : x > lambd ? x - bias : 0``; integers compute in f64."""

    def body(v: Expr) -> Expr:
        w = v if dtypes.is_float(x.dtype) else v.cast("f64")
        return select(w < -lambd, w + bias, select(w > lambd, w - bias, 0)).cast(x.dtype)

    return map_elements([x], body, name=name)


def clamp(v: Expr, low: Operand, high: Operand) -> Expr:
    """``min(max(v, low), high)``: `high` wins where low > high."""
    return apply("min", apply("max", v, low), high)


@operator
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, name: str = "clip") -> Tensor:
    """``min(max(x, low), high)`` with scalar tensors; an absent bound does nothing."""

    def body(v: Expr) -> Expr:
        for bound, function in ((low, "max"), (high, "min")):
            if bound is not None:
                v = apply(function, v, only(bound))
        return v

    return map_elements([x], body, name=name)


@operator
def is_inf(x: Tensor, *, positive: bool = True, negative: bool = True, name: str = "isinf") -> Tensor:
    def body(v: Expr) -> Expr:
        if positive and negative:
            return apply("isinf", v)
        infinities = [math.inf] * positive + [-math.inf] * negative
        return v.eq(infinities[0]) if infinities else const(False, "bool")

    return map_elements([x], body, name=name)


# Quantisation --------------------------------------------------------------------------------------------------


def saturate(v: Expr, dtype: DType) -> Expr:
    """Round a float to the nearest integer, halves to even, limit it to the range of `dtype` and convert."""
    limits = np.iinfo(dtypes.numpy_dtype(dtype))
    return clamp(apply("round", v), float(limits.min), float(limits.max)).cast(dtype)


def _parameter(p: Tensor, axes: Sequence[Axis], axis: int, block: int) -> Read:
    """Scale or zero point of the element at `axes`: one for all, one per slice of `axis`, or one per block along it."""
    if p.size == 1 and p.rank <= 1:
        return only(p)
    if p.rank == 1:
        return p[axes[axis]]
    return p[tuple(a // block if d == axis and block else a for d, a in enumerate(axes))]


@operator
def quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block: int = 0,
    dtype: DTypeLike = "u8",
    name: str = "quantize",
) -> Tensor:
    """``saturate(round(x / scale) + zero_point)``, in f32; halves round to even before the zero point is added."""
    b = x.builder
    _check_quantised(x, scale, axis, block)
    _check_zero_point(zero_point, scale)
    axes = axes_of(x.shape)
    axis = axis % x.rank if x.rank else 0
    value = x[axes].cast("f32") / _parameter(scale, axes, axis, block).cast("f32")
    limits = np.iinfo(dtypes.numpy_dtype(dtype))
    rounded = apply("round", value)
    if zero_point is not None:
        rounded = rounded + _parameter(zero_point, axes, axis, block).cast("f32")
    return emit(b, axes, clamp(rounded, float(limits.min), float(limits.max)).cast(dtype), name=name)


@operator
def dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block: int = 0,
    dtype: DTypeLike = "f32",
    name: str = "dequantize",
) -> Tensor:
    """``(x - zero_point) * scale``."""
    b = x.builder
    _check_quantised(x, scale, axis, block)
    _check_zero_point(zero_point, scale)
    axes = axes_of(x.shape)
    axis = axis % x.rank if x.rank else 0
    value: Expr = x[axes].cast("i32")
    if zero_point is not None:
        value = value - _parameter(zero_point, axes, axis, block).cast("i32")
    scaled = value.cast("f32") * _parameter(scale, axes, axis, block).cast("f32")
    return emit(b, axes, scaled.cast(dtype), name=name)


def _check_zero_point(zero_point: Tensor | None, scale: Tensor) -> None:
    """A zero point has the shape of the scale, or is one number."""
    if zero_point is None or (zero_point.size == 1 and zero_point.rank <= 1) or zero_point.shape == scale.shape:
        return
    raise ExtentMismatch(
        f"zero point {zero_point}, scale {scale}", help=f"a zero point of shape {_brackets(scale.shape)}"
    )


def _check_quantised(x: Tensor, scale: Tensor, axis: int, block: int) -> None:
    if scale.size == 1 and scale.rank <= 1:
        return
    if not -x.rank <= axis < x.rank:
        raise InvalidExpression(f"axis {axis} of {x}", help=f"an axis in [{-x.rank}, {x.rank})")
    expected: tuple[Extent, ...] = (x.shape[axis],)
    if scale.rank != 1:
        along = x.shape[axis]
        assert isinstance(along, int), "quantisation needs static shapes"
        blocks = -(-along // block) if block else along
        expected = tuple(blocks if d == axis % x.rank else e for d, e in enumerate(x.shape))
    if scale.shape != expected:
        raise ExtentMismatch(f"scale {scale} for {x}, axis {axis}", help=f"a scale of shape {_brackets(expected)}")


@operator
def dynamic_quantize_linear(x: Tensor, *, name: str = "dynamic_quantize") -> tuple[Tensor, Tensor, Tensor]:
    """Quantise f32 to u8 by its own range: returns values, scale and zero point (ONNX DynamicQuantizeLinear)."""
    b = x.builder
    ranges = axes_of(x.shape, "r")
    if ranges:
        low = emit(b, (), x[ranges], reduce=ranges, accum="min", name=f"{name}.min", source=name)
        high = emit(b, (), x[ranges], reduce=ranges, accum="max", name=f"{name}.max", source=name)
    else:
        low = high = x
    bottom, top = apply("min", low[()], 0.0), apply("max", high[()], 0.0)
    scale = emit(b, (), (top - bottom) / 255.0, name=f"{name}.scale", source=name)
    safe = select(scale[()].eq(0.0), 1.0, scale[()])
    zero = emit(b, (), saturate(-bottom / safe, "u8"), name=f"{name}.zero", source=name)
    axes = axes_of(x.shape)
    shifted = apply("round", x[axes] / safe) + zero[()].cast("f32")
    return emit(b, axes, clamp(shifted, 0.0, 255.0).cast("u8"), name=name), scale, zero


def _brackets(shape: Sequence[Extent]) -> str:
    return f"[{', '.join(map(str, shape))}]"


@operator
def fill(b: GraphBuilder, shape: Sequence[int], value: float | bool, dtype: DTypeLike, *, name: str = "fill") -> Tensor:
    """A tensor of one value."""
    return emit(b, axes_of(shape), Const(value, dtype), name=name)
