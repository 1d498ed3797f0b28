"""Exponentials: exp, exp2, expm1, sigmoid and the hyperbolic functions that are sums of them."""

from __future__ import annotations

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.coefficients import EXP2_32, TANH_NEAR_32
from tilewright.codegen.math.value import Value, start
from tilewright.dataclass import dataclass

LOG2_E = 1.44269502162933349609375  # to f32
LN2 = 0.6931471805599453
LOG2_E_LOW = 1.4426950408889634 - LOG2_E
SIGMOID_HIGH = 40.0  # from it on the sigmoid is 1 to nearest, in f64 too
NONPOSITIVE_LOW = -88.0  # its power of two is the one below those of normal numbers
TANH_SPLIT = 0.55  # tanh: x + x^3 p(x^2) below, 1 - 2 / (1 + exp(2 x)) above


def emit_exp(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """e to the x. f32: 1.2 ulp, 3.6 where an instruction gives powers of two; f64: 1.3 ulp; denormals to nearest."""
    v = start(builder, x, target)
    c = v.kind
    if v.has_power_of_two:
        return _exp_by_power_of_two(v).value
    return exp(v.at_most(c.exp_high)).value


def emit_exp_nonpositive(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """e to an x of at most 0. f32: 2.2 ulp near 0 and another for every 4 of x (2.8 and one for every 1 without fused
    multiply-add), and 0 from -87.69 down, where it is no normal number. f64: as `emit_exp`.

    The integer n of ``2^n 2^r`` is -127 there, so that the bits of its power are 0.
    """
    v = start(builder, x, target)
    c = v.kind
    if c.bits != 32 or v.has_power_of_two:
        return emit_exp(builder, x, target)
    v = v.at_least(NONPOSITIVE_LOW)
    magic = c.round_magic + c.bias  # leaves n + bias in the lowest bits: the exponent of 2^n
    shifted = v.fma(LOG2_E, magic)
    r = v.fma(LOG2_E, -(shifted - magic))
    power = (shifted.bits() << c.mantissa).as_float()
    return (r.polynomial((1.0, *EXP2_32)) * power).value


def emit_exp2(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """2 to the x. f32: 1.2 ulp; f64: 1.3 ulp; denormals to nearest.

    Where an instruction gives powers of two it is that alone: 2 ulp, and 0 for what would be denormal.
    """
    v = start(builder, x, target)
    c = v.kind
    if v.has_power_of_two:
        return v.power_of_two().value
    low = c.exp_low * LOG2_E
    v = _not_below(low, v.at_most(c.exp_high * LOG2_E))
    shifted = v + c.round_magic
    n = shifted - c.round_magic
    p = ((v - n) * LN2).polynomial((1.0, 1.0, *c.exp))
    return scaled(_zero_up_to(low, v, p), n, shifted.bits()).value


def emit_expm1(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """exp(x) - 1 without cancellation near 0. f32: 1.6 ulp; f64: 2.0 ulp."""
    v = start(builder, x, target)
    c = v.kind
    part = _reduce_exp(v.at_least(c.expm1_low).at_most(c.exp_high))
    half = ((part.k + (c.bias - 1)) << c.mantissa).as_float()  # 2^(n - 1): 2^n itself may overflow
    result = part.p.fma(half, half - 0.5) * 2.0
    return v.abs().less(c.tiny * c.tiny).select(v, result).value


def emit_sigmoid(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """``e / (1 + e)`` with e = exp(x), also where that is denormal. f32: 2.2 ulp; f64: 1.8 ulp.

    Where instructions give powers of two and reciprocals it is ``1 / (1 + exp(-x))``, and 0 where that is denormal. The
    3.6 ulp of exp make 7.5 at most, of a result just below a power of two.
    """
    v = start(builder, x, target)
    if v.has_power_of_two and v.has_reciprocal:
        return (exp(-v) + 1.0).reciprocal().value
    v = v.at_most(SIGMOID_HIGH)
    if v.has_exponents or v.has_power_of_two:
        e = exp(v)
        return (e / (e + 1.0)).value
    return _sigmoid_by_bits(v).value


def emit_tanh(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Hyperbolic tangent. f32: 2.0 ulp (2.5 without fused multiply-add); f64: 2.7 ulp.

    With h = expm1(-2 |x|) / 2 it is t = h / (h + 1), which is better rounded as h - h t. Where instructions give powers
    of two and reciprocals it is 1 - 2 / (1 + exp(2 |x|)) but near 0: 3.3 ulp.
    """
    v = start(builder, x, target)
    c = v.kind
    if v.has_power_of_two and v.has_reciprocal:
        a = v.abs()
        z = a * a
        near = (z * z.polynomial(TANH_NEAR_32)).fma(a, a)
        far = ((a * (2 * LOG2_E)).power_of_two() + 1.0).reciprocal().fma(-2.0, 1.0)
        return a.less(TANH_SPLIT).select(near, far).copysign(v).value
    a = v.abs().at_most(c.tanh_high)
    shifted = a.fma(-2.8853900817779268, c.round_magic)  # -2 a = n log 2 - 2 r
    n = shifted - c.round_magic
    r = n.fma(c.ln2_low / 2, n.fma(c.ln2_high / 2, a))
    q = r.polynomial([2 * (-2.0) ** power * coefficient for power, coefficient in enumerate(c.exp)])
    scale = ((shifted.bits() << c.mantissa) + (c.bias << c.mantissa)).as_float()
    h = q.fma(r * r, -r).fma(scale, scale.fma(0.5, -0.5))
    return h.fma(-(h / (h + 1.0)), h).copysign(v).value


def emit_sinh(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Hyperbolic sine. f32: 2.3 ulp; f64: 2.5 ulp."""
    v = start(builder, x, target)
    a = v.abs()
    part = _reduce_exp(a.at_most(v.kind.exp_high + 1.0))
    em = _expm1_small(part)
    near = (em + em / (em + 1.0)) * 0.5
    far = scaled(part.p + 1.0, part.n - 1.0, part.k - 1)  # exp(a) / 2, which overflows later than exp(a)
    result = a.less(v.kind.tanh_high).select(near, far)
    return v.abs().less(v.kind.tiny).select(v, result.copysign(v)).value


def emit_cosh(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Hyperbolic cosine. f32: 1.5 ulp; f64: 1.4 ulp."""
    v = start(builder, x, target)
    part = _reduce_exp(v.abs().at_most(v.kind.exp_high + 1.0))
    half = scaled(part.p + 1.0, part.n - 1.0, part.k - 1)
    return (half + v.constant(0.25) / half).value


@dataclass(frozen=True)
class _Reduced:
    """x = n log 2 + r with |r| <= log(2) / 2: `p` is expm1(r), `k` an integer whose lowest bits are those of n."""

    n: Value
    k: Value
    p: Value


def _reduce_exp(x: Value) -> _Reduced:
    c = x.kind
    # Adding 1.5 * 2^mantissa rounds to an integer and leaves it in the lowest bits.
    shifted = x.fma(1.4426950408889634, c.round_magic)
    n = shifted - c.round_magic
    r = n.fma(-c.ln2_high, x)  # exact: ln2_high ends in zeros
    r = n.fma(-c.ln2_low, r)
    q = r.polynomial(c.exp)
    return _Reduced(n, shifted.bits(), q.fma(r * r, r))


def exp(x: Value) -> Value:
    """exp of x up to the bound where it overflows to infinity."""
    c = x.kind
    if x.has_power_of_two:
        return _exp_by_power_of_two(x)
    x = _not_below(c.exp_low, x)
    shifted, n, p = _exp_parts(x, c.round_magic)
    return scaled(_zero_up_to(c.exp_low, x, p), n, shifted.bits())


def _sigmoid_by_bits(x: Value) -> Value:
    """``e / (b + e)`` with b = 2^mantissa and e = b exp(x), whose power of two is made of the bits of its exponent.

    The factor b makes that power a normal number, or 0 where the sigmoid is 0 to nearest: the bits of the exponent are
    0 there, so that nothing underflows.
    """
    c = x.kind
    lowest = -(c.bias + c.mantissa)
    shifted, _, p = _exp_parts(x.at_least(lowest * LN2), c.round_magic - lowest)
    e = p * (shifted.bits() << c.mantissa).as_float()
    return e / (e + 2.0**c.mantissa)


def _exp_parts(x: Value, magic: float) -> tuple[Value, Value, Value]:
    """``n + magic``, n and p with exp(x) = 2^n p and p about 1; adding `magic` rounds to an integer."""
    c = x.kind
    shifted = x.fma(1.4426950408889634, magic)
    n = shifted - magic
    r = n.fma(-c.ln2_high, x)
    r = n.fma(-c.ln2_low, r)
    return shifted, n, r.polynomial((1.0, 1.0, *c.exp))


def _not_below(low: float, x: Value) -> Value:
    """x, or at least `low` where `scaled` takes powers of two that are normal numbers only."""
    return x if x.has_exponents else x.at_least(low)


def _zero_up_to(low: float, x: Value, p: Value) -> Value:
    """p, but 0 where x is `low` or less: for a product that underflows, processors take some hundred cycles."""
    return x.less_or_equal(low).select(p.constant(0.0), p)


def _exp_by_power_of_two(x: Value) -> Value:
    """``2^n 2^(x log2(e) - n)`` for any f32 x: n is the nearest integer, but keeps to the exponents of normal numbers.

    The sum that rounds to n leaves n + 127 in its lowest bits. NaN is what the second factor is then.
    """
    shifted = x.fma(LOG2_E / 252, 0.5).saturated().fma(252.0, 12582913.0)
    rest = x.fma(LOG2_E_LOW, x.fma(LOG2_E, -(shifted - 12583039.0)))  # of x log2(e), with what the constant lacks
    return rest.power_of_two() * (shifted.bits() << 23).as_float()


def scaled(p: Value, n: Value, k: Value) -> Value:
    """p * 2^n for p about 1, with gradual underflow and overflow; `k` has the lowest bits of n."""
    c = p.kind
    if p.has_exponents:
        return p.exponent("scalef", n)
    half = k >> 1  # in two steps, as 2^n alone may be out of range
    first = ((half << c.mantissa) + (c.bias << c.mantissa)).as_float()
    rest = (((k - half) << c.mantissa) + (c.bias << c.mantissa)).as_float()
    return p * first * rest


def _expm1_small(part: _Reduced) -> Value:
    """expm1 for 0 <= x and 2^n in range."""
    c = part.p.kind
    scale = ((part.k << c.mantissa) + (c.bias << c.mantissa)).as_float()
    return part.p.fma(scale, scale - 1.0)
