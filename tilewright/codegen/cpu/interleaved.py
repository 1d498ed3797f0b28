"""Mathematical functions of several registers with interleaved instructions, for processors with 16 vector registers.

The instructions of one exponential wait for each other, and those of the next one come behind them: where registers
are few, LLVM keeps that order. A processor that looks ahead by little then waits. As one long vector, which LLVM cuts
into registers instruction by instruction, they alternate. On a Zen 1 `exp` and SiLU of numbers in L2 are 1.26 and 1.31
times as fast, GELU 1.29. With 32 registers nothing was gained in simulations of a Zen 4 and a Sapphire Rapids.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from xdsl.ir import Operation

from tilewright.codegen.cpu.target import Target
from tilewright.codegen.elementwise import emit_element
from tilewright.codegen.values import I32, bits_of, lanes_of, scalar_type, some_lanes, vector_type
from tilewright.kernel import dialect as tile

VECTORS = 4  # at once, of the processor; with two most functions gained less
# Functions that were faster so on a Zen 1. Sines, cosines, tangents, `erf`, `atan`, inverse hyperbolic functions and
# powers were 0.94 to 1.06 times as fast.
FUNCTIONS = frozenset({
    "math.exp", tile.ExpNonpositiveOp.name, tile.SigmoidOp.name, "math.exp2", "math.expm1", "math.log", "math.log1p",
    "math.tanh", tile.NormalCdfOp.name, tile.NormalCdfTanhOp.name, "math.asin", "math.acos", "math.sinh", "math.cosh",
})  # fmt: skip


def emit_registers(
    builder: ir.IRBuilder, target: Target, name: str, op: Operation | None, operands: Sequence[Sequence[ir.Value]]
) -> list[ir.Value]:
    """The registers of the result of an element operation, from those of its operands (see `emit_element`)."""
    columns = list(zip(*operands, strict=True))
    if name not in FUNCTIONS or len(target.vector_register_names) > 16:
        return [emit_element(builder, target, name, op, list(column)) for column in columns]
    found: list[ir.Value] = []
    for group in _groups([register for (register,) in columns], target):
        result = emit_element(builder, target, name, op, [_joined(builder, group)])
        found += _parts(builder, result, len(group))
    return found


def _groups(registers: Sequence[ir.Value], target: Target) -> list[list[ir.Value]]:
    """Neighbours of one type, which have `VECTORS` vectors of the processor at most."""
    groups: list[list[ir.Value]] = []
    for register in registers:
        bits = lanes_of(register) * bits_of(scalar_type(register))
        largest = VECTORS // -(-bits // target.vector_bits) if lanes_of(register) > 1 else 1
        if groups and groups[-1][0].type == register.type and len(groups[-1]) < largest:
            groups[-1].append(register)
        else:
            groups.append([register])
    return groups


def _joined(builder: ir.IRBuilder, registers: Sequence[ir.Value]) -> ir.Value:
    """Registers of one type as one vector."""
    if len(registers) == 1:
        return registers[0]
    half = -(-len(registers) // 2)
    first, second = _joined(builder, registers[:half]), _joined(builder, registers[half:])
    return _shuffled(builder, first, _widened(builder, second, lanes_of(first)), lanes_of(first) + lanes_of(second))


def _widened(builder: ir.IRBuilder, vector: ir.Value, lanes: int) -> ir.Value:
    """A vector with further lanes, which hold anything."""
    if lanes_of(vector) == lanes:
        return vector
    return _shuffled(builder, vector, ir.Constant(vector.type, ir.Undefined), lanes)


def _shuffled(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, lanes: int) -> ir.Value:
    """So many lanes of two vectors of one type, one behind the other."""
    order = ir.Constant(vector_type(I32, lanes), [I32(lane) for lane in range(lanes)])
    return builder.shuffle_vector(first, second, order)


def _parts(builder: ir.IRBuilder, vector: ir.Value, count: int) -> list[ir.Value]:
    """A vector as `count` registers."""
    if count == 1:
        return [vector]
    lanes = lanes_of(vector) // count
    return [some_lanes(builder, vector, range(start, start + lanes)) for start in range(0, lanes_of(vector), lanes)]
