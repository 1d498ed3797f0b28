"""Prefix scans: one element of a row, or of a vector of rows, after the other; or neighbours in a row at once.

Totals of f32 are carried in f64: one addition after the other would lose a digit in some thousand elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, identity
from tilewright.expr.ordered import PrefixScan
from tilewright.expr.rewrite import substitute
from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter, Value, combine, computed_in
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Point, TileAxis
from tilewright.operator.ordered import base_address
from tilewright.operator.ordered_tree import OrderedTree
from tilewright.tiles.kernel import Statement


class _Scan:
    """The rows of one tile of outer points."""

    def __init__(
        self,
        builder: KernelBuilder,
        statement: Statement,
        accum: PrefixScan,
        tree: OrderedTree,
        memory: Mapping[str, SSAValue],
    ) -> None:
        self.builder, self.statement, self.accum, self.memory = builder, statement, accum, memory
        (self.inner,), ((_, self.stride),) = statement.reduce, statement.dims
        self.lanes = tree.neighbours
        dtype = computed_in(statement.tensor.dtype)
        self.carried = "f64" if dtype == "f32" and accum.combine in ("sum", "prod") else dtype
        self.nothing = builder.number(identity(accum.combine, self.carried).value, self.carried)

    def _value(self, emitter: BodyEmitter, where: Mapping[Axis, Expr]) -> SSAValue:
        value = emitter.cast(emitter.emit(substitute(self.statement.body, where)), self.carried)
        return emitter.full(value) if emitter.extents else value.ssa

    def _store(self, emitter: BodyEmitter, stored: SSAValue, where: Mapping[Axis, Expr], shift: int = 0) -> None:
        """Write to the places of elements, or of those `shift` further on."""
        tensor = self.statement.tensor
        address = substitute(base_address(self.statement) + (self.inner + shift) * self.stride, where)
        emitter.store(Value(stored, self.carried), self.memory[tensor.name], address, tensor.dtype)

    def _combine(self, total: SSAValue, value: SSAValue) -> SSAValue:
        return combine(self.accum.combine, self.builder, Value(total, self.carried), Value(value, self.carried)).ssa


class ElementScan(_Scan):
    """A row or a vector of rows with a total each, one element of each row after the other."""

    def run(self, point: Point) -> None:
        """Write the prefixes of all rows."""
        builder = self.builder
        start = builder.insert(tile.BroadcastOp(self.nothing, point.extents)) if point.extents else self.nothing

        def step(index: SSAValue, totals: list[SSAValue]) -> list[SSAValue]:
            return [self._step(point, index, totals[0])]

        builder.loop(builder.index(0), builder.index(self.inner.size), step, [start])

    def _step(self, point: Point, index: SSAValue, total: SSAValue) -> SSAValue:
        """Take one element and store one total; gives the next."""
        counter = TileAxis(f"{self.inner.name}.t", self.inner.extent)
        place: Expr = (counter * -1 + (self.inner.size - 1)) if self.accum.reverse else counter
        where = {**point.replaced, self.inner: place}
        dims = {axis: dim for dim, axis in enumerate(point.dims)}
        loops = {**point.counters, counter: index}
        emitter = BodyEmitter(self.builder, self.memory, loops, dims, point.extents, point.bounds, branches=True)
        added = self._combine(total, self._value(emitter, where))
        self._store(emitter, total if self.accum.exclusive else added, where)
        return added


class ChunkScan(_Scan):
    """A vector of neighbours in a row after the other: only their total waits for the one before.

    An exclusive scan is an inclusive one of all elements but one, whose results are stored one place further on.
    """

    def run(self, point: Point) -> None:
        """Write the prefixes of the row."""
        builder, lanes, reverse = self.builder, self.lanes, self.accum.reverse
        size = self.inner.size
        first, count = (int(reverse), size - 1) if self.accum.exclusive else (0, size)
        full, rest = divmod(count, lanes)
        if self.accum.exclusive:
            self._store_nothing(point, size - 1 if reverse else 0)

        def step(index: SSAValue, totals: list[SSAValue]) -> list[SSAValue]:
            start = builder.mul(index, builder.index(-lanes if reverse else lanes))
            start = builder.add(start, builder.index(first + count - lanes if reverse else 0))
            return [self._chunk(point, start, lanes, totals[0])]

        totals = [self.nothing]
        if full:
            totals = builder.loop(builder.index(0), builder.index(full), step, totals)
        if rest:
            self._chunk(point, builder.index(first if reverse else full * lanes), rest, totals[0])

    def _chunk(self, point: Point, start: SSAValue, bound: int, total: SSAValue) -> SSAValue:
        """Store the prefixes of `bound` elements from `start` on; gives the total behind them."""
        builder, lanes, reverse = self.builder, self.lanes, self.accum.reverse
        counter, inside = TileAxis("chunk", self.inner.size), TileAxis("element", lanes)
        where = {**point.replaced, self.inner: counter + inside}
        bounds = {0: builder.index(bound)} if bound < lanes else {}
        loops = {**point.counters, counter: start}
        emitter = BodyEmitter(builder, self.memory, loops, {inside: 0}, (lanes,), bounds, branches=True)
        value = self._value(emitter, where)
        if bounds:
            limit = builder.insert(tile.BroadcastOp(builder.as_i64(bounds[0]), [lanes]))
            exists = builder.insert(tile.CompareOp("lt", builder.insert(tile.IotaOp([lanes], 0)), limit))
            nothing = builder.insert(tile.BroadcastOp(self.nothing, [lanes]))
            value = builder.insert(tile.SelectOp(exists, value, nothing))
        without_sign = self.carried == "bool" or dtypes.is_unsigned(self.carried)
        scan = tile.ScanOp(self.accum.combine, value, reverse, without_sign)
        builder.insert(scan)
        prefix = self._combine(builder.insert(tile.BroadcastOp(total, [lanes])), scan.prefix)
        shift = (-1 if reverse else 1) if self.accum.exclusive else 0
        self._store(emitter, prefix, where, shift)
        return self._combine(total, scan.total)

    def _store_nothing(self, point: Point, place: int) -> None:
        """Write the identity of the accumulation to one place."""
        counter = TileAxis("chunk", 1)
        loops = {**point.counters, counter: self.builder.index(place)}
        emitter = BodyEmitter(self.builder, self.memory, loops, {}, ())
        self._store(emitter, self.nothing, {**point.replaced, self.inner: counter})
