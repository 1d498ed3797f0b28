"""Ordered accumulations to one kernel: scatters here, prefix scans in `lower.scan`, sorts in `lower.sort`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Tensor, walk
from tilewright.expr.ordered import PrefixScan, Scatter, Sort
from tilewright.expr.rewrite import substitute
from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter, Value, combine
from tilewright.lower.builder import KernelBuilder, view_type
from tilewright.lower.insertion import Insertion
from tilewright.lower.loops import Point, Tiler, grid_of
from tilewright.lower.scan import ChunkScan, ElementScan
from tilewright.lower.sort import RowSort
from tilewright.operator.ordered import base_address, value_and_places
from tilewright.operator.ordered_tree import ordered_tree
from tilewright.operator.sorting import method_of
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.loops import SpatialLoop


def lower_ordered(name: str, kernel: Kernel, views: Sequence[tuple[Tensor, int]]) -> tile.FuncOp:
    """The kernel of an ordered accumulation. `views` are its arguments: tensors with the size of their storage."""
    tree = ordered_tree(kernel)
    statement, lead, trail = tree.statement, tree.lead, tree.trail
    loops = [*lead, *trail]
    func = tile.FuncOp(name, [view_type(tensor.dtype, size) for tensor, size in views], grid_of(loops))
    builder = KernelBuilder(func.body.block)
    memory = {tensor.name: argument for (tensor, _), argument in zip(views, func.body.block.args, strict=True)}
    tiler = Tiler(builder, loops)
    if isinstance(statement.accum, Scatter):
        tiler.visit(lead, _Scatter(builder, statement, statement.accum, memory, tiler, trail).run)
    elif isinstance(statement.accum, Sort):
        sorter = Insertion if method_of(tree).vector else RowSort
        tiler.visit(lead, sorter(builder, statement, statement.accum, tree, memory).run)
    else:
        assert isinstance(statement.accum, PrefixScan), "there are three ordered accumulations"
        scan = ChunkScan if tree.neighbours > 1 else ElementScan
        tiler.visit(lead, scan(builder, statement, statement.accum, tree, memory).run)
    builder.insert(tile.ReturnOp())
    return func


class _Scatter:
    """The updates of one tile of leading points, in order; each writes along the trailing loops."""

    def __init__(
        self,
        builder: KernelBuilder,
        statement: Statement,
        accum: Scatter,
        memory: Mapping[str, SSAValue],
        tiler: Tiler,
        trail: Sequence[SpatialLoop],
    ) -> None:
        self.builder, self.statement, self.accum, self.memory = builder, statement, accum, memory
        self.tiler, self.trail = tiler, trail
        self.value, self.places = value_and_places(statement)
        moved = {axis for place in self.places for axis in walk(place)}
        self.hoisted = not any(loop.axis in moved for loop in trail)

    def run(self, point: Point) -> None:
        nest_of_loops(self.builder, self.statement.reduce, lambda inner: self._update(point, inner))

    def _update(self, point: Point, inner: Mapping[Axis, SSAValue]) -> None:
        if self.hoisted:
            place, inside = self._place(point, inner)
            self.builder.branch(
                inside, lambda: self.tiler.visit(self.trail, lambda at: self._write(at, inner, place), point)
            )
            return

        def each(at: Point) -> None:
            place, inside = self._place(at, inner)
            self.builder.branch(inside, lambda: self._write(at, inner, place))

        self.tiler.visit(self.trail, each, point)

    def _place(self, point: Point, inner: Mapping[Axis, SSAValue]) -> tuple[SSAValue, SSAValue]:
        """The address of an update from the base on, and whether all of its places exist."""
        builder = self.builder
        emitter = BodyEmitter(builder, self.memory, {**point.counters, **inner}, {}, (), branches=True)
        total, inside = builder.index(0), builder.number(True, "bool")
        for part, (extent, stride) in zip(self.places, self.statement.dims, strict=True):
            place = emitter.emit(substitute(part, point.replaced)).ssa
            limit = builder.number(extent, dtypes.INDEX)
            exists = builder.insert(tile.CompareOp("lt", place, limit, unsigned=True))  # negative ones are very large
            inside = builder.insert(arith.AndIOp(inside, exists))
            total = builder.add(total, builder.mul(builder.as_index(place), builder.index(stride)))
        return total, inside

    def _write(self, point: Point, inner: Mapping[Axis, SSAValue], place: SSAValue) -> None:
        builder, tensor = self.builder, self.statement.tensor
        view, dtype = self.memory[tensor.name], tensor.dtype
        dims = {axis: dim for dim, axis in enumerate(point.dims)}
        loops = {**point.counters, **inner}
        emitter = BodyEmitter(builder, self.memory, loops, dims, point.extents, point.bounds, branches=True)
        form = affine(substitute(base_address(self.statement), point.replaced))
        assert form is not None, "the address of a result is affine"
        value = emitter.emit(substitute(self.value, point.replaced))
        offset = builder.add(builder.affine(form, emitter.loops), place)
        if self.accum.combine:
            old = emitter.load_at(view, offset, form, dtype)
            both = [Value(emitter.full(each), each.dtype) for each in (old, value)]
            value = combine(self.accum.combine, builder, *both)
        emitter.store_at(value, view, offset, form, dtype)


def nest_of_loops(builder: KernelBuilder, axes: Sequence[Axis], body: Callable[[dict[Axis, SSAValue]], None]) -> None:
    """Loops over whole axes, outermost first."""

    def visit(rest: Sequence[Axis], counters: dict[Axis, SSAValue]) -> None:
        if not rest:
            body(counters)
            return
        axis, *inner = rest

        def step(index: SSAValue, _: list[SSAValue]) -> Sequence[SSAValue]:
            visit(inner, {**counters, axis: index})
            return ()

        builder.loop(builder.index(0), builder.index(axis.size), step)

    visit(axes, {})
