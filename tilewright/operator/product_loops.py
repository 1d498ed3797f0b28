"""Neighbouring loops of a product as one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.expr.core import Axis, Const
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.intrinsics.mapping import ProductMapping
from tilewright.operator.statements import addresses, contiguous, outside_reads
from tilewright.tiles.product import Product


def merge_product_loops(work: Product, rows: Collection[Axis] | None = None) -> Product:
    """Fuse neighbouring row loops, and neighbouring depth loops, that are contiguous in every address.

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
            guards = [each.guard for each in (work.a, work.b) if each.guard is not None]
            if not contiguous(a, b, indices) or any(outside_reads(each, (a, b)) for each in (work.epilogue, *guards)):
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
