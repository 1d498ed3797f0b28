"""Element arithmetic: one function per operation of `arith`, `math` and the element operations of `tile`.

Each works on one register (a scalar or a vector). bf16 has no arithmetic here: `lower` computes in f32 and casts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isnan
from typing import Any

from llvmlite import ir
from xdsl.dialects import arith
from xdsl.dialects.builtin import BFloat16Type
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math import MATH
from tilewright.codegen.values import (
    F16,
    F32,
    F64,
    I1,
    I16,
    I32,
    intrinsic,
    lanes_of,
    llvm_type,
    mangle,
    scalar_type,
    splat,
    splat_constant,
    with_lanes,
)
from tilewright.kernel import dialect as tile
from tilewright.kernel.elements import TF32_HALF, TF32_LIMIT, TF32_MASK

Emit = Callable[..., ir.Value]


def emit_element(
    builder: ir.IRBuilder, target: Arithmetic, name: str, op: Operation | None, args: list[ir.Value]
) -> ir.Value:
    """One register of the result of an element operation, by its name, from the registers of its operands.

    `op` may be None where its attributes do not matter.
    f16 arithmetic of a machine without f16 runs in f32 and is rounded once more: LLVM would call a library.
    """
    halves = [scalar_type(arg) == F16 for arg in args]
    if not any(halves) or name not in ARITHMETIC or target.converts_halves:
        return ELEMENT[name](builder, target, op, *args)
    wide = [convert_half_to_float(builder, target, a) if half else a for a, half in zip(args, halves, strict=True)]
    result = ELEMENT[name](builder, target, op, *wide)
    return convert_float_to_half(builder, target, result) if scalar_type(result) == F32 else result


def _built(name: str, builder: ir.IRBuilder, target: Arithmetic, op: Operation, *args: ir.Value) -> ir.Value:
    """What LLVM has an instruction for."""
    return getattr(builder, name)(*args)


def _divide(name: str, builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value, b: ir.Value) -> ir.Value:
    """Integer division that cannot trap: by 0 it gives 0, and the most negative value by -1 wraps."""
    signed = name in ("sdiv", "srem", "floor")
    one, zero = constant(b.type, 1), constant(b.type, 0)
    is_zero = builder.icmp_signed("==", b, zero)
    unsafe = is_zero
    if signed:
        minus = constant(b.type, -1)
        is_minus = builder.icmp_signed("==", b, minus)
        unsafe = builder.or_(is_zero, is_minus)
    safe = builder.select(unsafe, one, b)
    divide = builder.sdiv if signed else builder.udiv
    remainder = builder.srem if signed else builder.urem
    if name in ("srem", "urem"):
        return builder.select(unsafe, zero, remainder(a, safe))
    quotient = divide(a, safe)
    if name == "floor":
        rest = builder.sub(a, builder.mul(quotient, safe))
        apart = builder.icmp_signed("<", builder.xor(rest, safe), zero)
        inexact = builder.icmp_signed("!=", rest, zero)
        quotient = builder.sub(quotient, builder.zext(builder.and_(apart, inexact), quotient.type))
    if signed:
        quotient = builder.select(is_minus, builder.sub(zero, a), quotient)
    return builder.select(is_zero, zero, quotient)


def _shift(name: str, builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value, b: ir.Value) -> ir.Value:
    """A shift by the width or more gives 0 (or the sign, for an arithmetic one), as in NumPy."""
    width = scalar_type(a).width
    inside = builder.icmp_unsigned("<", b, constant(b.type, width))
    if name == "ashr":
        return builder.ashr(a, builder.select(inside, b, constant(b.type, width - 1)))
    shifted = getattr(builder, name)(a, builder.select(inside, b, constant(b.type, 0)))
    return builder.select(inside, shifted, constant(a.type, 0))


def _extreme(name: str, builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value, b: ir.Value) -> ir.Value:
    """Float maximum or minimum where NaN wins: ``a > b or a is NaN ? a : b``; one instruction against a constant, or
    where a NaN may be passed over.
    """
    sign = ">" if name == "max" else "<"
    if _is_number(b):
        a, b = b, a
    if _may_lose_nan(op):
        return builder.select(builder.fcmp_ordered(sign, a, b), a, b)
    if _is_number(a):  # a is not NaN, so NaN can only come from b, which the false branch gives
        return builder.select(builder.fcmp_ordered(sign, a, b), a, b)
    larger = builder.select(builder.fcmp_ordered(sign, a, b), a, b)
    return builder.select(builder.fcmp_unordered("uno", a, a), a, larger)


def _may_lose_nan(op: Operation | None) -> bool:
    if isinstance(op, tile.ReduceOp):
        return op.nnan is not None
    flags = None if op is None else op.properties.get("fastmath")
    return isinstance(flags, arith.FastMathFlagsAttr) and FastMathFlag.NO_NANS in flags.data


def _is_number(value: ir.Value) -> bool:
    """Whether a register is a constant without NaN."""
    if not isinstance(value, ir.Constant):
        return False
    lanes = value.constant if isinstance(value.type, ir.VectorType) else [value]
    if not isinstance(lanes, list):
        return False
    return all(isinstance(lane.constant, float) and not isnan(lane.constant) for lane in lanes)


def _integer_extreme(
    signed: bool, sign: str, builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value, b: ir.Value
) -> ir.Value:
    compare = builder.icmp_signed if signed else builder.icmp_unsigned
    return builder.select(compare(sign, a, b), a, b)


def _intrinsic1(name: str, builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value) -> ir.Value:
    return intrinsic(builder, f"llvm.{name}.{mangle(a.type)}", a.type, [a])


def _abs_integer(builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value) -> ir.Value:
    zero = constant(a.type, 0)
    return builder.select(builder.icmp_signed("<", a, zero), builder.sub(zero, a), a)


def _fma(builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    return fma(builder, target, a, b, c)


def fma(builder: ir.IRBuilder, target: Arithmetic, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """``a * b + c``, fused where the target can (elsewhere LLVM would call a library)."""
    name = "fma" if target.fma else "fmuladd"
    return intrinsic(builder, f"llvm.{name}.{mangle(a.type)}", a.type, [a, b, c])


def _function(emit: Emit, builder: ir.IRBuilder, target: Arithmetic, op: Operation, *args: ir.Value) -> ir.Value:
    """A function of f32 and f64; that of f16 is computed in f32."""
    if scalar_type(args[0]) == F16:
        wide = [convert_half_to_float(builder, target, arg) for arg in args]
        return convert_float_to_half(builder, target, emit(builder, *wide, target))
    return emit(builder, *args, target)


def _remainder(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, target: Arithmetic) -> ir.Value:
    """The exact remainder of a by b: b is doubled until it fits no more, then halved and subtracted where it fits.

    Takes two steps per bit of the largest quotient. NaN where a is infinite, b is 0, or one of them is NaN.
    """
    type_ = a.type
    left, divisor = (intrinsic(builder, f"llvm.fabs.{mangle(type_)}", type_, [value]) for value in (a, b))
    finite = builder.fcmp_ordered("<", left, constant(type_, float("inf")))
    legal = builder.and_(finite, builder.fcmp_ordered(">", divisor, constant(type_, 0.0)))
    left = builder.select(legal, left, constant(type_, 0.0))
    divisor = builder.select(legal, divisor, constant(type_, 1.0))
    entry, growing, shrinking, after = builder.block, *(builder.append_basic_block("remainder") for _ in range(3))
    builder.branch(growing)
    builder.position_at_end(growing)
    multiple = builder.phi(type_)
    multiple.add_incoming(divisor, entry)
    twice = builder.fadd(multiple, multiple)
    fits = builder.fcmp_ordered("<=", twice, left)
    multiple.add_incoming(builder.select(fits, twice, multiple), growing)
    builder.cbranch(_any(builder, fits), growing, shrinking)
    builder.position_at_end(shrinking)
    rest, part = builder.phi(type_), builder.phi(type_)
    smaller = builder.select(builder.fcmp_ordered(">=", rest, part), builder.fsub(rest, part), rest)
    above = builder.fcmp_ordered(">", part, divisor)
    rest.add_incoming(left, growing)
    rest.add_incoming(smaller, shrinking)
    part.add_incoming(multiple, growing)
    part.add_incoming(builder.select(above, builder.fmul(part, constant(type_, 0.5)), part), shrinking)
    builder.cbranch(_any(builder, above), shrinking, after)
    builder.position_at_end(after)
    signed = intrinsic(builder, f"llvm.copysign.{mangle(type_)}", type_, [smaller, a])
    return builder.select(legal, signed, constant(type_, float("nan")))


def _any(builder: ir.IRBuilder, flags: ir.Value) -> ir.Value:
    if lanes_of(flags) == 1:
        return flags
    return intrinsic(builder, f"llvm.vector.reduce.or.{mangle(flags.type)}", scalar_type(flags), [flags])


def _compare(builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value, b: ir.Value) -> ir.Value:
    assert isinstance(op, tile.CompareOp)
    sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[op.predicate.data]
    if isinstance(scalar_type(a), ir.IntType):
        compare = builder.icmp_unsigned if op.unsigned or scalar_type(a).width == 1 else builder.icmp_signed
        return compare(sign, a, b)
    return builder.fcmp_unordered(sign, a, b) if sign == "!=" else builder.fcmp_ordered(sign, a, b)


def _index_cast(builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value) -> ir.Value:
    wanted = with_lanes(llvm_type(tile.element(op.results[0])), lanes_of(a))
    if wanted == a.type:
        return a
    return builder.sext(a, wanted) if scalar_type(a).width < wanted.width else builder.trunc(a, wanted)


def _bitcast(builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value) -> ir.Value:
    wanted = with_lanes(llvm_type(tile.element(op.results[0])), lanes_of(a))
    return a if wanted == a.type else builder.bitcast(a, wanted)


def _cast(builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value) -> ir.Value:
    assert isinstance(op, tile.CastOp)
    return convert(builder, target, a, tile.element(op.value), tile.element(op.result), bool(op.unsigned))


def convert(
    builder: ir.IRBuilder, target: Arithmetic, a: ir.Value, source: Attribute, wanted: Attribute, unsigned: bool
) -> ir.Value:
    """`tile.cast` of a register from one element type to another."""
    if source == wanted:
        return a
    if isinstance(source, BFloat16Type):
        a = convert_bfloat_to_float(builder, a)
    to_bfloat = isinstance(wanted, BFloat16Type)
    to = F32 if to_bfloat else llvm_type(wanted)
    value = _convert(builder, target, a, to, unsigned)
    return convert_float_to_bfloat(builder, value) if to_bfloat else value


def _convert(builder: ir.IRBuilder, target: Arithmetic, a: ir.Value, to: ir.Type, unsigned: bool) -> ir.Value:
    source, lanes = scalar_type(a), lanes_of(a)
    wanted = with_lanes(to, lanes)
    if a.type == wanted:
        return a
    if isinstance(source, ir.IntType) and isinstance(to, ir.IntType):
        if to.width == 1:
            return builder.icmp_unsigned("!=", a, constant(a.type, 0))
        if to.width < source.width:
            return builder.trunc(a, wanted)
        return builder.zext(a, wanted) if unsigned or source.width == 1 else builder.sext(a, wanted)
    if isinstance(source, ir.IntType):
        through = F32 if to == F16 else to
        typed = with_lanes(through, lanes)
        number = builder.uitofp(a, typed) if unsigned or source.width == 1 else builder.sitofp(a, typed)
        return convert_float_to_half(builder, target, number) if to == F16 else number
    if source == F16:
        return _convert(builder, target, convert_half_to_float(builder, target, a), to, unsigned)
    if isinstance(to, ir.IntType):
        if to.width == 1:
            return builder.fcmp_unordered("!=", a, constant(a.type, 0.0))
        return _saturated(builder, a, to, unsigned)
    if to == F16:
        narrow = builder.fptrunc(a, with_lanes(F32, lanes)) if source == F64 else a
        return convert_float_to_half(builder, target, narrow)
    return builder.fpext(a, wanted) if to == F64 else builder.fptrunc(a, wanted)


def _saturated(builder: ir.IRBuilder, a: ir.Value, to: ir.IntType, unsigned: bool) -> ir.Value:
    """Float to integer: cut, NaN to 0, what is outside to the nearest end. LLVM's own would take lane by lane."""
    lanes, value_bits = lanes_of(a), to.width - (0 if unsigned else 1)
    mantissa = 53 if scalar_type(a) == F64 else 24
    last = (1 << value_bits) - 1
    high = float(last) if value_bits <= mantissa else float((1 << value_bits) - (1 << (value_bits - mantissa)))
    low = 0.0 if unsigned else -float(1 << value_bits)
    value = builder.select(builder.fcmp_ordered("ord", a, a), a, constant(a.type, 0.0))
    value = builder.select(builder.fcmp_ordered(">", value, constant(a.type, low)), value, constant(a.type, low))
    value = builder.select(builder.fcmp_ordered("<", value, constant(a.type, high)), value, constant(a.type, high))
    wide = with_lanes(to if to.width >= 32 else I32, lanes)
    whole = builder.fptoui(value, wide) if unsigned and to.width >= 32 else builder.fptosi(value, wide)
    if to.width < 32:
        return builder.trunc(whole, with_lanes(to, lanes))
    if value_bits <= mantissa:
        return whole
    above = builder.fcmp_ordered(">=", a, constant(a.type, float(1 << value_bits)))
    return builder.select(above, constant(wide, last), whole)


