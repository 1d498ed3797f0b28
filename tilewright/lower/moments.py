"""Sum and squared deviations of a row in one pass: a running mean and running squares per lane, merged at its end."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter
from tilewright.lower.builder import KernelBuilder


class RunningMoments:
    """What one pass carries: steps so far, mean and squares per lane; mean and squares of a ragged last step.

    `points` are those of the row, `lanes` those of a whole step.
    """

    def __init__(self, builder: KernelBuilder, dtype: str, points: int, lanes: int) -> None:
        self.builder, self.dtype, self.lanes = builder, dtype, lanes
        self.steps, self.ragged = divmod(points, lanes)

    def start(self) -> list[SSAValue]:
        zero = self._number(0)
        lanes = self._spread(zero, self.lanes)
        return [zero, lanes, lanes, *([zero, zero] if self.ragged else [])]

    def step(self, emitter: BodyEmitter, value: SSAValue, carried: Sequence[SSAValue]) -> list[SSAValue]:
        """Take in the values of one step."""
        steps, mean, squares, *tail = carried
        if emitter.extents != (self.lanes,) or emitter.bounds:
            return [steps, mean, squares, *self._ragged(emitter, value)]
        steps = self._add(steps, self._number(1))
        share = self._spread(self._divide(self._number(1), steps), self.lanes)
        before = self._subtract(value, mean)
        mean = self._add(mean, self._multiply(before, share))
        squares = self._add(squares, self._multiply(before, self._subtract(value, mean)))
        return [steps, mean, squares, *tail]

    def finish(self, carried: Sequence[SSAValue]) -> tuple[SSAValue, SSAValue]:
        """The sum of the row, and its squared deviations from the mean."""
        _, means, squares, *tail = carried
        mean = self._divide(self._sum(means), self._number(self.lanes))
        apart = self._subtract(means, self._spread(mean, self.lanes))
        between = self._multiply(self._sum(self._multiply(apart, apart)), self._number(self.steps))
        total = self._add(self._sum(squares), between)
        whole = self.steps * self.lanes
        points = whole + self.ragged
        if self.ragged:
            tail_mean, tail_squares = tail
            apart = self._subtract(tail_mean, mean)
            mean = self._add(mean, self._multiply(apart, self._number(self.ragged / points)))
            between = self._multiply(self._multiply(apart, apart), self._number(whole * self.ragged / points))
            total = self._add(self._add(total, tail_squares), between)
        return self._multiply(mean, self._number(points)), total

    def _ragged(self, emitter: BodyEmitter, value: SSAValue) -> list[SSAValue]:
        """Mean and squares of the last step, which holds fewer points than the others, maybe fewer than its lanes."""
        (lanes,) = emitter.extents
        inside: SSAValue | None = None
        if emitter.bounds:
            numbers = self.builder.insert(tile.IotaOp((lanes,), 0))
            bound = self._spread(self.builder.as_i64(emitter.bounds[0]), lanes)
            inside = self.builder.insert(tile.CompareOp("lt", numbers, bound))
        neutral = self._spread(self._number(0), lanes)

        def masked(lane: SSAValue) -> SSAValue:
            return lane if inside is None else self.builder.insert(tile.SelectOp(inside, lane, neutral))

        mean = self._divide(self._sum(masked(value)), self._number(self.ragged))
        apart = self._subtract(value, self._spread(mean, lanes))
        return [mean, self._sum(masked(self._multiply(apart, apart)))]

    def _number(self, value: float) -> SSAValue:
        return self.builder.number(float(value), self.dtype)

    def _spread(self, scalar: SSAValue, lanes: int) -> SSAValue:
        return self.builder.insert(tile.BroadcastOp(scalar, (lanes,)))

    def _sum(self, lanes: SSAValue) -> SSAValue:
        one = self.builder.insert(tile.ReduceOp("sum", lanes, 0, False))
        return self.builder.insert(tile.ReshapeOp(one, ()))

    def _add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.builder.insert(arith.AddfOp(a, b))

    def _subtract(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.builder.insert(arith.SubfOp(a, b))

    def _multiply(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.builder.insert(arith.MulfOp(a, b))

    def _divide(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.builder.insert(arith.DivfOp(a, b))
