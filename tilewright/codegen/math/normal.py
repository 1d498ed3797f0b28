"""The distribution function of normal numbers, which GELU multiplies by, and its approximation by tanh.

Both are products of an exponential and a number near 1: nothing cancels where they are small, and the rounding errors
of the exponents, which grow with those, are carried along.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.coefficients import LOG_NORMAL_32
from tilewright.codegen.math.exponentials import exp
from tilewright.codegen.math.pairs import two_product, two_sum
from tilewright.codegen.math.value import start

NORMAL_SLOPE, NORMAL_SHIFT = 0.25, 0.5  # as in `tests/fit_math.py`
#: ``2 sqrt(2 / pi)`` and that by 0.044715, by the bits of the type: in it, and what it lacks there.
ROOT = {32: (1.5957691669464111, -4.534068054340423e-08), 64: (1.5957691216057308, -9.96930880911092e-17)}
CUBIC = {32: (0.07135481387376785, 2.3988324659995897e-09), 64: (0.07135481627260025, -6.175149918155315e-19)}
TANH_LOW, TANH_HIGH = {32: -12.0, 64: -25.0}, {32: 6.0, 64: 8.0}  # outside, the result is 0 and 1 to nearest


def emit_normal_cdf(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """``(1 + erf(x / sqrt 2)) / 2``. f32: 3.8 ulp; f64: 3.5 ulp.

    Where an instruction gives powers of two it is ``2^(a p(a) - 1)`` with a = |x|, or 1 less that, in f32: to 4e-7, and
    where it is small to 8e-5 of it, which is below the last place of f16 and bf16. The last coefficient of p is
    negative, so that nothing overflows.
    """
    v = start(builder, x, target)
    c = v.kind
    if v.has_power_of_two:
        a = v.abs()
        tail = a.fma(a.polynomial(LOG_NORMAL_32), -1.0).power_of_two()
        return v.less(0.0).select(tail, -tail + 1.0).value
    a = v.abs().at_most(c.normal_high)
    square, rest = two_product(a, a)
    power = exp(square * -0.5)
    power = (power * -0.5).fma(rest, power)
    sloped = a * NORMAL_SLOPE
    t = v.constant(1.0) / (sloped + 1.0)
    shifted = sloped.fma(-t, 1.0 - NORMAL_SHIFT)  # t - shift, where the rounding error of t would weigh near 0
    tail = power * (t * shifted.polynomial(c.normal_tail))
    return v.less(0.0).select(tail, -tail + 1.0).value


def emit_normal_cdf_tanh(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """``(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`` as ``e / (e + 1)``. f32: 3.5 ulp; f64: 3.5 ulp.

    Where instructions give powers of two and reciprocals, the rounding error of the exponent stays: e is off by as many
    units as it is large.
    """
    v = start(builder, x, target)
    bits = v.kind.bits
    a = v.at_least(TANH_LOW[bits]).at_most(TANH_HIGH[bits])
    (root, root_low), (cubic, cubic_low) = ROOT[bits], CUBIC[bits]
    if v.has_power_of_two and v.has_reciprocal:
        power = exp(a * (a * a).fma(cubic, root))
        return (power * (power + 1.0).reciprocal()).value
    square, square_rest = two_product(a, a)
    product, product_rest = two_product(square, v.constant(cubic))
    product_rest = square_rest.fma(cubic, square.fma(cubic_low, product_rest))
    factor, factor_rest = two_sum(product, v.constant(root))
    factor_rest = factor_rest + product_rest + root_low
    exponent, exponent_rest = two_product(a, factor)
    exponent_rest = a.fma(factor_rest, exponent_rest)
    power = exp(exponent)
    power = power.fma(exponent_rest, power)
    return (power / (power + 1.0)).value