def _tf32(builder: ir.IRBuilder, target: Arithmetic, op: Operation, a: ir.Value) -> ir.Value:
    """`tile.tf32`: half a unit of the last place is added to the bits, and what is behind it cut off."""
    assert isinstance(op, tile.Tf32Op)
    kind, type_ = op.kind.data, with_lanes(I32, lanes_of(a))
    magnitude = intrinsic(builder, f"llvm.fabs.{mangle(a.type)}", a.type, [a])
    bits = builder.bitcast(a, type_)
    rounded, mask = builder.add(bits, constant(type_, TF32_HALF)), constant(type_, TF32_MASK)
    if kind == "nearest":
        finite = builder.fcmp_ordered("<", magnitude, constant(a.type, float("inf")))
        return builder.bitcast(builder.and_(builder.select(finite, rounded, bits), mask), a.type)
    fits = builder.fcmp_ordered("<", magnitude, constant(a.type, TF32_LIMIT))
    small = builder.and_(rounded, constant(type_, TF32_MASK & ~(1 << 30)))
    high = builder.bitcast(builder.select(fits, builder.and_(rounded, mask), small), a.type)
    return high if kind == "high" else builder.fsub(a, high)


def convert_half_to_float(builder: ir.IRBuilder, target: Arithmetic, a: ir.Value) -> ir.Value:
    """f16 to f32: the hardware's conversion, or exact integer arithmetic where there is none."""
    wide = with_lanes(F32, lanes_of(a))
    if target.converts_halves:
        return builder.fpext(a, wide)
    bits_type = with_lanes(I32, lanes_of(a))
    bits = builder.zext(builder.bitcast(a, with_lanes(I16, lanes_of(a))), bits_type)
    sign = builder.shl(builder.and_(bits, constant(bits_type, 0x8000)), constant(bits_type, 16))
    magnitude = builder.shl(builder.and_(bits, constant(bits_type, 0x7FFF)), constant(bits_type, 13))
    # Scaling by 2^112 rebuilds the exponent and makes denormals right; infinities and NaN keep the largest exponent.
    scaled = builder.fmul(builder.bitcast(magnitude, wide), constant(wide, 2.0**112))
    special = builder.icmp_unsigned(">=", magnitude, constant(bits_type, 0x0F800000))
    patched = builder.or_(magnitude, constant(bits_type, 0x7F800000))
    result = builder.select(special, patched, builder.bitcast(scaled, bits_type))
    return builder.bitcast(builder.or_(result, sign), wide)


