"""Two products in one kernel on the blocks of a GPU: how the tile of a block is divided among their loops.

Level 3 says how large it is (`instruction.fused_tiles`).
"""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.operator.fused_blocks import FusedBlocks
from tilewright.operator.rules.gpu_product import points_of
from tilewright.tiles.kernel import Statement
from tilewright.tiles.product import Product


@dataclass(frozen=True)
class FusedShape:
    """The tile of a block: rows, columns of the link, columns of the result, points of a k tile of the first product.

    Warps share the rows; what is brought is in `stages` buffers.
    """

    rows: int
    link: int
    columns: int
    depth: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, {self.link} of the link, {self.columns} columns, k tiles of {self.depth} on "
            f"{self.warps} warps, {self.stages} stages"
        )


def fused_tree(first: Product, second: Product, rows: tuple[Statement, ...], shape: FusedShape) -> FusedBlocks:
    """The decisions as a tree: the tile over the loops of rows with the fewest blocks."""
    points = {
        **points_of(first.rows, shape.rows), first.columns.name: shape.link, second.columns.name: shape.columns,
        **points_of(first.depth, shape.depth),
    }  # fmt: skip
    order = tuple(axis.name for axis in (*first.outer, *first.rows))
    return FusedBlocks(first, second, rows, points, order, (shape.warps, 1), shape.stages)
