"""What is known of an index before the program runs: its value, or a number that divides it."""

from __future__ import annotations

from math import gcd

from xdsl.dialects import scf
from xdsl.dialects.arith import AddiOp, ConstantOp, MuliOp, OrIOp, ShLIOp, SubiOp, XOrIOp
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, SSAValue


def constant_index(value: SSAValue) -> int | None:
    """The value of an `arith.constant` of index type, None for anything else."""
    owner = value.owner
    if isinstance(owner, ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


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
