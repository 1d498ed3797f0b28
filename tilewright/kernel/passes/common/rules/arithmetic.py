"""Element arithmetic: constants are folded, identities removed, chains of constant additions and factors joined.

Only operations that are rounded correctly are folded, so that a program computes the same numbers without this:
functions such as `exp` keep the accuracy that generated code gives them. Float identities are those that hold for
every number, -0.0 and infinities included: ``x + 0.0`` is not one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import copysign
from typing import Any

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from tilewright.kernel.dialect import (
    BroadcastOp,
    CompareOp,
    ExpNonpositiveOp,
    NormalCdfOp,
    NormalCdfTanhOp,
    SelectOp,
    SigmoidOp,
    element,
    shape,
)
from tilewright.kernel.elements import ELEMENT, dtype_of, evaluate
from tilewright.kernel.rewrite import (
    Rule,
    constant,
    float_or_int,
    insert_before,
    replace,
    replace_by_number,
    replace_by_values,
    uniform,
)

Operands = Sequence[SSAValue]
Numbers = Sequence[float | None]
ElementRule = Callable[[Operation, Operands, Numbers], bool]
"""A rule that gets the operands and, for each, its number if it is a constant."""

INEXACT_FUNCTIONS = frozenset({ExpNonpositiveOp, NormalCdfOp, NormalCdfTanhOp, SigmoidOp})
"""Functions with operations of their own; like those of `math`, they are not rounded alike on every target."""

EXACT_FUNCTIONS = frozenset(f"math.{name}" for name in ("absf", "absi", "sqrt", "floor", "ceil", "trunc", "roundeven"))
"""The operations of `math` that are rounded correctly on every target."""

COMMUTATIVE = frozenset({
    arith.AddiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.MaxSIOp, arith.MinSIOp, arith.MaxUIOp,
    arith.MinUIOp, arith.AddfOp, arith.MulfOp,
})  # fmt: skip

JOINED = frozenset({arith.AddiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp})
"""Integer operations for which ``(x op c1) op c2 = x op (c1 op c2)``."""


def fold_constants(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """``c1 op c2`` is a constant."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return False
    replace_by_number(op, _folded(op, operands, known))
    return True


def _folded(op: Operation, operands: Operands, numbers: Sequence[float]) -> float:
    if type(element(op.results[0].type)) is IndexType and type(op) in _INDEX:
        wrapped: int = _INDEX[type(op)](int(numbers[0]), int(numbers[1]))
        return (wrapped + (1 << 63)) % (1 << 64) - (1 << 63)
    arrays = [np.asarray(number).astype(dtype_of(x.type)) for number, x in zip(numbers, operands, strict=True)]
    return float_or_int(evaluate(op, *arrays).item())


_INDEX: dict[type[Operation], Any] = {
    arith.AddiOp: lambda a, b: a + b, arith.SubiOp: lambda a, b: a - b, arith.MuliOp: lambda a, b: a * b,
}  # fmt: skip


