"""Elementary functions as LLVM IR: exp, log, tanh, erf and their family, for f32 and f64, scalars and vectors.

`MATH[name](builder, x, target)` emits the function at the builder's place and returns the value; `pow` takes two
arguments before the target. A value is `float`, `double` or a vector of them with any number of lanes. The code is
free of branches and of calls to a library; only sin, cos and tan keep a branch, inside a function of the module,
that no vector below `TRIGONOMETRIC_LIMIT` takes. Zeros keep their sign, infinities, NaN and denormal numbers follow
IEEE 754. f16 and bf16 are computed in f32 by the caller.

Without a target the code is right everywhere; with one it uses AVX-512's exponent instructions and exact fused
multiply-adds where the target has them. The instructions must not carry fast-math flags: differences that look like
zero are the low halves of sums.

Accuracies are the largest errors found, rounded up, in units in the last place of the result, with and without fused
multiply-add: in f32 over every 509th bit pattern and two million random arguments against float64, in f64 over
about 40 000 arguments of all magnitudes against mpmath; `tests/test_math.py` holds a part of them against these
bounds. The coefficients are printed by `tests/fit_math.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Final

from llvmlite import ir

from tilewright.codegen.cpu.target import Target
from tilewright.codegen.cpu.values import intrinsic

TRIGONOMETRIC_LIMIT: Final = 1.6e6  # up to here two products of the reduction are exact: 2^20 quadrants


# --------------------------------------------------------------------------------------------------------------
# Exponentials


def emit_exp(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """e to the x. f32: 1.2 ulp; f64: 1.3 ulp; denormal results to nearest."""
    v = _start(builder, x, target)
    c = v.kind
    return _exp(v.at_least(c.exp_low).at_most(c.exp_high)).value


def emit_expm1(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """exp(x) - 1 without cancellation near 0. f32: 1.6 ulp; f64: 2.0 ulp."""
    v = _start(builder, x, target)
    c = v.kind
    part = _reduce_exp(v.at_least(c.expm1_low).at_most(c.exp_high))
    half = ((part.k + (c.bias - 1)) << c.mantissa).as_float()  # 2^(n - 1): 2^n itself may overflow
    result = part.p.fma(half, half - 0.5) * 2.0
    return v.abs().less(c.tiny * c.tiny).select(v, result).value


def emit_sigmoid(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """1 / (1 + exp(-x)), also where that is denormal. f32: 1.8 ulp; f64: 1.7 ulp."""
    v = _start(builder, x, target)
    z = _exp((-v.abs()).at_least(v.kind.exp_low))
    numerator = v.less(0.0).select(z, v.constant(1.0))
    return numerator.fma(-(z / (z + 1.0)), numerator).value


def emit_tanh(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Hyperbolic tangent. f32: 2.0 ulp (2.5 without fused multiply-add); f64: 2.7 ulp.

    With h = expm1(-2 |x|) / 2 it is t = h / (h + 1), which is better rounded as h - h t.
    """
    v = _start(builder, x, target)
    c = v.kind
    a = v.abs().at_most(c.tanh_high)
    shifted = a.fma(-2.8853900817779268, c.round_magic)  # -2 a = n log 2 - 2 r
    n = shifted - c.round_magic
    r = n.fma(c.ln2_low / 2, n.fma(c.ln2_high / 2, a))
    q = r.polynomial([2 * (-2.0) ** power * coefficient for power, coefficient in enumerate(c.exp)])
    scale = ((shifted.bits() << c.mantissa) + (c.bias << c.mantissa)).as_float()
    h = q.fma(r * r, -r).fma(scale, scale.fma(0.5, -0.5))
    return h.fma(-(h / (h + 1.0)), h).copysign(v).value


