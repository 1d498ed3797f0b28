"""How products run on CPUs, and the merging of their loops."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis, Const
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.operator.nest import addresses, outside_reads, walked_as_one
from tilewright.tiles.product import Product
from tilewright.tiles.tree import ProductMapping


@dataclass(frozen=True)
class ContractionSchedule:
    """How it runs: tile extents per loop (m loops multiply to the rows of the register tile), order and blocks of the
    loops.

    `order` lists the spatial loops outermost first; `blocks` deals loops to the grid, whose slowest axis is the first
    of `grid_order`. `k_unroll` is how many steps of the last k loop one product takes. `k_block` > 0 cuts the first k
    loop into blocks of so many points that run outside the m loops; with `prefetch_line_bytes`, the cache line, a block
    asks for what comes next while it is computed. With `epilogue_loop` the epilogue is a loop over the vectors of the
    register tile, which reads the sums from scratch memory; else it is unrolled over the tile.
    """

    tile: Mapping[str, int]
    order: tuple[str, ...]
    blocks: Mapping[str, int]
    grid_order: tuple[str, ...]
    k_unroll: int
    lanes: int
    k_block: int = 0
    prefetch_line_bytes: int = 0
    epilogue_loop: bool = False


def merge_product_loops(work: Product, rows: Collection[Axis] | None = None) -> Product:
    """Fuse neighbouring row loops, and neighbouring depth loops, that every address walks as one.

    Loops among `rows`, where given, are fused with each other only.
    """
    for part in ("rows", "depth"):
        position = 0
        while position + 1 < len(getattr(work, part)):
            axes: tuple[Axis, ...] = getattr(work, part)
            a, b = axes[position], axes[position + 1]
            if part == "rows" and rows is not None and (a in rows) != (b in rows):
                position += 1
                continue
            indices = [work.a.index, work.b.index, work.index, *addresses(work.epilogue)]
            if not walked_as_one(a, b, indices) or outside_reads(work.epilogue, (a, b)):
                position += 1
                continue
            name = unique(f"{a.name}_{b.name}", {axis.name for axis in (*work.spatial, *work.depth)})
            fused = Axis(name, a.size * b.size)
            if part == "rows" and rows is not None and a in rows:
                rows = {*rows, fused}
            work = _with_fused(work, (a, b), fused)
    return work


def _with_fused(work: Product, pair: tuple[Axis, Axis], fused: Axis) -> Product:
    """The product with two neighbouring loops as one."""
    a, b = pair
    parts = (*work.stands_for(a), *work.stands_for(b))

    def loops(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(fused if axis == b else axis for axis in axes if axis != a)

    def names(called: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(fused.name if name == b.name else name for name in called if name != a.name)

    walked = work.walked_by({a: Const(0, INDEX), b: fused})
    statements = tuple(replace(each, axes=loops(each.axes), reduce=loops(each.reduce)) for each in walked.statements)
    mapping: ProductMapping = work.mapping
    mapping = replace(mapping, rows=names(mapping.rows), depth=names(mapping.depth), padded=names(mapping.padded))
    return replace(walked, statements=statements, mapping=mapping, fused={**work.fused, fused.name: parts})
