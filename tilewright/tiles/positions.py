"""Where slices lie at a turn whose steps are clipped: the positions of the axes, in classes of one size."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.tiles.axis_steps import count_all, count_up_to, is_block_counted, steps_of
from tilewright.tiles.resources import Number, greatest, least
from tilewright.tiles.tree import Path

if TYPE_CHECKING:
    from tilewright.tiles.turns import Box, Interval, Point, Turn


class Sizes(NamedTuple):
    """Elements of slices, summed over positions: needed now, held before, and common to both."""

    now: Number
    before: Number
    common: Number


class Positions:
    """The positions of the axes of one part at one kind of turn, in classes that have slices of the same sizes.

    Where every step of every axis is whole, there is one class, and all is scalar (or one value per tree). Otherwise
    each axis has a dimension of classes: the first step, the last one and one of those between, or every step.
    """

    def __init__(self, point: Point, portion: Interval | Box, turn: Turn) -> None:
        self.point, self.portion, self.part = point, portion, portion.part
        self.topology, self.turn = point.topology, turn
        self.advanced = self.part.advanced
        self.ragged = [axis for axis in self.advanced if self._is_ragged(axis)]
        self.now: dict[str, Number] = {}
        self.bases: dict[str, tuple[Number, Number]] = {}
        self.before: dict[str, Number] = {}
        self.weight: Number = 1

    def total(self) -> Sizes:
        """The sums over all positions of the elements along the part's dimensions."""
        topology, turn, tensor = self.topology, self.turn, self.portion.tensor
        for axis in self.advanced:
            self._first(axis, self._extent(axis, turn.where, self._at_now))
        now = before = common = self.weight
        for dim in self.part.dims:
            low, high = topology.side(turn.where, tensor, dim, self._at_now, self._inside)
            now = now * greatest(high - low, 0)
            other_low, other_high = topology.side(turn.last, tensor, dim, self._at_before, self._inside)
            before = before * greatest(other_high - other_low, 0)
            common = common * greatest(least(high, other_high) - greatest(low, other_low), 0)
        return Sizes(self._summed(now), self._summed(before), self._summed(common))

    def _summed(self, sizes: Number) -> Number:
        if not self.ragged:
            return sizes
        array = np.asarray(sizes)
        total = array.sum(axis=tuple(range(1, array.ndim))) if array.ndim > 1 else array
        return total if self.point.in_batch or not array.ndim else int(total[0])

    # Axes

    def _is_ragged(self, axis: str) -> bool:
        """Whether steps of an axis are clipped, or differ for another reason."""
        if self.part.enumerated or axis in self.topology.cut:
            return True
        return not all(self.point.even(path, axis) for path in (self.turn.where, self.turn.last))

    def _extent(self, axis: str, path: Path, at: Any) -> Number:
        if axis not in self.topology.cut:
            return self.topology.extents[axis]
        span = self.topology.span(*self.topology.cut[axis], path, at, self._inside)
        return greatest(span[1] - span[0], 0)

    def _lift(self, value: Number) -> Number:
        """A value per tree, with dimensions for the classes."""
        if isinstance(value, np.ndarray) and value.ndim == 1 and self.ragged:
            return value.reshape((-1, *(1 for _ in self.ragged)))
        return value

    def _along(self, axis: str, values: Any) -> Number:
        """Classes of an axis along its dimension."""
        shape = [1] * (1 + len(self.ragged))
        shape[1 + self.ragged.index(axis)] = -1
        return np.asarray(values, dtype=np.int64).reshape(shape)

    def _inside(self, op: str, axis: str, path: Path) -> Number:
        return self._lift(self.point.inside(op, axis, path))

    def _at_now(self, axis: str, extent: Number) -> Number:
        if axis in self.advanced and axis not in self.now:
            self._first(axis, extent)
        return self.now.get(axis, 0)

    def _first(self, axis: str, extent: Number) -> None:
        """The first values of an axis after the turn, and how often each occurs."""
        if axis in self.now:
            return
        turn, point = self.turn, self.point
        stand = turn.stands.get(axis, 0)
        digits = point.digits(self.portion.steps[axis].digits(stand))
        loops = self.topology.along(turn.where, axis)
        outer = [loop for loop in loops if loop in turn.shared or loop is turn.advancing]
        advances = stand % 2 == 1
        stride = self._lift(point.strides[outer[-1]]) if outer else None
        offset: Number = 0
        block: Number = 1 if advances else 0
        if axis not in self.ragged:
            self.weight = self.weight * self._lift(count_all(digits))
        else:
            digits = [(self._lift(factor), self._lift(step), steps) for factor, step, steps in digits]
            inner = [
                range(int(np.max(factor)) if steps == "all" else 1)
                for loop, (factor, _, steps) in zip(loops, digits, strict=True)
                if loop.spatial and loop not in outer
            ]
            strides = [self._lift(point.strides[loop]) for loop in loops if loop.spatial and loop not in outer]
            factors = [self._lift(point.factors[loop]) for loop in loops if loop.spatial and loop not in outer]
            head = digits[: len(outer)]
            blocks = steps_of(head, stride, extent)
            kinds = range(int(np.max(blocks))) if self.part.enumerated else range(3)
            classes = list(product(kinds, *inner))
            kind = self._along(axis, [c[0] for c in classes])
            runs: Number = True
            for number, (step, factor) in enumerate(zip(strides, factors, strict=True)):
                unit = self._along(axis, [c[1 + number] for c in classes])
                offset, runs = offset + unit * step, runs & (unit < factor)
            if self.part.enumerated:
                block, often = kind, is_block_counted(kind, stride, head) & (kind < blocks)
            else:
                last = blocks - 1
                block = np.where(kind == 2, last, kind)
                at_first = 1 * is_block_counted(0, stride, head)
                at_last = (last > 0) & is_block_counted(last, stride, head)
                between = count_up_to(extent - 1, head) - at_first - at_last
                often = np.where(kind == 0, at_first, np.where(kind == 1, between, at_last))
            first = (0 if stride is None else block * stride) + offset
            self.weight = self.weight * (often * runs * (first < extent))
        base: Number = 0
        before: Number = 0
        if stride is not None:
            base = block * stride
            before = base - stride if advances else base
        self.now[axis] = base + offset
        self.bases[axis] = (before, offset)

    def _at_before(self, axis: str, extent: Number) -> Number:
        """The values of an axis before the turn: its inner loops were at their last steps."""
        if axis not in self.advanced:
            return 0
        if axis not in self.before:
            turn, point = self.turn, self.point
            base, offset = self.bases[axis]
            loops = self.topology.along(turn.where, axis)
            outer = [loop for loop in loops if loop in turn.shared or loop is turn.advancing]
            end = extent
            if outer:
                end = least(end, base + self._lift(point.strides[outer[-1]]))
            rest = end - 1 - base - offset
            place = base + offset
            for loop in self.topology.along(turn.last, axis):
                if not loop.spatial and loop not in outer:
                    size = self._lift(point.strides[loop])
                    step = least(self._lift(point.factors[loop]) - 1, greatest(rest, 0) // size)
                    place, rest = place + step * size, rest - step * size
            self.before[axis] = place
        return self.before[axis]
