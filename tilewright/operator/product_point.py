"""How a product runs on a CPU, as a few numbers: the register tile, the order of the loops, blocks of k.

Rules and searches choose among points; `rules.cpu_product.scheduled_product` makes the tree of the one that was chosen.
"""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.expr.affine import affine
from tilewright.fields import Readable, count, optional, required, several, string
from tilewright.tiles.product import Product


@dataclass(frozen=True)
class ProductPoint(Readable):
    """`rows` of the register tile along every row loop and `vectors` along the columns.

    `order` has the loops of columns and rows by name, outermost first; the sums are cut into `k_blocks` parts.
    """

    rows: tuple[int, ...] = required(several(count))
    vectors: int = required(count)
    order: tuple[str, ...] = required(several(string))
    k_blocks: int = optional(count, 1)

    def __str__(self) -> str:
        blocks = f", k in {self.k_blocks} blocks" if self.k_blocks > 1 else ""
        return f"{self.tile_text()}, {' '.join(self.order)}{blocks}"

    def tile_text(self) -> str:
        """The register tile in words."""
        return f"{'x'.join(map(str, self.rows)) or '1'} rows by {self.vectors} vectors"

    def tile(self, work: Product) -> dict[str, int]:
        """Points of a register tile along every loop that has several."""
        tile = {axis.name: size for axis, size in zip(work.rows, self.rows, strict=True) if size > 1}
        columns, lanes = work.columns.size, work.lanes
        whole = min(self.vectors * lanes, -(-columns // lanes) * lanes)
        tile[work.columns.name] = columns if columns < lanes else whole
        return tile

    def k_block(self, work: Product) -> int:
        """Points of the first k loop per block, whole steps of the product where it is the only one; 0: no blocks."""
        first = work.depth[0].size
        size = -(-first // self.k_blocks)
        if len(work.depth) == 1:
            step = k_unroll(work)
            size = -(-size // step) * step
        return size if self.k_blocks > 1 and size < first else 0


def k_unroll(work: Product) -> int:
    """Steps of the last k loop in one product: about four groups of the instruction, so that few are left over.

    Fewer where neighbouring rows overlap (windows over few channels): what one step reads for a row and another for the
    next would be kept in registers between them.
    """
    last, group = work.depth[-1].size, work.group
    groups = -(-last // group)
    form = affine(work.a.index)
    stride = form.coefficient(work.rows[-1]) if form is not None and work.rows else 0
    if group > 1 and 0 < stride < 4 * group:
        return group * min(groups, max(1, stride // group))
    if groups <= 4 or group == 1:
        return group * min(4, groups)
    best = min(range(4, 7), key=lambda count: (groups - last // (count * group) * count, count))
    return group * best
