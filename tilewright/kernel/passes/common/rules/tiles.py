"""Tiles: repeated repeats, reshaped reshapes, chains of casts, dimensions of extent 1."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
)
from xdsl.ir import Attribute

from tilewright.kernel.dialect import (
    BroadcastOp,
    CastOp,
    FuncOp,
    IotaOp,
    ProgramIdOp,
    ReduceOp,
    ReshapeOp,
    element,
    shape,
)
from tilewright.kernel.rewrite import Rule, dense_splat, replace, replace_by_number, replace_by_values


def splat_constant(op: arith.ConstantOp) -> bool:
    """A dense constant of equal elements is a scalar constant, repeated."""
    attribute = op.properties["value"]
    if not isinstance(attribute, DenseIntOrFPElementsAttr):
        return False
    number = dense_splat(attribute)
    if number is None:
        return False
    replace_by_number(op, number)
    return True


def broadcast_once(op: BroadcastOp) -> bool:
    """A repeat to the same shape is nothing; a repeat of a repeat is one."""
    if op.value.type == op.result.type:
        replace_by_values(op, [op.value])
        return True
    inner = op.value.owner
    if type(inner) is not BroadcastOp:
        return False
    replace(op, BroadcastOp(inner.operands[0], shape(op.result)))
    return True


def reshape_once(op: ReshapeOp) -> bool:
    """A reshape to the same shape is nothing; of a reshape, one; of a repeated scalar, another repeat."""
    if op.value.type == op.result.type:
        replace_by_values(op, [op.value])
        return True
    inner = op.value.owner
    if type(inner) is ReshapeOp:
        replace(op, ReshapeOp(inner.operands[0], shape(op.result)))
        return True
    if type(inner) is BroadcastOp and not shape(inner.operands[0]):
        if shape(op.result):
            replace(op, BroadcastOp(inner.operands[0], shape(op.result)))
        else:
            replace_by_values(op, [inner.operands[0]])
        return True
    return False


def cast_once(op: CastOp) -> bool:
    """A cast to the same type is nothing; after a cast that loses nothing, the source is cast directly."""
    if op.value.type == op.result.type:
        replace_by_values(op, [op.value])
        return True
    inner = op.value.owner
    if type(inner) is not CastOp:
        return False
    flags = _joined(element(inner.value), element(op.value), element(op.result), inner, op)
    if flags is None:
        return False
    if inner.value.type == op.result.type:
        replace_by_values(op, [inner.value])
    else:
        replace(op, CastOp(inner.value, element(op.result), unsigned=flags))
    return True


def _joined(a: Attribute, b: Attribute, c: Attribute, inner: CastOp, outer: CastOp) -> bool | None:
    """Whether a cast from a to c in place of a, b, c is unsigned; None where it would give other numbers."""
    inner_unsigned, outer_unsigned = inner.unsigned is not None, outer.unsigned is not None
    if isinstance(a, IntegerType) and isinstance(b, IntegerType):
        width_a, width_b = a.width.data, b.width.data
        if width_b <= width_a or isinstance(c, IndexType):
            return None
        if width_a == 1 or inner_unsigned or (isinstance(c, IntegerType) and c.width.data <= width_b):
            return inner_unsigned
        return None if outer_unsigned else False
    if _holds(b, a, inner_unsigned):
        if isinstance(a, IntegerType):  # integer, float, and then: a wider float, or the integer again
            if isinstance(c, IntegerType):
                return inner_unsigned if a == c and a.width.data > 1 and inner_unsigned == outer_unsigned else None
            return inner_unsigned
        return outer_unsigned
    return None


_MANTISSA: dict[type[Attribute], int] = {BFloat16Type: 8, Float16Type: 11, Float32Type: 24, Float64Type: 53}
_WIDER: dict[type[Attribute], tuple[type[Attribute], ...]] = {
    BFloat16Type: (Float32Type, Float64Type),
    Float16Type: (Float32Type, Float64Type),
    Float32Type: (Float64Type,),
}


def _holds(b: Attribute, a: Attribute, unsigned: bool) -> bool:
    """Whether float type `b` holds every number of `a`."""
    if isinstance(a, IntegerType):
        digits = a.width.data - (0 if unsigned or a.width.data == 1 else 1)
        return bool(_MANTISSA.get(type(b), 0) >= digits)
    return type(b) in _WIDER.get(type(a), ())


def index_cast_once(op: arith.IndexCastOp) -> bool:
    """A cast to the same type is nothing, and so is a widening and the way back; index has 64 bits."""
    if op.input.type == op.result.type:
        replace_by_values(op, [op.input])
        return True
    inner = op.input.owner
    if type(inner) is not arith.IndexCastOp:
        return False
    source = inner.operands[0]
    if source.type != op.result.type or _width(element(op.input)) < _width(element(source)):
        return False
    replace_by_values(op, [source])
    return True


def _width(type_: Attribute) -> int:
    return 64 if isinstance(type_, IndexType) else int(type_.width.data) if isinstance(type_, IntegerType) else 0


def iota_of_one(op: IotaOp) -> bool:
    """Along a dimension of extent 1 the count is 0."""
    if shape(op.result)[op.axis.value.data] != 1:
        return False
    replace_by_number(op, 0)
    return True


def program_of_one(op: ProgramIdOp) -> bool:
    """Along an axis of one program its coordinate is 0."""
    kernel = op.parent_op()
    while kernel is not None and not isinstance(kernel, FuncOp):
        kernel = kernel.parent_op()
    if kernel is None or kernel.extents[op.axis.value.data] != 1:
        return False
    replace_by_number(op, 0)
    return True


def reduce_of_one(op: ReduceOp) -> bool:
    """A dimension of extent 1 is reduced already; extremes of a repeated scalar are that scalar."""
    if op.value.type == op.result.type:
        replace_by_values(op, [op.value])
        return True
    inner = op.value.owner
    if op.kind.data in ("max", "min") and type(inner) is BroadcastOp and not shape(inner.operands[0]):
        replace(op, BroadcastOp(inner.operands[0], shape(op.result)))
        return True
    return False


RULES: dict[str, list[Rule]] = {
    arith.ConstantOp.name: [splat_constant],
    BroadcastOp.name: [broadcast_once],
    ReshapeOp.name: [reshape_once],
    CastOp.name: [cast_once],
    arith.IndexCastOp.name: [index_cast_once],
    IotaOp.name: [iota_of_one],
    ProgramIdOp.name: [program_of_one],
    ReduceOp.name: [reduce_of_one],
}