def convert_float_to_half(builder: ir.IRBuilder, target: Arithmetic, a: ir.Value) -> ir.Value:
    """f32 to f16, to nearest even."""
    narrow = with_lanes(F16, lanes_of(a))
    if target.converts_halves:
        return builder.fptrunc(a, narrow)
    bits_type, half_bits = with_lanes(I32, lanes_of(a)), with_lanes(I16, lanes_of(a))

    def word(value: int) -> ir.Constant:
        return constant(bits_type, value)

    bits = builder.bitcast(a, bits_type)
    sign = builder.lshr(builder.and_(bits, word(0x80000000)), word(16))
    magnitude = builder.and_(bits, word(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, word(13)), word(1))
    rounded = builder.add(builder.add(magnitude, word(0xC8000FFF)), odd)  # exponent bias 127 to 15, half an ulp
    normal = builder.lshr(rounded, word(13))
    # Below 2^-14 the addition of 0.5 aligns the last place of a denormal half with the last place of the float.
    aligned = builder.fadd(builder.bitcast(magnitude, a.type), constant(a.type, 0.5))
    denormal = builder.sub(builder.bitcast(aligned, bits_type), word(0x3F000000))
    infinite = builder.select(builder.icmp_unsigned(">", magnitude, word(0x7F800000)), word(0x7E00), word(0x7C00))
    result = builder.select(builder.icmp_unsigned("<", magnitude, word(0x38800000)), denormal, normal)
    result = builder.select(builder.icmp_unsigned(">=", magnitude, word(0x47800000)), infinite, result)
    return builder.bitcast(builder.trunc(builder.or_(result, sign), half_bits), narrow)


