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
    TileValue,
    intrinsic,
    lanes_of,
    scalar_type,
    splat,
    with_lanes,
)
from tilewright.errors import InvalidProgram

#: One accumulation into one register: (builder, target, scalar of a, register of b, accumulator, unsigned) -> accumulator.
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
        raise InvalidProgram(f"no emitter for intrinsic {name!r} on this target", help=f"one of {', '.join(STEPS)}")
    return found


def _fma(builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str) -> ir.Value:
    return fma(builder, target, splat(builder, a, lanes_of(acc)), b, acc)


def _widen_float(
    builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str
) -> ir.Value:
    """f16 or bf16 operands, exact products in f32."""

    def wide(value: ir.Value) -> ir.Value:
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
    lanes = lanes_of(acc)
    pairs = ir.VectorType(_bfloat(), 2 * lanes)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    words = [builder.bitcast(word, pairs) for word in (splat(builder, a, lanes), b)]
    return intrinsic(builder, name, acc.type, [acc, *words])


def _vpdpbusd(
    builder: ir.IRBuilder, target: Target, a: ir.Value, b: ir.Value, acc: ir.Value, unsigned: str
) -> ir.Value:
    lanes = lanes_of(acc)
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    bytes_type = ir.VectorType(ir.IntType(8), 4 * lanes)
    words = [builder.bitcast(word, bytes_type) for word in (splat(builder, a, lanes), b)]
    return intrinsic(builder, name, acc.type, [acc, *words])


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


STEPS: dict[str, tuple[Step, int]] = {
    "fma": (_fma, 1),
    "widen_f32": (_widen_float, 1),
    "widen_i32": (_widen_integer, 1),
    "vdpbf16ps": (_vdpbf16ps, 2),
    "vpdpbusd": (_vpdpbusd, 4),
}

