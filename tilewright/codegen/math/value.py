"""Values and the instructions on them: a register with arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.math.kind import DOUBLE, SINGLE, Kind
from tilewright.codegen.values import intrinsic, splat_constant, vector_type
from tilewright.dataclass import dataclass

I32, I64, I128 = (ir.IntType(width) for width in (32, 64, 128))
F32, F64 = ir.FloatType(), ir.DoubleType()


@dataclass(frozen=True)
class Value:
    """A float, integer or mask register with arithmetic; Python numbers become constants in every lane."""

    builder: ir.IRBuilder
    value: ir.Value
    kind: Kind  # of the floating-point values that integers and masks belong to
    target: Arithmetic

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
        return self.target.fma

    @property
    def has_exponents(self) -> bool:
        return self.target.exponents is not None

    @property
    def has_power_of_two(self) -> bool:
        return self.kind.bits == 32 and self.target.power_of_two is not None

    @property
    def has_reciprocal(self) -> bool:
        return self.kind.bits == 32 and self.target.reciprocal is not None

    # Floating-point arithmetic

    def __add__(self, other: Operand) -> Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._arithmetic("sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._arithmetic("div", other)

    def __neg__(self) -> Value:
        return self.with_value(self.builder.fneg(self.value))

    def fma(self, factor: Operand, addend: Operand) -> Value:
        """self * factor + addend, fused where the target fuses; never a call."""
        name = "llvm.fma" if self.has_fma else "llvm.fmuladd"
        return self._intrinsic(name, self._operand(factor), self._operand(addend))

    def polynomial(self, coefficients: Sequence[float]) -> Value:
        """Horner's rule; coefficients by rising power."""
        result = self.constant(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            result = result.fma(self, coefficient)
        return result

    def abs(self) -> Value:
        return self._intrinsic("llvm.fabs")

    def sqrt(self) -> Value:
        return self._intrinsic("llvm.sqrt")

    def trunc(self) -> Value:
        return self._intrinsic("llvm.trunc")

    def copysign(self, sign: Value) -> Value:
        return self._intrinsic("llvm.copysign", sign.value)

    def at_most(self, bound: float) -> Value:
        """The smaller of both; NaN stays. One minimum instruction, whose second operand wins against NaN."""
        return self.constant(bound).less(self).select(self.constant(bound), self)

    def at_least(self, bound: float) -> Value:
        return self.constant(bound).greater(self).select(self.constant(bound), self)

    def saturated(self) -> Value:
        """The nearest value from 0 to 1; 0 for NaN."""
        low = self._intrinsic("llvm.maxnum", self._operand(0.0))
        return low._intrinsic("llvm.minnum", self._operand(1.0))

    def zero_kept(self, argument: Value) -> ir.Value:
        """This result of an odd function, or the argument itself where that is a zero and has a sign."""
        return argument.equal(0.0).select(argument, self).value

    # Comparisons; NaN compares false except in `differs` and `not_less`

    def less(self, other: Operand) -> Value:
        return self.with_value(self.builder.fcmp_ordered("<", self.value, self._operand(other)))

    def less_or_equal(self, other: Operand) -> Value:
        return self.with_value(self.builder.fcmp_ordered("<=", self.value, self._operand(other)))

    def greater(self, other: Operand) -> Value:
        return self.with_value(self.builder.fcmp_ordered(">", self.value, self._operand(other)))

    def equal(self, other: Operand) -> Value:
        return self.with_value(self.builder.fcmp_ordered("==", self.value, self._operand(other)))

    def differs(self, other: Operand) -> Value:
        return self.with_value(self.builder.fcmp_unordered("!=", self.value, self._operand(other)))

    def not_less(self, other: Operand) -> Value:
        return self.with_value(self.builder.fcmp_unordered(">=", self.value, self._operand(other)))

    # Masks and integers

    def select(self, chosen: Value, otherwise: Value) -> Value:
        return chosen.with_value(self.builder.select(self.value, chosen.value, otherwise.value))

    def nonzero(self) -> Value:
        return self.with_value(self.builder.icmp_unsigned("!=", self.value, self._operand(0)))

    def negative(self) -> Value:
        """Of an integer: its highest bit. A selection by the sign of a float needs no comparison on AVX2."""
        return self.with_value(self.builder.icmp_signed("<", self.value, self._operand(0)))

    def __and__(self, other: Operand) -> Value:
        return self.with_value(self.builder.and_(self.value, self._operand(other)))

    def __or__(self, other: Operand) -> Value:
        return self.with_value(self.builder.or_(self.value, self._operand(other)))

    def __xor__(self, other: Operand) -> Value:
        return self.with_value(self.builder.xor(self.value, self._operand(other)))

    def __lshift__(self, count: int) -> Value:
        return self.with_value(self.builder.shl(self.value, self._operand(count)))

    def __rshift__(self, count: int) -> Value:
        return self.with_value(self.builder.lshr(self.value, self._operand(count)))

    def shift_signed(self, count: int) -> Value:
        return self.with_value(self.builder.ashr(self.value, self._operand(count)))

    # Conversions

    def bits(self) -> Value:
        return self.with_value(self.builder.bitcast(self.value, self.integer_type))

    def as_float(self) -> Value:
        return self.with_value(self.builder.bitcast(self.value, self._shaped(self.float_scalar)))

    def to_float(self) -> Value:
        return self.with_value(self.builder.sitofp(self.value, self._shaped(self.float_scalar)))

    def widened(self) -> Value:
        wide = self.builder.fpext(self.value, self._shaped(F64))
        return Value(self.builder, wide, DOUBLE, self.target)

    def narrowed(self) -> Value:
        narrow = self.builder.fptrunc(self.value, self._shaped(F32))
        return Value(self.builder, narrow, SINGLE, self.target)

    def low_half(self) -> Value:
        """The lower 32 bits of 64-bit integers."""
        return Value(self.builder, self.builder.trunc(self.value, self._shaped(I32)), SINGLE, self.target)

    # Building blocks

    def constant(self, number: float) -> Value:
        """A constant of the type of this value."""
        return self.with_value(self._operand(number))

    def undefined(self) -> Value:
        return self.with_value(ir.Constant(self.value.type, ir.Undefined))

    def lane(self, lane: int) -> ir.Value:
        if not isinstance(self.value.type, ir.VectorType):
            return self.value
        return self.builder.extract_element(self.value, I32(lane))

    def with_lane(self, lane: int, scalar: ir.Value) -> Value:
        if not isinstance(self.value.type, ir.VectorType):
            return self.with_value(scalar)
        return self.with_value(self.builder.insert_element(self.value, scalar, I32(lane)))

    def replaced(self, builder: ir.IRBuilder, value: ir.Value) -> Value:
        return Value(builder, value, self.kind, self.target)

    def call(self, function: ir.Function, results: int) -> list[Value]:
        answer = self.builder.call(function, [self.value])
        return [self.with_value(self.builder.extract_value(answer, index)) for index in range(results)]

    def exponent(self, name: str, *others: Value) -> Value:
        """One of the target's exponent instructions: scalef, getexp or getmant."""
        assert self.target.exponents is not None, "has_exponents says whether there are any"
        found: Value = self.target.exponents(self, name, *others)
        return found

    def power_of_two(self) -> Value:
        """2 to this value, as the target's instruction gives it."""
        assert self.target.power_of_two is not None, "has_power_of_two says whether there is one"
        found: Value = self.target.power_of_two(self)
        return found

    def reciprocal(self) -> Value:
        """1 over this value, as the target's instruction gives it."""
        assert self.target.reciprocal is not None, "has_reciprocal says whether there is one"
        found: Value = self.target.reciprocal(self)
        return found

    @property
    def float_scalar(self) -> ir.Type:
        return F32 if self.kind.bits == 32 else F64

    def _shaped(self, scalar: ir.Type) -> ir.Type:
        return vector_type(scalar, self.lanes) if isinstance(self.value.type, ir.VectorType) else scalar

    def with_value(self, value: ir.Value) -> Value:
        return Value(self.builder, value, self.kind, self.target)

    def _operand(self, other: Operand) -> ir.Value:
        if isinstance(other, Value):
            return other.value
        type_ = self.value.type
        if not isinstance(type_, ir.VectorType):
            return ir.Constant(type_, other)
        return splat_constant(type_, ir.Constant(type_.element, other))

    def _arithmetic(self, name: str, other: Operand) -> Value:
        scalar = self.value.type.element if isinstance(self.value.type, ir.VectorType) else self.value.type
        prefix = "" if isinstance(scalar, ir.IntType) else "f"
        operation: Callable[..., ir.Value] = getattr(self.builder, prefix + name)
        return self.with_value(operation(self.value, self._operand(other)))

    def _intrinsic(self, name: str, *others: ir.Value) -> Value:
        arguments = [self.value, *others]
        return self.with_value(intrinsic(self.builder, f"{name}.{self.suffix}", self.value.type, arguments))


Operand = Value | float | int


def start(builder: ir.IRBuilder, x: ir.Value, target: Arithmetic | None) -> Value:
    scalar = x.type.element if isinstance(x.type, ir.VectorType) else x.type
    assert scalar in (F32, F64), f"no elementary functions of {scalar}: the caller widens it to float"
    return Value(builder, x, SINGLE if scalar == F32 else DOUBLE, target or Arithmetic())
