"""Element-wise arithmetic, functions of one number, conversions."""

from __future__ import annotations

from functools import partial
from math import log, pi
from typing import Any

from tilewright.errors import Unsupported
from tilewright.expr import dtypes
from tilewright.expr.core import Expr, Tensor, apply, select
from tilewright.expr.ops import elementwise as ops
from tilewright.expr.ops import shape as shapes
from tilewright.frontend.torch.call import Call, Number
from tilewright.frontend.torch.element_types import dtype_of
from tilewright.frontend.torch.numbers import Computed, taken
from tilewright.frontend.torch.registry import aten

Operand = Tensor | Number

# Two numbers ----------------------------------------------------------------------------------------------------


@aten("aten.add.Tensor", "aten.add.Scalar")
def add(call: Call, x: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    if call.dtype == "bool":
        return call.pointwise([x, other], lambda v, w: apply("or", v, w))
    return call.pointwise([x, other], lambda v, w: v + (w if alpha == 1 else w * alpha))


@aten("aten.sub.Tensor", "aten.sub.Scalar")
def sub(call: Call, x: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    return call.pointwise([x, other], lambda v, w: v - (w if alpha == 1 else w * alpha))


@aten("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(call: Call, x: Operand, other: Operand, alpha: Number = 1) -> Tensor:
    return call.pointwise([x, other], lambda v, w: w - (v if alpha == 1 else v * alpha))


@aten("aten.mul.Tensor", "aten.mul.Scalar")
def mul(call: Call, x: Operand, other: Operand) -> Tensor:
    if call.dtype == "bool":
        return call.pointwise([x, other], lambda v, w: apply("and", v, w))
    return call.pointwise([x, other], lambda v, w: v * w)


@aten("aten.div.Tensor", "aten.div.Scalar")
def div(call: Call, x: Operand, other: Operand) -> Tensor:
    return call.pointwise([x, other], lambda v, w: v / w)


@aten("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(call: Call, x: Operand, other: Operand, rounding_mode: str | None = None) -> Tensor:
    floats = dtypes.is_float(call.dtype)
    if rounding_mode is None or (rounding_mode == "trunc" and not floats):
        return div(call, x, other)
    if rounding_mode == "trunc":
        return call.pointwise([x, other], lambda v, w: apply("trunc", v / w))
    return call.pointwise([x, other], _floor_divide if floats else lambda v, w: v // w)


@aten("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(call: Call, x: Operand, other: Operand) -> Tensor:
    return div_mode(call, x, other, rounding_mode="floor")


def _floor_divide(v: Expr, w: Expr) -> Expr:
    """The floor of the exact quotient, not of the rounded one.

    ``(v - v fmod w) / w`` is nearly whole, and one too large where the rest and the divisor differ in sign.
    """
    rest = apply("fmod", v, w)
    whole = apply("round", (v - rest) / w)
    apart = rest.ne(0) & apply("xor", rest < 0, w < 0)
    return select(w.eq(0), v / w, select(apart, whole - 1.0, whole))


@aten("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(call: Call, x: Operand, other: Operand) -> Tensor:
    return call.pointwise([x, other], lambda v, w: v % w)


@aten("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(call: Call, x: Operand, other: Operand) -> Tensor:
    return call.pointwise([x, other], lambda v, w: apply("fmod", v, w))


@aten("aten.maximum.default")
def maximum(call: Call, x: Operand, other: Operand) -> Tensor:
    return call.pointwise([x, other], lambda v, w: apply("max", v, w))


@aten("aten.minimum.default")
def minimum(call: Call, x: Operand, other: Operand) -> Tensor:
    return call.pointwise([x, other], lambda v, w: apply("min", v, w))


@aten("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(call: Call, x: Operand, exponent: Operand) -> Tensor:
    return call.pointwise([x, exponent], lambda v, w: apply("pow", v, w))


@aten("aten.pow.Tensor_Scalar")
def power_scalar(call: Call, x: Tensor, exponent: Operand) -> Tensor:
    if isinstance(exponent, Tensor) or not dtypes.is_float(call.dtype):
        return power(call, x, exponent)
    return call.widened(x, lambda v, name: ops.power_constant(v, exponent, name=name))


@aten("aten.atan2.default")
def atan2(call: Call, y: Tensor, x: Tensor) -> Tensor:
    return call.pointwise([y, x], angle_of)


def angle_of(b: Expr, a: Expr) -> Expr:
    """The angle of (a, b): in the first quadrant by the quotient, then mirrored by the signs, of zeros too."""
    high, wide = apply("abs", b), apply("abs", a)
    quotient = select(apply("isinf", a) & apply("isinf", b), 1.0, high / wide)
    angle = apply("atan", select(a.eq(0) & b.eq(0), 0.0, quotient))
    angle = select(is_negative(a), pi - angle, angle)
    return select(is_negative(b), -angle, angle)


def is_negative(v: Expr) -> Expr:
    """Whether a number has a sign; that of a zero shows in its reciprocal."""
    return select(v.eq(0), 1.0 / v, v) < 0


@aten("aten.clamp.default", "aten.clamp.Tensor")
def clamp(call: Call, x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    bounds = [bound for bound in (min, max) if bound is not None]

    def body(v: Expr, *given: Expr) -> Expr:
        low = given[0] if min is not None else None
        high = given[-1] if max is not None else None
        v = v if low is None else apply("max", v, low)
        return v if high is None else apply("min", v, high)

    return call.pointwise([x, *bounds], body)


@aten("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(call: Call, x: Tensor, min: Operand) -> Tensor:
    return clamp(call, x, min=min)


@aten("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(call: Call, x: Tensor, max: Operand) -> Tensor:
    return clamp(call, x, max=max)


# One number -----------------------------------------------------------------------------------------------------


def _one(call: Call, x: Tensor, *, function: str) -> Tensor:
    return call.pointwise([x], lambda v: apply(function, v))


for _name in (
    "abs", "neg", "exp", "log", "sqrt", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "asinh", "acosh", "atanh", "log1p", "expm1",
):  # fmt: skip
    aten(f"aten.{_name}.default")(partial(_one, function=_name))


aten("aten._neg_view.default")(partial(_one, function="neg"))


@aten("aten.sign.default", "aten.sgn.default")
def sign(call: Call, x: Tensor) -> Tensor:
    """0 for NaN, as in torch."""
    if x.dtype == "bool":
        return x
    if not dtypes.is_float(x.dtype):
        return _one(call, x, function="sign")
    return call.pointwise([x], lambda v: select(v > 0, 1.0, select(v < 0, -1.0, 0.0)))


def _rounded(call: Call, x: Tensor, *, function: str) -> Tensor:
    return _one(call, x, function=function) if dtypes.is_float(x.dtype) else x


for _name in ("floor", "ceil", "round", "trunc"):
    aten(f"aten.{_name}.default")(partial(_rounded, function=_name))


@aten("aten.round.decimals")
def round_decimals(call: Call, x: Tensor, *, decimals: int) -> Tensor:
    if not dtypes.is_float(x.dtype):
        return x
    scale = 10.0 ** abs(decimals)
    if decimals < 0:
        return call.pointwise([x], lambda v: apply("round", v / scale) * scale)
    return call.pointwise([x], lambda v: apply("round", v * scale) / scale)


@aten("aten.reciprocal.default")
def reciprocal(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: 1.0 / v)


@aten("aten.rsqrt.default")
def rsqrt(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: 1.0 / apply("sqrt", v))


@aten("aten.square.default")
def square(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: v * v)


@aten("aten.log2.default")
def log2(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: apply("log", v) * (1 / log(2)))


@aten("aten.log10.default")
def log10(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: apply("log", v) * (1 / log(10)))


@aten("aten.exp2.default")
def exp2(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: apply("exp2", v))


# Copies and conversions -----------------------------------------------------------------------------------------


@aten("aten.alias.default", "aten.detach.default", "aten.contiguous.default")
@aten("aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.clone.default")
def same(call: Call, x: Tensor, memory_format: Any = None) -> Tensor:
    return x


@aten("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.type_as.default")
def convert(call: Call, x: Tensor, *_: Any, **__: Any) -> Tensor:
    device = str(call.promised().device)
    if device != "cpu":
        raise Unsupported(f"moves a tensor to {device}")
    return call.cast(x)


@aten("aten.copy.default")
def copy(call: Call, x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """`src` in the shape and dtype of `x`."""
    return shapes.expand(call.cast(src), call.shape, name=call.name)


@aten("aten.dropout.default")
def dropout(call: Call, x: Tensor, p: float, train: bool) -> Tensor:
    if train and p:
        raise Unsupported("random numbers", help="module.eval()")
    return x


@aten("aten.native_dropout.default")
def native_dropout(call: Call, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, None]:
    return dropout(call, x, p, train is not False), None


@aten("aten._assert_tensor_metadata.default", "aten._assert_async.msg", "aten._assert_async.default")
def assertion(call: Call, *_: Any, **__: Any) -> None:
    """Checks of the captured program, which hold for the shapes that it was captured with."""


@aten("aten.fill.Scalar", "aten.fill.Tensor")
def fill(call: Call, x: Tensor, value: Operand) -> Tensor:
    if isinstance(value, Tensor):
        return shapes.expand(call.cast(value), call.shape, name=call.name)
    return ops.fill(call.b, call.shape, value, call.dtype, name=call.name)


@aten("aten.view.dtype")
def view_dtype(call: Call, x: Tensor, dtype: Any) -> Tensor:
    if dtype_of(dtype) != x.dtype:
        raise Unsupported("reads the bits of one element type as another")
    return x


@aten("aten._local_scalar_dense.default")
def item(call: Call, x: Tensor) -> Computed:
    """A Python number; operators that Python does not branch on take it as a tensor."""
    return taken(call.b, x, call.name)