def convert_bfloat_to_float(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """bf16 bits to f32: exact."""
    wide = builder.zext(a, with_lanes(I32, lanes_of(a)))
    return builder.bitcast(builder.shl(wide, constant(wide.type, 16)), with_lanes(F32, lanes_of(a)))


def convert_float_to_bfloat(builder: ir.IRBuilder, a: ir.Value) -> ir.Value:
    """f32 to bf16 bits, to nearest even; NaN stays a quiet NaN."""
    type_ = with_lanes(I32, lanes_of(a))
    bits = builder.bitcast(a, type_)
    odd = builder.and_(builder.lshr(bits, constant(type_, 16)), constant(type_, 1))
    rounded = builder.add(builder.add(bits, constant(type_, 0x7FFF)), odd)
    quiet = builder.or_(bits, constant(type_, 0x00400000))
    chosen = builder.select(builder.fcmp_unordered("uno", a, a), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, constant(type_, 16)), with_lanes(I16, lanes_of(a)))


def scalar_constant(element_type: Attribute, number: float) -> ir.Constant:
    """A number as a constant of an element type; integers wrap."""
    if isinstance(element_type, BFloat16Type):
        import ml_dtypes
        import numpy as np

        return ir.Constant(I16, int(np.asarray(number, ml_dtypes.bfloat16).view(np.uint16)))
    type_ = llvm_type(element_type)
    if isinstance(type_, ir.IntType):
        wrapped = int(number) & ((1 << type_.width) - 1)
        return ir.Constant(type_, bool(wrapped) if type_ == I1 else wrapped)
    return constant(type_, float(number))


