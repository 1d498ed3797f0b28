"""Products of register tiles: one emitter per intrinsic, found by the name that `tile.dot` carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from llvmlite import ir
from llvmlite.ir import types

from tilewright.codegen.cpu.target import Target
from tilewright.codegen.elementwise import convert_bfloat_to_float, convert_half_to_float, fma
from tilewright.codegen.values import (
    F16,
    F32,
    I32,
    TileValue,
    intrinsic,
    lanes_of,
    scalar_type,
    splat,
    vector_type,
    with_lanes,
)
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram


@dataclass(frozen=True)
class Product:
    """How one intrinsic multiplies: operands are made ready once, then there is one step per register.

    It consumes `group` neighbours along k at once. `broadcast` turns a scalar of a (with a group: the i32 word of these
    neighbours) into a register of `lanes`;
    `ready` converts a register of b; `step` adds the product of the two to an accumulator.
    """

    group: int
    broadcast: Callable[[Emission, ir.Value, int], ir.Value]
    ready: Callable[[Emission, ir.Value], ir.Value]
    step: Callable[[Emission, ir.Value, ir.Value, ir.Value], ir.Value]


@dataclass(frozen=True)
class Emission:
    """Where one `tile.dot` is emitted: its accumulator's element type, and which operands hold unsigned integers."""

    builder: ir.IRBuilder
    target: Target
    accumulator: ir.Type
    unsigned: str


def group_of(name: str) -> int:
    """How many neighbours along k the intrinsic consumes at once."""
    return _found(name).group


def emit_dot(
    builder: ir.IRBuilder,
    target: Target,
    name: str,
    unsigned: str,
    a: Sequence[Sequence[ir.Value]],
    b: Sequence[Sequence[ir.Value]],
    c: TileValue,
) -> TileValue:
    """``c + a @ b``: a as scalars (words) ``[m][k / group]``, b as registers ``[k / group][chunk]``."""
    product = _found(name)
    at = Emission(builder, target, scalar_type(c.rows[0][0]), unsigned)
    rows = [list(row) for row in c.rows]
    for k, registers in enumerate(b):
        ready = [product.ready(at, register) for register in registers]
        for m, row in enumerate(rows):
            spread: dict[int, ir.Value] = {}
            for chunk, register in enumerate(ready):
                lanes = lanes_of(row[chunk])
                if lanes not in spread:
                    spread[lanes] = product.broadcast(at, a[m][k], lanes)
                row[chunk] = product.step(at, spread[lanes], register, row[chunk])
    return TileValue(c.shape, tuple(tuple(row) for row in rows))


def _found(name: str) -> Product:
    found = PRODUCTS.get(name)
    if found is None:
        raise InvalidProgram(
            f"no emitter for intrinsic {name!r} on this target",
            help=f"one of {', '.join(filter(None, PRODUCTS))}, or none",
        )
    return found


def _splat(at: Emission, a: ir.Value, lanes: int) -> ir.Value:
    return splat(at.builder, a, lanes)


def _as_is(at: Emission, b: ir.Value) -> ir.Value:
    return b


def _fma(at: Emission, a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
    return fma(at.builder, at.target, a, b, acc)


def _wide_float(at: Emission, value: ir.Value) -> ir.Value:
    """An f16, bf16 or f32 operand in f32."""
    if scalar_type(value) == F32:
        return value
    if scalar_type(value) == F16:
        return convert_half_to_float(at.builder, at.target, value)
    return convert_bfloat_to_float(at.builder, value)


def _wide_integer(at: Emission, value: ir.Value, operand: str) -> ir.Value:
    """An integer operand in the width of the accumulator."""
    wanted = with_lanes(at.accumulator, lanes_of(value))
    if value.type == wanted:
        return value
    return at.builder.zext(value, wanted) if operand in at.unsigned else at.builder.sext(value, wanted)


def _multiply_add(at: Emission, a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
    return at.builder.add(at.builder.mul(a, b), acc)


def _by_words(name: str, part: Callable[[], ir.Type], bits: int) -> Callable[..., ir.Value]:
    """An instruction on 4, 8 or 16 words of 32 bits, made of parts of `bits`; other numbers of lanes are widened."""

    def step(at: Emission, a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
        builder, count = at.builder, lanes_of(acc)
        lanes = next(width for width in (4, 8, 16) if width >= count)
        parts = vector_type(part(), 32 * lanes // bits)
        words = [builder.bitcast(_resized(builder, word, lanes), parts) for word in (a, b)]
        wide = _resized(builder, acc, lanes)
        return _resized(builder, intrinsic(builder, f"{name}.{32 * lanes}", wide.type, [wide, *words]), count)

    return step


def _resized(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """The first lanes of a register, or the register with lanes behind it whose values do not matter."""
    count = lanes_of(value)
    if count == lanes:
        return value
    if lanes == 1:
        return builder.extract_element(value, I32(0))
    if count == 1:
        return builder.insert_element(ir.Constant(vector_type(value.type, lanes), ir.Undefined), value, I32(0))
    order = [I32(lane if lane < count else 0) for lane in range(lanes)]
    return builder.shuffle_vector(value, value, ir.Constant(vector_type(I32, lanes), order))


class _BFloat(types._BaseFloatType):  # type: ignore[misc]
    """LLVM's `bfloat`, which llvmlite does not name; used only to call the bf16 instructions."""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


@cache
def _bfloat() -> ir.Type:
    _BFloat._create_instance()
    return _BFloat()


def _portable(at: Emission, value: ir.Value, operand: str) -> ir.Value:
    """An operand as a product without a chosen intrinsic wants it, for every combination of types."""
    if isinstance(at.accumulator, ir.IntType):
        return _wide_integer(at, value, operand)
    return _wide_float(at, value) if at.accumulator == F32 else value


def _portable_step(at: Emission, a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
    return (_multiply_add if isinstance(at.accumulator, ir.IntType) else _fma)(at, a, b, acc)


PRODUCTS: dict[str, Product] = {
    "": Product(
        1,
        lambda at, a, lanes: _splat(at, _portable(at, a, "a"), lanes),
        lambda at, b: _portable(at, b, "b"),
        _portable_step,
    ),
    "fma": Product(1, _splat, _as_is, _fma),
    "widen_f32": Product(1, lambda at, a, lanes: _splat(at, _wide_float(at, a), lanes), _wide_float, _fma),
    "widen_i32": Product(
        1,
        lambda at, a, lanes: _splat(at, _wide_integer(at, a, "a"), lanes),
        lambda at, b: _wide_integer(at, b, "b"),
        _multiply_add,
    ),
    "vdpbf16ps": Product(2, _splat, _as_is, _by_words("llvm.x86.avx512bf16.dpbf16ps", lambda: _bfloat(), 16)),
    "vpdpbusd": Product(4, _splat, _as_is, _by_words("llvm.x86.avx512.vpdpbusd", lambda: ir.IntType(8), 8)),
}
