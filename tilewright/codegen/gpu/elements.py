"""Element operations of a thread: shared arithmetic, except where a GPU has an instruction for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from llvmlite import ir
from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IndexType, IntegerAttr, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue

from tilewright.codegen import elementwise
from tilewright.codegen.gpu.emission import Emission, is_bfloat, resized, to_words
from tilewright.codegen.math.error_function import emit_one_plus_erf
from tilewright.codegen.values import F16, F32, I64
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt


def element(at: Emission, op: Operation) -> None:
    """Any element operation, register by register."""
    whole = _one_plus_erf(at, op)
    if whole is not None:
        at.set(op.results[0], whole)
        return
    operands = [at.elements(operand) for operand in op.operands]
    count = prod(tile.shape(op.results[0]))
    columns = [[values[0]] * count if len(values) != count else values for values in operands]
    at.set(op.results[0], [apply(at, op.name, op, list(column)) for column in zip(*columns, strict=True)])


def _one_plus_erf(at: Emission, op: Operation) -> list[ir.Value] | None:
    """A sum that is ``1 + erf(x)`` in f32, as one function, where instructions give powers of two and reciprocals."""
    if at.target.power_of_two is None or at.target.reciprocal is None:
        return None
    if isinstance(op, arith.AddfOp):
        for value, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            made = _made_by(value, "math.erf")
            if made is not None and value.has_one_use() and _ones(at, other):
                return [emit_one_plus_erf(at.builder, x, at.target) for x in at.elements(made.operands[0])]
    return None


def _made_by(value: SSAValue, name: str) -> Operation | None:
    """The operation of that name, if a value is its result."""
    return value.owner if isinstance(value.owner, Operation) and value.owner.name == name else None


def _ones(at: Emission, value: SSAValue) -> bool:
    """Whether a value is 1.0 in f32."""
    return all(
        isinstance(each, ir.Constant) and each.type == F32 and each.constant == 1.0 for each in at.elements(value)
    )


def apply(at: Emission, name: str, op: Operation | None, args: list[ir.Value]) -> ir.Value:
    """One register of the result of the element operation of that name."""
    exact = _EXACT.get(name)
    if exact is not None and args[0].type == at.index != I64:
        # Index arithmetic in 32 bits, of a kernel whose views are all smaller than that, does not overflow.
        return getattr(at.builder, exact)(*args, flags=("nsw",))
    found = at.extreme(name, args)
    return found if found is not None else elementwise.emit_element(at.builder, at.target, name, op, args)


_EXACT = {"arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul"}


def index_cast(at: Emission, op: arith.IndexCastOp) -> None:
    type_ = at.type_of(tile.element(op.results[0]))
    assert isinstance(type_, ir.IntType), "an index cast gives integers"
    at.set(op.results[0], [resized(at.builder, value, type_) for value in at.elements(op.operands[0])])


def cast(at: Emission, op: tile.CastOp) -> None:
    source, wanted = tile.element(op.value), tile.element(op.result)
    at.set(op.result, convert(at, at.elements(op.value), source, wanted, bool(op.unsigned)))


def convert(
    at: Emission, values: Sequence[ir.Value], source: Attribute, wanted: Attribute, unsigned: bool = False
) -> list[ir.Value]:
    """`tile.cast` of registers; pairs of floats are narrowed by one instruction where there is one."""
    if source == wanted:
        return list(values)
    if values[0].type == F32 and (is_bfloat(wanted) or at.type_of(wanted) == F16):
        narrowed = at.narrowed(values, wanted)
        if narrowed is not None:
            return narrowed
    found = [elementwise.convert(at.builder, at.target, a, source, wanted, unsigned) for a in values]
    if isinstance(wanted, IndexType):
        return [resized(at.builder, value, at.index) for value in found]
    return found


# Constants and shapes -------------------------------------------------------------------------------------------------


def constant(at: Emission, op: arith.ConstantOp) -> None:
    attribute, element_type = op.value, tile.element(op.result)
    count = prod(tile.shape(op.result))
    if isinstance(attribute, IntegerAttr | FloatAttr):
        numbers = [attribute.value.data]
    elif isinstance(attribute, DenseIntOrFPElementsAttr):
        numbers = list(attribute.get_values())
        numbers = numbers * count if len(numbers) == 1 else numbers
    else:
        raise InvalidProgram(f"constant {attribute} is not a number or a dense tile")
    if isinstance(element_type, IndexType):
        at.set(op.result, [at.index(int(number)) for number in numbers])
    else:
        at.set(op.result, [elementwise.scalar_constant(element_type, number) for number in numbers])


def iota(at: Emission, op: tile.IotaOp) -> None:
    axis = op.axis.value.data
    at.set(op.result, [I64(index[axis]) for index in product(*map(range, tile.shape(op.result)))])


def broadcast(at: Emission, op: tile.BroadcastOp) -> None:
    source, extents = tile.shape(op.value), tile.shape(op.result)
    values = at.elements(op.value)
    if not source:
        at.set(op.result, [values[0]] * prod(extents))
        return
    places = []
    for index in product(*map(range, extents)):
        place = 0
        for position, extent in zip(index, source, strict=True):
            place = place * extent + (position if extent > 1 else 0)
        places.append(place)
    at.set(op.result, [values[place] for place in places])


def reshape(at: Emission, op: tile.ReshapeOp) -> None:
    at.set(op.result, at.elements(op.value))


def join(at: Emission, op: simt.JoinOp) -> None:
    at.set(op.result, [value for part in op.parts for value in at.elements(part)])


def part(at: Emission, op: simt.PartOp) -> None:
    start, count = op.start.value.data, tile.shape(op.result)[0]
    at.set(op.result, at.elements(op.value)[start : start + count])


# Combinations ---------------------------------------------------------------------------------------------------------


def combine(at: Emission, kind: str, element_type: Attribute, unsigned: bool, a: ir.Value, b: ir.Value) -> ir.Value:
    """Two elements combined as `tile.reduce` does."""
    if is_bfloat(element_type):
        wide = [elementwise.convert_bfloat_to_float(at.builder, value) for value in (a, b)]
        result = apply(at, elementwise.combination(kind, True, False), None, wide)
        return elementwise.convert_float_to_bfloat(at.builder, result)
    floating = not isinstance(a.type, ir.IntType)
    low = not floating and (unsigned or a.type.width == 1)  # i1 counts as 0 and 1
    return apply(at, elementwise.combination(kind, floating, low), None, [a, b])


def reduce(at: Emission, op: tile.ReduceOp) -> None:
    """A tree over the elements along the axis."""
    extents, axis, values = tile.shape(op.value), op.axis.value.data, at.elements(op.value)
    inner, count = prod(extents[axis + 1 :]), extents[axis]
    results = []
    for outer in range(prod(extents[:axis])):
        for lane in range(inner):
            start = outer * count * inner + lane
            group = [values[start + step * inner] for step in range(count)]
            while len(group) > 1:
                pairs = [
                    combine(at, op.kind.data, tile.element(op.value), bool(op.unsigned), a, b)
                    for a, b in zip(group[::2], group[1::2], strict=False)
                ]
                group = pairs + (group[-1:] if len(group) % 2 else [])
            results.append(group[0])
    at.set(op.result, results)


def dot(at: Emission, op: tile.DotOp) -> None:
    """``c + a * b`` of one thread, in multiply-adds of the type of c."""
    (m, k), n = tile.shape(op.a), tile.shape(op.c)[1]
    group = tile.shape(op.b)[2] if len(tile.shape(op.b)) == 3 else 1
    wanted = tile.element(op.c)
    if group == 4 and (tile.element(op.a), tile.element(op.b), wanted) == (i8, i8, i32):
        found = _dot_words(at, op, m, k // 4, n)
        if found is not None:
            at.set(op.result, found)
            return
    a, b = (
        convert(at, at.elements(operand), tile.element(operand), wanted, name in op.unsigned.data)
        for operand, name in ((op.a, "a"), (op.b, "b"))
    )
    results = list(at.elements(op.c))
    for row, step, column in product(range(m), range(k), range(n)):
        left = a[row * k + step]
        right = b[((step // group) * n + column) * group + step % group]
        place = row * n + column
        results[place] = _multiply_add(at, wanted, left, right, results[place])
    at.set(op.result, results)


def _dot_words(at: Emission, op: tile.DotOp, m: int, steps: int, n: int) -> list[ir.Value] | None:
    """Products of bytes, four neighbours of k by one instruction; None where there is none."""
    a, b = (to_words(at.builder, at.elements(operand)) for operand in (op.a, op.b))
    unsigned = ("a" in op.unsigned.data, "b" in op.unsigned.data)
    results = list(at.elements(op.c))
    for row, step, column in product(range(m), range(steps), range(n)):
        place = row * n + column
        found = at.dot_bytes(unsigned, a[row * steps + step], b[step * n + column], results[place])
        if found is None:
            return None
        results[place] = found
    return results


def _multiply_add(at: Emission, element_type: Attribute, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    if is_bfloat(element_type):
        wide = [elementwise.convert_bfloat_to_float(at.builder, value) for value in (a, b, c)]
        return elementwise.convert_float_to_bfloat(at.builder, elementwise.fma(at.builder, at.target, *wide))
    if isinstance(a.type, ir.IntType):
        return at.builder.add(at.builder.mul(a, b), c)
    return elementwise.fma(at.builder, at.target, a, b, c)


def known(value: ir.Value) -> int | None:
    """The number that a register is known to hold."""
    return int(value.constant) if isinstance(value, ir.Constant) and isinstance(value.constant, int) else None
