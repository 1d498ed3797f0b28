"""A tile of a product's result: its place, the sums of its points, the fused epilogue and the store.

Tiles of registers on a CPU and tiles of blocks on a GPU are both this; they differ in how they go through k.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from math import prod

from xdsl.ir import SSAValue

from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Expr
from tilewright.expr.rewrite import substitute
from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter, Value, computed_in, providing
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Point
from tilewright.tiles.product import Product


class OutputTile:
    """One tile at a point: the m loops in order, then n, are the dimensions of the tile."""

    branches = False  # see BodyEmitter

    def __init__(self, builder: KernelBuilder, work: Product, memory: Mapping[str, SSAValue], point: Point) -> None:
        self.builder, self.work, self.memory = builder, work, memory
        self.point = self._ordered(point)
        self.n_dim = self._dim_of(work.columns)

    def _dim_of(self, loop: Axis) -> int | None:
        return next((p for p, axis in enumerate(self.point.dims) if axis.name == f"{loop.name}.i"), None)

    def _ordered(self, point: Point) -> Point:
        """Tile dimensions as m loops in order, then n, whatever the order of the loops is."""
        names = [f"{axis.name}.i" for axis in (*self.work.rows, self.work.columns)]
        order = sorted(range(len(point.dims)), key=lambda p: names.index(point.dims[p].name))
        bounds = {order.index(dim): bound for dim, bound in point.bounds.items()}
        return replace(point, dims=tuple(point.dims[p] for p in order), bounds=bounds)

    @property
    def n_extent(self) -> int:
        return self.point.extents[self.n_dim] if self.n_dim is not None else 1

    @property
    def rows(self) -> int:
        return prod(self.point.extents) // self.n_extent

    @property
    def loops(self) -> tuple[tuple[Axis, int], ...]:
        """The loops of the result, each with the extent of the tile along it, outermost first."""
        extents = {axis.name: axis.size for axis in self.point.dims}
        return tuple((axis, extents.get(f"{axis.name}.i", 1)) for axis in self.work.spatial)

    @property
    def dtype(self) -> str:
        return computed_in(self.work.total.dtype)

    def zero(self) -> SSAValue:
        return self.builder.insert(tile.BroadcastOp(self.builder.number(0, self.dtype), (self.rows, self.n_extent)))

    def shaped(self, total: SSAValue) -> Value:
        """The accumulator in the shape of the tile."""
        return Value(self.builder.insert(tile.ReshapeOp(total, self.point.extents)), self.dtype)

    def emitter(self, views: Mapping[str, SSAValue] | None = None) -> BodyEmitter:
        dims = {axis: position for position, axis in enumerate(self.point.dims)}
        memory = self.memory if views is None else views
        counters, extents, bounds = self.point.counters, self.point.extents, self.point.bounds
        return BodyEmitter(self.builder, memory, counters, dims, extents, bounds, branches=self.branches)

    def address(self, index: Expr, where: Mapping[Axis, Expr]) -> Affine:
        form = affine(substitute(substitute(index, where), self.point.replaced))
        assert form is not None, f"operand address {index} is not affine in the tile"
        return form

    def of(
        self, statement: str, where: Mapping[Axis, Expr] | None = None,
        counters: Mapping[Axis, SSAValue] | None = None, bounds: Mapping[int, SSAValue] | None = None,
        own: bool = False,
    ) -> AbstractContextManager[None]:  # fmt: skip
        """What is inserted meanwhile computes a statement at this tile, and at these places of other loops.

        Only elements within `bounds` are points of the loops (`Whereabouts`). What is touched is the tile's `own`
        buffer, which begins where the tile does, or one of the block.
        """
        blocks = {axis: block.begin for axis, block in self.point.blocks.items()}
        places, loops = {**blocks, **self.point.replaced, **(where or {})}, {**self.point.counters, **(counters or {})}
        return self.builder.at(statement, places, loops, bounds, places if own else self.point.begins)

    def finish(self, total: SSAValue) -> None:
        """Epilogue on the tile in its own shape, and the store."""
        self.finish_at(self.point, self.emitter(), self.shaped(total))

    def finish_at(
        self, point: Point, emitter: BodyEmitter, sums: Value, values: Mapping[str, Value] | None = None
    ) -> None:
        """Epilogue and store of what `emitter` computes at a point in or around the tile, from its sums.

        The epilogue may read `values` of the kernel besides.
        """
        with self.of(self.work.output.name, point.replaced, point.counters):
            value = self.epilogue_at(point, emitter, sums, values)
            view = self.memory[self.work.output.name]
            emitter.store(value, view, substitute(self.work.index, point.replaced), self.work.output.dtype)

    def epilogue_at(
        self, point: Point, emitter: BodyEmitter, sums: Value, values: Mapping[str, Value] | None = None
    ) -> Value:
        """What the epilogue makes of sums."""
        emitter.provided = providing({**(values or {}), self.work.total.name: sums})
        return emitter.emit(substitute(self.work.epilogue, point.replaced))
