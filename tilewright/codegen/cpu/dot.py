"""Products of register tiles: one emitter per intrinsic, found by the name that `tile.dot` carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from llvmlite import ir
from llvmlite.ir import types

from tilewright.codegen.cpu.elementwise import convert_bfloat_to_float, convert_half_to_float, fma
from tilewright.codegen.cpu.target import Target
from tilewright.codegen.cpu.values import (
    F16,
    F32,
    I32,
    TileValue,
    intrinsic,
    lanes_of,
    scalar_type,
    splat,
    with_lanes,
)
from tilewright.errors import InvalidProgram

#: One accumulation into one register: (builder, target, scalar of a, register of b, accumulator, unsigned) ->
#: accumulator.
#: With a group, the scalar is the i32 word of a's neighbours along k, and the register holds such words of b.
Step = Callable[[ir.IRBuilder, Target, ir.Value, ir.Value, ir.Value, str], ir.Value]


def group_of(name: str) -> int:
    """How many neighbours along k the intrinsic consumes at once."""
    return _found(name)[1]


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
    step, _ = _found(name)
    rows = [list(row) for row in c.rows]
    for k, registers in enumerate(b):
        for m, row in enumerate(rows):
            for chunk, register in enumerate(registers):
                row[chunk] = step(builder, target, a[m][k], register, row[chunk], unsigned)
    return TileValue(c.shape, tuple(tuple(row) for row in rows))


def _found(name: str) -> tuple[Step, int]:
    found = STEPS.get(name)
    if found is None:
        raise InvalidProgram(
            f"no emitter for intrinsic {name!r} on this target",
            help=f"one of {', '.join(filter(None, STEPS))}, or none",
        )
    return found


def _fma(builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str) -> ir.Value:
    return fma(builder, target, splat(builder, a, lanes_of(acc)), b, acc)


def _widen_float(
    builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str
) -> ir.Value:
    """f16, bf16 or f32 operands, products in f32."""

    def wide(value: ir.Value) -> ir.Value:
        if scalar_type(value) == F32:
            return value
        if scalar_type(value) == F32:
            return value
        if scalar_type(value) == F16:
            return convert_half_to_float(builder, target, value)
        return convert_bfloat_to_float(builder, value)

    return fma(builder, target, splat(builder, wide(a), lanes_of(acc)), wide(b), acc)


def _widen_integer(
    builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str
) -> ir.Value:
    """Integers of any width, products and sums in the width of the accumulator."""

    def wide(value: ir.Value, operand: str) -> ir.Value:
        wanted = with_lanes(scalar_type(acc), lanes_of(value))
        if value.type == wanted:
            return value
        return builder.zext(value, wanted) if operand in unsigned else builder.sext(value, wanted)

    return builder.add(builder.mul(splat(builder, wide(a, "a"), lanes_of(acc)), wide(b, "b")), acc)


def _vdpbf16ps(
    builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str
) -> ir.Value:
    return _by_words(builder, "llvm.x86.avx512bf16.dpbf16ps", _bfloat(), a, b, acc)


def _vpdpbusd(
    builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str
) -> ir.Value:
    return _by_words(builder, "llvm.x86.avx512.vpdpbusd", ir.IntType(8), a, b, acc)


def _by_words(builder: ir.IRBuilder, name: str, part: ir.Type, a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
    """An instruction on 4, 8 or 16 words of 32 bits, whose parts have type `part`.

    Other numbers of lanes are widened.
    """
    count = lanes_of(acc)
    lanes = next(width for width in (4, 8, 16) if width >= count)
    parts = ir.VectorType(part, 32 * lanes // (16 if isinstance(part, _BFloat) else 8))
    words = [builder.bitcast(word, parts) for word in (splat(builder, a, lanes), _resized(builder, b, lanes))]
    wide = _resized(builder, acc, lanes)
    return _resized(builder, intrinsic(builder, f"{name}.{32 * lanes}", wide.type, [wide, *words]), count)


def _resized(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """The first lanes of a register, or the register with lanes behind it whose values do not matter."""
    count = lanes_of(value)
    if count == lanes:
        return value
    if lanes == 1:
        return builder.extract_element(value, I32(0))
    if count == 1:
        return builder.insert_element(ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, I32(0))
    order = [I32(lane if lane < count else 0) for lane in range(lanes)]
    return builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, lanes), order))


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


def _portable(
    builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str
) -> ir.Value:
    """What a product without a chosen intrinsic does, for every combination of operands and accumulator."""
    if isinstance(scalar_type(acc), ir.IntType):
        return _widen_integer(builder, target, a, b, acc, unsigned)
    return (_widen_float if scalar_type(acc) == F32 else _fma)(builder, target, a, b, acc, unsigned)


STEPS: dict[str, tuple[Step, int]] = {
    "": (_portable, 1),
    "fma": (_fma, 1),
    "widen_f32": (_widen_float, 1),
    "widen_i32": (_widen_integer, 1),
    "vdpbf16ps": (_vdpbf16ps, 2),
    "vpdpbusd": (_vpdpbusd, 4),
}
