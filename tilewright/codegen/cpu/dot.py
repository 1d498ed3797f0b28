"""Products of register tiles: how the record that `tile.dot` names multiplies, or a method that needs no record.

A micro-kernel is a record of an outer product of registers (`intrinsics.composite.outer`). Its code comes from the
mapping, one step of the instruction after the other, or from a registered body where its shape is that of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

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
    some_lanes,
    splat,
    vector_type,
    with_lanes,
)
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import Registry, catalogue
from tilewright.kernel import dialect as tile
from tilewright.kernel.records import record_of, registry_of


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


#: A hand-written micro-kernel: ``c + a @ b`` over some steps of k, where `a(m, step)` gives scalars (words of a group),
#: `b[step]()` the registers of a row of b, each asked for once, and c has rows of registers. It gives the new rows.
Body = Callable[
    [
        "Emission",
        Callable[[int, int], ir.Value],
        Sequence[Callable[[], Sequence[ir.Value]]],
        Sequence[Sequence[ir.Value]],
    ],
    Sequence[Sequence[ir.Value]],
]


@dataclass(frozen=True)
class Emission:
    """Where one `tile.dot` is emitted: its accumulator's element type, and which operands hold unsigned integers."""

    builder: ir.IRBuilder
    target: Target
    accumulator: ir.Type
    unsigned: str


def product_of(op: tile.DotOp, target: Target) -> Product:
    """How a product of tiles multiplies: by the method that it names, else by the emitter of the record that it names.

    Raises InvalidProgram for a name that is neither, and for a record whose features the target lacks.
    """
    method = PRODUCTS.get(op.intrinsic.data)
    if method is not None:
        return method
    record = record_of(op, partial(catalogue, target.architecture))
    missing = [feature for feature in record.features if not target.has(feature)]
    if missing:
        raise InvalidProgram(f"{record.name} needs {', '.join(missing)}, which {target.cpu} lacks")
    return product_of_record(record)


def with_body(known: Registry, instruction: str, rows: int, columns: int) -> Intrinsic | None:
    """The micro-kernel of an instruction with a registered body for a tile of this shape; None where there is none."""
    if not BODIES:
        return None
    fitting = (each for each in known.made_of(instruction) if each.emitter in BODIES)
    return next((each for each in fitting if each.shape(each.destination) == (rows, columns)), None)


