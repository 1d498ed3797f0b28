"""A reduction and the sums that follow its value, in one pass over a row (`tiles.kernel.Follows`).

A row is distributed to lanes, each of which takes some elements in a step and has a running value and sums of its own;
the parts of all lanes are put together behind the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.core import Expr, identity
from tilewright.kernel import dialect as tile
from tilewright.lower.body import FUNCTIONS, BodyEmitter, Value, combine, computed_in
from tilewright.lower.builder import KernelBuilder
from tilewright.tiles.kernel import AFTER, BEFORE, ELEMENT, Follows, Statement, placeholder


@dataclass(frozen=True)
class Lanes:
    """How a row is distributed: `extents` are those of one number per lane, `count` the lanes of a row.

    A lane takes `elements` of a row in a step. `fold` reduces the elements of a step to one number per lane, `unfold`
    repeats that for its elements; `combine` reduces numbers of lanes to one per row, `spread` repeats that.
    """

    extents: tuple[int, ...]
    count: int
    elements: int
    fold: Callable[[SSAValue, str], SSAValue]
    unfold: Callable[[SSAValue], SSAValue]
    combine: Callable[[SSAValue, str], SSAValue]
    spread: Callable[[SSAValue], SSAValue]


@dataclass(frozen=True)
class Part:
    """What some elements of a row come to: the running value, and the sums at it."""

    value: Value
    sums: tuple[Value, ...]

    @property
    def ssa(self) -> list[SSAValue]:
        return [self.value.ssa, *(each.ssa for each in self.sums)]


def farthest(accum: str, dtype: dtypes.DType) -> float:
    """Where a running extreme starts, as a value of its type. Not from an infinity, whose difference from itself is no
    number.
    """
    limits = _finfo(dtype)
    return float(limits.min if accum == "max" else limits.max)


def _finfo(dtype: dtypes.DType) -> Any:
    if dtype in ("f16", "f32", "f64"):
        return np.finfo(dtypes.numpy_dtype(dtype))
    import ml_dtypes  # takes time, and most programs have none of its types

    return ml_dtypes.finfo(dtypes.numpy_dtype(dtype))  # type: ignore[no-untyped-call]


class Running:
    """The code of one such pass: `start`, a `step` for some elements of all lanes, and `finish`.

    `points` are those of a row in all steps together. With `ragged`, some lanes have fewer of them than others.
    """

    def __init__(
        self, builder: KernelBuilder, reduction: Statement, followers: Sequence[Statement], lanes: Lanes, points: int,
        ragged: bool = False,
    ) -> None:  # fmt: skip
        assert isinstance(reduction.accum, str)
        self.builder, self.accum, self.lanes = builder, reduction.accum, lanes
        self.dtype = computed_in(reduction.tensor.dtype)
        self.rules = [each.follows for each in followers if each.follows is not None]
        self.deviation = placeholder(ELEMENT, self.dtype) - placeholder(BEFORE, self.dtype)
        self.is_mean, self.points, self.ragged = reduction.accum == "sum", points, ragged
        self.nnan = reduction.ignores_nan

    # Steps ----------------------------------------------------------------------------------------------------------

    def start(self) -> list[SSAValue]:
        """What is carried before the first step: elements so far where that is a mean, running values and sums."""
        start = Value(self._number(0 if self.is_mean else farthest(self.accum, self.dtype)), self.dtype)
        value = self._per_lane(start)
        zero = value if self.is_mean else self._per_lane(Value(self._number(0), self.dtype))
        count = [value if self.ragged else start] if self.is_mean else []
        return [each.ssa for each in (*count, value, *(zero for _ in self.rules))]

    def step(self, element: Value, inside: SSAValue | None, carried: Sequence[SSAValue]) -> list[SSAValue]:
        """Take in the elements of one step, those that are `inside` the row."""
        count, old, sums = self._parts(carried)
        several = element.shape != self.lanes.extents  # elements of a lane, existing or not
        known = {ELEMENT: self._existing(element, inside, old if self.is_mean and not several else None)}
        known[BEFORE] = old
        emitter = self._emitter(known)
        if count is None:
            folded = self._folded(known[ELEMENT], self.accum)
            counts, new = [], combine(self.accum, self.builder, folded, old, nnan=self.nnan)
        else:
            total, new = self._moved(count, old, known[ELEMENT], inside, None if several else emitter)
            counts = [total]
        after = known[AFTER] = Value(self.lanes.unfold(new.ssa), self.dtype)
        if self.is_mean and several:  # elements less the mean before would cancel where that is of no elements
            emitter = self._emitter({ELEMENT: self._existing(element, inside, after), BEFORE: after, AFTER: after})
        found = []
        for total, rule in zip(sums, self.rules, strict=True):
            own = self._folded(emitter.emit(rule.term), "sum")
            if rule.offset is not None and count is not None and several:
                apart = self._between(rule.offset, self._of_some(count, old, new), new)
                own = self._apply("add", own, self._apply("mul", apart, self._per_lane(count)))
            scaled = self._scaled(rule, total, old, new)
            found.append(self._apply("add", *((total, own) if scaled is total else (own, scaled))))
        return [each.ssa for each in (*counts, new, *found)]

    def _moved(
        self, count: Value, old: Value, element: Value, inside: SSAValue | None, emitter: BodyEmitter | None
    ) -> tuple[Value, Value]:
        """Elements so far and their mean, with those of a step; `emitter` knows the only element of a lane."""
        folded = self._folded(element, "sum")
        here = self._like(count, self.lanes.elements)
        if self.ragged and inside is not None:
            one, zero = (self._like(element, number) for number in (1, 0))
            here = self._folded(Value(self.builder.insert(tile.SelectOp(inside, one.ssa, zero.ssa)), self.dtype), "sum")
        total = self._apply("add", count, here)
        some, one = total, self._like(total, 1)
        if self.ragged:  # of no elements, the share may be any number
            some = self._apply("max", total, one)
        share = self._per_lane(self._apply("div", one, some))
        if emitter is not None:
            moved = emitter.emit(self.deviation)
        else:
            moved = self._apply("sub", folded, self._apply("mul", old, self._per_lane(here)))
        return total, self._apply("add", old, self._apply("mul", moved, share))

    def _existing(self, element: Value, inside: SSAValue | None, other: Value | None) -> Value:
        """The elements of a step; in the place of those that do not exist `other`, or what an accumulation begins with.

        Neither changes the running value and its sums.
        """
        if inside is None:
            return element
        other = other or self._like(element, float(identity(self.accum, self.dtype).value))
        return Value(self.builder.insert(tile.SelectOp(inside, element.ssa, other.ssa)), self.dtype)

    def _parts(self, carried: Sequence[SSAValue]) -> tuple[Value | None, Value, list[Value]]:
        """Elements so far, running values and sums, of what is carried."""
        values = [Value(each, self.dtype) for each in carried]
        count = values.pop(0) if self.is_mean else None
        return count, values[0], values[1:]

    def _of_some(self, count: Value, value: Value, other: Value) -> Value:
        """A running value, or another one where it is of no elements: whatever it is, it may be far away."""
        zero = self._like(count, 0)
        some = self.builder.insert(tile.CompareOp("gt", count.ssa, zero.ssa))
        return Value(self.builder.insert(tile.SelectOp(some, value.ssa, other.ssa)), self.dtype)

    # Parts ----------------------------------------------------------------------------------------------------------

    def finish(self, carried: Sequence[SSAValue]) -> Part:
        """The part of each row that all steps together have seen."""
        count, values, sums = self._parts(carried)
        if self.lanes.count == 1:
            return Part(values, tuple(sums))
        if count is None:
            row = self._combined(values, self.accum)
        elif self.ragged:
            row = self._over(self._combined(self._apply("mul", values, count), "sum"), self.points)
        else:
            row = self._over(self._combined(values, "sum"), self.lanes.count)
        at = Value(self.lanes.spread(row.ssa), self.dtype)
        if count is not None and self.ragged:
            values = self._of_some(count, values, at)
        rules = zip(self.rules, sums, strict=True)
        return Part(row, tuple(self._put_together(*each, values, at, count) for each in rules))

    def _put_together(self, rule: Follows, sums: Value, values: Value, at: Value, count: Value | None) -> Value:
        """A sum of a row from those of its lanes."""
        between = None
        if rule.offset is not None:
            assert count is not None, "only sums that follow a mean have an offset"
            apart = self._between(rule.offset, values, at)
            if self.ragged:
                between = self._combined(self._apply("mul", apart, count), "sum")
            else:
                between = self._times(self._combined(apart, "sum"), self.points // self.lanes.count)
        total = self._combined(self._scaled(rule, sums, values, at), "sum")
        return total if between is None else self._apply("add", total, between)

    def merged(self, first: Part, first_points: int, second: Part, second_points: int) -> Part:
        """One part of two of the same row."""
        if self.is_mean:
            apart = self._apply("sub", second.value, first.value)
            step = self._times(apart, second_points / (first_points + second_points))
            row = self._apply("add", first.value, step)
        else:
            row = combine(self.accum, self.builder, first.value, second.value, nnan=self.nnan)
        sums = []
        for number, rule in enumerate(self.rules):
            both = []
            for part, points in ((first, first_points), (second, second_points)):
                here = self._scaled(rule, part.sums[number], part.value, row)
                if rule.offset is not None:
                    here = self._apply("add", here, self._times(self._between(rule.offset, part.value, row), points))
                both.append(here)
            sums.append(self._apply("add", *both))
        return Part(row, tuple(sums))

    def values(self, part: Part, points: int) -> list[Value]:
        """What the reduction and the sums come to over a row of so many points."""
        return [self._times(part.value, points) if self.is_mean else part.value, *part.sums]

    # Expressions ----------------------------------------------------------------------------------------------------

    def _emitter(self, known: Mapping[str, Value]) -> BodyEmitter:
        """Evaluates expressions of placeholders."""
        provided = {name: lambda read: known[read.tensor.name] for name in (ELEMENT, BEFORE, AFTER)}
        return BodyEmitter(self.builder, {}, {}, {}, self.lanes.extents, provided=provided)

    def _between(self, expr: Expr, before: Value, after: Value) -> Value:
        return self._emitter({BEFORE: before, AFTER: after}).emit(expr)

    def _scaled(self, rule: Follows, total: Value, before: Value, after: Value) -> Value:
        if rule.factor is None:
            return total
        return self._apply("mul", total, self._between(rule.factor, before, after))

    def _folded(self, value: Value, accum: str) -> Value:
        return Value(self.lanes.fold(value.ssa, accum), self.dtype)

    def _combined(self, value: Value, accum: str) -> Value:
        return Value(self.lanes.combine(value.ssa, accum), self.dtype)

    def _number(self, value: float) -> SSAValue:
        return self.builder.number(float(value), self.dtype)

    def _per_lane(self, value: Value) -> Value:
        extents = self.lanes.extents
        same = value.shape or not extents
        return value if same else Value(self.builder.insert(tile.BroadcastOp(value.ssa, extents)), self.dtype)

    def _times(self, value: Value, factor: float) -> Value:
        return self._apply("mul", value, self._like(value, factor))

    def _over(self, value: Value, divisor: float) -> Value:
        return self._apply("div", value, self._like(value, divisor))

    def _like(self, value: Value, number: float) -> Value:
        made = self._number(number)
        return Value(self.builder.insert(tile.BroadcastOp(made, value.shape)) if value.shape else made, self.dtype)

    def _apply(self, function: str, *args: Value) -> Value:
        return FUNCTIONS[function](self.builder, list(args))
