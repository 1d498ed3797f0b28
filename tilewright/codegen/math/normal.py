"""The distribution function of normal numbers, which GELU multiplies by, and its approximation by tanh.

Both are products of an exponential and a number near 1: nothing cancels where they are small, and the rounding errors
of the exponents, which grow with those, are carried along.
"""

from __future__ import annotations

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.coefficients import LOG_NORMAL_32, NORMAL_REST_32, NORMAL_TAIL_64, NORMAL_UPPER_32
from tilewright.codegen.math.exponentials import LOG2_E, exp
from tilewright.codegen.math.pairs import two_product, two_sum
from tilewright.codegen.math.value import Value, start

#: Is added to an exponent n so that 2^(n + 64) is a normal number. The other factor of a product has 2^-64, so that
#: only the product is rounded.
EXPONENT_OFFSET = 64
NORMAL_SLOPE, NORMAL_SHIFT = 0.25, 0.5  # these and `NORMAL_GROWTH` as in `cpu/tests/fit_math.py`
NORMAL_GROWTH = 2.50661
#: ``2 sqrt(2 / pi)`` and that by 0.044715, by the bits of the type: in it, and what it lacks there.
ROOT = {32: (1.5957691669464111, -4.534068054340423e-08), 64: (1.5957691216057308, -9.96930880911092e-17)}
CUBIC = {32: (0.07135481387376785, 2.3988324659995897e-09), 64: (0.07135481627260025, -6.175149918155315e-19)}
TANH_LOW, TANH_HIGH = {32: -12.0, 64: -25.0}, {32: 6.0, 64: 8.0}  # outside, the result is 0 and 1 to nearest


def emit_normal_cdf(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """``(1 + erf(x / sqrt 2)) / 2``. f32: 3.5 ulp (4.1 without fused multiply-add); f64: 3.5 ulp.

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
    offset = 0 if v.has_exponents else EXPONENT_OFFSET
    tail = _gauss(a, offset) * (_quotient_single(a, offset) if c.bits == 32 else _quotient_double(a, offset))
    return v.bits().negative().select(tail, -tail + 1.0).value


def _gauss(a: Value, offset: int) -> Value:
    """``2^offset exp(-a^2 / 2)``: a power of two times a polynomial in ``a^2 + 2 n log 2``, the exact square taken.

    With an offset the power is a normal number, whose exponent is the lowest bits of the sum that rounds to n.
    """
    c = a.kind
    magic = c.round_magic + c.bias + offset if offset else c.round_magic
    square = a * a
    shifted = square.fma(-LOG2_E / 2, magic)
    n = shifted - magic
    if a.has_fma:
        difference = a.fma(a, n * (2 * c.ln2_high))  # the product is exact, and so is the sum but for its last place
    else:
        square, rest = two_product(a, a)
        difference = n.fma(2 * c.ln2_high, square) + rest
    difference = n.fma(2 * c.ln2_low, difference)
    powers = [(-0.5) ** power * coefficient for power, coefficient in enumerate((1.0, 1.0, *c.exp))]
    result = difference.polynomial(powers)
    return result * (shifted.bits() << c.mantissa).as_float() if offset else result.exponent("scalef", n)


def _quotient_single(a: Value, offset: int) -> Value:
    """``2^-offset`` times the distribution function at ``-a`` over ``exp(-a^2 / 2)``: ``u / (growth a u + r)`` with
    polynomials u and r.

    Where a is large r is small beside the product, and rounding errors of u are in both parts of the quotient.
    """
    scale = 2.0**offset
    end, *rest = (scale * coefficient for coefficient in NORMAL_REST_32)
    u = a.polynomial(NORMAL_UPPER_32)
    # `end` is added last, so that only that rounding weighs near 0.
    return u / u.fma(scale * NORMAL_GROWTH, a.polynomial(rest)).fma(a, end)


def _quotient_double(a: Value, offset: int) -> Value:
    """The same as ``t p(t - shift)`` with ``t = 1 / (1 + slope a)``."""
    sloped = a * NORMAL_SLOPE
    t = a.constant(1.0) / (sloped + 1.0)
    shifted = sloped.fma(-t, 1.0 - NORMAL_SHIFT)  # t - shift, where the rounding error of t would weigh near 0
    return t * shifted.polynomial([2.0**-offset * coefficient for coefficient in NORMAL_TAIL_64])


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