def constant_to_the_right(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """``c op x`` is ``x op c``."""
    if numbers[0] is None or numbers[1] is not None:
        return False
    op.operands = operands[::-1]
    return True


def join_constants(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """``(x op c1) op c2`` is ``x op (c1 op c2)``: exact, because integers wrap."""
    lhs, rhs = operands
    inner, outer_number = lhs.owner, numbers[1]
    if outer_number is None or type(inner) is not type(op):
        return False
    inner_number = uniform(inner.operands[1])
    if inner_number is None:
        return False
    joined = _folded(op, [rhs, rhs], [inner_number, outer_number])
    number = _number_like(op, joined)
    replace(
        op,
        type(op).create(
            operands=[inner.operands[0], number], result_types=[number.type], properties=_WRAPS.get(type(op), {})
        ),
    )
    return True


_WRAPS: dict[type[Operation], dict[str, Attribute]] = {
    kind: {"overflowFlags": arith.IntegerOverflowAttr("none")} for kind in (arith.AddiOp, arith.MuliOp)
}
"""Properties of a joined operation: that the two did not overflow does not say that the joined one does not."""


def _number_like(op: Operation, value: float) -> SSAValue:
    """A constant of the type of the result of `op`, put before it."""
    type_ = op.results[0].type
    made = constant(value, element(type_))
    insert_before(op, made)
    if not shape(type_):
        return made.result
    repeated = BroadcastOp(made.result, shape(type_))
    insert_before(op, repeated)
    return repeated.result


def subtract_constant(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """``x - c`` is ``x + -c``, ``x - x`` is 0."""
    lhs, rhs = operands
    if lhs is rhs:
        replace_by_number(op, 0)
        return True
    number = numbers[1]
    if number is None or not isinstance(number, int) or element(rhs) == IntegerType(1):
        return False
    replace(op, arith.AddiOp(lhs, _number_like(op, _negated(number, rhs))))
    return True


def _negated(number: int, value: SSAValue) -> int:
    dtype = dtype_of(value.type)
    return -number if number != np.iinfo(dtype).min else number


_NEUTRAL: dict[type[Operation], float] = {
    arith.AddiOp: 0, arith.MuliOp: 1, arith.AndIOp: -1, arith.OrIOp: 0, arith.XOrIOp: 0, arith.DivSIOp: 1,
    arith.DivUIOp: 1, arith.FloorDivSIOp: 1, arith.ShLIOp: 0, arith.ShRSIOp: 0, arith.ShRUIOp: 0, arith.AddfOp: -0.0,
    arith.SubfOp: 0.0, arith.MulfOp: 1.0, arith.DivfOp: 1.0,
}  # fmt: skip
"""The right operand c for which ``x op c`` is x. i1 true is -1: as a factor and divisor too."""

_ABSORBING: dict[type[Operation], tuple[float, float]] = {
    arith.MuliOp: (0, 0), arith.AndIOp: (0, 0), arith.OrIOp: (-1, -1), arith.RemSIOp: (1, 0), arith.RemUIOp: (1, 0),
}  # fmt: skip
"""The right operand c, and the number that ``x op c`` then is."""

_IDEMPOTENT = frozenset({
    arith.AndIOp, arith.OrIOp, arith.MaxSIOp, arith.MinSIOp, arith.MaxUIOp, arith.MinUIOp, arith.MaximumfOp,
    arith.MinimumfOp,
})  # fmt: skip


def identities(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """``x + 0``, ``x * 1``, ``x * 0``, ``max(x, x)`` and their like."""
    lhs, rhs = operands
    kind = type(op)
    if lhs is rhs and kind in _IDEMPOTENT:
        replace_by_values(op, [lhs])
        return True
    number = numbers[1]
    if number is None:
        return False
    neutral = _NEUTRAL.get(kind)
    if neutral is not None and _same_number(number, neutral):
        replace_by_values(op, [lhs])
        return True
    absorbing = _ABSORBING.get(kind)
    if absorbing is not None and absorbing[0] == number:
        replace_by_number(op, absorbing[1])
        return True
    return False


def _same_number(a: float, b: float) -> bool:
    return a == b and (not isinstance(b, float) or copysign(1.0, a) == copysign(1.0, b))


def double_negation(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """``-(-x)`` is x."""
    inner = operands[0].owner
    if not isinstance(inner, arith.NegfOp):
        return False
    replace_by_values(op, [inner.operand])
    return True


def compare_with_itself(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """``x <= x`` is true and ``x < x`` false, for integers."""
    assert isinstance(op, CompareOp)
    if operands[0] is not operands[1] or not isinstance(element(operands[0]), IntegerType | IndexType):
        return False
    replace_by_number(op, int(op.predicate.data in ("eq", "le", "ge")))
    return True


def select_known(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """A constant condition, or two equal sides, choose a side; ``select(c, true, false)`` is c."""
    condition, yes, no = operands
    if yes is no or numbers[0] is not None:
        replace_by_values(op, [yes if numbers[0] != 0 else no])
        return True
    if numbers[1:] == [-1, 0] and condition.type == yes.type:
        replace_by_values(op, [condition])
        return True
    return False


def on_scalars(op: Operation, operands: Operands, numbers: Numbers) -> bool:
    """The same function of repeated scalars, element by element, is computed once and repeated."""
    extents = shape(op.results[0])
    if not extents:
        return False
    scalars = []
    for operand in operands:
        owner = operand.owner
        if not shape(operand):
            scalars.append(operand)
        elif type(owner) is BroadcastOp and not shape(owner.operands[0]):
            scalars.append(owner.operands[0])
        else:
            return False
    once = type(op).create(
        operands=scalars,
        result_types=[element(op.results[0])],
        properties=op.properties,
        attributes=op.attributes,
    )
    replace(op, once, BroadcastOp(once.results[0], extents))
    return True


def _rules_of(name: str) -> list[ElementRule]:
    rules: list[ElementRule] = []
    if name in EXACT_FUNCTIONS or not (name.startswith("math.") or name in _names(INEXACT_FUNCTIONS)):
        rules.append(fold_constants)
    if name in _names(COMMUTATIVE):
        rules.append(constant_to_the_right)
    if name in _names(_NEUTRAL, _ABSORBING, _IDEMPOTENT):
        rules.append(identities)
    if name in _names(JOINED):
        rules.append(join_constants)
    rules.extend(_OF_ONE_KIND.get(name, ()))
    return [*rules, on_scalars]


def _names(*kinds: Iterable[Any]) -> frozenset[str]:
    return frozenset(kind.name for each in kinds for kind in each)


_OF_ONE_KIND: dict[str, tuple[ElementRule, ...]] = {
    arith.SubiOp.name: (subtract_constant,),
    arith.NegfOp.name: (double_negation,),
    CompareOp.name: (compare_with_itself,),
    SelectOp.name: (select_known,),
}


def _together(rules: Sequence[ElementRule]) -> Rule:
    """One rule that looks at the operands once and tries the others in turn."""

    def apply(op: Operation) -> bool:
        operands = tuple(op.operands)
        numbers = [uniform(operand) for operand in operands]
        for rule in rules:  # noqa: SIM110 - half the time of any()
            if rule(op, operands, numbers):
                return True
        return False

    return apply


RULES: dict[str, list[Rule]] = {name: [_together(_rules_of(name))] for name in ELEMENT}
