"""Index values as sums of other values with constant factors, and how large they can get."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import INDEX, BlockRankOp, FuncOp, ProgramIdOp


@dataclass(frozen=True)
class LinearForm:
    """``constant + sum(factor * value)``; no factor is 0."""

    factors: tuple[tuple[SSAValue, int], ...] = ()
    constant: int = 0

    def __add__(self, other: LinearForm) -> LinearForm:
        factors = dict(self.factors)
        for value, factor in other.factors:
            factors[value] = factors.get(value, 0) + factor
        return _made(factors, self.constant + other.constant)

    def times(self, number: int) -> LinearForm:
        return _made({value: factor * number for value, factor in self.factors}, self.constant * number)

    def without_constant(self) -> LinearForm:
        return LinearForm(self.factors, 0)

    @property
    def is_zero(self) -> bool:
        return not self.factors and not self.constant

    def split(self, unit: int) -> tuple[LinearForm, LinearForm]:
        """``unit * a + b == self``: in a the terms whose factors are multiples of `unit`, and most of the constant."""
        whole = {value: factor // unit for value, factor in self.factors if factor % unit == 0}
        rest = {value: factor for value, factor in self.factors if factor % unit}
        return _made(whole, self.constant // unit), _made(rest, self.constant % unit)


def _made(factors: Mapping[SSAValue, int], constant: int) -> LinearForm:
    return LinearForm(tuple((value, factor) for value, factor in factors.items() if factor), constant)


def linear_form(value: SSAValue) -> LinearForm:
    """A value taken apart as far as sums, differences and constant factors go."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return LinearForm((), int(owner.value.value.data))
    if isinstance(owner, arith.AddiOp | arith.SubiOp):
        sign = 1 if isinstance(owner, arith.AddiOp) else -1
        return linear_form(owner.lhs) + linear_form(owner.rhs).times(sign)
    if isinstance(owner, arith.MuliOp):
        for one, other in ((owner.lhs, owner.rhs), (owner.rhs, owner.lhs)):
            factor = linear_form(one)
            if not factor.factors:
                return linear_form(other).times(factor.constant)
    return LinearForm(((value, 1),), 0)


def emitted(form: LinearForm, add: Callable[[Operation], SSAValue]) -> SSAValue:
    """The value of a form; `add` puts an operation in its place and gives its result."""

    def number(value: int) -> SSAValue:
        return add(arith.ConstantOp(IntegerAttr(value, INDEX)))

    total: SSAValue | None = None
    for value, factor in form.factors:
        part = value if factor == 1 else add(arith.MuliOp(value, number(factor)))
        total = part if total is None else add(arith.AddiOp(total, part))
    if total is None:
        return number(form.constant)
    return total if form.constant == 0 else add(arith.AddiOp(total, number(form.constant)))


def largest(form: LinearForm) -> int | None:
    """A bound that the form does not exceed, where all of its values are known not to be negative; else None."""
    total = form.constant
    for value, factor in form.factors:
        most = _most(value)
        if most is None or factor < 0:
            return None
        total += factor * most
    return total


def _most(value: SSAValue) -> int | None:
    """The largest that a value gets which is never negative."""
    owner = value.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        if not isinstance(loop, scf.ForOp) or value is not owner.args[0]:
            return None
        low, high, step = (linear_form(bound) for bound in (loop.lb, loop.ub, loop.step))
        if low.factors or high.factors or step.factors or low.constant < 0 or step.constant < 1:
            return None
        trips = max(1, -(-(high.constant - low.constant) // step.constant))
        return low.constant + (trips - 1) * step.constant
    if isinstance(owner, ProgramIdOp):
        kernel = owner.parent_op()
        while kernel is not None and not isinstance(kernel, FuncOp):
            kernel = kernel.parent_op()
        return None if kernel is None else kernel.extents[owner.axis.value.data] - 1
    if isinstance(owner, arith.MinSIOp | arith.MinUIOp):
        if any((bound := least(operand)) is None or bound < 0 for operand in owner.operands):
            return None
        known = [most for operand in owner.operands if (most := largest(linear_form(operand))) is not None]
        return min(known, default=None)
    if isinstance(owner, arith.MaxSIOp):
        bounds = [largest(linear_form(operand)) for operand in owner.operands]
        return None if None in bounds else max(bound for bound in bounds if bound is not None)
    if isinstance(owner, arith.DivUIOp | arith.RemUIOp):
        divisor, inside = linear_form(owner.rhs), largest(linear_form(owner.lhs))
        if divisor.factors or divisor.constant < 1:
            return None
        if isinstance(owner, arith.RemUIOp):
            return divisor.constant - 1 if inside is None else min(inside, divisor.constant - 1)
        return None if inside is None else inside // divisor.constant
    return None


def least(value: SSAValue) -> int | None:
    """A number below which an index value never is, as far as its operations say so; else None."""
    owner = value.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        return least(loop.lb) if isinstance(loop, scf.ForOp) and value is owner.args[0] else None
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return int(owner.value.value.data)
    if isinstance(owner, arith.SubiOp):
        low, most = least(owner.lhs), largest(linear_form(owner.rhs))
        return None if low is None or most is None else low - most
    if isinstance(owner, arith.RemUIOp) and (least(owner.rhs) or 0) > 0:
        return 0
    if isinstance(owner, ProgramIdOp | BlockRankOp):
        return 0
    if isinstance(owner, arith.MaxSIOp):
        return max((bound for operand in owner.operands if (bound := least(operand)) is not None), default=None)
    if not isinstance(owner, _BOUNDED):
        return None
    first, second = least(owner.lhs), least(owner.rhs)
    if first is None or first < 0:
        return None
    if isinstance(owner, arith.DivUIOp | arith.RemUIOp):  # of numbers that are not negative
        return 0
    if second is None or second < 0:
        return None
    if isinstance(owner, arith.AddiOp):
        return first + second
    return first * second if isinstance(owner, arith.MuliOp) else min(first, second)


_BOUNDED = (arith.AddiOp, arith.MuliOp, arith.MinSIOp, arith.MinUIOp, arith.DivUIOp, arith.RemUIOp)


def has_trip(loop: scf.ForOp) -> bool:
    """Whether a loop is seen to have a trip."""
    low, step, first = linear_form(loop.lb), linear_form(loop.step), least(loop.ub)
    return not low.factors and not step.factors and first is not None and first > low.constant