def emit_sinh(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Hyperbolic sine. f32: 2.3 ulp; f64: 2.5 ulp."""
    v = _start(builder, x, target)
    a = v.abs()
    part = _reduce_exp(a.at_most(v.kind.exp_high + 1.0))
    em = _expm1_small(part)
    near = (em + em / (em + 1.0)) * 0.5
    far = _scaled(part.p + 1.0, part.n - 1.0, part.k - 1)  # exp(a) / 2, which overflows later than exp(a)
    result = a.less(v.kind.tanh_high).select(near, far)
    return v.abs().less(v.kind.tiny).select(v, result.copysign(v)).value


def emit_cosh(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Hyperbolic cosine. f32: 1.5 ulp; f64: 1.4 ulp."""
    v = _start(builder, x, target)
    part = _reduce_exp(v.abs().at_most(v.kind.exp_high + 1.0))
    half = _scaled(part.p + 1.0, part.n - 1.0, part.k - 1)
    return (half + v.constant(0.25) / half).value


@dataclass(frozen=True)
class _Reduced:
    """x = n log 2 + r with |r| <= log(2) / 2: `p` is expm1(r), `k` an integer whose lowest bits are those of n."""

    n: _Value
    k: _Value
    p: _Value


def _reduce_exp(x: _Value) -> _Reduced:
    c = x.kind
    # Adding 1.5 * 2^mantissa rounds to an integer and leaves it in the lowest bits.
    shifted = x.fma(1.4426950408889634, c.round_magic)
    n = shifted - c.round_magic
    r = n.fma(-c.ln2_high, x)  # exact: ln2_high ends in zeros
    r = n.fma(-c.ln2_low, r)
    q = r.polynomial(c.exp)
    return _Reduced(n, shifted.bits(), q.fma(r * r, r))


def _exp(x: _Value) -> _Value:
    """exp of x between the bounds where it underflows to 0 and overflows to infinity."""
    c = x.kind
    shifted = x.fma(1.4426950408889634, c.round_magic)
    n = shifted - c.round_magic
    r = n.fma(-c.ln2_high, x)
    r = n.fma(-c.ln2_low, r)
    p = r.polynomial((1.0, 1.0, *c.exp))
    return _scaled(p, n, shifted.bits())


def _scaled(p: _Value, n: _Value, k: _Value) -> _Value:
    """p * 2^n for p about 1, with gradual underflow and overflow; `k` has the lowest bits of n."""
    c = p.kind
    if p.has_avx512:
        return p.avx512("scalef", n)
    half = k >> 1  # in two steps, as 2^n alone may be out of range
    first = ((half << c.mantissa) + (c.bias << c.mantissa)).as_float()
    rest = (((k - half) << c.mantissa) + (c.bias << c.mantissa)).as_float()
    return p * first * rest


def _expm1_small(part: _Reduced) -> _Value:
    """expm1 for 0 <= x and 2^n in range."""
    c = part.p.kind
    scale = ((part.k << c.mantissa) + (c.bias << c.mantissa)).as_float()
    return part.p.fma(scale, scale - 1.0)


# --------------------------------------------------------------------------------------------------------------
# Logarithms


def emit_log(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Natural logarithm; -inf at 0, NaN below. f32: 1.0 ulp; f64: 0.9 ulp."""
    v = _start(builder, x, target)
    return _log(v, None).value


def emit_log1p(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """log(1 + x) without the rounding of 1 + x. f32: 1.0 ulp; f64: 0.9 ulp."""
    return _log1p(_start(builder, x, target)).value


def emit_asinh(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Inverse hyperbolic sine. f32: 1.8 ulp; f64: 1.7 ulp."""
    v = _start(builder, x, target)
    a = v.abs()
    square = a * a
    near = a + square / ((square + 1.0).sqrt() + 1.0)
    return _log1p_or_log2x(a, near, a - 1.0).copysign(v).value


def emit_acosh(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Inverse hyperbolic cosine; NaN below 1. f32: 2.1 ulp; f64: 1.8 ulp."""
    v = _start(builder, x, target)
    t = v - 1.0
    near = t + (t * 2.0 + t * t).sqrt()
    result = _log1p_or_log2x(v, near, t)
    return v.less(1.0).select(v.constant(nan), result).value


def emit_atanh(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond. f32: 2.0 ulp; f64: 1.8 ulp."""
    v = _start(builder, x, target)
    a = v.abs()
    result = _log1p((a + a) / (v.constant(1.0) - a)) * 0.5
    return a.less(v.kind.tiny).select(v, result.copysign(v)).value


def _log1p_or_log2x(a: _Value, near: _Value, below: _Value) -> _Value:
    """log1p(near), or log(2 a) = log1p(a - 1) + log 2 where a is so large that squares may overflow."""
    large = a.greater(a.kind.large)
    result = _log1p(large.select(below, near))
    return large.select(result + 0.6931471805599453, result)


def _log1p(x: _Value) -> _Value:
    u = x + 1.0
    one = x.constant(1.0)
    lost = x.greater(1.0).select(one - (u - x), x - (u - one))  # what rounding 1 + x has cut off
    correction = (u.greater(0.0) & u.less(inf)).select(lost / u, x.constant(0.0))
    return x.equal(0.0).select(x, _log(u, correction))


def _log(x: _Value, correction: _Value | None) -> _Value:
    """log(x), plus `correction` added before the last rounding."""
    c = x.kind
    e, m = _split_exponent(x)
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
    if x.has_avx512:
        return result  # the exponent instructions answer for 0, infinity, negative numbers and NaN
    result = x.less(inf).select(result, x)
    result = x.equal(0.0).select(x.constant(-inf), result)
    return x.less(0.0).select(x.constant(nan), result)


def _split_exponent(x: _Value) -> tuple[_Value, _Value]:
    """x = 2^e m for x > 0, denormal or not, with m in [c.log_low, 2 c.log_low), as floating-point values."""
    c = x.kind
    if x.has_avx512:
        e, m = x.avx512("getexp"), x.avx512("getmant")
        upper = m.greater(2.0 * c.log_low)
        return upper.select(e + 1.0, e), upper.select(m * 0.5, m)
    denormal = x.less(c.smallest_normal)
    normal = denormal.select(x * 2.0**c.mantissa, x)
    bits = normal.bits()
    k = (bits - c.bits_of(c.log_low)).shift_signed(c.mantissa)
    m = (bits - (k << c.mantissa)).as_float()
    e = k.to_float()
    return denormal.select(e - float(c.mantissa), e), m


# --------------------------------------------------------------------------------------------------------------
# Power


def emit_pow(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, target: Target | None = None) -> ir.Value:
    """x to the y with the special cases of C99 annex F. f32: 0.51 ulp; f64: 1.7 ulp."""
    base, exponent = _start(builder, x, target), _start(builder, y, target)
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


def _power_32(a: _Value, y: _Value) -> _Value:
    """a^y for f32 values held in f64."""
    c = a.kind
    return _exp((y * _log(a, None)).at_least(c.exp_low).at_most(c.exp_high))


def _power_64(a: _Value, y: _Value) -> _Value:
    """a^y by a logarithm of about 65 bits."""
    c = a.kind
    y = y.at_least(-(2.0**80)).at_most(2.0**80)  # beyond, a^y is 0, 1 or infinity already
    high, low = _log_pair(a)
    special = a.equal(0.0) | a.not_less(inf)  # NaN too
    high = special.select(_log(a, None), high)
    product, rest = _two_product(y, high)
    rest = rest + y * low
    rest = (special | product.abs().greater(800.0)).select(a.constant(0.0), rest)
    e = _exp(product.at_least(c.exp_low).at_most(c.exp_high))
    scaled = e.fma(rest, e)
    return e.equal(inf).select(e, scaled)


def _log_pair(x: _Value) -> tuple[_Value, _Value]:
    """log(x) as the sum of two values, for 0 < x < inf: 2 s + 2/3 s^3 in pairs, the rest of the series plain."""
    c = x.kind
    e, m = _split_exponent(x)
    f = m - 1.0
    divisor = f + 2.0
    divisor_low = f - (divisor - 2.0)
    s = f / divisor
    product, error = _two_product(s, divisor)
    s_low = ((f - product) - error - s * divisor_low) / divisor
    z, z_low = _two_product(s, s)
    z_low = (s * 2.0).fma(s_low, z_low)
    cube, cube_low = _two_product(s, z)
    cube_low = cube_low + (s * z_low + s_low * z)
    third, third_low = _two_product(cube, x.constant(0.6666666666666666))
    third_low = third_low + (cube * 3.700743415417188e-17 + cube_low * 0.6666666666666666)  # 2/3 = sum of both
    tail = cube * z * z.polynomial(LOG_PAIR_64)
    high, low = _two_sum(s * 2.0, third)
    low = low + (s_low * 2.0 + third_low + tail)
    total, total_low = _two_sum(e * c.ln2_high, high)
    total_low = total_low + (low + e * c.ln2_low)
    result = total + total_low
    return result, total_low - (result - total)


def _two_sum(a: _Value, b: _Value) -> tuple[_Value, _Value]:
    """a + b and its rounding error (Knuth)."""
    total = a + b
    seen = total - a
    return total, (a - (total - seen)) + (b - seen)


def _two_product(a: _Value, b: _Value) -> tuple[_Value, _Value]:
    """a * b and its rounding error: one fused multiply-add, or Dekker's splitting."""
    product = a * b
    if a.has_fma:
        return product, a.fma(b, -product)
    (a_high, a_low), (b_high, b_low) = (_halves(v) for v in (a, b))
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(a: _Value) -> tuple[_Value, _Value]:
    big = a * 134217729.0  # 2^27 + 1
    high = big - (big - a)
    return high, a - high


# --------------------------------------------------------------------------------------------------------------
# Error function


def emit_erf(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """The error function. f32: 1.9 ulp; f64: 2.2 ulp."""
    v = _start(builder, x, target)
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
        far = _exp(-z).fma(-t.polynomial(ERF_LARGE_64), 1.0)
        result = a.less(1.0).select(near, far)
    return result.copysign(v).value


# --------------------------------------------------------------------------------------------------------------
# Trigonometric functions


def emit_sin(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Sine of any finite argument. f32: 1.6 ulp; f64: 2.4 ulp. NaN at infinity."""
    v = _start(builder, x, target)
    angle = _reduce_angle(v)
    return _wave(angle, angle.quadrant).zero_kept(v)


def emit_cos(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Cosine of any finite argument. f32: 1.6 ulp; f64: 2.0 ulp. NaN at infinity."""
    angle = _reduce_angle(_start(builder, x, target))
    return _wave(angle, angle.quadrant + 1).value


def emit_tan(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Tangent of any finite argument. f32: 3.1 ulp; f64: 3.2 ulp. NaN at infinity."""
    v = _start(builder, x, target)
    angle = _reduce_angle(v)
    sine, cosine = _sine(angle), _cosine(angle)
    odd = (angle.quadrant & 1).nonzero()
    quotient = odd.select(-cosine, sine) / odd.select(sine, cosine)
    return quotient.zero_kept(v)


@dataclass(frozen=True)
class _Angle:
    """x = quadrant * pi / 2 + r + r_low with |r| <= pi / 4; the two lowest bits of `quadrant` count."""

    r: _Value
    r_low: _Value | None
    quadrant: _Value


def _wave(angle: _Angle, quadrant: _Value) -> _Value:
    c = angle.r.kind
    result = (quadrant & 1).nonzero().select(_cosine(angle), _sine(angle))
    sign = (quadrant & 2) << (c.bits - 2)
    return (result.bits() ^ sign).as_float()


def _sine(angle: _Angle) -> _Value:
    r = angle.r
    z = r * r
    cubic = (z * r) * z.polynomial(r.kind.sin)
    if angle.r_low is not None:
        cubic = cubic + (z.fma(-0.5, 1.0)) * angle.r_low
    return r + cubic


def _cosine(angle: _Angle) -> _Value:
    r = angle.r
    z = r * r
    quartic = (z * z) * z.polynomial(r.kind.cos)
    if angle.r_low is not None:
        quartic = quartic - r * angle.r_low
    head = z.fma(-0.5, 1.0)
    rounding = z.fma(-0.5, r.constant(1.0) - head)
    return head + (rounding + quartic)


def _reduce_angle(x: _Value) -> _Angle:
    """In f64 for both types: an f32 angle then needs no low part."""
    single = x.kind.bits == 32
    wide = x.widened() if single else x
    results = wide.call(_angle_function(wide), 3)
    r, r_low, quadrant = results
    if single:
        return _Angle(r.narrowed(), None, quadrant.low_half())
    return _Angle(r, r_low, quadrant)


def _angle_function(like: _Value) -> ir.Function:
    """``(x) -> (r, r_low, quadrant)`` for f64 vectors of this length, inlined where it is called.

    Below `TRIGONOMETRIC_LIMIT` Cody and Waite's reduction by pi/2 in three parts, of which the first two have 33
    bits, so that their products are exact. If any lane is above, every such lane goes through `_large_function`.
    """
    module, type_ = like.builder.module, like.value.type
    name = f"tw.reduce_angle.{like.suffix}" + (".fma" if like.has_fma else "")
    if name in module.globals:
        found = module.globals[name]
        assert isinstance(found, ir.Function)
        return found
    result = ir.LiteralStructType([type_, type_, like.integer_type])
    function = ir.Function(module, ir.FunctionType(result, [type_]), name)
    function.linkage = "internal"
    function.attributes.add("alwaysinline")
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    x = like.replaced(builder, function.args[0])
    shifted = x.fma(0.6366197723675814, x.kind.round_magic)
    n = shifted - x.kind.round_magic
    exact = n.fma(-1.5707963267341256, x)
    head, error = _two_sum(exact, n * -6.077100506303966e-11)
    low = n.fma(-2.0222662487959506e-21, error)
    r = head + low
    r_low = low - (r - head)
    small = [r, r_low, shifted.bits()]
    is_large = x.abs().not_less(TRIGONOMETRIC_LIMIT)
    any_large = is_large.value
    if isinstance(type_, ir.VectorType):
        lanes = builder.bitcast(any_large, ir.IntType(x.lanes))
        any_large = builder.icmp_unsigned("!=", lanes, ir.Constant(lanes.type, 0))
    entry = builder.block
    slow, done = function.append_basic_block("large"), function.append_basic_block("done")
    builder.cbranch(any_large, slow, done)
    builder.position_at_end(slow)
    large = _large_function(module)
    columns = [small[0].undefined(), small[1].undefined(), small[2].undefined()]
    for lane in range(x.lanes):
        answer = builder.call(large, [x.lane(lane)])
        for column in range(3):
            columns[column] = columns[column].with_lane(lane, builder.extract_value(answer, column))
    merged = [is_large.select(new, old) for new, old in zip(columns, small, strict=True)]
    builder.branch(done)
    builder.position_at_end(done)
    answer = ir.Constant(result, ir.Undefined)
    for column in range(3):
        phi = builder.phi(merged[column].value.type)
        phi.add_incoming(small[column].value, entry)
        phi.add_incoming(merged[column].value, slow)
        small[column] = small[column].replaced(builder, phi)
    for column in range(3):
        answer = builder.insert_value(answer, small[column].value, column)
    builder.ret(answer)
    return function


def _large_function(module: ir.Module) -> ir.Function:
    """``double -> (r, r_low, quadrant)`` for |x| of at least 2^19: Payne and Hanek's reduction, in integers.

    x = M 2^e, so x * 2/pi modulo 4 needs only the bits of 2/pi from position e - 2 on: a window of 192 bits times
    the 53 of M leaves 128 bits of the fraction of a turn, the first two of which are the quadrant.
    """
    name = "tw.reduce_large_angle"
    if name in module.globals:
        found = module.globals[name]
        assert isinstance(found, ir.Function)
        return found
    table_type = ir.ArrayType(I64, len(TWO_OVER_PI))
    table = ir.GlobalVariable(module, table_type, "tw.two_over_pi")
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(table_type, [ir.Constant(I64, word) for word in TWO_OVER_PI])
    result = ir.LiteralStructType([F64, F64, I64])
    function = ir.Function(module, ir.FunctionType(result, [F64]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    (x,) = function.args
    bits = b.bitcast(x, I64)
    mantissa = b.or_(b.and_(bits, I64((1 << 52) - 1)), I64(1 << 52))
    field = b.and_(b.lshr(bits, I64(52)), I64(0x7FF))
    field = b.select(b.icmp_unsigned("<", field, I64(1023 + 19)), I64(1023 + 19), field)
    position = b.add(field, I64(64 - 1075 - 2))  # the table starts with 64 zero bits before the point
    word, shift = b.lshr(position, I64(6)), b.and_(position, I64(63))
    words = [b.load(b.gep(table, [I64(0), b.add(word, I64(i))], source_etype=table_type), typ=I64) for i in range(4)]
    cut = [intrinsic(b, "llvm.fshl.i64", I64, [words[i], words[i + 1], shift]) for i in range(3)]
    window = [b.zext(part, I128) for part in cut]
    m = b.zext(mantissa, I128)
    lowest = b.lshr(b.mul(m, window[2]), I128(64))
    middle = b.add(b.mul(m, window[1]), lowest)
    turn = b.add(b.shl(b.mul(m, window[0]), I128(64)), middle)  # carries out of 128 bits are whole turns
    fraction = b.shl(turn, I128(2))
    above_half = b.lshr(fraction, I128(127))
    quadrant = b.add(b.trunc(b.lshr(turn, I128(126)), I64), b.trunc(above_half, I64))
    negative = b.trunc(above_half, ir.IntType(1))
    magnitude = b.select(negative, b.sub(I128(0), fraction), fraction)
    zeros = b.ctlz(magnitude, ir.Constant(ir.IntType(1), 0))
    zeros = b.select(b.icmp_unsigned(">", zeros, I128(127)), I128(127), zeros)
    normal = b.shl(magnitude, zeros)
    high = b.sitofp(b.trunc(b.lshr(normal, I128(75)), I64), F64)
    low = b.sitofp(b.and_(b.trunc(b.lshr(normal, I128(22)), I64), I64((1 << 53) - 1)), F64)
    number = b.fadd(high, b.fmul(low, F64(2.0**-53)))
    scale = b.bitcast(b.shl(b.sub(I64(1023 - 53), b.trunc(zeros, I64)), I64(52)), F64)
    r = b.fmul(b.fmul(number, F64(1.5707963267948966)), scale)
    flip = b.xor(negative, b.icmp_signed("<", bits, I64(0)))
    r = b.select(flip, b.fneg(r), r)
    quadrant = b.select(b.icmp_signed("<", bits, I64(0)), b.sub(I64(0), quadrant), quadrant)
    finite = b.fcmp_ordered("<", intrinsic(b, "llvm.fabs.f64", F64, [x]), F64(inf))
    r = b.select(finite, r, F64(nan))
    answer = ir.Constant(result, ir.Undefined)
    for column, value in enumerate((r, F64(0.0), quadrant)):
        answer = b.insert_value(answer, value, column)
    b.ret(answer)
    return function


# --------------------------------------------------------------------------------------------------------------
# Inverse trigonometric functions


def emit_asin(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Arc sine; NaN outside [-1, 1]. f32: 2.4 ulp; f64: 2.2 ulp."""
    v = _start(builder, x, target)
    c = v.kind
    far, t = _arc_sine_part(v.abs())
    result = far.select(v.constant(c.half_pi) - (t * 2.0 - c.half_pi_low), t)
    return result.copysign(v).value


def emit_acos(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Arc cosine; NaN outside [-1, 1]. f32: 1.2 ulp; f64: 1.3 ulp."""
    v = _start(builder, x, target)
    c = v.kind
    far, t = _arc_sine_part(v.abs())
    near = v.constant(c.half_pi) - (t.copysign(v) - c.half_pi_low)
    twice = t * 2.0
    left = v.constant(2.0 * c.half_pi) - (twice - 2.0 * c.half_pi_low)
    return far.select(v.less(0.0).select(left, twice), near).value


def emit_atan(builder: ir.IRBuilder, x: ir.Value, target: Target | None = None) -> ir.Value:
    """Arc tangent. f32: 1.9 ulp; f64: 1.7 ulp."""
    v = _start(builder, x, target)
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


def _arc_sine_part(a: _Value) -> tuple[_Value, _Value]:
    """Whether a > 1/2, and asin(a), or there asin(sqrt((1 - a) / 2)) = (pi/2 - asin(a)) / 2."""
    far = a.greater(0.5)
    z = far.select((a.constant(1.0) - a) * 0.5, a * a)
    s = far.select(z.sqrt(), a)
    return far, (s * z).fma(z.polynomial(a.kind.asin), s)


MATH: Final[dict[str, Callable[..., ir.Value]]] = {
    "exp": emit_exp,
    "expm1": emit_expm1,
    "sigmoid": emit_sigmoid,
    "tanh": emit_tanh,
    "sinh": emit_sinh,
    "cosh": emit_cosh,
    "log": emit_log,
    "log1p": emit_log1p,
    "asinh": emit_asinh,
    "acosh": emit_acosh,
    "atanh": emit_atanh,
    "pow": emit_pow,
    "erf": emit_erf,
    "sin": emit_sin,
    "cos": emit_cos,
    "tan": emit_tan,
    "asin": emit_asin,
    "acos": emit_acos,
    "atan": emit_atan,
}


# --------------------------------------------------------------------------------------------------------------
# Coefficients and constants: tables of tests/fit_math.py

EXP_32: Final = (  # error 3.1e-09
    0.4999999403953552, 0.1666652113199234, 0.04166827350854874, 0.00836868304759264, 0.0013820051681250334,
)  # fmt: skip
EXP_64: Final = (  # error 3.7e-18
    0.5000000000000011, 0.1666666666666641, 0.04166666666652919, 0.008333333333495641, 0.0013888888943922098,
    0.0001984126950472892, 2.4801492763122094e-05, 2.7557587373237314e-06, 2.763037856362825e-07,
    2.4999955953077986e-08,
)  # fmt: skip
LOG_32: Final = (  # error 5e-09
    0.33333224058151245, -0.24999688565731049, 0.20010033249855042, -0.16685472428798676, 0.14011076092720032,
    -0.12115050852298737, 0.13961747288703918, -0.13191935420036316,
)  # fmt: skip
LOG_64: Final = (  # error 2.5e-18
    0.6666666666666735, 0.39999999999411084, 0.2857142874326406, 0.22222198475837854, 0.18183569747590675,
    0.15313903048852526, 0.14797509660575972,
)  # fmt: skip
LOG_PAIR_64: Final = (  # error 1e-22
    0.4, 0.28571428571428514, 0.22222222222249818, 0.18181818175498796, 0.15384616202468868,
    0.13333269502698922, 0.11767766757448996, 0.10438338931335733, 0.10902907560642605,
)  # fmt: skip
SIN_32: Final = (  # error 3.7e-09
    -0.16666655242443085, 0.008332191035151482, -0.00019518598855938762,
)  # fmt: skip
COS_32: Final = (  # error 1.1e-10
    0.04166664555668831, -0.00138873013202101, 2.443066841806285e-05,
)  # fmt: skip
SIN_64: Final = (  # error 3.5e-18
    -0.16666666666666632, 0.00833333333332237, -0.00019841269829771094, 2.755731367864417e-06,
    -2.505075595843919e-08, 1.5896666354633815e-10,
)  # fmt: skip
COS_64: Final = (  # error 4.7e-20
    0.0416666666666666, -0.0013888888888874064, 2.4801587289443516e-05, -2.7557314340669307e-07,
    2.087572162505985e-09, -1.1359559398503756e-11,
)  # fmt: skip
ASIN_32: Final = (  # error 5e-09
    0.16666753590106964, 0.07495249062776566, 0.04547666013240814, 0.0241481252014637, 0.04221981018781662,
)  # fmt: skip
ASIN_64: Final = (  # error 9.8e-19
    0.16666666666666763, 0.07499999999970094, 0.044642857175289125, 0.030381942675157227, 0.02237221590878444,
    0.017351595457190765, 0.013981018957467313, 0.011397290246672133, 0.010789333780309331,
    0.0036721470744889477, 0.021790719965032432, -0.02111679905183207, 0.03270219961447087,
)  # fmt: skip
ATAN_32: Final = (  # error 6.8e-10
    -0.33333316445350647, 0.1999852955341339, -0.14244422316551208, 0.10599356889724731,
    -0.060903552919626236,
)  # fmt: skip
ATAN_64: Final = (  # error 1.3e-18
    -0.333333333333332, 0.1999999999995366, -0.1428571428020384, 0.11111110783805497, -0.09090897766835691,
    0.07692060357799911, -0.06663105414590559, 0.05847897123407022, -0.05039329744931317, 0.03806493029739156,
    -0.017907319676751104,
)  # fmt: skip
ERF_SMALL_32: Final = (  # error 6.2e-09
    0.12837916612625122, -0.3761260509490967, 0.11283286660909653, -0.026840243488550186,
    0.005161748733371496, -0.0007775648846291006, 7.087657286319882e-05,
)  # fmt: skip
ERF_LARGE_32: Final = (  # error 6.7e-09
    1.0011531114578247, -0.14623548090457916, -0.05965377017855644, -0.012771951034665108,
    0.013533790595829487, -0.0026077223010361195, 0.0001626185985514894,
)  # fmt: skip
ERF_SMALL_64: Final = (  # error 7.1e-18
    0.12837916709551256, -0.3761263890318355, 0.11283791670945252, -0.02686617064327603, 0.005223977607422239,
    -0.000854832598965053, 0.000120552953194444, -1.4924744648696003e-05, 1.6447517555921884e-06,
    -1.6209175363401453e-07, 1.3722975324556523e-08, -7.801189408534035e-10,
)  # fmt: skip
ERF_LARGE_64: Final = (  # error 4.4e-19
    0.20747772292310723, 1.4902673823377397, 3.4186592155414717, 4.8777892381845165, 1.96868838867837,
    -6.245856775353764, -6.669443573017551, 13.863050432492791, 15.789362905556741, -47.68090125863013,
    -19.962873745234994, 186.3260539024377, -209.77002452889897,
)  # fmt: skip
TWO_OVER_PI: Final = (  # 64 zero bits, then the bits of 2/pi after the point, in words of 64
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041,
    0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D, 0xA9E391615EE61B08,
)  # fmt: skip


# --------------------------------------------------------------------------------------------------------------
# Values and the instructions on them

I32, I64, I128 = (ir.IntType(width) for width in (32, 64, 128))
F32, F64 = ir.FloatType(), ir.DoubleType()


@dataclass(frozen=True)
class _Kind:
    """A floating-point type: its format, the bounds of each function, and its coefficients by rising power."""

    bits: int
    mantissa: int
    bias: int
    smallest_normal: float
    ln2_high: float  # few bits, so that its product with an exponent is exact, and below log 2
    ln2_low: float
    exp_low: float  # below, exp is 0 to nearest
    exp_high: float  # above, exp is infinite
    expm1_low: float  # below, expm1 is -1 to nearest
    tanh_high: float  # above, tanh is 1 to nearest, and sinh is exp / 2
    erf_high: float  # above, erf is 1 to nearest
    tiny: float  # below, odd functions of slope 1 are their argument to nearest
    large: float  # above, 1 + x * x is x * x to nearest
    log_low: float  # mantissas are taken from [log_low, 2 log_low)
    half_pi: float
    half_pi_low: float
    exp: tuple[float, ...]
    log: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    asin: tuple[float, ...]
    atan: tuple[float, ...]
    erf_near: tuple[float, ...]

    @property
    def round_magic(self) -> float:
        """Added to a value below 2^(mantissa - 1), it rounds to an integer that stands in the lowest bits."""
        return 1.5 * 2.0**self.mantissa

    def bits_of(self, value: float) -> int:
        """The bits of a constant, as an integer."""
        form, integer = ("<f", "<I") if self.bits == 32 else ("<d", "<Q")
        return int(struct.unpack(integer, struct.pack(form, value))[0])


SINGLE: Final = _Kind(
    bits=32, mantissa=23, bias=127, smallest_normal=2.0**-126,
    ln2_high=0.693145751953125, ln2_low=1.428606765330187e-06,
    exp_low=-104.0, exp_high=89.0, expm1_low=-18.0, tanh_high=10.0, erf_high=3.9375, tiny=2.0**-14, large=2.0**13,
    log_low=0.66666668653488159, half_pi=1.57079637050628662, half_pi_low=-4.37113900018624283e-8,
    exp=EXP_32, log=LOG_32, sin=SIN_32, cos=COS_32, asin=ASIN_32, atan=ATAN_32, erf_near=ERF_SMALL_32,
)  # fmt: skip
DOUBLE: Final = _Kind(
    bits=64, mantissa=52, bias=1023, smallest_normal=2.0**-1022,
    ln2_high=6.93147180369123816490e-01, ln2_low=1.90821492927058770002e-10,
    exp_low=-746.0, exp_high=710.0, expm1_low=-38.0, tanh_high=20.0, erf_high=6.0, tiny=2.0**-28, large=2.0**28,
    log_low=0.7071067811865476, half_pi=1.5707963267948966, half_pi_low=6.123233995736766e-17,
    exp=EXP_64, log=LOG_64, sin=SIN_64, cos=COS_64, asin=ASIN_64, atan=ATAN_64, erf_near=ERF_SMALL_64,
)  # fmt: skip


@dataclass(frozen=True)
class _Value:
    """A float, integer or mask register with arithmetic; Python numbers become constants in every lane."""

    builder: ir.IRBuilder
    value: ir.Value
    kind: _Kind  # of the floating-point values that integers and masks belong to
    target: Target | None

    # What it is

    @property
    def lanes(self) -> int:
        return int(self.value.type.count) if isinstance(self.value.type, ir.VectorType) else 1

    @property
    def suffix(self) -> str:
        """The type as in the names of intrinsics: `v8f64`."""
        scalar = f"f{self.kind.bits}"
        return f"v{self.lanes}{scalar}" if isinstance(self.value.type, ir.VectorType) else scalar

    @property
    def integer_type(self) -> ir.Type:
        return self._shaped(ir.IntType(self.kind.bits))

    @property
    def has_fma(self) -> bool:
        return self.target is not None and self.target.fma

    @property
    def has_avx512(self) -> bool:
        return self.target is not None and self.target.has("avx512f") and self.target.has("avx512vl")

    # Floating-point arithmetic

    def __add__(self, other: _Operand) -> _Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: _Operand) -> _Value:
        return self._arithmetic("sub", other)

    def __mul__(self, other: _Operand) -> _Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: _Operand) -> _Value:
        return self._arithmetic("div", other)

    def __neg__(self) -> _Value:
        return self._with(self.builder.fneg(self.value))

    def fma(self, factor: _Operand, addend: _Operand) -> _Value:
        """self * factor + addend, fused where the target fuses; never a call."""
        name = "llvm.fma" if self.has_fma else "llvm.fmuladd"
        return self._intrinsic(name, self._operand(factor), self._operand(addend))

    def polynomial(self, coefficients: Sequence[float]) -> _Value:
        """Horner's rule; coefficients by rising power."""
        result = self.constant(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            result = result.fma(self, coefficient)
        return result

    def abs(self) -> _Value:
        return self._intrinsic("llvm.fabs")

    def sqrt(self) -> _Value:
        return self._intrinsic("llvm.sqrt")

    def trunc(self) -> _Value:
        return self._intrinsic("llvm.trunc")

    def copysign(self, sign: _Value) -> _Value:
        return self._intrinsic("llvm.copysign", sign.value)

    def at_most(self, bound: float) -> _Value:
        """The smaller of both; NaN stays. One minimum instruction, whose second operand wins against NaN."""
        return self.constant(bound).less(self).select(self.constant(bound), self)

    def at_least(self, bound: float) -> _Value:
        return self.constant(bound).greater(self).select(self.constant(bound), self)

    def zero_kept(self, argument: _Value) -> ir.Value:
        """This result of an odd function, or the argument itself where that is a zero and has a sign."""
        return argument.equal(0.0).select(argument, self).value

    # Comparisons; NaN compares false except in `differs` and `not_less`

    def less(self, other: _Operand) -> _Value:
        return self._with(self.builder.fcmp_ordered("<", self.value, self._operand(other)))

    def greater(self, other: _Operand) -> _Value:
        return self._with(self.builder.fcmp_ordered(">", self.value, self._operand(other)))

    def equal(self, other: _Operand) -> _Value:
        return self._with(self.builder.fcmp_ordered("==", self.value, self._operand(other)))

    def differs(self, other: _Operand) -> _Value:
        return self._with(self.builder.fcmp_unordered("!=", self.value, self._operand(other)))

    def not_less(self, other: _Operand) -> _Value:
        return self._with(self.builder.fcmp_unordered(">=", self.value, self._operand(other)))

    # Masks and integers

    def select(self, chosen: _Value, otherwise: _Value) -> _Value:
        return chosen._with(self.builder.select(self.value, chosen.value, otherwise.value))

    def nonzero(self) -> _Value:
        return self._with(self.builder.icmp_unsigned("!=", self.value, self._operand(0)))

    def __and__(self, other: _Operand) -> _Value:
        return self._with(self.builder.and_(self.value, self._operand(other)))

    def __or__(self, other: _Operand) -> _Value:
        return self._with(self.builder.or_(self.value, self._operand(other)))

    def __xor__(self, other: _Operand) -> _Value:
        return self._with(self.builder.xor(self.value, self._operand(other)))

    def __lshift__(self, count: int) -> _Value:
        return self._with(self.builder.shl(self.value, self._operand(count)))

    def __rshift__(self, count: int) -> _Value:
        return self._with(self.builder.lshr(self.value, self._operand(count)))

    def shift_signed(self, count: int) -> _Value:
        return self._with(self.builder.ashr(self.value, self._operand(count)))

    # Conversions

    def bits(self) -> _Value:
        return self._with(self.builder.bitcast(self.value, self.integer_type))

    def as_float(self) -> _Value:
        return self._with(self.builder.bitcast(self.value, self._shaped(self._float_scalar)))

    def to_float(self) -> _Value:
        return self._with(self.builder.sitofp(self.value, self._shaped(self._float_scalar)))

    def widened(self) -> _Value:
        wide = self.builder.fpext(self.value, self._shaped(F64))
        return _Value(self.builder, wide, DOUBLE, self.target)

    def narrowed(self) -> _Value:
        narrow = self.builder.fptrunc(self.value, self._shaped(F32))
        return _Value(self.builder, narrow, SINGLE, self.target)

    def low_half(self) -> _Value:
        """The lower 32 bits of 64-bit integers."""
        return _Value(self.builder, self.builder.trunc(self.value, self._shaped(I32)), SINGLE, self.target)

    # Building blocks

    def constant(self, number: float) -> _Value:
        """A constant of the type of this value."""
        return self._with(self._operand(number))

    def undefined(self) -> _Value:
        return self._with(ir.Constant(self.value.type, ir.Undefined))

    def lane(self, lane: int) -> ir.Value:
        if not isinstance(self.value.type, ir.VectorType):
            return self.value
        return self.builder.extract_element(self.value, I32(lane))

    def with_lane(self, lane: int, scalar: ir.Value) -> _Value:
        if not isinstance(self.value.type, ir.VectorType):
            return self._with(scalar)
        return self._with(self.builder.insert_element(self.value, scalar, I32(lane)))

    def replaced(self, builder: ir.IRBuilder, value: ir.Value) -> _Value:
        return _Value(builder, value, self.kind, self.target)

    def call(self, function: ir.Function, results: int) -> list[_Value]:
        answer = self.builder.call(function, [self.value])
        return [self._with(self.builder.extract_value(answer, index)) for index in range(results)]

    def avx512(self, name: str, *others: _Value) -> _Value:
        """One of AVX-512's exponent instructions, on whole registers: scalef, getexp or getmant."""
        arguments = [self.value, *(other.value for other in others)]
        scalar, lanes = self._float_scalar, self.lanes
        if not isinstance(self.value.type, ir.VectorType):
            undefined = ir.Constant(ir.VectorType(scalar, 128 // self.kind.bits), ir.Undefined)
            padded = [self.builder.insert_element(undefined, argument, I32(0)) for argument in arguments]
            return self._with(self.builder.extract_element(self._avx512_register(name, padded), I32(0)))
        pieces: list[ir.Value] = []
        for start in range(0, lanes, 512 // self.kind.bits):
            length = min(lanes - start, 512 // self.kind.bits)
            width = next(bits for bits in (128, 256, 512) if length * self.kind.bits <= bits) // self.kind.bits
            cut = [self._cut(argument, start, length, width) for argument in arguments]
            pieces.append(self._cut(self._avx512_register(name, cut), 0, length, length))
        result, joined = pieces[0], pieces[0].type.count
        for piece in pieces[1:]:
            longer = self._cut(piece, 0, piece.type.count, joined)
            indices = [*range(joined), *range(joined, joined + piece.type.count)]
            result = self.builder.shuffle_vector(result, longer, _indices(indices))
            joined = len(indices)
        return self._with(result)

    def _avx512_register(self, name: str, arguments: list[ir.Value]) -> ir.Value:
        type_ = arguments[0].type
        bits = type_.count * self.kind.bits
        mask_type = ir.IntType(max(8, type_.count))
        full = list(arguments)
        if name == "getmant":
            full.append(I32(8))  # normalised to [1, 2), and NaN for negative numbers
        full += [ir.Constant(type_, ir.Undefined), ir.Constant(mask_type, -1)]
        if bits == 512:
            full.append(I32(4))  # round as the mode says
        form = "ps" if self.kind.bits == 32 else "pd"
        full_name = f"llvm.x86.avx512.mask.{name}.{form}.{bits}"
        return intrinsic(self.builder, full_name, type_, full)

    def _cut(self, vector: ir.Value, start: int, length: int, width: int) -> ir.Value:
        """`length` lanes from `start` on, filled up to `width` with lanes of any value."""
        if start == 0 and length == width == vector.type.count:
            return vector
        last = vector.type.count - 1
        indices = [min(start + lane, last) for lane in range(width)]
        return self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _indices(indices))

    @property
    def _float_scalar(self) -> ir.Type:
        return F32 if self.kind.bits == 32 else F64

    def _shaped(self, scalar: ir.Type) -> ir.Type:
        return ir.VectorType(scalar, self.lanes) if isinstance(self.value.type, ir.VectorType) else scalar

    def _with(self, value: ir.Value) -> _Value:
        return _Value(self.builder, value, self.kind, self.target)

    def _operand(self, other: _Operand) -> ir.Value:
        if isinstance(other, _Value):
            return other.value
        type_ = self.value.type
        if not isinstance(type_, ir.VectorType):
            return ir.Constant(type_, other)
        return ir.Constant(type_, [ir.Constant(type_.element, other)] * type_.count)

    def _arithmetic(self, name: str, other: _Operand) -> _Value:
        scalar = self.value.type.element if isinstance(self.value.type, ir.VectorType) else self.value.type
        prefix = "" if isinstance(scalar, ir.IntType) else "f"
        operation: Callable[..., ir.Value] = getattr(self.builder, prefix + name)
        return self._with(operation(self.value, self._operand(other)))

    def _intrinsic(self, name: str, *others: ir.Value) -> _Value:
        arguments = [self.value, *others]
        return self._with(intrinsic(self.builder, f"{name}.{self.suffix}", self.value.type, arguments))


_Operand = _Value | float | int


def _start(builder: ir.IRBuilder, x: ir.Value, target: Target | None) -> _Value:
    scalar = x.type.element if isinstance(x.type, ir.VectorType) else x.type
    assert scalar in (F32, F64), f"no elementary functions of {scalar}: the caller widens it to float"
    return _Value(builder, x, SINGLE if scalar == F32 else DOUBLE, target)


def _indices(lanes: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(I32, len(lanes)), [ir.Constant(I32, lane) for lane in lanes])
