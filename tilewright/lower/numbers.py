"""Numbers as arguments: kernels that differ only in literals become one kernel, which each launch gives its numbers.

Scales and zero points of quantised networks are such literals. A number stays a literal where all kernels agree on it,
and where lowering, passes or LLVM make other code for it than for any other number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import frexp, isfinite

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.core import Apply, Cast, Const, Expr
from tilewright.expr.ordered import Ordered
from tilewright.lower.body import rounded
from tilewright.lower.steps import Parameter, Repeated, Step, anonymous

#: Functions whose code is the same for any number, of floats and of integers.
_OF_FLOATS = frozenset({"add", "sub", "mul", "div", "min", "max"})
_OF_INTEGERS = frozenset({"add", "sub", "min", "max"})


def numbers_as_arguments(steps: Sequence[Step | Repeated]) -> list[Step | Repeated]:
    """The launches, those of kernels that differ only in numbers with the numbers as arguments of one kernel."""
    written = {id(step): _parametrised(step) for step in _launches(steps)}
    groups: dict[str, list[_Parametrised]] = {}
    for each in written.values():
        if each.numbers:
            groups.setdefault(each.kernel, []).append(each)
    varying = {kernel: _varying([each.numbers for each in group]) for kernel, group in groups.items()}

    def with_arguments(step: Step | Repeated) -> Step | Repeated:
        if isinstance(step, Repeated):
            return replace(step, steps=[with_arguments(inner) for inner in step.steps])
        each = written[id(step)]
        chosen = varying[each.kernel] if each.numbers else []
        return each.with_arguments(chosen) if chosen else step

    return [with_arguments(step) for step in steps]


@dataclass(frozen=True)
class _Parametrised:
    """A launch with a parameter for every number that may be an argument."""

    step: Step
    numbers: tuple[Const, ...]

    @cached_property
    def kernel(self) -> str:
        """Equal for kernels that are equal but for these numbers."""
        return anonymous(self.step).key

    def with_arguments(self, chosen: Sequence[int]) -> Step:
        """The launch with the chosen parameters as arguments, and the numbers of the others in its code again."""
        literals: dict[Expr, Expr] = {
            _parameter(place, number): number for place, number in enumerate(self.numbers) if place not in chosen
        }
        numbers = tuple((_parameter(place, self.numbers[place]), self.numbers[place]) for place in chosen)
        return replace(_over_bodies(self.step, _Replacing(literals)), numbers=numbers)


def _launches(steps: Sequence[Step | Repeated]) -> list[Step]:
    """The launches, those in loops too."""
    found: list[Step] = []
    for step in steps:
        found.extend(_launches(step.steps) if isinstance(step, Repeated) else [step])
    return found


def _parametrised(step: Step) -> _Parametrised:
    """The same number at several places is one parameter: where it stands in one kernel it stands in all equal ones."""
    numbers: dict[Const, Parameter] = {}
    over = _over_bodies(step, _Abstracting(numbers))
    return _Parametrised(over, tuple(numbers))


def _parameter(place: int, number: Const) -> Parameter:
    return Parameter(f"number.{place}", number.dtype)


def _varying(numbers: Sequence[tuple[Const, ...]]) -> list[int]:
    """The places at which not all kernels have the same number."""
    return [place for place, column in enumerate(zip(*numbers, strict=True)) if len(set(column)) > 1]


def _over_bodies(step: Step, rule: _Abstracting | _Replacing) -> Step:
    """The step with other expressions; ordered accumulations stay as they are."""
    statements = tuple(
        each if isinstance(each.accum, Ordered) else replace(each, body=rule.expression(each.body))
        for each in step.kernel.statements
    )
    return replace(step, kernel=replace(step.kernel, statements=statements))


@dataclass
class _Abstracting:
    """Puts parameters in the place of numbers, in the order in which they are met."""

    numbers: dict[Const, Parameter]

    def expression(self, expr: Expr) -> Expr:
        if isinstance(expr, Cast):
            return replace(expr, arg=self.expression(expr.arg))
        if not isinstance(expr, Apply) or expr.dtype == dtypes.INDEX:
            return expr  # addresses are left as they are
        return replace(expr, args=tuple(self._argument(expr, position) for position in range(len(expr.args))))

    def _argument(self, expr: Apply, position: int) -> Expr:
        argument = expr.args[position]
        number = _literal(argument)
        if number is None or not _any_number(expr, position, number):
            return self.expression(argument)
        return self.numbers.setdefault(number, _parameter(len(self.numbers), number))


@dataclass(frozen=True)
class _Replacing:
    """Puts numbers in the place of parameters."""

    literals: Mapping[Expr, Expr]

    def expression(self, expr: Expr) -> Expr:
        if isinstance(expr, Parameter):
            return self.literals.get(expr, expr)
        if isinstance(expr, Cast):
            return replace(expr, arg=self.expression(expr.arg))
        if not isinstance(expr, Apply) or expr.dtype == dtypes.INDEX:
            return expr
        return replace(expr, args=tuple(map(self.expression, expr.args)))


def _literal(expr: Expr) -> Const | None:
    """The number that an expression is: a literal, or one of integers in a type that holds it exactly."""
    if isinstance(expr, Cast) and isinstance(expr.arg, Const) and dtypes.is_integer(expr.arg.dtype):
        number = int(expr.arg.value)
        if dtypes.is_integer(expr.dtype):
            low, high = dtypes.limits(expr.dtype)
            return Const(number, expr.dtype) if low <= number <= high else None
        exact = dtypes.is_float(expr.dtype) and abs(number) <= _EXACT
        return Const(float(number), expr.dtype) if exact else None
    return expr if isinstance(expr, Const) else None


_EXACT = 2**8  # integers up to here are numbers of every float type: bf16 has 8 bits of significand


def _any_number(expr: Apply, position: int, number: Const) -> bool:
    """Whether the code of a function is the same for this argument as for any other number in its place."""
    value, dtype = rounded(number.value, number.dtype), number.dtype
    if dtypes.is_float(dtype):
        power_of_two = isfinite(value) and abs(frexp(value)[0]) == 0.5
        reciprocal = expr.function == "div" and position == 1 and power_of_two
        return expr.function in _OF_FLOATS and isfinite(value) and value not in (0, 1, -1) and not reciprocal
    if dtype in ("bool", dtypes.INDEX):
        return False
    return expr.function in _OF_INTEGERS and value != 0
