"""What is known of an index before the program runs: its value, or a number that divides it."""

from __future__ import annotations

from math import gcd

from xdsl.dialects import scf
from xdsl.dialects.arith import AddiOp, ConstantOp, MuliOp, OrIOp, ShLIOp, SubiOp, XOrIOp
from xdsl.dialects.builtin import IndexType, IntegerAttr
from xdsl.ir import Block, SSAValue

from tilewright.kernel.dialect import ProgramIdOp


def constant_index(value: SSAValue) -> int | None:
    """The value of an `arith.constant` of index type, None for anything else."""
    owner = value.owner
    if isinstance(owner, ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


def runs_at_least_once(loop: scf.ForOp) -> bool:
    """Whether a loop has a first iteration by the form of its bounds: constants, or ``low`` to ``low + constant``."""
    low, end = constant_index(loop.lb), loop.ub.owner
    if low is not None:
        high = constant_index(loop.ub)
        return high is not None and low < high
    if not isinstance(end, AddiOp) or loop.lb not in end.operands:
        return False
    return any((constant_index(distance) or 0) > 0 for distance in end.operands)


def is_sum_of_counters(value: SSAValue) -> bool:
    """Whether an index is made of constants and of what blocks and programs count by sums and products alone."""
    waiting, found = [value], {value}
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, AddiOp | SubiOp | MuliOp):
            new = {owner.lhs, owner.rhs} - found
            found |= new
            waiting += new
        elif not isinstance(owner, Block | ConstantOp | ProgramIdOp):
            return False
    return True


def indices_from_outside(loop: scf.ForOp) -> list[SSAValue]:
    """The indices that the body of a loop reads, made outside of it, that are no constants; each once."""
    inside: set[SSAValue] = set()
    read: dict[SSAValue, None] = {}
    for op in loop.body.walk():
        inside.update(op.results)
        inside.update(argument for region in op.regions for block in region.blocks for argument in block.args)
        read.update(dict.fromkeys(operand for operand in op.operands if isinstance(operand.type, IndexType)))
    inside.update(loop.body.block.args)
    return [value for value in read if value not in inside and constant_index(value) is None]


def divisor(value: SSAValue) -> int:
    """A number that divides an index whatever the program and the iteration are; 0 for the index 0."""
    owner = value.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        if isinstance(loop, scf.ForOp) and value is owner.args[0]:
            return gcd(divisor(loop.lb), divisor(loop.step))
        return 1
    if isinstance(owner, ConstantOp):
        return abs(constant_index(value) or 0)
    if isinstance(owner, AddiOp | SubiOp):
        return gcd(divisor(owner.lhs), divisor(owner.rhs))
    if isinstance(owner, MuliOp):
        return divisor(owner.lhs) * divisor(owner.rhs)
    if isinstance(owner, XOrIOp | OrIOp):  # of both, only the zeros at the end stay
        common = gcd(divisor(owner.lhs), divisor(owner.rhs))
        return common & -common
    if isinstance(owner, ShLIOp):
        count = constant_index(owner.rhs)
        return divisor(owner.lhs) << count if count is not None and 0 <= count < 64 else 1
    return 1
