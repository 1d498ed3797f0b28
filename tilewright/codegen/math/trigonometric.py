"""Trigonometric functions: sin, cos and tan, with a reduction of any argument."""

from __future__ import annotations

from math import inf, nan
from typing import Final

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.coefficients import TWO_OVER_PI
from tilewright.codegen.math.pairs import two_sum
from tilewright.codegen.math.value import F64, I64, I128, Value, start
from tilewright.codegen.values import intrinsic
from tilewright.dataclass import dataclass

TRIGONOMETRIC_LIMIT: Final = 1.6e6  # up to here two products of the reduction are exact: 2^20 quadrants


def emit_sin(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Sine of any finite argument. f32: 1.6 ulp; f64: 2.4 ulp. NaN at infinity."""
    v = start(builder, x, target)
    angle = _reduce_angle(v)
    return _wave(angle, angle.quadrant).zero_kept(v)


def emit_cos(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Cosine of any finite argument. f32: 1.6 ulp; f64: 2.0 ulp. NaN at infinity."""
    angle = _reduce_angle(start(builder, x, target))
    return _wave(angle, angle.quadrant + 1).value


def emit_tan(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None = None) -> ir.Value:
    """Tangent of any finite argument. f32: 3.1 ulp; f64: 3.2 ulp. NaN at infinity."""
    v = start(builder, x, target)
    angle = _reduce_angle(v)
    sine, cosine = _sine(angle), _cosine(angle)
    odd = (angle.quadrant & 1).nonzero()
    quotient = odd.select(-cosine, sine) / odd.select(sine, cosine)
    return quotient.zero_kept(v)


@dataclass(frozen=True)
class _Angle:
    """x = quadrant * pi / 2 + r + r_low with |r| <= pi / 4; the two lowest bits of `quadrant` count."""

    r: Value
    r_low: Value | None
    quadrant: Value


def _wave(angle: _Angle, quadrant: Value) -> Value:
    c = angle.r.kind
    result = (quadrant & 1).nonzero().select(_cosine(angle), _sine(angle))
    sign = (quadrant & 2) << (c.bits - 2)
    return (result.bits() ^ sign).as_float()


def _sine(angle: _Angle) -> Value:
    r = angle.r
    z = r * r
    cubic = (z * r) * z.polynomial(r.kind.sin)
    if angle.r_low is not None:
        cubic = cubic + (z.fma(-0.5, 1.0)) * angle.r_low
    return r + cubic


def _cosine(angle: _Angle) -> Value:
    r = angle.r
    z = r * r
    quartic = (z * z) * z.polynomial(r.kind.cos)
    if angle.r_low is not None:
        quartic = quartic - r * angle.r_low
    head = z.fma(-0.5, 1.0)
    rounding = z.fma(-0.5, r.constant(1.0) - head)
    return head + (rounding + quartic)


def _reduce_angle(x: Value) -> _Angle:
    """In f64 for both types: an f32 angle then needs no low part."""
    single = x.kind.bits == 32
    wide = x.widened() if single else x
    results = wide.call(_angle_function(wide), 3)
    r, r_low, quadrant = results
    if single:
        return _Angle(r.narrowed(), None, quadrant.low_half())
    return _Angle(r, r_low, quadrant)


def _angle_function(like: Value) -> ir.Function:
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
    head, error = two_sum(exact, n * -6.077100506303966e-11)
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
