"""How a tile lives in registers: rows of its last dimension, each cut into vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any

from llvmlite import ir
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type, IndexType, IntegerType
from xdsl.ir import Attribute

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram

I1, I8, I16, I32, I64 = (ir.IntType(width) for width in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()


def llvm_type(attribute: Attribute) -> ir.Type:
    """The LLVM type of an element. bf16 is held as the i16 of its bits; `index` is i64."""
    if isinstance(attribute, IntegerType):
        return ir.IntType(attribute.width.data)
    if isinstance(attribute, IndexType):
        return I64
    if isinstance(attribute, BFloat16Type):
        return I16
    for kind, type_ in ((Float16Type, F16), (Float32Type, F32), (Float64Type, F64)):
        if isinstance(attribute, kind):
            return type_
    raise InvalidProgram(f"no machine type for elements of {attribute}")


def bits_of(type_: ir.Type) -> int:
    """The width of a scalar type."""
    return int(type_.width) if isinstance(type_, ir.IntType) else {F16: 16, F32: 32, F64: 64}[type_]


class _Vector(ir.VectorType):  # type: ignore[misc]
    """A vector type that exists once for its element and length, so that its text is made once as well."""

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))

    __hash__ = ir.VectorType.__hash__


@cache
def vector_type(element: ir.Type, lanes: int) -> ir.VectorType:
    return _Vector(element, lanes)


class Names:
    """Names of the values of a kernel: numbers, where llvmlite's own scope searches for a free name."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def register(self, name: str, deduplicate: bool = False) -> str:
        assert deduplicate, "no value of a kernel has a name that must stay"
        number = self._next.get(name, 0)
        self._next[name] = number + 1
        return f"{name}_{number}"


class _Splat(ir.Constant):  # type: ignore[misc]
    """A vector constant of one number, written once and not for each lane."""

    def __init__(self, type_: ir.VectorType, value: ir.Constant) -> None:
        self.type = type_
        self.constant = [value] * type_.count

    def _get_reference(self) -> str:
        first = self.constant[0]
        return f"splat ({first.type} {first.get_reference()})"


def splat_constant(type_: ir.VectorType, value: ir.Constant) -> ir.Constant:
    return _Splat(type_, value)


def chunks_of(extent: int, lanes: int) -> list[int]:
    """The vector lengths that a row of `extent` elements is cut into."""
    full, rest = divmod(extent, lanes)
    return [lanes] * full + ([rest] if rest else [])


@dataclass(frozen=True)
class TileValue:
    """A tile (or scalar, shape ()): `rows[r][c]` is a vector of `chunks[c]` elements, or a scalar where that is 1."""

    shape: tuple[int, ...]
    rows: tuple[tuple[ir.Value, ...], ...]

    def flat(self) -> list[ir.Value]:
        return [value for row in self.rows for value in row]

    def like(self, values: Sequence[ir.Value]) -> TileValue:
        """The same shape with other registers, given in the order of `flat`."""
        width = len(self.rows[0])
        rows = tuple(tuple(values[r * width : (r + 1) * width]) for r in range(len(self.rows)))
        return TileValue(self.shape, rows)

    def map(self, function: Callable[..., ir.Value], *others: TileValue) -> TileValue:
        """Apply `function` to corresponding registers of tiles of one shape."""
        columns = zip(self.flat(), *(other.flat() for other in others), strict=True)
        return self.like([function(*registers) for registers in columns])

    @property
    def scalar(self) -> ir.Value:
        return self.rows[0][0]


def row_count(shape: Sequence[int]) -> int:
    return prod(shape[:-1]) if shape else 1


def row_width(shape: Sequence[int]) -> int:
    return shape[-1] if shape else 1


def splat(builder: ir.IRBuilder, value: ir.Value, length: int) -> ir.Value:
    """`value` in every lane of a vector of `length`; the value itself for length 1."""
    if length == 1:
        return value
    type_ = vector_type(value.type, length)
    if isinstance(value, ir.Constant):
        return splat_constant(type_, value)
    seed = builder.insert_element(_undefined(type_), value, I32(0))
    return builder.shuffle_vector(seed, _undefined(type_), _zeros(length))


# The same constants each time: llvmlite makes the text of one once.


@lru_cache(1024)
def _undefined(type_: ir.Type) -> ir.Constant:
    return ir.Constant(type_, ir.Undefined)


@lru_cache(1024)
def _zeros(length: int) -> ir.Constant:
    return splat_constant(vector_type(I32, length), I32(0))


def lanes_of(value: ir.Value) -> int:
    return int(value.type.count) if isinstance(value.type, ir.VectorType) else 1


def scalar_type(value: ir.Value) -> ir.Type:
    return value.type.element if isinstance(value.type, ir.VectorType) else value.type


def with_lanes(type_: ir.Type, lanes: int) -> ir.Type:
    return type_ if lanes == 1 else vector_type(type_, lanes)


def mangle(type_: ir.Type) -> str:
    """The suffix that LLVM intrinsics carry for a type."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{mangle(type_.element)}"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    return {F16: "f16", F32: "f32", F64: "f64"}[type_] if type_ in (F16, F32, F64) else "p0"


def intrinsic(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[ir.Value], **kwargs: Any) -> ir.Value:
    """Call the LLVM intrinsic of this full name, declaring it on first use."""
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, [arg.type for arg in args]), name)
    return builder.call(function, list(args), **kwargs)


def some_lanes(builder: ir.IRBuilder, register: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """Lanes of a vector by number, as a vector, or as a scalar where it is one."""
    if len(lanes) == 1:
        return builder.extract_element(register, I32(lanes[0]))
    order = ir.Constant(vector_type(I32, len(lanes)), [I32(lane) for lane in lanes])
    return builder.shuffle_vector(register, register, order)


def lane_pieces(builder: ir.IRBuilder, row: Sequence[ir.Value]) -> list[ir.Value]:
    """Every element of a row as a scalar."""
    pieces = []
    for register in row:
        if lanes_of(register) == 1:
            pieces.append(register)
        else:
            pieces.extend(builder.extract_element(register, I32(lane)) for lane in range(lanes_of(register)))
    return pieces


def from_scalars(builder: ir.IRBuilder, scalars: Sequence[ir.Value], lanes: int) -> tuple[ir.Value, ...]:
    """A row of registers from its elements."""
    registers, start = [], 0
    for length in chunks_of(len(scalars), lanes):
        if length == 1:
            registers.append(scalars[start])
        else:
            vector: ir.Value = ir.Constant(vector_type(scalars[start].type, length), ir.Undefined)
            for lane in range(length):
                vector = builder.insert_element(vector, scalars[start + lane], I32(lane))
            registers.append(vector)
        start += length
    return tuple(registers)