def body_of(op: tile.DotOp, target: Target, c: TileValue) -> Intrinsic | None:
    """The micro-kernel with a registered body that computes a product of tiles, if its record is in the program.

    The registers of the sums are those of the record: a machine with narrower ones has more of them.
    """
    if not BODIES or not op.intrinsic.data:
        return None
    known, (rows, columns) = registry_of(op, partial(catalogue, target.architecture)), tile.shape(op.c)
    found = with_body(known, op.intrinsic.data, rows, columns)
    lanes = [lanes_of(register) for register in c.rows[0]]
    return found if found is not None and lanes == [columns // found.grid[1]] * found.grid[1] else None


@cache
def product_of_record(record: Intrinsic) -> Product:
    """How a record multiplies, by its emitter; raises InvalidProgram for an emitter that there is not."""
    if record.emitter in WORDS:
        return _words(record)
    found = PRODUCTS.get(record.emitter) if record.emitter else None
    if found is None:
        raise InvalidProgram(
            f"no emitter {record.emitter!r} on this target, which {record.name} names",
            help=f"one of {', '.join(filter(None, [*PRODUCTS, *WORDS]))}",
        )
    return found


def emit_dot(
    builder: ir.IRBuilder,
    target: Target,
    product: Product,
    unsigned: str,
    a: Callable[[int, int], ir.Value],
    b: Sequence[Callable[[], Sequence[ir.Value]]],
    c: TileValue,
    kernel: Intrinsic | None = None,
) -> TileValue:
    """``c + a @ b``: `a(m, step)` gives scalars (words), `b[step]()` the registers of a step of k.

    Each is asked for once, right before it is multiplied, and may emit a load then. Loads that all came first would
    leave it to LLVM to spread them over the products; where that holds more of them than registers are left, sums go to
    the stack. A micro-kernel with a registered body takes as many steps as are whole ones of it.
    """
    at = Emission(builder, target, scalar_type(c.rows[0][0]), unsigned)
    rows = [list(row) for row in c.rows]
    done = 0
    if kernel is not None:
        steps = kernel.grid[2]
        for done in range(steps, len(b) + 1, steps):
            rows = _by_body(at, kernel, partial(_from_step, a, done - steps), b[done - steps : done], rows)
    for step, registers in enumerate(b[done:], done):
        ready = [product.ready(at, register) for register in registers()]
        for m, row in enumerate(rows):
            scalar = a(m, step)
            spread: dict[int, ir.Value] = {}
            for chunk, register in enumerate(ready):
                lanes = lanes_of(row[chunk])
                if lanes not in spread:
                    spread[lanes] = product.broadcast(at, scalar, lanes)
                row[chunk] = product.step(at, spread[lanes], register, row[chunk])
    return TileValue(c.shape, tuple(tuple(row) for row in rows))


def _from_step(a: Callable[[int, int], ir.Value], first: int, m: int, step: int) -> ir.Value:
    return a(m, first + step)


def _by_body(
    at: Emission,
    kernel: Intrinsic,
    a: Callable[[int, int], ir.Value],
    b: Sequence[Callable[[], Sequence[ir.Value]]],
    rows: list[list[ir.Value]],
) -> list[list[ir.Value]]:
    """What a registered body makes of sums; raises InvalidProgram where it gives other registers than it was given."""
    found = [list(row) for row in BODIES[kernel.emitter](at, a, b, rows)]
    types, wanted = ([[each.type for each in row] for row in every] for every in (found, rows))
    if types != wanted:
        shape = f"{len(found)} rows of {', '.join(str(len(row)) for row in found) or 'no'} registers"
        raise InvalidProgram(
            f"the body of {kernel.name} gives {shape}, or registers of other types",
            help=f"{len(rows)} rows of {len(rows[0])} registers of {rows[0][0].type}, as it is given",
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


def _words(record: Intrinsic) -> Product:
    """The function of LLVM that a record names, on vectors of words of 32 bits: accumulators, then its sources. Of
    `added_words` it has the sources alone, and an addition takes its result into the accumulators.

    A word is as many neighbours along k as fit. Accumulators are widened to the next number of lanes for which there
    is a function, and cut into parts where there is none for so many.
    """
    width, loop = bits(record.sources[0].dtype), record.destination.loops[0]
    lanes, group = record.extents[loop], 32 // width
    vectors = [loop in source.loops for source in record.sources]
    if not record.llvm or bits(record.destination.dtype) != 32 or record.macs != lanes * group or len(vectors) != 2:
        raise InvalidProgram(
            f"{record.name} multiplies no words of 32 bits by {record.llvm!r}",
            help=f"sums of 32 bits, {group} products each, and the name of a function of LLVM",
        )
    element = _bfloat() if record.sources[0].dtype == "bf16" else ir.IntType(width)

    def step(at: Emission, a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
        builder, count, most = at.builder, lanes_of(acc), max(record.functions)
        if count > most:  # registers of the machine are wider than those of the instruction
            middle = -(-count // 2)
            parts = range(middle), range(middle, count)
            first, rest = ([some_lanes(builder, each, part) for each in (a, b, acc)] for part in parts)
            return _joined(builder, step(at, *first), step(at, *rest))
        lanes = next(each for each in record.functions if each >= count)
        vector = vector_type(element, 32 * lanes // width)
        words = [builder.bitcast(_resized(builder, word, lanes), vector) for word in ((b, a) if vectors[0] else (a, b))]
        wide, function = _resized(builder, acc, lanes), record.functions[lanes]
        if record.emitter == "added_words":
            return _resized(builder, builder.add(wide, intrinsic(builder, function, wide.type, words)), count)
        return _resized(builder, intrinsic(builder, function, wide.type, [wide, *words]), count)

    return Product(group, _splat, _as_is, step)


def _joined(builder: ir.IRBuilder, first: ir.Value, rest: ir.Value) -> ir.Value:
    """A register with the lanes of two, of which the first has as many as the other or more."""
    lanes, more = lanes_of(first), lanes_of(rest)
    width = max(lanes, 2)  # of one lane there is no vector to shuffle
    first, rest = _resized(builder, first, width), _resized(builder, rest, width)
    order = [I32(lane) for lane in (*range(lanes), *range(width, width + more))]
    return builder.shuffle_vector(first, rest, ir.Constant(vector_type(I32, lanes + more), order))


def _resized(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """The first lanes of a register, or the register with lanes behind it whose values do not matter."""
    count = lanes_of(value)
    if count == lanes:
        return value
    if count == 1:
        return builder.insert_element(ir.Constant(vector_type(value.type, lanes), ir.Undefined), value, I32(0))
    return some_lanes(builder, value, [lane if lane < count else 0 for lane in range(lanes)])


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


WORDS = ("words", "added_words")  # emitters that call the function of LLVM that a record names
BODIES: dict[str, Body] = {}  # of micro-kernels, by the emitters that their records name; `compiler.micro_kernels`

PRODUCTS: dict[str, Product] = {  # methods, which need nothing of a record
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
}
