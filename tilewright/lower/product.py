"""Contractions to one kernel: register tiles of the output, updated by `tile.dot`, then the fused epilogue and one
store.

``acc[m, n] = sum over k of a[m, k] * b[k, n]`` where m, n and k each stand for any number of loops (a mapping says
which). Every m loop is tiled, so a tile's rows are any constant offsets in memory: windows, strides and
channels-last images need no copy. Several products in one kernel run in turn on one block of the loops that they share,
and pass values on in buffers of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine
from tilewright.expr.core import Axis, Cast, Const, Expr, Read, Tensor
from tilewright.expr.dtypes import INDEX
from tilewright.expr.hidden import without_mask
from tilewright.expr.rewrite import substitute
from tilewright.kernel import dialect as tile
from tilewright.lower.body import argument_types, computed_in
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.epilogue_loop import finish_from, finish_in_loop
from tilewright.lower.loops import Block, Point, TileAxis, Tiler, grid_of
from tilewright.lower.output_tile import OutputTile
from tilewright.lower.passes import Onward, Passes, Scratch
from tilewright.lower.prefetch import (
    StepsOfBlock,
    prefetch_block,
    prefetch_next_program,
    prefetch_next_tile,
    tile_number,
)
from tilewright.lower.row_tree import RowTree
from tilewright.lower.seen import extreme_at, units_seen
from tilewright.lower.steps import Parameter
from tilewright.lower.whereabouts import Notes
from tilewright.lower.windows import WindowBuffers
from tilewright.operator.depth_bounds import bounds_of_tiles
from tilewright.operator.product_tree import NextRows, ProductTree
from tilewright.operator.products_tree import Buffer, ProductsTree, products_tree
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.tree import InvalidTree

#: Adds hints to one step of k: the k loops in terms of counters, and the counters.
Hints = Callable[["_Tile", Mapping[Axis, Expr], Mapping[Axis, SSAValue]], None]


def lower_product(
    name: str,
    kernel: Kernel,
    views: Sequence[tuple[Tensor, int]],
    parameters: Sequence[Parameter] = (),
    notes: Notes | None = None,
) -> tile.FuncOp:
    """The kernel of products with their epilogues; its arguments are views, then numbers."""
    tree = products_tree(kernel)
    func = tile.FuncOp(name, argument_types(views, parameters), grid_of(tree.grid))
    builder = KernelBuilder(func.body.block, notes)
    names = [*(tensor.name for tensor, _ in views), *(parameter.name for parameter in parameters)]
    memory = dict(zip(names, func.body.block.args, strict=True))
    _Products(builder, tree, memory, Tiler(builder, tree.grid)).run()
    builder.insert(tile.ReturnOp())
    return func


@dataclass(frozen=True)
class _Rows:
    """Passes over the rows of a block: their tree, the loops over rows, and buffers of one row."""

    tree: RowTree
    loops: tuple[SpatialLoop, ...]
    scratch: Scratch
    onward: Onward | None = None


class _Products:
    """The products of a kernel, one block of their loops after the other."""

    def __init__(
        self, builder: KernelBuilder, tree: ProductsTree, memory: Mapping[str, SSAValue], tiler: Tiler
    ) -> None:
        self.builder, self.tree, self.tiler = builder, tree, tiler
        self.memory = dict(memory)
        for buffer in tree.buffers.values():
            self.memory[buffer.tensor.name] = self._alloc(buffer.tensor.name, buffer)
        if tree.factor is not None:
            self.memory[tree.factor.tensor.name] = self._alloc(tree.factor.tensor.name, tree.factor)
        self.rows = {number: self._rows_of(number) for number in tree.rows}
        self.windows = WindowBuffers(builder, tree, self.memory)

    def run(self) -> None:
        self.windows.begin()
        self.tiler.visit_blocks(self.tree.outer, lambda point: self._block(self.windows.at(self._seen(point))))

    def _seen(self, point: Point) -> Point:
        """The point with the end of the loop of which a mask hides what no row of this block sees."""
        tree, builder = self.tree, self.builder
        link, last = tree.link, tree.last_seen
        if link is None or last is None or not tree.seen or link.size <= tree.unit:
            return point
        points = builder.mul(units_seen(builder, last, tree.unit, point), builder.index(tree.unit))
        return replace(point, ends={link: builder.insert(arith.MinSIOp(points, builder.index(link.size)))})

    def _block(self, point: Point) -> None:
        """All products of one block of the outer loops; those that add up a sum in blocks, in blocks of it inside."""
        tree, inside = self.tree, self.tree.inside
        if not tree.summed:
            unit = tree.unit if point.ends else 1
            parts = [SpatialLoop(axis, -(-axis.size // unit) * unit) for axis in point.ends]
            self.tiler.visit_blocks(parts, lambda reached: self._run(inside, reached), point)
            return
        self._run(range(inside.start), point)
        self._blocks_of_sum(point)
        self._run(tree.behind, point)

    def _blocks_of_sum(self, point: Point) -> None:
        """The products in the blocks of a sum, the last of which adds it up."""
        tree, (*before, adding) = self.tree, self.tree.inside
        product, sums = tree.stored[adding], tree.sums
        view, address = self.memory[product.work.output.name], product.work.index
        if sums is not None:
            view, address = self._alloc(product.work.total.name, sums), sums.address

        def tiles(body: Callable[[_Tile, tuple[SSAValue, Expr]], None], point: Point) -> None:
            def tile_at(reached: Point) -> None:
                place = view, substitute(address, reached.replaced)
                body(_Tile(self.builder, product, self.memory, reached), place)

            self.tiler.visit(product.outside, tile_at, point)

        def summed(point: Point) -> None:
            self._run(before, point)
            tiles(lambda each, place: each.accumulate(place, factor=tree.factor), point)

        tiles(lambda each, place: each.clear(place), point)
        for rows in self.rows.values():
            self._visit_rows(rows, Passes.begin, point)
        self.tiler.visit_blocks(tree.summed, summed, point)
        if sums is not None:
            tiles(lambda each, place: each.finish_from(place), point)

    def _run(self, numbers: Sequence[int], point: Point) -> None:
        """The products with these numbers, with rows before the first and behind each of them."""
        for number in numbers:
            if number == 0 and -1 in self.rows:
                self._visit_rows(self.rows[-1], Passes.run, point)
            product = self.tree.stored[number]
            if product.k_block:
                _Blocked(self.builder, product, self.memory, self.tiler).run()
            else:
                self._tiles(product, point)
            if number in self.rows:
                self._visit_rows(self.rows[number], Passes.run, point)

    def _visit_rows(self, rows: _Rows, body: Callable[[Passes], None], point: Point) -> None:
        """What to do with the passes of every row of a block; inner loops are those of the block."""
        places, blocks = dict(point.replaced), dict[Axis, Block]()
        for axis in rows.tree.inner:
            block = next((each for loop, each in point.blocks.items() if loop.name == axis.name), None)
            if block is not None:
                blocks[axis] = block
                places |= block.places(axis) if block.loop.axis != axis else {}

        def at_row(at: Point) -> None:
            at = at if rows.tree.vector_last else at.swapped()
            body(Passes(self.builder, rows.tree, self.memory, rows.scratch, at, blocks, rows.onward))

        self.tiler.visit(rows.loops, at_row, replace(point, replaced=places))

    def _rows_of(self, number: int) -> _Rows:
        """The passes behind a product; their loops are those of the products, with places within a block."""
        tree = RowTree(self.tree.stored_rows(number))
        blocks = {loop.axis.name: loop for loop in self.tree.blocks if loop.tiles > 1}
        whole = {axis.name: axis for each in self.tree.rows[number].statements for axis in each.axes}
        several = number >= 0 and not self.tree.windows and any(loop.quantum > 1 for loop in tree.loops)
        if tree.pipelined or several:
            raise InvalidTree(
                "rows between two products are taken several at once",
                where="tile tree", help="passes over one row after the other, with vectors along it",
            )  # fmt: skip
        loops = []
        for loop in tree.loops:
            points = blocks[loop.axis.name].quantum if loop.axis.name in blocks else 0
            loops.append(replace(loop, axis=whole[loop.axis.name], blocks=1, block_points=points))
        onward, factor = None, self.tree.factor
        if self.tree.summed:
            follows = self.tree.products[-1].work.statements[0].follows
            assert factor is not None, "sums of blocks follow what rows give"
            assert follows is not None, "sums of blocks follow what rows give"
            onward = Onward(follows, self.memory[factor.tensor.name], factor.address)
        return _Rows(tree, tuple(loops), Scratch(self.builder, tree), onward)

    def _tiles(self, product: ProductTree, point: Point) -> None:
        whole = self._unmasked(product) if point.ends else product
        hints = self._next_panel(product) if product.line_bytes else None
        rows = product.next_rows(product.row_line_bytes) if product.row_line_bytes else None

        def tile_at(reached: Point) -> None:
            if rows is not None:
                self._ask_for_rows(product, rows, reached)
            masked = _Tile(self.builder, product, self.memory, reached, hints)
            if whole == product:
                masked.run()
                return
            sums, plain = masked.sums(), _Tile(self.builder, whole, self.memory, reached)
            self.builder.branch(self._hides(reached), lambda: masked.finish(sums), lambda: plain.finish(sums))

        self.tiler.visit(product.outside, tile_at, point)

    def _ask_for_rows(self, product: ProductTree, rows: NextRows, point: Point) -> None:
        """Ask for this tile's share of the rows of a that the next program reads."""
        place = tile_number(self.builder, product.outside, point.counters)
        if place is not None:
            number, program = place[0], self.tiler.programs[rows.row]
            prefetch_next_program(
                self.builder, self.memory[product.work.a.tensor.name], rows, program, number, product.row_line_bytes
            )

    def _next_panel(self, product: ProductTree) -> Hints:
        """What the tiles of a panel of b ask for ahead of time: a share each of the panel that follows in memory."""
        work, builder, view = product.work, self.builder, self.memory[product.work.b.tensor.name]
        behind = [loop.axis for loop in product.outside].index(work.columns) + 1
        elements = product.tile[work.columns.name] * prod(axis.size for axis in work.depth)
        steps = StepsOfBlock(builder.index(0), (*(axis.size for axis in work.depth[:-1]), product.whole_steps))

        def ask(at: _Tile, where: Mapping[Axis, Expr], counters: Mapping[Axis, SSAValue]) -> None:
            number = tile_number(builder, product.outside[behind:], at.point.counters)
            form = at.address(work.b.index, where)
            panel = next((axis for axis in form.terms if axis.name == f"{work.columns.name}.t"), None)
            if number is None or panel is None or form.coefficient(panel) != elements:
                return
            start = builder.affine(_without(form, counters), at.point.counters)
            prefetch_block(
                builder, view, work.b, (start, elements), steps, list(counters.values()), number, product.line_bytes
            )

        return ask

    def _unmasked(self, product: ProductTree) -> ProductTree:
        """The product without the mask that hides points of the link, if it is what gives the link its values."""
        work, link = product.work, self.tree.link
        if link != work.columns or not work.has_epilogue:
            return product
        first, last = work.statements
        shown = replace(last, body=without_mask(last.body, link))
        return replace(product, work=replace(work, statements=(first, shown)))

    def _hides(self, point: Point) -> SSAValue:
        """Whether a mask hides some point of the link in a tile."""
        link, last, builder = self.tree.link, self.tree.last_seen, self.builder
        assert link is not None, "a mask hides points of the link"
        assert last is not None, "a mask hides points of the link"
        behind = extreme_at(builder, Affine(0, {link: 1}) + last.scaled(-1), point, largest=True)
        return builder.insert(tile.CompareOp("gt", behind, builder.index(0)))

    def _alloc(self, name: str, buffer: Buffer) -> SSAValue:
        extents = buffer.extents if name in self.tree.window_reads else ()
        return self.builder.alloc(name, buffer.tensor.dtype, buffer.tensor.size, extents)


