"""The few smallest keys of a row, in the order in which they stand there.

The largest threshold with fewer keys below it than are wanted, or as many, is found bit by bit from the highest on: in
vectors, all keys are compared with each candidate, and no more once as many as are wanted lie below. Then those below
the threshold are kept, and the first of those that are equal to it.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.dtypes import INDEX
from tilewright.kernel import dialect as tile
from tilewright.lower.builder import KernelBuilder, element_type


@dataclass(frozen=True)
class Selection:
    """Moves the `wanted` smallest of `count` keys, with their positions, from the first half of a buffer to the second.

    Keys up to `half`, where the second half begins, are all ones behind the row: `count` and `half` differ by less than
    `lanes`. `chunk` keys are compared at once. A key and a position more than are wanted may be written.
    """

    builder: KernelBuilder
    keys: SSAValue
    positions: SSAValue
    key: dtypes.DType
    half: int
    wanted: int
    lanes: int
    chunk: int

    def clear_padding(self) -> None:
        """Set what is behind the row, and some of the row, to ones, before keys are written."""
        builder = self.builder
        ones = builder.insert(tile.BroadcastOp(builder.number(-1, self.key), [self.lanes]))
        builder.insert(tile.StoreOp(ones, self.keys, builder.index(self.half - self.lanes), [1]))

    def run(self) -> None:
        """Select from keys that are written."""
        threshold, left = self._threshold()
        self._keep(threshold, left)

    def _threshold(self) -> tuple[SSAValue, SSAValue]:
        """The threshold, and how many equal to it are wanted."""
        builder = self.builder
        bits, wanted = dtypes.bits(self.key), builder.number(self.wanted, "i32")

        def step(_: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            threshold, bit, below = carried
            done = builder.insert(tile.CompareOp("eq", below, wanted))

            def tried() -> list[SSAValue]:
                candidate = builder.insert(arith.OrIOp(threshold, bit))
                count = self._below(candidate)
                few = builder.insert(tile.CompareOp("le", count, wanted))
                return [
                    builder.insert(tile.SelectOp(few, candidate, threshold)),
                    builder.insert(tile.SelectOp(few, count, below)),
                ]

            threshold, below = builder.either(done, lambda: [threshold, below], tried)
            return [threshold, builder.insert(arith.ShRUIOp(bit, builder.number(1, self.key))), below]

        start = [builder.number(0, self.key), builder.number(1 << (bits - 1), self.key), builder.number(0, "i32")]
        threshold, _, below = builder.loop(builder.index(0), builder.index(bits), step, start)
        return threshold, builder.insert(arith.SubiOp(wanted, below))

    def _below(self, candidate: SSAValue) -> SSAValue:
        """How many keys are smaller than a candidate."""
        builder = self.builder
        full, rest = divmod(self.half, self.chunk)

        def counted(start: SSAValue, extent: int) -> SSAValue:
            keys = builder.insert(tile.LoadOp(self.keys, start, [extent], [1]))
            limit = builder.insert(tile.BroadcastOp(candidate, [extent]))
            smaller = builder.insert(tile.CompareOp("lt", keys, limit, unsigned=True))
            return builder.insert(tile.CastOp(smaller, element_type("i32"), unsigned=True))

        def step(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            found = counted(builder.mul(index, builder.index(self.chunk)), self.chunk)
            return [builder.insert(arith.AddiOp(carried[0], found))]

        totals = []
        if full:
            zeros = builder.insert(tile.BroadcastOp(builder.number(0, "i32"), [self.chunk]))
            totals += builder.loop(builder.index(0), builder.index(full), step, [zeros])
        if rest:
            totals.append(counted(builder.index(full * self.chunk), rest))
        sums = [builder.insert(tile.ReshapeOp(builder.insert(tile.ReduceOp("sum", each, 0)), ())) for each in totals]
        return sums[0] if len(sums) == 1 else builder.add(*sums)

    def _keep(self, threshold: SSAValue, left: SSAValue) -> None:
        """Copy what is selected; vectors without any are passed over."""
        builder = self.builder
        limit = builder.insert(tile.BroadcastOp(threshold, [self.lanes]))

        def step(start: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            keys = builder.insert(tile.LoadOp(self.keys, start, [self.lanes], [1]))
            small = builder.insert(tile.CompareOp("le", keys, limit, unsigned=True))
            some = builder.insert(tile.ReshapeOp(builder.insert(tile.ReduceOp("max", small, 0, unsigned=True)), ()))
            end = builder.add(start, builder.index(self.lanes))
            return builder.either(
                some, lambda: builder.loop(start, end, self._keep_one(threshold), carried), lambda: carried
            )

        builder.loop(builder.index(0), builder.index(self.half), step, [builder.index(self.half), left], self.lanes)

    def _keep_one(self, threshold: SSAValue) -> Callable[[SSAValue, list[SSAValue]], list[SSAValue]]:
        builder = self.builder

        def step(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            """Write a key to the next place, which stays the next one if it is not selected."""
            place, left = carried
            key = builder.insert(tile.LoadOp(self.keys, index))
            position = builder.insert(tile.CastOp(builder.as_i64(index), element_type("i32")))
            builder.insert(tile.StoreOp(key, self.keys, place))
            builder.insert(tile.StoreOp(position, self.positions, place))
            below = builder.insert(tile.CompareOp("lt", key, threshold, unsigned=True))
            equal = builder.insert(tile.CompareOp("eq", key, threshold))
            more = builder.insert(tile.CompareOp("gt", left, builder.number(0, "i32")))
            taken = builder.insert(arith.AndIOp(equal, more))
            kept = builder.insert(tile.CastOp(builder.insert(arith.OrIOp(below, taken)), element_type(INDEX), True))
            used = builder.insert(tile.CastOp(taken, element_type("i32"), unsigned=True))
            return [builder.add(place, builder.as_index(kept)), builder.insert(arith.SubiOp(left, used))]

        return step
