"""The tree of a kernel with one or several products on register tiles of a CPU: decisions as a value, written and read.

Several products share blocks of loops:

    @DRAM par LOOP:PROGRAMS { @L3 for LOOP:BLOCKS { seq[ products of one block ] } }

Each product walks its register tiles within a block. What a product gives to later ones is a buffer of one block, whose
rows are stored along the columns of the product that writes it. Between two products there may be passes over these
rows, such as those of a softmax, in the form that `lower.row_tree` reads, with the rows of a block at L2. So may there
be before the first product, such as a depthwise convolution whose results it multiplies. Where blocks
cut the sum of a product, its sums are staged around them, and its epilogue follows. Products before the first one that
has this loop, and those behind the sum, run once for all these blocks:

    stage SUMS in L2 { seq[ @L3 for LOOP:BLOCKS { seq[ … ] }, @L2 for LOOP:TILES { epilogue } ] }

A mask may hide the last points of the loop between two products from all rows of a block. The hint `seen` at the
expression with the mask says that they are left out, in whole steps of all that runs along the loop.

Reductions of rows that these blocks cut go on from block to block, each from a buffer with a number for every row. Sums
that follow one of them (`tiles.kernel.Follows`) are multiplied by what it has changed by.

A value may be read through windows (`tiles.windows`), by rows between two products or by the second product. A block
then computes the points of its producer's loop that the windows of the block touch, and its buffer has a border where
windows reach beyond the loop. The part that the windows of the block before touch too stays in the buffer if the tile
of the blocks keeps the value:

    @L3 for LOOP:BLOCKS keep VALUE { seq[ … ] }
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from math import lcm

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine, simplify
from tilewright.expr.core import Axis, Const, Expr, Read, Tensor
from tilewright.expr.dtypes import INDEX
from tilewright.expr.hidden import last_seen
from tilewright.expr.rewrite import rewritten, substitute
from tilewright.operator.product_tree import ProductTree, product_tree, require_steps, vectors_at_a_time
from tilewright.operator.statements import value_read, values_in
from tilewright.tiles import build
from tilewright.tiles.build import distinct_kernels, rooted
from tilewright.tiles.kernel import Kernel, Statement, joined
from tilewright.tiles.loops import SpatialLoop, within
from tilewright.tiles.parts import factors, hints_of, loops_named, register_tiles, require_form, tiles_at
from tilewright.tiles.product import Operand, Product, products_of, rows_of
from tilewright.tiles.tree import (
    Binding,
    Hint,
    InvalidTree,
    Kind,
    Leaf,
    Node,
    Scope,
    Stage,
    Tile,
    TileTree,
    kernels,
)
from tilewright.tiles.windows import Window, WindowRead, guarded_read, window_reads

BLOCKS = "L3"  # the level whose data blocks walk over: those of a step are in L2


@dataclass(frozen=True)
class Buffer:
    """Elements of one block of a value, in scratch memory of a thread, with their linear address over loops.

    `extents` are its elements along each loop of the value, outermost first. Along loops that windows move along there
    may be a border, of elements `border`.
    """

    tensor: Tensor
    address: Expr
    extents: tuple[tuple[Axis, int], ...] = ()
    border: Const | None = None


@dataclass(frozen=True)
class Rows:
    """Statements over the rows of a block, some of which are for the next product, and their tree in a block."""

    statements: tuple[Statement, ...]
    tree: TileTree


@dataclass(frozen=True)
class ProductsTree:
    """Products of one kernel, in order; a product alone has no blocks.

    `blocks` cut the loops that products share, outermost first: each has the points of a block as its quantum, and is
    distributed to programs. `rows` run behind the product of that number, those of -1 before the first one. With
    `seen`, points of the link that a mask hides from all rows of a block are left out. Values of the kernel have no
    address. Of those that are `kept`, a block computes what the one before it has not.
    """

    products: tuple[ProductTree, ...]
    blocks: tuple[SpatialLoop, ...] = ()
    rows: Mapping[int, Rows] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    seen: bool = False

    @property
    def grid(self) -> tuple[SpatialLoop, ...]:
        """The loops in the order of the grid."""
        return self.blocks if self.blocks else self.products[0].grid

    @cached_property
    def summed(self) -> tuple[SpatialLoop, ...]:
        """The innermost blocks, which cut the sum of a product."""
        depth = {axis for each in self.products for axis in each.work.depth}
        cut = (n for n, loop in enumerate(self.blocks) if loop.axis in depth and loop.tiles > 1)
        place = next(cut, len(self.blocks))
        return self.blocks[place:]

    @property
    def outer(self) -> tuple[SpatialLoop, ...]:
        """The blocks around those that cut a sum."""
        return self.blocks[: len(self.blocks) - len(self.summed)]

    @cached_property
    def inside(self) -> range:
        """The numbers of the products in the blocks of a sum, the last of which adds it up; all where none is cut."""
        axes = {loop.axis for loop in self.summed[:1]}
        works = [each.work for each in self.products]
        having = [number for number, work in enumerate(works) if axes <= {*work.spatial, *work.depth}]
        return range(having[0], having[-1] + 1)

    @property
    def adding(self) -> ProductTree:
        """The product whose sum blocks cut; the last one where they cut none."""
        return self.products[self.inside[-1]]

    def tree(self) -> TileTree:
        """Grid, blocks, products; a product alone as `ProductTree` writes it."""
        *before, last = self.products
        if not before and not self.rows:
            return last.tree()
        hints = (Hint("seen", (self.link.name, self.unit)),) if self.link is not None and self.seen else ()
        block = [_of_block(each, not self._waits(each), hints if each is not last else ()) for each in self.products]
        products = list(distinct_kernels(block))
        tree: TileTree = Scope(Kind.SEQ, tuple(self._parts(products, self.inside)))
        if self.summed:
            first, behind = (self._parts(products, some) for some in (range(self.inside.start), self.behind))
            tree = self._in_blocks_of_sum(tree)
            tree = Scope(Kind.SEQ, (*first, tree, *behind)) if first or behind else tree
        tree = rooted(build.tile(BLOCKS, _trips(self.outer), tree, keep=self.kept))
        distributed = [(loop.axis.name, loop.programs) for loop in self.grid if loop.programs > 1]
        return rooted(build.tile("DRAM", distributed, tree, Binding.SP))

    @property
    def behind(self) -> range:
        """The numbers of the products behind the blocks of a sum."""
        return range(self.inside.stop, len(self.products))

    def _waits(self, product: ProductTree) -> bool:
        """Whether the sums of a product wait from block to block."""
        return bool(self.summed) and product is self.adding

    def _in_blocks_of_sum(self, tree: TileTree) -> TileTree:
        """The blocks that cut a sum around what runs in them, and the epilogue of the sum behind them."""
        adding = self.adding
        tree, after = rooted(build.tile(BLOCKS, _trips(self.summed), tree)), adding.epilogue()
        if after is not None:
            tree = Scope(Kind.SEQ, (tree, rooted(build.tile("L2", _trips(adding.outside), after))))
        return Stage(adding.work.statements[0].name, "L2", tree)

    def _parts(self, products: Sequence[TileTree], numbers: range) -> list[TileTree]:
        """The trees of the products with these numbers, and of the rows before and behind them."""
        found: list[TileTree] = []
        for number in numbers:
            before = [self.rows[-1].tree] if number == 0 and -1 in self.rows else []
            found += [*before, products[number], *([self.rows[number].tree] if number in self.rows else [])]
        return found

    # Windows ----------------------------------------------------------------------------------------------------------

    @cached_property
    def points(self) -> dict[Axis, int]:
        """The points in a block of each loop that blocks cut."""
        return {loop.axis: loop.quantum for loop in self.blocks if loop.tiles > 1}

    @cached_property
    def window_reads(self) -> dict[str, WindowRead]:
        """The values that are read through windows, by name."""
        works = [each.work.statements for each in self.products]
        return window_reads(
            [each for part in (*works, *(rows.statements for rows in self.rows.values())) for each in part]
        )

    @cached_property
    def windows(self) -> dict[Axis, Window]:
        """The windows along the loops of the values that are read through some."""
        axes = {each.work.output.name: each.work.spatial for each in self.products}
        found = (window for name, read in self.window_reads.items() for window in read.windows(axes[name]))
        return {window.axis: window for window in found}

    def computed(self, axis: Axis) -> int:
        """The most points of a loop that windows move along which a block computes; 0 where no blocks cut the windows.

        Of a value that blocks keep, the first block of each program computes so many.
        """
        window = self.windows.get(axis)
        return window.span(self.points) if window is not None and window.is_cut(self.points) else 0

    # Buffers ----------------------------------------------------------------------------------------------------------

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        """The buffer of every value that one product, or rows, give to what follows, by its name."""
        found: dict[str, Buffer] = {}
        for number, following in enumerate(self.products, -1):
            if number >= 0:
                work = self.products[number].work
                found[work.output.name] = self._buffer(work.spatial, work.output)
            read = {name for each in following.work.statements for name in values_in(each.body)}
            for each in self.rows[number].statements if number in self.rows else ():
                if each.name in read or (each.accum is not None and self.summed):
                    spatial = self.products[number].work.spatial if number >= 0 else ()
                    order = spatial if set(each.axes) <= set(spatial) else each.axes
                    found[each.name] = self._buffer([axis for axis in order if axis in each.axes], each.tensor)
        return found

    @cached_property
    def sums(self) -> Buffer | None:
        """The buffer of sums that blocks cut; None where the memory of their result has them."""
        work = self.adding.work
        if not work.has_epilogue and dtypes.wide(work.total.dtype) == work.total.dtype:
            return None
        total = Tensor(f"{work.total.name} of blocks", (), dtypes.wide(work.total.dtype))
        return self._buffer(work.spatial, total)

    @cached_property
    def factor(self) -> Buffer | None:
        """The buffer of what the sums of each row are multiplied by before a block adds to them.

        There is one where they follow a value that goes on from block to block.
        """
        last = self.products[-1].work
        follows = last.statements[0].follows
        if not self.summed or follows is None or follows.factor is None:
            return None
        value, name = self.buffers[follows.reduction], f"{last.total.name} of blocks, factor"
        return replace(value, tensor=replace(value.tensor, name=name, dtype=follows.factor.dtype))

    @cached_property
    def link(self) -> Axis | None:
        """The columns of the first of two products, over which the rows between them run and the second one sums."""
        first, last = self.products[0].work, self.products[-1].work
        alike = len(self.products) == 2 and 0 in self.rows and tuple(last.depth) == (first.columns,)
        return first.columns if alike else None

    @cached_property
    def unit(self) -> int:
        """The fewest points of the link that are whole steps of all that runs along it."""
        link, (first, last) = self.link, self.products
        assert link is not None, "rows are between two products"
        tiles = [loop.quantum for loop in first.outside if loop.axis == link]
        steps = [tile.along(link.name) for _, tile in register_tiles(self.rows[0].tree)]
        return lcm(*tiles, last.step, *steps)

    @cached_property
    def last_seen(self) -> Affine | None:
        """The last point of the link that takes part, where a mask hides those behind it from a softmax.

        Minus infinity changes no largest value of the link, and no sum that follows it.
        """
        if self.link is None:
            return None
        first, sums = self.products[0].work, self.products[-1].work.statements[0]
        reductions = [*(each for each in self.rows[0].statements if each.accum is not None), sums]
        largest = [each for each in reductions if each.follows is None]
        if not all(map(_goes_on, reductions)) or any(value_read(each.body) != first.output.name for each in largest):
            return None
        return last_seen(first.epilogue, self.link)

    @cached_property
    def stored(self) -> tuple[ProductTree, ...]:
        """The products with all values of the kernel in buffers."""
        return tuple(
            replace(each, work=replace(each.work, statements=self._in_buffers(each.work.statements)))
            for each in self.products
        )

    def stored_rows(self, number: int) -> Kernel:
        """The rows behind a product as a kernel over the loops of one block, with values of products in buffers."""
        points, rows = {loop.axis: loop.quantum for loop in self.blocks}, self.rows[number]

        def of_block(axes: Sequence[Axis]) -> tuple[Axis, ...]:
            return tuple(Axis(axis.name, points.get(axis, axis.size)) for axis in axes if points.get(axis) != 1)

        stored = self._in_buffers(rows.statements, {each.name for each in rows.statements})
        found = (replace(each, axes=of_block(each.axes), reduce=of_block(each.reduce)) for each in stored)
        return Kernel(tuple(found), rows.tree)

    def _in_buffers(self, statements: Sequence[Statement], own: Collection[str] = ()) -> tuple[Statement, ...]:
        """Statements that read and write buffers; values of their `own` they have at hand."""

        def rule(node: Expr) -> Expr | None:
            name = value_read(node)
            if name in self.buffers and name not in own:
                return Read(self.buffers[name].tensor, (self.buffers[name].address,))
            read = guarded_read(node)
            found = node if read is None else read.read  # of a border, the buffer has what is selected
            if isinstance(found, Read) and found.indices and found.tensor.name in self.window_reads:
                return Read(self.buffers[found.tensor.name].tensor, (self._window_address(found),))
            return None

        found = []
        for each in statements:
            address = self.buffers[each.name].address if each.name in self.buffers else each.address
            found.append(replace(each, body=rewritten(each.body, rule), address=address))
        return tuple(found)

    def _buffer(self, axes: Sequence[Axis], tensor: Tensor) -> Buffer:
        """A value at every point of these loops in one block, of which the last one is contiguous."""
        places = {axis: self._place(axis) for axis in axes}
        address, size = _linear(places.values())
        read = self.window_reads.get(tensor.name)
        return Buffer(
            Tensor(tensor.name, (size,), tensor.dtype), address,
            tuple((axis, extent) for axis, (extent, _) in places.items()), None if read is None else read.border,
        )  # fmt: skip

    def _place(self, axis: Axis) -> tuple[int, Expr]:
        """The elements of a buffer along a loop of its value, and which of them a point of the loop is."""
        window = self.windows.get(axis)
        if window is None:
            extent = self.points.get(axis, axis.size)
            return extent, within(axis, extent) if axis in self.points else axis
        if not window.is_cut(self.points):
            return window.before + axis.size + window.after, axis + window.before
        extent = window.span(self.points)
        return extent, within(axis, extent)

    def _window_address(self, read: Read) -> Expr:
        """Where in its buffer a value is that is read through windows."""
        places = []
        in_block: dict[Axis, Expr] = {
            axis: within(axis, points) if points > 1 else Const(0, INDEX) for axis, points in self.points.items()
        }
        for (axis, extent), index in zip(self.buffers[read.tensor.name].extents, read.indices, strict=True):
            window = self.windows.get(axis)
            if window is None:
                places.append(self._place(axis))
            elif window.is_cut(self.points):
                places.append((extent, substitute(index - window.form.constant, in_block)))
            else:
                places.append((extent, simplify(index + window.before)))
        return _linear(places)[0]


def _linear(places: Iterable[tuple[int, Expr]]) -> tuple[Expr, int]:
    """The address of these places, of so many each, of which the last are contiguous; and how many there are."""
    address: Expr = Const(0, INDEX)
    size = 1
    for extent, place in places:
        if extent > 1:
            address, size = address * extent + place, size * extent
    return address, size


def _goes_on(statement: Statement) -> bool:
    """Whether a statement may run in parts of a row: a map, a largest value, a sum of exponentials that follows it."""
    follows = statement.follows
    return statement.accum in (None, "max") or (follows is not None and follows.factor is not None)


def _of_block(product: ProductTree, whole: bool, hints: tuple[Hint, ...] = ()) -> TileTree:
    """The register tiles of a product within a block; with its epilogue, which has `hints`, if its sums are `whole`."""
    tree, after = product.sums(), product.epilogue(hints) if whole else None
    tree = Scope(Kind.SEQ, (tree, after)) if after is not None else tree
    return rooted(build.tile("L2", _trips(product.outside), tree))


def _trips(loops: Sequence[SpatialLoop]) -> list[tuple[str, int]]:
    return [(loop.axis.name, loop.tiles_per_block) for loop in loops]


# Reading --------------------------------------------------------------------------------------------------------------


def products_tree(kernel: Kernel) -> ProductsTree:
    """The decisions of the tree of a kernel with products. Raises InvalidTree for one that is not lowered."""
    works = products_of(kernel)
    if len(works) == 1 and not rows_of(kernel):
        return ProductsTree((product_tree(kernel),))
    found = _several(kernel, works)
    _require_lowered(found)
    require_form(kernel.tree, found.tree())
    return found


def _several(kernel: Kernel, works: Sequence[Product]) -> ProductsTree:
    """The decisions of a tree with a part for each of these products, and for the rows behind some."""
    tree = kernel.tree
    grid, trips, kept, parts = _around(tree)
    nodes = [part for part in parts if len(kernels(part)) == 1]
    passes: dict[int, Node] = {}
    for place, part in enumerate(parts):
        if len(kernels(part)) != 1:
            passes[sum(len(kernels(each)) for each in parts[:place]) - 1] = part
    between = rows_of(kernel)
    if set(passes) != set(between):
        names = ", ".join(each.name for rows in between.values() for each in rows) or "none"
        raise InvalidTree(
            f"a block has {len(parts) - len(nodes)} parts of rows before and between its products",
            where="tile tree", help=f"one for each run of statements that are not of a product: {names}",
        )  # fmt: skip
    if len(nodes) != len(works):
        names = ", ".join(work.output.name for work in works)
        raise InvalidTree(
            f"a block has {len(nodes)} parts for {len(works)} products",
            where="tile tree",
            help=f"@{BLOCKS} for the loops of blocks {{ seq of the products {names} }}",
        )
    walks = [_walk_of(node) for node in nodes]
    blocks = _blocks(grid, trips, works, walks)
    points = {loop.axis.name: loop.quantum for loop in blocks if loop.tiles > 1}
    products = []
    for work, walk in zip(works, walks, strict=True):
        loops = loops_named(walk.tiles, work.spatial, walk.quantum, {}, {work.columns.name: work.lanes})
        products.append(
            ProductTree(
                work=work,
                tile=walk.quantum,
                grid=(),
                outside=tuple(replace(loop, block_points=points.get(loop.axis.name, 0)) for loop in loops),
                epilogue_vectors=vectors_at_a_time(tree, work),
                within={axis.name: points[axis.name] for axis in work.depth if axis.name in points},
            )
        )
    rows = {number: Rows(statements, _tree_at(passes[number])) for number, statements in between.items()}
    found = with_windows(ProductsTree(tuple(products), blocks, rows, kept))
    return replace(found, seen=found.last_seen is not None and bool(hints_of(tree, "seen")))


def with_windows(tree: ProductsTree) -> ProductsTree:
    """The tree whose products walk, of loops that windows move along, what a block computes."""
    if not tree.windows:
        return tree

    def walked(loop: SpatialLoop) -> SpatialLoop:
        return replace(loop, block_points=tree.computed(loop.axis) or loop.block_points)

    products = [replace(each, outside=tuple(map(walked, each.outside))) for each in tree.products]
    return replace(tree, products=tuple(products))


def _tree_at(node: Node) -> TileTree:
    """A child of a scope."""
    assert not isinstance(node, Leaf), "children of a scope are trees"
    return node


@dataclass(frozen=True)
class _Walk:
    """How a product walks a block: tiles along its loops, steps of its depth, and the points of one product."""

    tiles: Mapping[str, int]
    steps: Mapping[str, int]
    quantum: Mapping[str, int]

    def points(self, loop: str) -> int:
        """Points of a loop in a block."""
        return self.tiles.get(loop, self.steps.get(loop, 1)) * self.quantum.get(loop, 1)


def _walk_of(node: Node) -> _Walk:
    (micro_kernel,) = kernels(node).values()
    tiles, steps = (next(map(factors, tiles_at(node, level)), {}) for level in ("L2", "L1"))
    return _Walk(tiles, steps, {loop.name: loop.trips for loop in micro_kernel.quantum})


def _around(tree: TileTree) -> tuple[dict[str, int], dict[str, int], tuple[str, ...], list[Node]]:
    """The loops to the grid, those over blocks, the values that blocks keep, and the products of one block."""
    grid: dict[str, int] = {}
    node: Node = tree
    if isinstance(node, Tile) and (node.level, node.binding) == ("DRAM", Binding.SP):
        grid, node = factors(node), node.child
    trips: dict[str, int] = {}
    kept: list[str] = []
    parts = list(_in_blocks(node, trips, kept))
    return grid, trips, tuple(kept), parts


def _in_blocks(node: Node, trips: dict[str, int], kept: list[str]) -> Iterator[Node]:
    """What runs in blocks, or beside those that cut a sum; adds the loops over blocks, and what these keep."""
    while True:
        if isinstance(node, Tile) and node.level == BLOCKS:
            trips |= factors(node)
            kept += node.keep
            node = node.child
        elif isinstance(node, Stage):
            node = node.child
        elif isinstance(node, Scope) and isinstance(node.children[0], Tile) and node.children[0].level == BLOCKS:
            node = node.children[0]  # what follows is the epilogue of staged sums
        else:
            break
    for part in node.children if isinstance(node, Scope) else [node]:
        if isinstance(part, Stage):
            yield from _in_blocks(part, trips, kept)
        else:
            yield part


def _blocks(
    grid: Mapping[str, int], trips: Mapping[str, int], works: Sequence[Product], walks: Sequence[_Walk]
) -> tuple[SpatialLoop, ...]:
    """The loops that are cut, in the order of the tree, with the points of a block on which all products agree."""
    axes = {axis.name: axis for work in works for axis in (*work.spatial, *work.depth)}
    blocks = []
    for name in dict.fromkeys((*trips, *grid)):
        if name not in axes:
            raise InvalidTree(f"{name} is no loop of the products", where="tile tree", help=f"one of {', '.join(axes)}")
        programs, points = grid.get(name, 1), axes[name].size
        if programs * trips.get(name, 1) > 1:
            sizes = {
                work.output.name: walk.points(name)
                for work, walk in zip(works, walks, strict=True)
                if name in {axis.name for axis in (*work.spatial, *work.depth)}
            }
            if len(set(sizes.values())) > 1:
                shown = ", ".join(f"{size} in {product}" for product, size in sizes.items())
                raise InvalidTree(
                    f"a block of {name} has {shown}", where="tile tree", help="tiles and steps of as many points in all"
                )
            (points,) = set(sizes.values())
        blocks.append(SpatialLoop(axes[name], points, programs))
    return tuple(blocks)


def _require_lowered(tree: ProductsTree) -> None:
    """Raises InvalidTree for blocks or operands that no program is made for."""
    last = tree.products[-1]
    cut = {loop.axis for loop in tree.blocks if loop.tiles > 1}
    single = {loop.axis.name for loop in tree.blocks if loop.quantum == 1}
    for product in tree.products:
        work = product.work
        walked = {loop.axis.name for loop in product.outside} | single
        missing = [axis.name for axis in work.spatial if axis.name not in walked and axis.size > 1]
        if missing or any(loop.axis.name in single for loop in product.outside):
            raise InvalidTree(
                f"tiles of {work.output.name} do not walk {', '.join(missing) or 'each loop once'}",
                where="tile tree", help=f"{', '.join(axis.name for axis in work.spatial)}, each once",
            )  # fmt: skip
        if len(work.statements) > 2:
            raise InvalidTree(
                f"{work.output.name} has more than one statement behind its sums",
                where="tile tree", help="a kernel of its own",
            )  # fmt: skip
        require_steps(product)
        only_last = bool(tree.rows) or bool(tree.windows)
        if cut & set(work.depth) and (len(work.depth) > 1 or product is not (last if only_last else tree.adding)):
            which = "the last product sums" if only_last else "one product sums"
            raise InvalidTree(
                f"blocks cut the sum of {work.output.name}",
                where="tile tree", help=f"blocks of the only loop that {which} over",
            )  # fmt: skip
    summed = tree.adding.work
    if any(loop.axis not in summed.depth for loop in tree.summed):
        names = ", ".join(loop.axis.name for loop in tree.blocks)
        raise InvalidTree(
            f"blocks are walked in the order {names}",
            where="tile tree", help=f"the loop that {summed.output.name} sums over is the innermost one",
        )  # fmt: skip
    for number, rows in tree.rows.items():
        if number >= 0 and not tree.windows:
            _require_steps_of_rows(tree.products[number], rows, tree.summed)
        else:
            _require_rows_before(rows, tree)
    _require_windows(tree)
    for product in tree.stored:
        _require_vectors(product, tree)


def _require_steps_of_rows(product: ProductTree, rows: Rows, summed: Sequence[SpatialLoop]) -> None:
    """Raises InvalidTree where rows cannot go on from block to block, or a block ends within a step of a pass."""
    for loop in summed:
        for leaf, tile in register_tiles(rows.tree):
            points = tile.along(loop.axis.name)
            if points > 1 and tile.vector != loop.axis.name:
                raise InvalidTree(
                    f"a step of {leaf.op} has {points} points of {loop.axis.name}, which blocks cut",
                    where="tile tree", help=f"one point of {loop.axis.name} in a step, or a vector along it",
                )  # fmt: skip
            if loop.quantum % points:
                raise InvalidTree(
                    f"a block of {loop.axis.name} has {loop.quantum} points, a step of {leaf.op} {points}",
                    where="tile tree", help=f"whole steps, such as {-(-loop.quantum // points) * points} points",
                )  # fmt: skip
        following = joined(Kernel(rows.statements, rows.tree))
        if following:
            raise InvalidTree(
                f"{', '.join(following)} has a pass with what it follows, of rows that blocks of {loop.axis.name} cut",
                where="tile tree", help="a pass for each, the largest value first",
            )  # fmt: skip
        whole = [each.name for each in rows.statements if not _goes_on(each)]
        if whole:
            raise InvalidTree(
                f"blocks of {loop.axis.name} cut the rows behind {product.work.output.name}, of which "
                f"{', '.join(whole)} do not go on from block to block",
                where="tile tree", help="a largest value of each row, and sums that follow it",
            )  # fmt: skip


def _require_rows_before(rows: Rows, tree: ProductsTree) -> None:
    """Raises InvalidTree where a block ends within a register tile of the rows before the first product, or cuts the
    sum that these give all values of.
    """
    for loop in tree.summed:
        raise InvalidTree(
            f"blocks of {loop.axis.name} cut the sum of {tree.products[-1].work.output.name}, which rows come before",
            where="tile tree", help=f"all points of {loop.axis.name} in a block",
        )  # fmt: skip
    for loop in tree.blocks:
        for leaf, tile in register_tiles(rows.tree):
            points = tile.along(loop.axis.name)
            if loop.tiles > 1 and loop.quantum % points:
                raise InvalidTree(
                    f"a block of {loop.axis.name} has {loop.quantum} points, a register tile of {leaf.op} {points}",
                    where="tile tree", help=f"whole tiles, such as {-(-loop.quantum // points) * points} points",
                )  # fmt: skip


def _require_windows(tree: ProductsTree) -> None:
    """Raises InvalidTree where no program is made for windows that blocks cut, or for values that blocks keep."""
    for product in tree.products:
        for axis in product.work.spatial:
            points = product.tile.get(axis.name, 1)
            if tree.computed(axis) and points > 1:
                raise InvalidTree(
                    f"a register tile of {product.work.output.name} has {points} points of {axis.name}, of which a "
                    "block computes as many as its windows touch",
                    where="tile tree", help="one point",
                )  # fmt: skip
    for name in tree.kept:
        work = next((each.work for each in tree.products if each.work.output.name == name), None)
        cut = [tree.windows[axis] for axis in (() if work is None else work.spatial) if tree.computed(axis)]
        if not cut:
            known = [each for each in tree.window_reads if tree.buffers[each].border is not None]
            raise InvalidTree(
                f"blocks keep {name}, whose windows they do not cut",
                where="tile tree", help=", ".join(known) or "no keep",
            )  # fmt: skip
        innermost = tree.outer[-1].axis
        if len(cut) > 1 or [axis for axis in cut[0].form.terms if axis in tree.points] != [innermost]:
            raise InvalidTree(
                f"blocks keep {name}, whose windows move along other loops than the innermost one of the blocks, "
                f"{innermost.name}",
                where="tile tree", help=f"blocks of which only {innermost.name} moves windows, or no keep",
            )  # fmt: skip
        if cut[0].step(tree.points) >= cut[0].span(tree.points):
            raise InvalidTree(
                f"blocks keep {name}, of which no two blocks touch the same points",
                where="tile tree", help="no keep",
            )  # fmt: skip


def _require_vectors(product: ProductTree, tree: ProductsTree) -> None:
    """Raises InvalidTree where a product reads vectors or groups of a buffer whose rows run along another loop."""
    work = product.work
    if work.b.tensor.name in tree.buffers:
        if work.group > 1:
            raise InvalidTree(
                f"{work.output.name} reads {work.b.tensor.name} in groups of {work.group} points of each column, which "
                "are stored row by row",
                where="tile tree", help=f"a micro-kernel that broadcasts {work.b.tensor.name}, or kernels of their own",
            )  # fmt: skip
        _require_rows_along(work.columns, work.b, "vectors", work, tree)
    if work.group > 1 and work.a.tensor.name in tree.buffers:
        _require_rows_along(work.depth[-1], work.a, f"groups of {work.group}", work, tree)


def _require_rows_along(axis: Axis, operand: Operand, what: str, work: Product, tree: ProductsTree) -> None:
    """Raises InvalidTree where neighbours along a loop are no neighbours in a buffer."""
    form = affine(operand.index)
    points = next((loop.quantum for loop in tree.blocks if loop.axis == axis and loop.tiles > 1), axis.size)
    if form is None or 1 not in (form.coefficient(axis), form.coefficient(within(axis, points))):
        raise InvalidTree(
            f"{work.output.name} reads {what} along {axis.name} of {operand.tensor.name}, whose rows run along "
            "another loop",
            where="tile tree", help=f"a kernel of its own, for which {operand.tensor.name} is stored again",
        )  # fmt: skip
