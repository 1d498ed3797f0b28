"""Logarithms: log, log1p and the inverse hyperbolic functions."""

from __future__ import annotations

from math import inf, nan

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.value import Value, start


def emit_log(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Natural logarithm; -inf at 0, NaN below. f32: 1.0 ulp; f64: 0.9 ulp."""
    v = start(builder, x, target)
    return log(v, None).value


def emit_log1p(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """log(1 + x) without the rounding of 1 + x. f32: 1.0 ulp; f64: 0.9 ulp."""
    return _log1p(start(builder, x, target)).value


def emit_asinh(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Inverse hyperbolic sine. f32: 1.8 ulp; f64: 1.7 ulp."""
    v = start(builder, x, target)
    a = v.abs()
    square = a * a
    near = a + square / ((square + 1.0).sqrt() + 1.0)
    return _log1p_or_log2x(a, near, a - 1.0).copysign(v).value


def emit_acosh(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Inverse hyperbolic cosine; NaN below 1. f32: 2.1 ulp; f64: 1.8 ulp."""
    v = start(builder, x, target)
    t = v - 1.0
    near = t + (t * 2.0 + t * t).sqrt()
    result = _log1p_or_log2x(v, near, t)
    return v.less(1.0).select(v.constant(nan), result).value


def emit_atanh(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond. f32: 2.0 ulp; f64: 1.8 ulp."""
    v = start(builder, x, target)
    a = v.abs()
    result = _log1p((a + a) / (v.constant(1.0) - a)) * 0.5
    return a.less(v.kind.tiny).select(v, result.copysign(v)).value


def _log1p_or_log2x(a: Value, near: Value, below: Value) -> Value:
    """log1p(near), or log(2 a) = log1p(a - 1) + log 2 where a is so large that squares may overflow."""
    large = a.greater(a.kind.large)
    result = _log1p(large.select(below, near))
    return large.select(result + 0.6931471805599453, result)


def _log1p(x: Value) -> Value:
    u = x + 1.0
    one = x.constant(1.0)
    lost = x.greater(1.0).select(one - (u - x), x - (u - one))  # what rounding 1 + x has cut off
    correction = (u.greater(0.0) & u.less(inf)).select(lost / u, x.constant(0.0))
    return x.equal(0.0).select(x, log(u, correction))


def log(x: Value, correction: Value | None) -> Value:
    """log(x), plus `correction` added before the last rounding."""
    c = x.kind
    e, m = split_exponent(x)
    f = m - 1.0
    small = e * c.ln2_low if correction is None else e.fma(c.ln2_low, correction)
    if c.bits == 32:
        tail = (f * f).fma(f.fma(f.polynomial(c.log), -0.5), small)
        result = e.fma(c.ln2_high, f + tail)
    else:
        half_square = f * f * 0.5
        s = f / (f + 2.0)
        z = s * s
        series = z * z.polynomial(c.log)
        result = e.fma(c.ln2_high, f - (half_square - s.fma(half_square + series, small)))
    if x.has_exponents:
        return result  # the exponent instructions answer for 0, infinity, negative numbers and NaN
    result = x.less(inf).select(result, x)
    result = x.equal(0.0).select(x.constant(-inf), result)
    return x.less(0.0).select(x.constant(nan), result)


def split_exponent(x: Value) -> tuple[Value, Value]:
    """x = 2^e m for x > 0, denormal or not, with m in [c.log_low, 2 c.log_low), as floating-point values."""
    c = x.kind
    if x.has_exponents:
        e, m = x.exponent("getexp"), x.exponent("getmant")
        upper = m.greater(2.0 * c.log_low)
        return upper.select(e + 1.0, e), upper.select(m * 0.5, m)
    denormal = x.less(c.smallest_normal)
    normal = denormal.select(x * 2.0**c.mantissa, x)
    bits = normal.bits()
    k = (bits - c.bits_of(c.log_low)).shift_signed(c.mantissa)
    m = (bits - (k << c.mantissa)).as_float()
    e = k.to_float()
    return denormal.select(e - float(c.mantissa), e), m
