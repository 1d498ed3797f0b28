"""Inverse trigonometric functions."""

from __future__ import annotations

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.value import Value, start


def emit_asin(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Arc sine; NaN outside [-1, 1]. f32: 2.4 ulp; f64: 2.2 ulp."""
    v = start(builder, x, target)
    c = v.kind
    far, t = _arc_sine_part(v.abs())
    result = far.select(v.constant(c.half_pi) - (t * 2.0 - c.half_pi_low), t)
    return result.copysign(v).value


def emit_acos(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Arc cosine; NaN outside [-1, 1]. f32: 1.2 ulp; f64: 1.3 ulp."""
    v = start(builder, x, target)
    c = v.kind
    far, t = _arc_sine_part(v.abs())
    near = v.constant(c.half_pi) - (t.copysign(v) - c.half_pi_low)
    twice = t * 2.0
    left = v.constant(2.0 * c.half_pi) - (twice - 2.0 * c.half_pi_low)
    return far.select(v.less(0.0).select(left, twice), near).value


def emit_atan(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Arc tangent. f32: 1.9 ulp; f64: 1.7 ulp."""
    v = start(builder, x, target)
    c = v.kind
    a = v.abs()
    one, zero = v.constant(1.0), v.constant(0.0)
    middle, far = a.greater(0.4142135623730950), a.greater(2.414213562373095)  # tan of pi/8 and 3 pi/8
    above = far.select(-one, middle.select(a - 1.0, a))
    below = far.select(a, middle.select(a + 1.0, one))
    t = above / below
    z = t * t
    offset = far.select(v.constant(c.half_pi), middle.select(v.constant(c.half_pi / 2), zero))
    offset_low = far.select(v.constant(c.half_pi_low), middle.select(v.constant(c.half_pi_low / 2), zero))
    curved = (t * z).fma(z.polynomial(c.atan), offset_low)
    return (offset + (t + curved)).copysign(v).value


def _arc_sine_part(a: Value) -> tuple[Value, Value]:
    """Whether a > 1/2, and asin(a), or there asin(sqrt((1 - a) / 2)) = (pi/2 - asin(a)) / 2."""
    far = a.greater(0.5)
    z = far.select((a.constant(1.0) - a) * 0.5, a * a)
    s = far.select(z.sqrt(), a)
    return far, (s * z).fma(z.polynomial(a.kind.asin), s)
