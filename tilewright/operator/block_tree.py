"""The tree of a product on the blocks of a GPU: its decisions as a value, written as a tree and read from one."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.dataclass import dataclass
from tilewright.layouts.bits import is_power_of_two
from tilewright.tiles.build import in_blocks, rooted, staged, tile
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.parts import factors, number_of, numbers_of, program_of, require_form, tiles_at
from tilewright.tiles.product import Product, micro_kernel, product_of
from tilewright.tiles.tree import Binding, Hint, InvalidTree, Kind, Leaf, Scope, Stage, TileTree, kernels, walk


@dataclass(frozen=True)
class BlockTree:
    """A product with its tiles: `points` of a tile along rows, columns and depth.

    `order` has the loops of the grid, the slowest first, `depth` those of the sums, the last one fastest. Operands are
    in `stages` buffers, `splits` blocks share the sums of a tile, and so many of a `cluster` bring what all of them
    read.
    """

    work: Product
    points: Mapping[str, int]
    order: tuple[str, ...]
    depth: tuple[str, ...]
    warps: tuple[int, ...]
    stages: int = 1
    splits: int = 1
    cluster: int = 1

    @property
    def grid(self) -> list[SpatialLoop]:
        """The loops of the result, the slowest first; each tile is a block of its own."""
        return [self._tiled(name) for name in self.order]

    @property
    def k_tiles(self) -> dict[str, int]:
        """In how many tiles each loop of the depth is cut."""
        return {name: self._tiled(name).programs for name in self.depth}

    def _tiled(self, name: str) -> SpatialLoop:
        axis = next(axis for axis in (*self.work.spatial, *self.work.depth) if axis.name == name)
        points = self.points.get(name, 1)
        return SpatialLoop(axis, points, -(-axis.size // points), points)

    def tree(self) -> TileTree:
        """Blocks of the grid around k tiles around the product of a tile, which is a micro-kernel of the block."""
        work, points = self.work, self.points
        product, *epilogue = work.statements
        kernel = micro_kernel(work, points, {name: points.get(name, 1) for name in self.depth})
        tree = rooted(tile("L1", list(self.k_tiles.items()), Leaf(product.name, kernel)))
        tree = staged([work.a.tensor.name, work.b.tensor.name], "SHARED", tree, self.stages)
        if epilogue:
            dims = [(axis.name, points.get(axis.name, 1)) for axis in (*work.rows, work.columns)]
            tree = Scope(Kind.SEQ, (tree, rooted(tile("REG", dims, Leaf(epilogue[0].name), Binding.SP))))
        hints = [Hint("warps", self.warps)]
        hints += [Hint("splits", (self.splits,))] if self.splits > 1 else []
        hints += [Hint("cluster", (self.cluster,))] if self.cluster > 1 else []
        return in_blocks(self.grid, tree, hints)


def block_tree(kernel: Kernel) -> BlockTree:
    """The decisions of the tree of a kernel with a product. Raises InvalidTree for one that is not lowered."""
    work, tree = product_of(kernel), kernel.tree
    assert work is not None, "a kernel with a product"
    (product,) = kernels(tree).values()
    stages = [node for _, node in walk(tree) if isinstance(node, Stage)]
    order = tuple(program_of(tree).grid)
    depth = tuple(next((factors(each) for each in tiles_at(tree, "L1")), {}))
    for fact, names, axes in (("grid", order, work.spatial), ("k tiles", depth, work.depth)):
        wanted = [axis.name for axis in axes]
        if sorted(names) != sorted(wanted):
            message = f"loops of the {fact} of {work.output.name} are {', '.join(names) or 'none'}"
            raise InvalidTree(message, help=f"{', '.join(wanted)}, each once")
    found = BlockTree(
        work=work,
        points={loop.name: loop.trips for loop in product.quantum},
        order=order,
        depth=depth,
        warps=numbers_of(tree, "warps"),
        stages=stages[0].slots if stages else 1,
        splits=number_of(tree, "splits", 1),
        cluster=number_of(tree, "cluster", 1),
    )
    require_form(tree, found.tree())
    _require_powers_of_two(found)
    return found


def _require_powers_of_two(tree: BlockTree) -> None:
    """Raises InvalidTree for a tile whose points, or warps, no layout distributes."""
    odd = [f"{points} points of {name}" for name, points in tree.points.items() if not is_power_of_two(points)]
    odd += [f"{count} warps along {along}" for along, count in zip("mn", tree.warps, strict=False)
            if not is_power_of_two(count)]  # fmt: skip
    if odd:
        fact = f"a tile of {tree.work.output.name} has {', '.join(odd)}"
        raise InvalidTree(fact, help="powers of two: a layout distributes them to threads")
