"""Changing a program: the one place where operations are replaced, so that source locations and names survive.

A new operation takes the location of the operation it replaces, and its results take the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import copysign
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    UnknownLoc,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tilewright.kernel.dialect import BroadcastOp, element, shape

Rule = Callable[[Any], bool]
"""Try to simplify an operation; True if it was replaced, erased or changed."""


def rewrite(block: Block, rules: Mapping[str, Sequence[Rule]]) -> None:
    """Walk a block forward, nested ones included, and apply to each operation the rules of its name until none applies.

    What a rule puts in the place of an operation is visited next. Regions are walked between two attempts, so that
    a rule on a loop sees its simplified body.
    """
    op = block.first_op
    while op is not None:
        before = op.prev_op
        if not _apply(op, rules):
            if not op.regions:
                op = op.next_op
                continue
            for region in op.regions:
                for inner in region.blocks:
                    rewrite(inner, rules)
            if not _apply(op, rules):
                op = op.next_op
                continue
        op = before.next_op if before is not None else block.first_op


def _apply(op: Operation, rules: Mapping[str, Sequence[Rule]]) -> bool:
    for rule in rules.get(op.name, ()):  # noqa: SIM110 - half the time of any()
        if rule(op):
            return True
    return False


def insert_before(op: Operation, *new: Operation) -> None:
    """Put new operations before `op`; they get its location unless they have one."""
    block = op.parent
    assert block is not None
    for added in new:
        if type(added.location) is UnknownLoc:
            added.location = op.location
        block.insert_op_before(added, op)


def replace(op: Operation, *new: Operation) -> None:
    """Put `new` in the place of `op`; the results of the last one replace those of `op` and take their names."""
    insert_before(op, *new)
    replace_by_values(op, new[-1].results)


def replace_by_values(op: Operation, values: Sequence[SSAValue]) -> None:
    """Use `values` instead of the results of `op`, and erase it."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    erase(op)


def erase(op: Operation) -> None:
    """Remove an operation whose results are not used."""
    assert op.parent is not None
    op.parent.erase_op(op)


def inline_before(op: Operation, block: Block, arguments: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Move the operations of `block`, a region of `op`, before `op`; gives the operands of its terminator."""
    for argument, value in zip(block.args, arguments, strict=True):
        argument.replace_all_uses_with(value)
    terminator = block.last_op
    outside = op.parent
    assert terminator is not None
    assert outside is not None
    results = tuple(terminator.operands)
    child = block.first_op
    while child is not terminator:
        assert child is not None
        following = child.next_op
        outside.insert_op_before(block.detach_op(child), op)
        child = following
    return results


# Constants ------------------------------------------------------------------------------------------------------------


def constant(value: float, type_: Attribute) -> arith.ConstantOp:
    """A scalar constant of an element type."""
    made = _attribute(value, copysign(1.0, value) < 0 if isinstance(value, float) else False, type_)
    return arith.ConstantOp.create(properties={"value": made}, result_types=[type_])


@lru_cache(maxsize=4096)
def _attribute(value: float, negative: bool, type_: Attribute) -> Attribute:
    # `negative` keeps 0.0 and -0.0 apart, which are equal as keys.
    if isinstance(type_, IntegerType | IndexType):
        return IntegerAttr(int(value), type_)
    assert isinstance(type_, AnyFloat)
    return FloatAttr(float(value), type_)


def uniform(value: SSAValue) -> float | None:
    """The number that a scalar is, or that every element of a tile is, if that is a constant; i1 is 0 or -1."""
    owner = value.owner
    if type(owner) is BroadcastOp:
        owner = owner.operands[0].owner
    if type(owner) is not arith.ConstantOp:
        return None
    attribute = owner.properties["value"]
    if isinstance(attribute, IntegerAttr | FloatAttr):
        return attribute.value.data
    if isinstance(attribute, DenseIntOrFPElementsAttr):
        return dense_splat(attribute)
    return None


def dense_splat(attribute: DenseIntOrFPElementsAttr[Any]) -> float | None:
    """The number of a dense constant whose elements have the same bits."""
    content = attribute.data.data
    size = attribute.get_element_type().compile_time_size
    if content != content[:size] * (len(content) // size):
        return None
    return float_or_int(attribute.get_element_type().unpack(content[:size], 1)[0])


def float_or_int(value: Any) -> float:
    return value if isinstance(value, float) else int(value)


def replace_by_number(op: Operation, value: float) -> None:
    """Replace the one result of `op` by a number: a constant, repeated where the result is a tile."""
    type_ = op.results[0].type
    number = constant(value, element(type_))
    extents = shape(type_)
    if extents:
        replace(op, number, BroadcastOp(number.result, extents))
    else:
        replace(op, number)
