"""Offsets into views as sums: what all threads of a wave share, which scalar registers hold, and what each thread adds.

Only sums, multiples and shifts by constants are taken apart. No part is ever below 0, so that each may be read as a
number without a sign.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import field

from xdsl.dialects import arith, scf
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import ProgramIdOp
from tilewright.kernel.indices import constant_index
from tilewright.kernel.simt import ThreadIdOp

_OF_PARTS = (
    arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.ShLIOp, arith.ShRUIOp,
    arith.ShRSIOp, arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp, arith.MinSIOp, arith.MaxSIOp,
)  # fmt: skip


@dataclass(frozen=True)
class Sum:
    """``constant + sum of factor * value``."""

    constant: int
    factors: dict[SSAValue, int]

    def plus(self, other: Sum) -> Sum:
        factors = Counter(self.factors)
        factors.update(other.factors)
        return Sum(self.constant + other.constant, dict(factors))

    def times(self, factor: int) -> Sum:
        return Sum(self.constant * factor, {value: own * factor for value, own in self.factors.items()})


@dataclass(frozen=True)
class Parts:
    """An offset in elements: `constant`, what a wave shares, and what its threads add."""

    constant: int
    wave: dict[SSAValue, int]
    lane: dict[SSAValue, int]


@dataclass
class Offsets:
    """What is known of the values of one kernel."""

    sums: dict[SSAValue, Sum] = field(default_factory=dict)
    shared: dict[SSAValue, bool] = field(default_factory=dict)
    natural: dict[SSAValue, bool] = field(default_factory=dict)

    def parts(self, offset: SSAValue) -> Parts | None:
        """The parts of an offset; None where one of them may be below 0."""
        found = self.sum(offset)
        numbers = (found.constant, *found.factors.values())
        if min(numbers) < 0 or not all(self.is_natural(value) for value in found.factors):
            return None
        wave = {value: factor for value, factor in found.factors.items() if self.is_shared(value)}
        lane = {value: factor for value, factor in found.factors.items() if value not in wave}
        return Parts(found.constant, wave, lane)

    def sum(self, value: SSAValue) -> Sum:
        if value not in self.sums:
            self.sums[value] = self._sum(value)
        return self.sums[value]

    def _sum(self, value: SSAValue) -> Sum:
        number, op = constant_index(value), value.owner
        if number is not None:
            return Sum(number, {})
        if isinstance(op, arith.AddiOp):
            return self.sum(op.lhs).plus(self.sum(op.rhs))
        if isinstance(op, arith.MuliOp):
            for one, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                factor = constant_index(other)
                if factor is not None:
                    return self.sum(one).times(factor)
        if isinstance(op, arith.ShLIOp):
            places = constant_index(op.rhs)
            if places is not None and 0 <= places < 32:
                return self.sum(op.lhs).times(1 << places)
        return Sum(0, {value: 1})

    def is_shared(self, value: SSAValue) -> bool:
        """Whether all threads of a wave hold the same number."""
        return _decided(self.shared, value, self._is_shared)

    def _is_shared(self, value: SSAValue) -> bool:
        op = value.owner
        if isinstance(op, Block):
            loop = op.parent_op()
            if not isinstance(loop, scf.ForOp) or value is not op.args[0]:
                return False
            return all(self.is_shared(bound) for bound in (loop.lb, loop.ub, loop.step))
        return isinstance(op, arith.ConstantOp | ProgramIdOp) or (
            isinstance(op, _OF_PARTS) and all(self.is_shared(operand) for operand in op.operands)
        )

    def is_natural(self, value: SSAValue) -> bool:
        """Whether a number is never below 0."""
        return _decided(self.natural, value, self._is_natural)

    def _is_natural(self, value: SSAValue) -> bool:
        number, op = constant_index(value), value.owner
        if number is not None:
            return number >= 0
        if isinstance(op, Block):
            loop = op.parent_op()
            if not isinstance(loop, scf.ForOp) or value is not op.args[0]:
                return False
            return (constant_index(loop.step) or 0) > 0 and self.is_natural(loop.lb)
        if isinstance(op, ProgramIdOp | ThreadIdOp):
            return True
        return self._of_naturals(op)

    def _of_naturals(self, op: Operation) -> bool:
        if isinstance(op, arith.SubiOp) or not isinstance(op, _OF_PARTS):
            return False
        known = [self.is_natural(operand) for operand in op.operands]
        if isinstance(op, arith.AndIOp | arith.MaxSIOp):
            return any(known)
        return known[0] if isinstance(op, arith.ShRSIOp | arith.RemSIOp) else all(known)


def _decided(known: dict[SSAValue, bool], value: SSAValue, decide: Callable[[SSAValue], bool]) -> bool:
    if value not in known:
        known[value] = decide(value)
    return known[value]
