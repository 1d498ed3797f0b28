"""Power, from a logarithm of twice the precision where the type has no wider one."""

from __future__ import annotations

from math import inf, nan

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.coefficients import LOG_PAIR_64
from tilewright.codegen.math.exponentials import exp
from tilewright.codegen.math.logarithms import log, split_exponent
from tilewright.codegen.math.pairs import two_product, two_sum
from tilewright.codegen.math.value import Value, start


def emit_pow(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """x to the y with the special cases of C99 annex F. f32: 0.51 ulp; f64: 1.7 ulp."""
    base, exponent = start(builder, x, target), start(builder, y, target)
    a = base.abs()
    magnitude = (_power_64(a, exponent) if base.kind.bits == 64
                 else _power_32(a.widened(), exponent.widened()).narrowed())  # fmt: skip
    whole = exponent.equal(exponent.trunc())
    halved = exponent * 0.5
    odd = whole & halved.differs(halved.trunc())
    result = odd.select(magnitude.copysign(base), magnitude)
    result = (base.less(0.0) & base.greater(-inf) & exponent.differs(exponent.trunc())).select(
        base.constant(nan), result
    )
    is_one = exponent.equal(0.0) | base.equal(1.0) | (a.equal(1.0) & exponent.abs().equal(inf))
    return is_one.select(base.constant(1.0), result).value


def _power_32(a: Value, y: Value) -> Value:
    """a^y for f32 values held in f64."""
    c = a.kind
    return exp((y * log(a, None)).at_most(c.exp_high))


def _power_64(a: Value, y: Value) -> Value:
    """a^y by a logarithm of about 65 bits."""
    c = a.kind
    y = y.at_least(-(2.0**80)).at_most(2.0**80)  # beyond, a^y is 0, 1 or infinity already
    high, low = _log_pair(a)
    special = a.equal(0.0) | a.not_less(inf)  # NaN too
    high = special.select(log(a, None), high)
    product, rest = two_product(y, high)
    rest = rest + y * low
    rest = (special | product.abs().greater(800.0)).select(a.constant(0.0), rest)
    e = exp(product.at_most(c.exp_high))
    scaled = e.fma(rest, e)
    return e.equal(inf).select(e, scaled)


def _log_pair(x: Value) -> tuple[Value, Value]:
    """log(x) as the sum of two values, for 0 < x < inf: 2 s + 2/3 s^3 in pairs, the rest of the series plain."""
    c = x.kind
    e, m = split_exponent(x)
    f = m - 1.0
    divisor = f + 2.0
    divisor_low = f - (divisor - 2.0)
    s = f / divisor
    product, error = two_product(s, divisor)
    s_low = ((f - product) - error - s * divisor_low) / divisor
    z, z_low = two_product(s, s)
    z_low = (s * 2.0).fma(s_low, z_low)
    cube, cube_low = two_product(s, z)
    cube_low = cube_low + (s * z_low + s_low * z)
    third, third_low = two_product(cube, x.constant(0.6666666666666666))
    third_low = third_low + (cube * 3.700743415417188e-17 + cube_low * 0.6666666666666666)  # 2/3 = sum of both
    tail = cube * z * z.polynomial(LOG_PAIR_64)
    high, low = two_sum(s * 2.0, third)
    low = low + (s_low * 2.0 + third_low + tail)
    total, total_low = two_sum(e * c.ln2_high, high)
    total_low = total_low + (low + e * c.ln2_low)
    result = total + total_low
    return result, total_low - (result - total)
