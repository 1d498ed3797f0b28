"""Buffers of values that are read through windows: which points of them a block computes, keeps and fills.

A block computes the points of a value that its windows touch, of those that there are. The rest of its buffer is a
border of one value: along loops that blocks do not cut for good, along others as far as the windows of a block reach
beyond the loop. Of a value that blocks keep, what the block before computed for windows of this one too is copied to
the beginning of the buffer; the first block of a walk computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Const, Expr
from tilewright.kernel import dialect as tile
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Point, Span
from tilewright.operator.products_tree import ProductsTree
from tilewright.tiles.windows import Window

ELEMENTS = 16  # that are copied or filled at once: several vectors of any machine


class WindowBuffers:
    """The buffers of the values of one kernel that are read through windows."""

    def __init__(self, builder: KernelBuilder, tree: ProductsTree, memory: Mapping[str, SSAValue]) -> None:
        self.builder, self.tree, self.memory = builder, tree, memory
        self.buffers = {name: tree.buffers[name] for name in tree.window_reads}

    def begin(self) -> None:
        """Give all elements of buffers with a border its value."""
        for name, buffer in self.buffers.items():
            if buffer.border is not None:
                whole = self.builder.index(0), self.builder.index(1)
                self._fill(name, buffer.border, 1, *whole, buffer.tensor.size)

    def at(self, point: Point) -> Point:
        """The point of a block with what products walk of the loops of values, whose buffers are kept and filled."""
        spans, begins = {}, dict[Axis, Expr]()
        for name, buffer in self.buffers.items():
            for axis, extent in buffer.extents:
                window = self.tree.windows.get(axis)
                if window is not None and window.is_cut(self.tree.points):
                    spans[axis] = self._span(name, axis, window, extent, point)
                    begins[axis] = spans[axis].begin
                elif axis in self.tree.points:
                    begins[axis] = point.blocks[axis].begin if axis in point.blocks else point.replaced[axis]
        return replace(point, spans=spans, begins=begins)

    def _span(self, name: str, axis: Axis, window: Window, extent: int, point: Point) -> Span:
        """What a block computes along one loop of a value."""
        builder = self.builder
        begin = self._begin(window, point)
        first = builder.affine(begin, point.counters)
        start = self._kept(name, axis, window, extent, point)
        before = builder.insert(arith.SubiOp(builder.index(0), first))
        low = self._clamped(before, start, extent)
        behind = builder.insert(arith.SubiOp(builder.index(min(window.end, axis.size)), first))
        high = self._clamped(behind, start, extent)
        border = self.buffers[name].border
        if border is not None and window.before:
            self._fill_between(name, axis, border, start, low)
        if border is not None and window.after:
            self._fill_between(name, axis, border, high, builder.index(extent))
        return Span(builder.add(low, first), builder.add(high, first), begin.expression(), extent)

    def _begin(self, window: Window, point: Point) -> Affine:
        """The point of its loop that the first window of a block begins at, which may be outside."""
        found = Affine(window.form.constant)
        for axis, factor in window.form.terms.items():
            if axis in point.blocks:
                block = point.blocks[axis]
                found += Affine(0, {block.counter: factor * block.loop.quantum})
            elif axis in self.tree.points:
                place = affine(point.replaced[axis])
                assert place is not None, "the number of a block of one point"
                found += place.scaled(factor)
        return found

    def _clamped(self, place: SSAValue, low: SSAValue, high: int) -> SSAValue:
        least = self.builder.insert(arith.MaxSIOp(place, low))
        return self.builder.insert(arith.MinSIOp(least, self.builder.index(high)))

    # Elements that the block before has computed ----------------------------------------------------------------------

    def _kept(self, name: str, axis: Axis, window: Window, extent: int, point: Point) -> SSAValue:
        """How many elements along a loop the block before has left at the beginning of a buffer."""
        builder, nothing = self.builder, self.builder.index(0)
        walk = point.walks.get(self.tree.outer[-1].axis)
        if name not in self.tree.kept or walk is None:
            return nothing
        step = window.step(self.tree.points)
        kept = extent - step
        onward = builder.insert(tile.CompareOp("ne", walk.number, walk.first))

        def keep() -> list[SSAValue]:
            self._copy(name, axis, step, kept)
            return [builder.index(kept)]

        return builder.either(onward, keep, lambda: [builder.index(0)])[0]

    def _copy(self, name: str, axis: Axis, step: int, count: int) -> None:
        """Copy so many elements along a loop from `step` elements behind them, first ones first."""
        outer, inner = self._around(name, axis)
        extent = dict(self.buffers[name].extents)[axis]
        view, builder = self.memory[name], self.builder

        def row(place: SSAValue) -> None:
            source = builder.add(place, builder.index(step * inner))

            def part(offset: SSAValue, elements: int) -> None:
                loaded = builder.insert(tile.LoadOp(view, builder.add(source, offset), [elements], [1], []))
                builder.insert(tile.StoreOp(loaded, view, builder.add(place, offset), [1], []))

            self._parts(inner, part)

        with builder.beside(copies=True):
            self._rows(outer, extent * inner, builder.index(0), builder.index(count), inner, row)

    # Borders ----------------------------------------------------------------------------------------------------------

    def _fill_between(self, name: str, axis: Axis, border: Const, low: SSAValue, high: SSAValue) -> None:
        """Give the elements `low` to `high` along a loop the value of the border."""
        outer, inner = self._around(name, axis)
        self._fill(name, border, outer, low, high, inner, dict(self.buffers[name].extents)[axis] * inner)

    def _fill(
        self, name: str, border: Const, outer: int, low: SSAValue, high: SSAValue, inner: int, stride: int = 0
    ) -> None:  # fmt: skip
        builder, view, dtype = self.builder, self.memory[name], self.buffers[name].tensor.dtype

        def row(place: SSAValue) -> None:
            def part(offset: SSAValue, elements: int) -> None:
                value = builder.insert(tile.BroadcastOp(builder.number(border.value, dtype), (elements,)))
                builder.insert(tile.StoreOp(value, view, builder.add(place, offset), [1], []))

            self._parts(inner, part)

        with builder.beside():
            self._rows(outer, stride, low, high, inner, row)

    # Elements of a buffer ---------------------------------------------------------------------------------------------

    def _around(self, name: str, axis: Axis) -> tuple[int, int]:
        """The elements of a buffer along the loops outside of one, and along those inside."""
        axes = [each for each, _ in self.buffers[name].extents]
        sizes = [size for _, size in self.buffers[name].extents]
        place = axes.index(axis)
        return prod(sizes[:place]), prod(sizes[place + 1 :])

    def _rows(
        self, outer: int, stride: int, low: SSAValue, high: SSAValue, inner: int, row: Callable[[SSAValue], None]
    ) -> None:
        """Call `row` with where every run of `inner` elements begins, `low` to `high` of them in each `stride`."""
        builder = self.builder

        def one(start: SSAValue) -> None:
            def at(number: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
                row(builder.add(start, builder.mul(number, builder.index(inner))))
                return []

            builder.loop(low, high, at)

        def of_outer(number: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
            one(builder.mul(number, builder.index(stride)))
            return []

        if outer == 1:
            one(builder.index(0))
        else:
            builder.loop(builder.index(0), builder.index(outer), of_outer)

    def _parts(self, count: int, part: Callable[[SSAValue, int], None]) -> None:
        """Call `part` for neighbouring elements, as many as are taken at once and then the rest."""
        builder, whole = self.builder, count // ELEMENTS * ELEMENTS

        def at(offset: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
            part(offset, ELEMENTS)
            return []

        if whole:
            builder.loop(builder.index(0), builder.index(whole), at, step=ELEMENTS)
        if count > whole:
            part(builder.index(whole), count - whole)
