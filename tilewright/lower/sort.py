"""The positions of the elements of a row in sorted order.

Elements become *keys*: unsigned integers whose order is that of the elements, -0 as 0 and NaN above all; for descending
order their complements. Equal keys keep their order in both ways to sort:

*Counting*, for short rows: the place of an element is how many go before it. All places are counted at once, in vector
registers, for one key after the other.

*By digits*, in linear time: each pass moves keys and positions to where the counts of a digit say, from the lowest
digit to the highest, between two halves of a buffer. A digit that all keys share needs no pass.

Where few elements of a longer row are wanted, these are selected first (`selection.py`), and only they are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.dtypes import INDEX
from tilewright.expr.ordered import Sort
from tilewright.expr.rewrite import substitute
from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter, Value, computed_in
from tilewright.lower.builder import KernelBuilder, element_type, view_type
from tilewright.lower.loops import Point, TileAxis
from tilewright.lower.selection import Selection
from tilewright.lower.sort_keys import key_type, sort_key
from tilewright.operator.ordered import base_address
from tilewright.operator.ordered_tree import OrderedTree
from tilewright.operator.sorting import DIGIT_BITS, method_of
from tilewright.tiles.kernel import Statement

_VECTORS = 4  # of a row in one step
_DIGITS = 1 << DIGIT_BITS


class RowSort:
    """Sorts one row per outer point, in scratch memory that all rows of a program share."""

    def __init__(
        self,
        builder: KernelBuilder,
        statement: Statement,
        accum: Sort,
        tree: OrderedTree,
        memory: Mapping[str, SSAValue],
    ) -> None:
        self.builder, self.statement, self.memory = builder, statement, memory
        self.method, self.descending = method_of(tree), accum.descending
        (self.inner,), ((self.wanted, self.stride),) = statement.reduce, statement.dims
        self.count, self.lanes = self.inner.size, tree.lanes
        dtype = computed_in(statement.body.dtype)
        self.key = key_type(dtype)
        self.bits = dtypes.bits(self.key)
        self.chunk = self.lanes * _VECTORS
        self.passes = self.bits // DIGIT_BITS
        self.sorted = self.wanted if self.method.selected else self.count
        row, kept = (-(-count // self.lanes) * self.lanes for count in (self.count, self.sorted + 1))
        self.whole = self.method.counted and not self.method.selected  # the row is in vector registers, all at once
        self.width = row if self.whole else self.chunk
        self.half = row if self.method.selected else self.count  # where the second half of the buffers begins
        length = row if self.whole else self.half + kept
        self.keys = self._scratch(self.key, length)
        self.positions = self._scratch("i32", length)
        if not self.method.counted:
            self.counts = self._scratch("i32", self.passes * _DIGITS)

    def run(self, point: Point) -> None:
        """Write the positions of the first elements in order."""
        self.point = point
        builder = self.builder
        first = builder.index(0)
        if self.method.selected:
            selection = Selection(
                builder, self.keys, self.positions, self.key, self.half, self.wanted, self.lanes, self.chunk
            )
            selection.clear_padding()
            self._write_keys()
            selection.run()
            first = builder.index(self.half)
        else:
            self._write_keys()
        if self.method.counted:
            self._count(first)
            return
        if not self.method.selected:
            self._number()
        self._write_positions(self._sort_by_digits(first))

    # Keys -----------------------------------------------------------------------------------------------------

    def _write_keys(self) -> None:
        """The keys of the row, in the first half of the buffer."""

        def step(start: SSAValue, extent: int, bound: int) -> None:
            builder = self.builder
            counter, inside = TileAxis("chunk", self.count), TileAxis("element", extent)
            where = {**self.point.replaced, self.inner: counter + inside}
            bounds = {0: builder.index(bound)} if bound != extent else {}
            loops = {**self.point.counters, counter: start}
            emitter = BodyEmitter(builder, self.memory, loops, {inside: 0}, (extent,), bounds, branches=True)
            value = emitter.emit(substitute(self.statement.body, where))
            key = sort_key(builder, Value(emitter.full(value), value.dtype), self.descending)
            stop = [] if self.whole else [*bounds.values()]
            builder.insert(tile.StoreOp(key, self.keys, start, [1], stop))

        self._chunks(self.count, step)

    def _chunks(self, count: int, step: Callable[[SSAValue, int, int], None]) -> None:
        """Whole chunks of `count` elements, then the rest: `step` gets the first element, the extent, the bound."""
        builder, width = self.builder, self.width
        full, rest = divmod(count, width)

        def whole(index: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
            step(builder.mul(index, builder.index(width)), width, width)
            return []

        if full:
            builder.loop(builder.index(0), builder.index(full), whole)
        if rest:
            step(builder.index(full * width), -(-rest // self.lanes) * self.lanes, rest)

    # Counting -------------------------------------------------------------------------------------------------

    def _count(self, first: SSAValue) -> None:
        """Write the positions of the keys from `first` on in their order; those of selected keys are beside them."""
        builder, width = self.builder, -(-self.sorted // self.lanes) * self.lanes
        stop = [] if self.whole or width == self.sorted else [builder.index(self.sorted)]
        keys = builder.insert(tile.LoadOp(self.keys, first, [width], [1], stop))
        narrow = element_type("i32")
        numbers = builder.insert(tile.CastOp(builder.insert(tile.IotaOp([width], 0)), narrow))
        zeros = builder.insert(tile.BroadcastOp(builder.number(0, "i32"), [width]))

        def step(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            """Add one to the places of all elements that this one goes before."""
            one = builder.insert(tile.BroadcastOp(self._load(self.keys, builder.add(first, index)), [width]))
            mine = builder.insert(tile.CastOp(builder.as_i64(index), narrow))
            mine = builder.insert(tile.BroadcastOp(mine, [width]))
            below = builder.insert(tile.CompareOp("lt", one, keys, unsigned=True))
            equal = builder.insert(tile.CompareOp("eq", one, keys))
            earlier = builder.insert(tile.CompareOp("lt", mine, numbers))
            before = builder.insert(arith.OrIOp(below, builder.insert(arith.AndIOp(equal, earlier))))
            added = builder.insert(tile.CastOp(before, narrow, unsigned=True))
            return [builder.insert(arith.AddiOp(carried[0], added))]

        (places,) = builder.loop(builder.index(0), builder.index(self.sorted), step, [zeros])
        builder.insert(tile.StoreOp(places, self.positions, builder.index(0), [1]))
        base = self._base()

        def write(index: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
            place = self._index(self._load(self.positions, index))

            def store() -> None:
                at = builder.add(base, builder.mul(place, builder.index(self.stride)))
                found = builder.as_i64(index)
                if self.method.selected:
                    found = builder.as_i64(self._index(self._load(self.positions, builder.add(first, index))))
                builder.insert(tile.StoreOp(found, self.memory[self.statement.tensor.name], at))

            if self.wanted == self.sorted:
                store()
            else:
                limit = builder.number(self.wanted, INDEX)
                builder.branch(builder.insert(tile.CompareOp("lt", builder.as_i64(place), limit)), store)
            return []

        builder.loop(builder.index(0), builder.index(self.sorted), write)

    # By digits ------------------------------------------------------------------------------------------------

    def _number(self) -> None:
        """The positions of the row in the first half of the buffer: 0, 1, …"""

        def step(start: SSAValue, extent: int, bound: int) -> None:
            builder = self.builder
            first = builder.insert(tile.BroadcastOp(builder.as_i64(start), [extent]))
            numbers = builder.insert(arith.AddiOp(first, builder.insert(tile.IotaOp([extent], 0))))
            stored = builder.insert(tile.CastOp(numbers, element_type("i32")))
            bounds = [builder.index(bound)] if bound != extent else []
            builder.insert(tile.StoreOp(stored, self.positions, start, [1], bounds))

        self._chunks(self.count, step)

    def _sort_by_digits(self, first: SSAValue) -> SSAValue:
        """Sort keys and positions from `first` on; gives where they are then."""
        builder, zero, count = self.builder, self.builder.index(0), self.builder.index(self.sorted)
        self._clear(self.passes * _DIGITS)

        def tally(index: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
            key = self._load(self.keys, builder.add(first, index))
            for number in range(self.passes):
                digit = self._digit(key, number * DIGIT_BITS, DIGIT_BITS)
                self._increment(builder.add(digit, builder.index(number * _DIGITS)))
            return []

        builder.loop(zero, count, tally)
        source = first
        for number in range(self.passes):
            source = self._pass(number, source)
        return source

    def _pass(self, number: int, source: SSAValue) -> SSAValue:
        """Sort by one digit from one half of the buffer to the other, unless all keys have the same."""
        builder, zero, count = self.builder, self.builder.index(0), self.builder.index(self.sorted)
        base = builder.index(number * _DIGITS)
        target = builder.insert(arith.SubiOp(builder.index(self.half), source))

        def digit_of(key: SSAValue) -> SSAValue:
            return builder.add(base, self._digit(key, number * DIGIT_BITS, DIGIT_BITS))

        def begin(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            """From how many keys have a digit to where the first of them goes."""
            place = builder.add(base, index)
            here = self._load(self.counts, place)
            builder.insert(tile.StoreOp(carried[0], self.counts, place))
            return [builder.insert(arith.AddiOp(carried[0], here))]

        def move(index: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
            at = builder.add(source, index)
            key, position = self._load(self.keys, at), self._load(self.positions, at)
            goes = builder.add(target, self._index(self._increment(digit_of(key))))
            builder.insert(tile.StoreOp(key, self.keys, goes))
            builder.insert(tile.StoreOp(position, self.positions, goes))
            return []

        def moved() -> list[SSAValue]:
            builder.loop(zero, builder.index(_DIGITS), begin, [builder.number(0, "i32")])
            builder.loop(zero, count, move)
            return [target]

        common = self._index(self._load(self.counts, digit_of(self._load(self.keys, source))))
        shared = builder.insert(tile.CompareOp("eq", builder.as_i64(common), builder.as_i64(count)))
        return builder.either(shared, lambda: [source], moved)[0]

    def _write_positions(self, source: SSAValue) -> None:
        base = self._base()

        def step(start: SSAValue, extent: int, bound: int) -> None:
            builder = self.builder
            bounds = [builder.index(bound)] if bound != extent else []
            at = builder.add(source, start)
            loaded = builder.insert(tile.LoadOp(self.positions, at, [extent], [1], bounds))
            wide = builder.insert(tile.CastOp(loaded, element_type(INDEX), unsigned=True))
            place = builder.add(base, builder.mul(start, builder.index(self.stride)))
            view = self.memory[self.statement.tensor.name]
            builder.insert(tile.StoreOp(wide, view, place, [self.stride], bounds))

        self._chunks(self.wanted, step)

    # Parts ----------------------------------------------------------------------------------------------------

    def _scratch(self, dtype: dtypes.DType, length: int) -> SSAValue:
        return self.builder.insert(tile.AllocOp(view_type(dtype, length)))

    def _base(self) -> SSAValue:
        """Where the result of this row begins."""
        form = affine(substitute(base_address(self.statement), self.point.replaced))
        assert form is not None, "the address of a result is affine"
        return self.builder.affine(form, self.point.counters)

    def _load(self, view: SSAValue, place: SSAValue) -> SSAValue:
        return self.builder.insert(tile.LoadOp(view, place))

    def _index(self, value: SSAValue) -> SSAValue:
        """An unsigned integer as an index."""
        if value.type != element_type(INDEX):
            value = self.builder.insert(tile.CastOp(value, element_type(INDEX), unsigned=True))
        return self.builder.as_index(value)

    def _digit(self, key: SSAValue, shift: int, bits: int) -> SSAValue:
        """`bits` bits of a key from `shift` on, as an index."""
        if shift:
            key = self.builder.insert(arith.ShRUIOp(key, self.builder.number(shift, self.key)))
        if shift + bits < self.bits:
            key = self.builder.insert(arith.AndIOp(key, self.builder.number((1 << bits) - 1, self.key)))
        return self._index(key)

    def _increment(self, place: SSAValue) -> SSAValue:
        """Add one to a count; gives what it was."""
        before = self._load(self.counts, place)
        after = self.builder.insert(arith.AddiOp(before, self.builder.number(1, "i32")))
        self.builder.insert(tile.StoreOp(after, self.counts, place))
        return before

    def _clear(self, count: int) -> None:
        """Set the first counts to 0."""
        builder = self.builder

        def step(index: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
            zeros = builder.insert(tile.BroadcastOp(builder.number(0, "i32"), [self.chunk]))
            builder.insert(tile.StoreOp(zeros, self.counts, builder.mul(index, builder.index(self.chunk)), [1]))
            return []

        assert count % self.chunk == 0, f"{count} counts in chunks of {self.chunk}"
        builder.loop(builder.index(0), builder.index(count // self.chunk), step)
