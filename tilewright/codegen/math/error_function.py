"""The error function."""

from __future__ import annotations

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.coefficients import ERF_LARGE_32, ERF_LARGE_64
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