def _without(form: Affine, loops: Collection[Axis]) -> Affine:
    """An address where these loops are at zero."""
    return Affine(form.constant, {axis: step for axis, step in form.terms.items() if axis not in loops})


class _Blocked:
    """The first k loop in blocks around the m loops, so that a block of a and b stays in cache.

    Sums wait in scratch.
    """

    def __init__(
        self,
        builder: KernelBuilder,
        tree: ProductTree,
        memory: Mapping[str, SSAValue],
        tiler: Tiler,
    ) -> None:
        self.builder, self.tree, self.work, self.memory, self.tiler = builder, tree, tree.work, memory, tiler
        work = tree.work
        self.outside, self.inside = tree.outside, tree.inside
        assert {loop.axis for loop in self.inside} == set(work.rows), "rows are walked inside the blocks of k"
        rows = prod(loop.extent for loop in self.inside)
        self.width = tree.tile[work.columns.name]
        dtype = computed_in(work.total.dtype)
        self.partial = builder.alloc(work.total.name, dtype, rows * self.width)

    def run(self) -> None:
        self.tiler.visit(self.outside, self._columns)

    def _columns(self, point: Point) -> None:
        """All blocks of k for one panel of columns; the last one finishes the sums that wait in scratch."""
        builder, block, (first, *inner) = self.builder, self._steps()[0], self.work.depth
        whole = first.size if inner else self.tree.whole_steps
        count = -(-int(self.work.depth[0].extent) // self.tree.k_block)  # type: ignore[arg-type]
        self.tiler.visit(self.inside, lambda p: self._tile(p).clear(self._partial(p)), point)

        def run(number: SSAValue, _: list[SSAValue]) -> list[SSAValue]:
            low = builder.mul(number, builder.index(block))
            high = builder.add(low, builder.index(block))
            if count * block > whole:
                high = builder.insert(arith.MinSIOp(high, builder.index(whole)))
            last = builder.insert(tile.CompareOp("eq", number, builder.index(count - 1)))
            hints = self._hints(low)
            self.tiler.visit(
                self.inside, lambda p: self._tile(p, hints).add_block(self._partial(p), (low, high), last), point
            )
            return []

        builder.loop(builder.index(0), builder.index(count), run)

    def _tile(self, point: Point, hints: Hints | None = None) -> _Tile:
        return _Tile(self.builder, self.tree, self.memory, point, hints)

    def _steps(self) -> tuple[int, ...]:
        """Steps of every k loop in one block; the last k loop counts products of `k_unroll` points."""
        _, *rest = (int(axis.extent) for axis in self.work.depth)  # type: ignore[arg-type]
        counts = [self.tree.k_block, *rest]
        assert rest or counts[0] % self.tree.step == 0
        counts[-1] = max(1, counts[-1] // self.tree.step)
        return tuple(counts)

    def _hints(self, low: SSAValue) -> Hints | None:
        """What the tiles of the block from step `low` on ask for ahead of time, if the schedule says so."""
        tree, work, builder, memory = self.tree, self.work, self.builder, self.memory
        line_bytes, loop = tree.line_bytes, tree.next_tile if tree.row_line_bytes else None
        if not line_bytes and loop is None:
            return None
        steps = StepsOfBlock(low, self._steps())
        a, b = memory[work.a.tensor.name], memory[work.b.tensor.name]

        def ask(at: _Tile, where: Mapping[Axis, Expr], counters: Mapping[Axis, SSAValue]) -> None:
            if loop is not None:
                here = replace(at.point, counters={**at.point.counters, **counters})
                rows = [axis for position, axis in enumerate(at.point.dims) if position != at.n_dim]
                prefetch_next_tile(builder, a, work.a, at.address(work.a.index, where), rows, loop, here)
            if not line_bytes:
                return
            number = tile_number(builder, self.inside, at.point.counters)
            form = at.address(work.b.index, where)
            if number is None or any(axis not in form.terms for axis in counters):
                return
            # The block starts where the first k loop is at its first step and the others at zero.
            ks = list(counters)
            start = builder.affine(_without(form, ks), at.point.counters)
            start = builder.add(start, builder.mul(low, builder.index(form.coefficient(ks[0]))))
            elements = steps.counts[0] * form.coefficient(ks[0])
            prefetch_block(builder, b, work.b, (start, elements), steps, [counters[k] for k in ks], number, line_bytes)

        return ask

    def _partial(self, point: Point) -> tuple[SSAValue, Expr]:
        """The scratch view and the linear index of a point: rows as in the m loops, columns as in the panel."""
        total: Expr = Const(0, INDEX)
        for loop in self.inside:
            total = total * loop.extent + loop.axis
        total = substitute(total * self.width, point.replaced)
        column = next((axis for axis in point.dims if axis.name == f"{self.work.columns.name}.i"), None)
        return self.partial, total if column is None else total + column


class _Tile(OutputTile):
    """One register tile: products over all k, epilogue, store."""

    branches = True

    def __init__(
        self,
        builder: KernelBuilder,
        tree: ProductTree,
        memory: Mapping[str, SSAValue],
        point: Point,
        hints: Hints | None = None,
    ) -> None:
        super().__init__(builder, tree.work, memory, point)
        self.tree, self.hints = tree, hints

    @property
    def in_loop(self) -> bool:
        """Whether the epilogue is a loop over vectors; a tile of one point has none."""
        return self.tree.epilogue_vectors > 0 and bool(self.point.dims)

    @property
    def _step(self) -> int:
        """Elements of a row in one step of that loop."""
        return self.tree.epilogue_vectors * self.work.lanes

    def finish(self, total: SSAValue) -> None:
        if self.in_loop:
            finish_in_loop(self, total, self._step)
        else:
            super().finish(total)

    def run(self) -> None:
        self.finish(self.sums())

    def sums(self) -> SSAValue:
        """The products over all k."""
        return self._products(list(self.work.depth), {}, {}, self.zero(), None)

    def clear(self, partial: tuple[SSAValue, Expr]) -> None:
        with self.builder.beside():
            self.emitter().store(self.shaped(self.zero()), *partial, self.dtype)

    def accumulate(self, partial: tuple[SSAValue, Expr], factor: Buffer | None = None) -> None:
        """Add the products of one block of k to the sums in memory, which rows multiply by a factor."""
        with self.of(self.work.total.name):
            sums = self.read(partial, factor)
        self._keep(self._products(list(self.work.depth), {}, {}, sums, None), partial)

    def add_block(self, partial: tuple[SSAValue, Expr], span: tuple[SSAValue, SSAValue], last: SSAValue) -> None:
        """Add the products of a block of the first k loop to the sums in scratch; the last block finishes them."""
        with self.of(self.work.total.name):
            sums = self.read(partial)
        total = self._products(list(self.work.depth), {}, {}, sums, (*span, last))
        self.builder.branch(last, lambda: self.finish(total), lambda: self._keep(total, partial))

    def _keep(self, total: SSAValue, partial: tuple[SSAValue, Expr]) -> None:
        with self.of(self.work.total.name):
            self.emitter().store(self.shaped(total), *partial, self.dtype)

    def finish_from(self, partial: tuple[SSAValue, Expr]) -> None:
        """Finish with the sums in scratch."""
        if self.in_loop:
            finish_from(self, *partial, self._step)
            return
        with self.of(self.work.output.name):
            sums = self.read(partial)
        self.finish(sums)

    def read(self, partial: tuple[SSAValue, Expr], factor: Buffer | None = None) -> SSAValue:
        """The sums in memory, times a factor of each row if there is one."""
        view, index = partial
        flat = Tensor("partial", (1,), self.dtype)
        emitter = self.emitter({**self.memory, flat.name: view})
        sums: Expr = Read(flat, (index,))
        if factor is not None:
            row = Read(factor.tensor, (substitute(factor.address, self.point.replaced),))
            sums = sums * (row if row.dtype == sums.dtype else Cast(row, sums.dtype))
        value = emitter.full(emitter.emit(sums))
        return self.builder.insert(tile.ReshapeOp(value, (self.rows, self.n_extent)))

    def _products(
        self,
        axes: list[Axis],
        where: dict[Axis, Expr],
        counters: dict[Axis, SSAValue],
        total: SSAValue,
        span: tuple[SSAValue, SSAValue, SSAValue] | None,
    ) -> SSAValue:
        """Products over the k loops `axes`; all of the first one, or those of a `span`: its first step, its end, and
        whether it is the last span, which has the points that whole steps leave over.
        """
        axis, *rest = axes
        builder, extent = self.builder, int(axis.extent)  # type: ignore[arg-type]
        if rest:
            counter = TileAxis(f"{axis.name}.t", extent)

            def inside(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
                return [self._products(rest, {**where, axis: counter}, {**counters, counter: index}, carried[0], None)]

            low, end = span[:2] if span is not None else (builder.index(0), builder.index(extent))
            return builder.loop(*self._without_zeros(axis, low, end), inside, [total])[0]
        if axis in self.point.blocks:
            return self._products_of_block(self.point.blocks[axis], total)
        step, group = self.tree.step, self.work.group
        if self.work.whole_groups:
            extent = -(-extent // group) * group
        full = self.tree.whole_steps
        ragged = extent - full * step
        counter = TileAxis(f"{axis.name}.t", max(full, 1))
        part = TileAxis(f"{axis.name}.i", step)

        def steps(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            reached = {**counters, counter: index}
            if self.hints is not None:
                self.hints(self, {**where, axis: counter * step}, reached)
            return [self._dot(part, {**where, axis: counter * step + part}, reached, carried[0], step)]

        if full:
            low, end = span[:2] if span is not None else (builder.index(0), builder.index(full))
            (total,) = builder.loop(low, end, steps, [total])
        if not ragged:
            return total
        rounded, summed = TileAxis(f"{axis.name}.i", -(-ragged // group) * group), total
        place = rounded + full * step if full else rounded

        def left() -> list[SSAValue]:
            return [self._dot(rounded, {**where, axis: place}, counters, summed, ragged)]

        return left()[0] if span is None else builder.either(span[2], left, lambda: [summed])[0]

    def _without_zeros(self, axis: Axis, low: SSAValue, end: SSAValue) -> tuple[SSAValue, SSAValue]:
        """The steps of a depth loop from `low` to `end`, perhaps without those that add zeros to the whole tile.

        There may be none left.
        """
        builder = self.builder
        for bound in bounds_of_tiles(self.work, self.tree.tile) if self.tree.skips_zeros else ():
            if bound.depth != axis:
                continue
            before = bound.place.scaled(-1)
            first = self._steps_up_to(before, bound.factor, largest=False)
            behind = self._steps_up_to(before + Affine(bound.extent), bound.factor, largest=True)
            low = builder.insert(arith.MaxSIOp(low, first))
            end = builder.insert(arith.MinSIOp(end, behind))
        return low, end

    def _steps_up_to(self, distance: Affine, factor: int, largest: bool) -> SSAValue:
        """How many steps of `factor` places cover the largest or smallest distance in the tile; 0 if it is negative."""
        builder = self.builder
        reached = extreme_at(builder, distance, self.point, largest)
        reached = builder.insert(arith.MaxSIOp(reached, builder.index(0)))
        if factor == 1:
            return reached
        up = builder.add(reached, builder.index(factor - 1))
        return builder.insert(arith.DivUIOp(up, builder.index(factor)))

    def _products_of_block(self, block: Block, total: SSAValue) -> SSAValue:
        """Products over the only k loop within a block of it."""
        builder, step, axis = self.builder, self.tree.step, block.loop.axis
        counter = TileAxis(f"{axis.name}.t", block.loop.quantum // step)
        part = TileAxis(f"{axis.name}.i", step)

        def steps(index: SSAValue, carried: list[SSAValue]) -> list[SSAValue]:
            return [self._dot(part, block.places(counter * step + part), {counter: index}, carried[0], step)]

        (total,) = builder.loop(builder.index(0), block.steps(builder, step), steps, [total])
        ragged, group = axis.size % step, self.work.group
        if not ragged:
            return total
        rest = TileAxis(f"{axis.name}.i", -(-ragged // group) * group)
        where, whole = block.places(rest + block.rest(step)), total
        last = block.has_rest(builder)
        return builder.either(last, lambda: [self._dot(rest, where, {}, whole, ragged)], lambda: [whole])[0]

    def _dot(
        self, part: Axis, where: Mapping[Axis, Expr], counters: Mapping[Axis, SSAValue], total: SSAValue, valid: int
    ) -> SSAValue:
        """One product over `part`, of which the first `valid` steps exist."""
        loops = {**self.point.counters, **counters}
        with self.of(self.work.total.name, where, counters):
            a = self._broadcast_operand(part, where, loops, valid)
            b = self._vector_operand(part, where, loops)
        unsigned = "".join(
            label
            for label, operand in (("a", self.work.a), ("b", self.work.b))
            if dtypes.is_unsigned(operand.tensor.dtype)
        )
        return self.builder.insert(tile.DotOp(self.work.mapping.intrinsic, a, b, total, unsigned))

    def _broadcast_operand(
        self, part: Axis, where: Mapping[Axis, Expr], loops: Mapping[Axis, SSAValue], valid: int
    ) -> SSAValue:
        form = self.address(self.work.a.index, where)
        m_dims = [axis for position, axis in enumerate(self.point.dims) if position != self.n_dim]
        extents = [*(int(axis.extent) for axis in m_dims), int(part.extent)]  # type: ignore[arg-type]
        strides = [*(form.coefficient(axis) for axis in m_dims), form.coefficient(part)]
        bounds = []
        if valid != part.extent:
            bounds = [self.builder.index(extent) for extent in (*extents[:-1], valid)]
        view = self.memory[self.work.a.tensor.name]
        loaded = self.builder.insert(tile.LoadOp(view, self.builder.affine(form, loops), extents, strides, bounds))
        return self.builder.insert(tile.ReshapeOp(loaded, (self.rows, int(part.extent))))  # type: ignore[arg-type]

    def _vector_operand(self, part: Axis, where: Mapping[Axis, Expr], loops: Mapping[Axis, SSAValue]) -> SSAValue:
        group, n = self.work.group, self.n_extent
        steps = int(part.extent) // group  # type: ignore[arg-type]
        inside, along = TileAxis("k.group", group), TileAxis("k.step", steps)
        split = {part: along * group + inside if group > 1 else along}
        form = self.address(substitute(self.work.b.index, where), split)
        n_axis = self.point.dims[self.n_dim] if self.n_dim is not None else None
        strides = [form.coefficient(along), form.coefficient(n_axis) if n_axis is not None else 0]
        extents = [steps, n]
        if group > 1:
            extents.append(group)
            strides.append(form.coefficient(inside))
        bounds = []
        if self.n_dim is not None and self.n_dim in self.point.bounds and not self.work.whole_panels:
            bounds = [self.builder.index(e) for e in extents]
            bounds[1] = self.point.bounds[self.n_dim]
        view = self.memory[self.work.b.tensor.name]
        return self.builder.insert(tile.LoadOp(view, self.builder.affine(form, loops), extents, strides, bounds))
