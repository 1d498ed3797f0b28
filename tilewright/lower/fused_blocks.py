"""Two products on the blocks of a GPU to one kernel: a loop over tiles of the link between them, which has no memory.

A tile of the link is the result of the first product with its epilogue, perhaps the weights of a softmax whose largest
values run on from tile to tile, and the factor a of the second product. What is summed before a value changes is
multiplied by what `Follows.factor` says. Tiles of which a mask hides every element are left out.
Infinities and NaNs of the second product's other factor do not reach the result from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, i64
from xdsl.ir import SSAValue

from tilewright.expr.core import Axis, Expr, Tensor, identity
from tilewright.expr.hidden import last_seen, without_mask
from tilewright.expr.rewrite import substitute
from tilewright.kernel import dialect as tile
from tilewright.lower.blocks import BlockTile, point_of_block
from tilewright.lower.body import BodyEmitter, Value, combine, computed_in, providing
from tilewright.lower.builder import KernelBuilder, view_type
from tilewright.lower.loops import Point, TileAxis, grid_of
from tilewright.lower.running import farthest
from tilewright.lower.seen import extreme_at, units_seen
from tilewright.operator.fused_blocks import FusedBlocks, fused_blocks
from tilewright.tiles.kernel import AFTER, BEFORE, Kernel, Statement


def lower_fused_blocks(name: str, kernel: Kernel, views: Sequence[tuple[Tensor, int]]) -> tile.FuncOp:
    """The kernel of two products. `views` are its arguments: tensors with the size of their storage in elements."""
    tree = fused_blocks(kernel)
    func = tile.FuncOp(name, [view_type(tensor.dtype, size) for tensor, size in views], grid_of(tree.grid))
    func.attributes["warps"] = DenseArrayBase.from_list(i64, tree.warps)
    func.attributes["stages"] = IntegerAttr(tree.stages, 64)
    builder = KernelBuilder(func.body.block)
    memory = {tensor.name: argument for (tensor, _), argument in zip(views, func.body.block.args, strict=True)}
    _FusedBlocks(builder, tree, memory).run()
    builder.insert(tile.ReturnOp())
    return func


class _FusedBlocks:
    """The tile of one block: both products over all tiles of the link."""

    def __init__(self, builder: KernelBuilder, tree: FusedBlocks, memory: Mapping[str, SSAValue]) -> None:
        self.builder, self.tree, self.memory = builder, tree, memory
        self.link = tree.tiled(tree.link)
        self.rows = point_of_block(builder, tree.grid, self._masked_rows())
        self.reductions = [each for each in tree.rows if each.accum is not None]
        columns = tree.tiled(tree.second.columns)
        self.second = BlockTile(
            builder, tree.second, tree.points, {tree.link.name: self.link.programs}, memory,
            self._beside(columns.axis, columns.quantum, builder.index(0), columns.rest),
        )  # fmt: skip

    def run(self) -> None:
        """Emit the loop, and the store of the result."""
        builder, kept = self.builder, None
        if self.tree.keeps_a:
            kept = self._first(builder.index(0)).factor_a(builder.index(0))
        start = [self.second.zero(), *(self._start(each) for each in self.reductions)]
        sums, *values = builder.loop(
            builder.index(0), self._tiles(), lambda index, carried: self._step(index, carried, kept), start
        )
        second = self.second
        second.finish_at(second.point, second.emitter(), second.shaped(sums), self._named(values))

    def _step(self, index: SSAValue, carried: Sequence[SSAValue], kept: SSAValue | None) -> list[SSAValue]:
        """One tile of the link, and what both products make of it."""
        first, (sums, *before) = self._first(index), carried
        link = self._link(first, _emitter(first), first.shaped(first.sums(kept)), index)
        emitter = _emitter(first)  # one that knows no value of the link yet
        factor, after = link, dict[str, Value]()
        if self.tree.rows:
            factor, after = self._weights(link, self._named(before), emitter)
            sums = self._rescaled(sums, self.tree.second.statements[0], self._named(before), after)
        read = self.tree.second.a.tensor.dtype
        rounded = emitter.full(emitter.cast(factor, read))
        a = self.builder.insert(tile.ReshapeOp(rounded, (first.rows, first.n_extent)))
        return [self.second.add(index, sums, a), *(after[each.name].ssa for each in self.reductions)]

    def _link(self, first: BlockTile, emitter: BodyEmitter, sums: Value, index: SSAValue) -> Value:
        """A tile of the link. Where all rows see all of its elements, and all of these exist, nothing is masked."""
        builder, link, body = self.builder, self.link, first.work.epilogue
        last = last_seen(body, link.axis) if self.tree.rows else None
        whole = body if last is None else without_mask(body, link.axis)
        ends = [builder.index(link.axis.size)] if link.rest else []
        if last is not None and whole != body:
            ends.append(builder.add(extreme_at(builder, last, self.rows, largest=False), builder.index(1)))
        if not ends:
            return first.epilogue_at(first.point, emitter, sums)
        reached = builder.mul(builder.add(index, builder.index(1)), builder.index(link.quantum))
        end = reduce(lambda one, other: builder.insert(arith.MinSIOp(one, other)), ends)
        hides = builder.insert(tile.CompareOp("gt", reached, end))
        dtype = computed_in(first.work.statements[-1].tensor.dtype)

        def part(shown: Expr, masked: bool) -> list[SSAValue]:
            emitter = first.emitter()
            emitter.narrow = True
            emitter.provided = providing({first.work.total.name: sums})
            value = emitter.cast(emitter.emit(substitute(shown, first.point.replaced)), dtype)
            return [emitter.full(self._existing(value, emitter) if masked else value)]

        (value,) = builder.either(hides, lambda: part(body, True), lambda: part(whole, False))
        return Value(value, dtype)

    # Rows of a softmax ----------------------------------------------------------------------------------------------

    def _weights(
        self, link: Value, before: Mapping[str, Value], emitter: BodyEmitter
    ) -> tuple[Value, dict[str, Value]]:
        """The factor of the second product, and the value of every reduction, with the elements of a tile."""
        name = self.tree.first.statements[-1].name
        values, after = {**before, name: link}, dict[str, Value]()
        emitter.provided = providing(values)
        *reductions, weights = self.tree.rows
        for each in reductions:
            assert isinstance(each.accum, str), "sums and extremes of rows"
            total = before[each.name]
            if each.follows is not None:
                total = Value(self._rescaled(total.ssa, each, before, after), total.dtype)
            element = emitter.cast(emitter.emit(each.body), total.dtype)
            inner = len(self.rows.dims)
            part = self.builder.insert(tile.ReduceOp(each.accum, emitter.full(element), inner))
            after[each.name] = combine(each.accum, self.builder, Value(part, total.dtype), total)
            values[each.name] = after[each.name]
        return emitter.emit(weights.body), after

    def _rescaled(
        self, sums: SSAValue, follower: Statement, before: Mapping[str, Value], after: Mapping[str, Value]
    ) -> SSAValue:
        """Sums so far of what follows a value, at the value that it has now."""
        rule = follower.follows
        assert rule is not None, "the rule has seen it"
        assert rule.factor is not None, "the rule has seen it"
        known = {BEFORE: before[rule.reduction], AFTER: after[rule.reduction]}
        emitter = BodyEmitter(self.builder, {}, {}, {}, (), provided=providing(known))
        factor, extents = emitter.emit(rule.factor).ssa, tile.shape(sums)
        if len(tile.shape(factor)) != len(extents):
            factor = self.builder.insert(tile.ReshapeOp(factor, (prod(tile.shape(factor)), 1)))
        wide = factor if tile.shape(factor) == extents else self.builder.insert(tile.BroadcastOp(factor, extents))
        return self.builder.insert(arith.MulfOp(sums, wide))

    def _existing(self, link: Value, emitter: BodyEmitter) -> Value:
        """The link where its loop has ended is the neutral element of the running value, or a factor that adds nothing.

        What the first product's epilogue makes of zeros may be infinite or none of the numbers.
        """
        builder, dim = self.builder, len(self.rows.dims)
        if dim not in emitter.bounds:
            return link
        shape = tuple(extent if d == dim else 1 for d, extent in enumerate(emitter.extents))
        bound = builder.insert(tile.BroadcastOp(builder.as_i64(emitter.bounds[dim]), shape))
        below = builder.insert(tile.CompareOp("lt", builder.insert(tile.IotaOp(shape, dim)), bound))
        inside = emitter.full(Value(below, "bool"))
        accum = self.reductions[0].accum if self.reductions else "sum"
        assert isinstance(accum, str)
        number = builder.number(identity(accum, link.dtype).value, link.dtype)
        neutral = builder.insert(tile.BroadcastOp(number, emitter.extents))
        return Value(builder.insert(tile.SelectOp(inside, emitter.full(link), neutral)), link.dtype)

    def _start(self, reduction: Statement) -> SSAValue:
        """What the value of a reduction of each row begins with."""
        dtype = computed_in(reduction.tensor.dtype)
        number = self.builder.number(farthest(str(reduction.accum), dtype) if reduction.follows is None else 0.0, dtype)
        return self.builder.insert(tile.BroadcastOp(number, (*self.rows.extents, 1)))

    def _named(self, values: Sequence[SSAValue]) -> dict[str, Value]:
        """Values of the rows by the names of their reductions."""
        pairs = zip(self.reductions, values, strict=True)
        return {each.name: Value(value, computed_in(each.tensor.dtype)) for each, value in pairs}

    # Where ----------------------------------------------------------------------------------------------------------

    def _masked_rows(self) -> Axis | None:
        """The fastest loop of the grid, where a mask hides more or less of its tiles."""
        tree, fastest = self.tree, self.tree.grid[-1].axis if self.tree.grid else None
        last = last_seen(tree.first.epilogue, tree.link) if tree.rows else None
        return fastest if fastest is not None and last is not None and last.coefficient(fastest) else None

    def _first(self, index: SSAValue) -> BlockTile:
        """The first product at a tile of the link."""
        tree, link = self.tree, self.link
        point = self._beside(link.axis, link.quantum, index, link.rest)
        return BlockTile(self.builder, tree.first, tree.points, tree.k_tiles, self.memory, point)

    def _beside(self, axis: Axis, quantum: int, number: SSAValue, rest: int) -> Point:
        """The rows of this block at one tile along another loop."""
        builder, rows = self.builder, self.rows
        counter, inside = TileAxis(f"{axis.name}.t", axis.extent), TileAxis(f"{axis.name}.i", quantum)
        bounds = dict(rows.bounds)
        if rest:
            start = builder.mul(number, builder.index(quantum))
            bounds[len(rows.dims)] = builder.insert(arith.SubiOp(builder.index(axis.size), start))
        replaced: dict[Axis, Expr] = {**rows.replaced, axis: counter * quantum + inside}
        counters = {**rows.counters, counter: number}
        return replace(rows, replaced=replaced, counters=counters, dims=(*rows.dims, inside), bounds=bounds)

    def _tiles(self) -> SSAValue:
        """Tiles of the link up to the last one of which some row sees an element, at least one."""
        builder, tree, link = self.builder, self.tree, self.link
        every = builder.index(link.programs)
        last = last_seen(tree.first.epilogue, link.axis) if tree.rows else None
        if last is None:
            return every
        return builder.insert(arith.MinSIOp(units_seen(builder, last, link.quantum, self.rows), every))


def _emitter(tile: BlockTile) -> BodyEmitter:
    """What emits expressions of the elements of a tile."""
    emitter = tile.emitter()
    emitter.contract = emitter.narrow = True
    return emitter