def constant(type_: ir.Type, value: Any) -> ir.Constant:
    """A constant of a scalar or vector type, `value` in every lane."""
    if isinstance(type_, ir.VectorType):
        return splat_constant(type_, ir.Constant(type_.element, value))
    return ir.Constant(type_, value)


_FUNCTIONS = (  # which have their names in `MATH`
    "math.exp", tile.ExpNonpositiveOp.name, tile.SigmoidOp.name, "math.exp2", "math.expm1", "math.log", "math.log1p",
    "math.tanh", "math.erf", tile.NormalCdfOp.name, tile.NormalCdfTanhOp.name, "math.sin", "math.cos", "math.tan",
    "math.asin", "math.acos", "math.atan", "math.sinh", "math.cosh", "math.asinh", "math.acosh", "math.atanh",
)  # fmt: skip

ELEMENT: dict[str, Emit] = {  # by the name of the operation
    "arith.addf": partial(_built, "fadd"),
    "arith.subf": partial(_built, "fsub"),
    "arith.mulf": partial(_built, "fmul"),
    "arith.divf": partial(_built, "fdiv"),
    "arith.negf": partial(_built, "fneg"),
    "arith.maximumf": partial(_extreme, "max"),
    "arith.minimumf": partial(_extreme, "min"),
    "arith.addi": partial(_built, "add"),
    "arith.subi": partial(_built, "sub"),
    "arith.muli": partial(_built, "mul"),
    "arith.andi": partial(_built, "and_"),
    "arith.ori": partial(_built, "or_"),
    "arith.xori": partial(_built, "xor"),
    "arith.divsi": partial(_divide, "sdiv"),
    "arith.divui": partial(_divide, "udiv"),
    "arith.remsi": partial(_divide, "srem"),
    "arith.remui": partial(_divide, "urem"),
    "arith.floordivsi": partial(_divide, "floor"),
    "arith.shli": partial(_shift, "shl"),
    "arith.shrsi": partial(_shift, "ashr"),
    "arith.shrui": partial(_shift, "lshr"),
    "arith.maxsi": partial(_integer_extreme, True, ">"),
    "arith.minsi": partial(_integer_extreme, True, "<"),
    "arith.maxui": partial(_integer_extreme, False, ">"),
    "arith.minui": partial(_integer_extreme, False, "<"),
    "arith.index_cast": _index_cast,
    "arith.bitcast": _bitcast,
    **{name: partial(_function, MATH[name.partition(".")[2]]) for name in _FUNCTIONS},
    "math.absf": partial(_intrinsic1, "fabs"),
    "math.absi": _abs_integer,
    "math.sqrt": partial(_intrinsic1, "sqrt"),
    "math.floor": partial(_intrinsic1, "floor"),
    "math.ceil": partial(_intrinsic1, "ceil"),
    "math.trunc": partial(_intrinsic1, "trunc"),
    "math.roundeven": partial(_intrinsic1, "roundeven"),
    "math.fma": _fma,
    "math.powf": partial(_function, MATH["pow"]),
    tile.RemainderOp.name: partial(_function, _remainder),
    tile.CompareOp.name: _compare,
    tile.SelectOp.name: partial(_built, "select"),
    tile.CastOp.name: _cast,
    tile.Tf32Op.name: _tf32,
}

_FLOAT = {"sum": "arith.addf", "prod": "arith.mulf", "max": "arith.maximumf", "min": "arith.minimumf"}
_SIGNED = {"sum": "arith.addi", "prod": "arith.muli", "max": "arith.maxsi", "min": "arith.minsi"}
_UNSIGNED = {**_SIGNED, "max": "arith.maxui", "min": "arith.minui"}


def combination(kind: str, floating: bool, unsigned: bool) -> str:
    """The name of the operation by which a reduction of this kind combines two elements."""
    return (_FLOAT if floating else _UNSIGNED if unsigned else _SIGNED)[kind]


ARITHMETIC = frozenset({
    "arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.maximumf", "arith.minimumf", "math.sqrt",
    "math.floor", "math.ceil", "math.trunc", "math.roundeven", "math.fma", tile.CompareOp.name,
})  # fmt: skip

__all__ = ["ELEMENT", "constant", "emit_element", "fma", "splat"]
