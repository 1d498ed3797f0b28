"""The tree of two products in one kernel on the blocks of a GPU, where the second reads the first as its factor a.

    @DRAM par b:8, m:4 with warps(4, 1) {                                  # blocks of the grid
      stage A in SHARED {
        seq[
          @L2 for l:16 {                                                   # tiles of the link, one after the other
            seq[
              stage B in SHARED slots 2 { … op C as mma … },               # the first product, over k tiles
              …                                                            # its epilogue, the rows of a softmax
              stage D in SHARED slots 2 { … op E as mma … }                # the second product, added to its sums
            ]
          },
          @REG par m:128, n:64 { epilogue }
        ]
      }
    }

The *link*, what the second product reads, has rows m and columns l. A tile of it stays in registers. A block has all
columns n of its rows. Between the products there may be a largest value of each row with sums that follow it
(`operator.rewrites.deferred_normalisation`): they run on from tile to tile, and so do the sums of the second product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis
from tilewright.layouts.bits import is_power_of_two
from tilewright.tiles.build import distinct_kernels, in_blocks, rooted, staged, tile
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.parts import numbers_of, program_of, require_form
from tilewright.tiles.product import Product, micro_kernel, products_of, rows_of
from tilewright.tiles.tree import (
    Binding,
    Hint,
    InvalidTree,
    Kind,
    Leaf,
    Scope,
    Stage,
    TileTree,
    kernels,
    walk,
)


@dataclass(frozen=True)
class FusedBlocks:
    """Two products with the tile of a block: `points` of all their loops, powers of two.

    `rows` are the statements between the products. `order` has the loops of the grid, the slowest first. K tiles of
    the first product, and tiles of the other factors, are in `stages` buffers.
    """

    first: Product
    second: Product
    rows: tuple[Statement, ...]
    points: Mapping[str, int]
    order: tuple[str, ...]
    warps: tuple[int, ...]
    stages: int = 1

    @property
    def link(self) -> Axis:
        """The columns of the first product, which the second one sums over."""
        return self.first.columns

    @cached_property
    def grid(self) -> list[SpatialLoop]:
        """The loops that both products have, the slowest first; each tile is a block of its own."""
        axes = {axis.name: axis for axis in (*self.first.outer, *self.first.rows)}
        return [self.tiled(axes[name]) for name in self.order]

    def tiled(self, axis: Axis) -> SpatialLoop:
        """A loop in tiles, a program for each."""
        points = self.points.get(axis.name, 1)
        return SpatialLoop(axis, points, -(-axis.size // points), points)

    @property
    def k_tiles(self) -> dict[str, int]:
        """In how many tiles each loop that the first product sums over is cut."""
        return {axis.name: self.tiled(axis).programs for axis in self.first.depth}

    @property
    def keeps_a(self) -> bool:
        """Whether the first factor of the first product is read once for all tiles of the link."""
        return all(count == 1 for count in self.k_tiles.values())

    def tree(self) -> TileTree:
        """Blocks of the grid around tiles of the link around both products."""
        first, second = self._products()
        rows = [self._of_tile(each) for each in self.rows]
        if self.first.has_epilogue:
            rows.insert(0, self._of_tile(self.first.statements[1]))
        (name, trips) = (self.link.name, self.tiled(self.link).programs)
        tree = rooted(tile("L2", [(name, trips)], Scope(Kind.SEQ, (first, *rows, second))))
        if self.second.has_epilogue:
            tree = Scope(Kind.SEQ, (tree, self._of_tile(self.second.statements[1])))
        if self.keeps_a:
            tree = staged([self.first.a.tensor.name], "SHARED", tree)
        return in_blocks(self.grid, tree, [Hint("warps", self.warps)])

    def _products(self) -> Sequence[TileTree]:
        """Both products of one tile of the link, with what is brought for them."""
        found: list[TileTree] = []
        for work, loops in ((self.first, list(self.k_tiles.items())), (self.second, [])):
            kernel = micro_kernel(work, self.points, {axis.name: self.points.get(axis.name, 1) for axis in work.depth})
            found.append(rooted(tile("L1", loops, Leaf(work.statements[0].name, kernel))))
        brought = [self.first.b.tensor.name], [self.second.b.tensor.name]
        if not self.keeps_a:
            brought[0].insert(0, self.first.a.tensor.name)
        pairs = zip(brought, distinct_kernels(found), strict=True)
        return [staged(names, "SHARED", tree, self.stages) for names, tree in pairs]

    def _of_tile(self, statement: Statement) -> TileTree:
        """A statement on the elements of a tile, which the threads of the block share."""
        loops = [(axis.name, self.points.get(axis.name, 1)) for axis in (*statement.axes, *statement.reduce)]
        inside = [(name, points) for name, points in loops if points > 1]
        return rooted(tile("REG", inside, Leaf(statement.name), Binding.SP))


def fused_blocks(kernel: Kernel) -> FusedBlocks:
    """The decisions of the tree of a kernel with two products on blocks. Raises InvalidTree for one not lowered."""
    tree, products = kernel.tree, products_of(kernel)
    if len(products) != 2:
        raise InvalidTree(f"a block computes {len(products)} products", where="tile tree", help="one or two")
    first, second = products
    rows = rows_of(kernel).get(0, ())
    link = rows[-1] if rows else first.statements[-1]
    if second.a.tensor.name != link.name or second.a.tensor.shape or tuple(second.depth) != (first.columns,):
        fact = f"{second.output.name} reads {link.name} otherwise than as the rows of its factor"
        raise InvalidTree(fact, where="tile tree", help=f"factor a is {link.name}, summed over {first.columns.name}")
    points = {loop.name: loop.trips for each in kernels(tree).values() for loop in each.quantum}
    order, shared = tuple(program_of(tree).grid), [axis.name for axis in (*first.outer, *first.rows)]
    if sorted(order) != sorted(shared):
        fact = f"loops of the grid are {', '.join(order) or 'none'}"
        raise InvalidTree(fact, where="tile tree", help=f"{', '.join(shared) or 'once'}, each once")
    slots = [node.slots for _, node in walk(tree) if isinstance(node, Stage)]
    found = FusedBlocks(first, second, rows, points, order, numbers_of(tree, "warps"), max(slots, default=1))
    _require_whole(found)
    require_form(tree, found.tree())
    return found


def _require_whole(found: FusedBlocks) -> None:
    """Raises InvalidTree for tiles or warps that no layout distributes, or tiles without all columns of the result."""
    odd = [f"{points} points of {name}" for name, points in found.points.items() if not is_power_of_two(points)]
    odd += [f"{count} warps" for count in found.warps if not is_power_of_two(count)]
    if odd:
        fact = f"a tile of {found.second.output.name} has {', '.join(odd)}"
        raise InvalidTree(fact, where="tile tree", help="powers of two: a layout distributes them to threads")
    columns = found.second.columns
    if found.tiled(columns).programs > 1:
        fact = f"a block has {found.points.get(columns.name, 1)} of {columns.size} columns {columns.name}"
        raise InvalidTree(fact, where="tile tree", help="all of them: another block would compute the link again")
