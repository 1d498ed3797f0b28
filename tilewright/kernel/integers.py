"""Operations of `arith` on integers, made as they are: constructors of xDSL ask what else each argument could be.

That takes two thirds of their time, and these operations are the most frequent ones of a program.
"""

from __future__ import annotations

from functools import lru_cache

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Attribute, SSAValue

from tilewright.kernel.tile_types import INDEX

Binary = type[arith.SignlessIntegerBinaryOperation]
_OVERFLOW = {"overflowFlags": arith.IntegerOverflowAttr("none")}


def binary(kind: Binary, left: SSAValue, right: SSAValue) -> arith.SignlessIntegerBinaryOperation:
    """The operation of this kind on two values of one type, which is that of its result."""
    flags = _OVERFLOW if issubclass(kind, arith.SignlessIntegerBinaryOperationWithOverflow) else {}
    return kind.create(operands=(left, right), result_types=(left.type,), properties=flags)


def index_constant(value: int) -> arith.ConstantOp:
    """A constant of type index."""
    return arith.ConstantOp.create(result_types=(INDEX,), properties={"value": _index(value)})


@lru_cache(4096)
def _index(value: int) -> Attribute:
    return IntegerAttr(value, INDEX)
