"""Rarer functions of one or two numbers."""

from __future__ import annotations

from math import pi, sqrt

from tilewright.expr import dtypes
from tilewright.expr.core import Expr, Tensor, apply, select
from tilewright.expr.ops.elementwise import fill
from tilewright.frontend.torch.call import Call, Number
from tilewright.frontend.torch.operators.arithmetic import is_negative
from tilewright.frontend.torch.registry import aten

Operand = Tensor | Number


@aten("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(call: Call, x: Operand, other: Operand) -> Tensor:
    """The sign of a NaN counts as plus."""

    def body(v: Expr, w: Expr) -> Expr:
        size = apply("abs", v)
        return select(is_negative(w), -size, size)

    return call.pointwise([x, other], body)


@aten("aten.signbit.default")
def signbit(call: Call, x: Tensor) -> Tensor:
    """That of a NaN counts as not set."""
    if dtypes.is_float(x.dtype):
        return call.pointwise([x], is_negative, compute=x.dtype)
    if dtypes.is_unsigned(x.dtype):
        return fill(call.b, call.shape, False, "bool", name=call.name)
    return call.pointwise([x], lambda v: v < 0, compute=x.dtype)


@aten("aten.hypot.default")
def hypot(call: Call, x: Tensor, other: Tensor) -> Tensor:
    return call.pointwise([x, other], length_of)


def length_of(v: Expr, w: Expr) -> Expr:
    """``sqrt(v**2 + w**2)`` without overflow; an infinite side makes it infinite, whatever the other is."""
    v, w = apply("abs", v), apply("abs", w)
    top = apply("max", v, w)
    ratio = apply("min", v, w) / top
    length = select(top.eq(0), 0.0, top * apply("sqrt", 1.0 + ratio * ratio))
    return select(apply("isinf", v) | apply("isinf", w), float("inf"), length)


@aten("aten.fmax.default", "aten.fmin.default")
def number_extreme(call: Call, x: Tensor, other: Tensor) -> Tensor:
    """The extreme of two, or the other of a NaN."""
    kind = "max" if "fmax" in str(call.node.target) else "min"

    def body(v: Expr, w: Expr) -> Expr:
        found = apply(kind, v, w)
        if not dtypes.is_float(found.dtype):
            return found
        return select(apply("isnan", v), w, select(apply("isnan", w), v, found))

    return call.pointwise([x, other], body)


@aten("aten.erfc.default")
def erfc(call: Call, x: Tensor) -> Tensor:
    """``1 - erf(x)`` without cancellation: twice the distribution of normal numbers at ``-x * sqrt(2)``."""
    return call.pointwise([x], lambda v: apply("normal_cdf", v * -sqrt(2)) * 2.0)


@aten("aten.ldexp.Tensor")
def ldexp(call: Call, x: Tensor, other: Tensor) -> Tensor:
    return call.pointwise([x, other], lambda v, w: v * apply("pow", 2.0, w))


@aten("aten.angle.default")
def angle(call: Call, x: Tensor) -> Tensor:
    """0 or pi, by the sign; a NaN stays."""
    return call.pointwise([x], lambda v: select(v < 0, pi, select(v.eq(v), 0.0, v)))
