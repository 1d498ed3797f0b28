"""The few smallest elements of many rows, rows side by side in the lanes of vectors.

The keys and positions of the smallest elements so far are kept in order in vector registers, a vector of rows for each
place. An element is compared with each of them from the smallest on. It takes the place of the first one that is not
smaller, and that one goes on to the next place. Elements that come before the last place in no row are passed over.
Elements are taken from the last one of a row to the first: so equal ones keep their order, and each goes before the
largest keys, with which the places begin.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.expr.affine import affine
from tilewright.expr.dtypes import INDEX
from tilewright.expr.ordered import Sort
from tilewright.expr.rewrite import substitute
from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter, Value, computed_in
from tilewright.lower.builder import KernelBuilder, element_type, view_type
from tilewright.lower.loops import Point, TileAxis
from tilewright.lower.sort_keys import key_type, sort_key
from tilewright.operator.ordered import base_address
from tilewright.operator.ordered_tree import OrderedTree
from tilewright.tiles.kernel import Statement


class Insertion:
    """Sorts the rows of one tile of outer points; chunks of the rows' keys go through scratch memory, transposed."""

    def __init__(
        self,
        builder: KernelBuilder,
        statement: Statement,
        accum: Sort,
        tree: OrderedTree,
        memory: Mapping[str, SSAValue],
    ) -> None:
        self.builder, self.statement, self.memory, self.descending = builder, statement, memory, accum.descending
        (self.inner,), ((self.wanted, self.stride),) = statement.reduce, statement.dims
        assert tree.vector is not None, "rows are lanes"
        rows, lanes = tree.vector.quantum, tree.lanes
        self.key = key_type(computed_in(statement.body.dtype))
        self.chunk = min(lanes, self.inner.size)
        self.keys = builder.insert(tile.AllocOp(view_type(self.key, self.chunk * rows)))

    def run(self, point: Point) -> None:
        """Write the positions of the first elements of each row in order."""
        builder = self.builder
        (self.rows,) = point.extents
        largest = builder.insert(tile.BroadcastOp(builder.number(-1, self.key), [self.rows]))
        nowhere = builder.insert(tile.BroadcastOp(builder.number(0, "i32"), [self.rows]))
        size, chunk, zero = self.inner.size, self.chunk, builder.index(0)

        def step(number: SSAValue, kept: list[SSAValue]) -> list[SSAValue]:
            """Take one chunk of the elements; the chunk at the front of the row overlaps the one behind it."""
            end = builder.insert(arith.SubiOp(builder.index(size), builder.mul(number, builder.index(chunk))))
            start = builder.insert(arith.MaxSIOp(builder.insert(arith.SubiOp(end, builder.index(chunk))), zero))
            self._write_keys(point, start)
            last = builder.insert(arith.SubiOp(builder.insert(arith.SubiOp(end, start)), builder.index(1)))

            def take(index: SSAValue, kept: list[SSAValue]) -> list[SSAValue]:
                return self._insert(start, builder.insert(arith.SubiOp(last, index)), kept)

            return builder.loop(zero, builder.add(last, builder.index(1)), take, kept)

        begin = [largest] * self.wanted + [nowhere] * self.wanted
        kept = builder.loop(zero, builder.index(-(-size // chunk)), step, begin)
        self._write_positions(point, kept[self.wanted :])

    def _write_keys(self, point: Point, start: SSAValue) -> None:
        """The keys of one chunk of elements, those of all rows side by side for each."""
        counter, inside = TileAxis("chunk", self.inner.size), TileAxis("element", self.chunk)
        where = {**point.replaced, self.inner: counter + inside}
        extents = (self.chunk, self.rows)
        bounds = {dim + 1: bound for dim, bound in point.bounds.items()}
        dims = {inside: 0, point.dims[0]: 1}
        emitter = BodyEmitter(
            self.builder, self.memory, {**point.counters, counter: start}, dims, extents, bounds, branches=True
        )
        value = emitter.emit(substitute(self.statement.body, where))
        key = sort_key(self.builder, Value(emitter.full(value), value.dtype), self.descending)
        self.builder.insert(tile.StoreOp(key, self.keys, self.builder.index(0), [self.rows, 1]))

    def _insert(self, start: SSAValue, index: SSAValue, kept: list[SSAValue]) -> list[SSAValue]:
        """Keep one element of each row, or what it displaces, if it is among the smallest."""
        builder, width = self.builder, [self.rows]
        place = builder.mul(index, builder.index(self.rows))
        key = builder.insert(tile.LoadOp(self.keys, place, width, [1]))
        number = builder.insert(tile.CastOp(builder.as_i64(builder.add(start, index)), element_type("i32")))
        position = builder.insert(tile.BroadcastOp(number, width))
        first = builder.insert(tile.CompareOp("le", key, kept[self.wanted - 1], unsigned=True))
        some = builder.insert(tile.ReshapeOp(builder.insert(tile.ReduceOp("max", first, 0, unsigned=True)), ()))
        return builder.either(some, lambda: self._displace(key, position, kept), lambda: kept)

    def _displace(self, key: SSAValue, position: SSAValue, kept: list[SSAValue]) -> list[SSAValue]:
        builder = self.builder
        keys, positions = list[SSAValue](), list[SSAValue]()
        for there, at in zip(kept[: self.wanted], kept[self.wanted :], strict=True):
            first = builder.insert(tile.CompareOp("le", key, there, unsigned=True))
            keys.append(builder.insert(arith.MinUIOp(key, there)))
            positions.append(builder.insert(tile.SelectOp(first, position, at)))
            key = builder.insert(arith.MaxUIOp(key, there))
            position = builder.insert(tile.SelectOp(first, at, position))
        return [*keys, *positions]

    def _write_positions(self, point: Point, positions: list[SSAValue]) -> None:
        dims = {axis: dim for dim, axis in enumerate(point.dims)}
        emitter = BodyEmitter(self.builder, self.memory, point.counters, dims, point.extents, point.bounds)
        form = affine(substitute(base_address(self.statement), point.replaced))
        assert form is not None, "the address of a result is affine"
        view, base = self.memory[self.statement.tensor.name], self.builder.affine(form, point.counters)
        for number, found in enumerate(positions):
            wide = self.builder.insert(tile.CastOp(found, element_type(INDEX), unsigned=True))
            place = self.builder.add(base, self.builder.index(number * self.stride))
            emitter.store_at(Value(wide, INDEX), view, place, form, INDEX)
