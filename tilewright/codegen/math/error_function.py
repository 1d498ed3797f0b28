"""The error function."""

from __future__ import annotations

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.coefficients import ERF_LARGE_32, ERF_LARGE_64, ERFC_32
from tilewright.codegen.math.exponentials import exp
from tilewright.codegen.math.value import start


def emit_erf(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """The error function. f32: 1.9 ulp; f64: 2.2 ulp."""
    v = start(builder, x, target)
    c = v.kind
    a = v.abs().at_most(c.erf_high)
    z = a * a
    near = z.polynomial(c.erf_near).fma(a, a)
    if c.bits == 32:
        power = a.polynomial(ERF_LARGE_32)
        for _ in range(2):
            power = power * power
        far = power.fma(-power, 1.0)
        result = a.less(1.125).select(near, far)
    else:
        t = v.constant(1.0) / (a + 2.0) - 0.22
        far = exp(-z).fma(-t.polynomial(ERF_LARGE_64), 1.0)
        result = a.less(1.0).select(near, far)
    return result.copysign(v).value


def emit_one_plus_erf(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """1 + erf(x) in f32 where an instruction gives powers of two: with an error of 3e-7 at most.

    It is erfc(|x|) = 2^(|x| p(|x|)) or 2 less that. The last coefficient of p is negative, so that nothing overflows.
    """
    v = start(builder, x, target)
    a = v.abs()
    outside = (a * a.polynomial(ERFC_32)).power_of_two()
    return v.less(0.0).select(outside, -outside + 2.0).value
