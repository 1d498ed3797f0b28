"""Neighbouring loops of a product as one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.expr.core import Axis, Const
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.intrinsics.mapping import ProductMapping
from tilewright.operator.statements import addresses, contiguous, outside_reads
from tilewright.tiles.product import Product


def merge_product_loops(
    work: Product, rows: Collection[Axis] | None = None, single: Collection[Axis] = ()
) -> Product:  # fmt: skip
    """Fuse neighbouring row loops, and neighbouring depth loops, that are contiguous in every address.

    Loops among `rows`, where given, are fused with each other only, and `single` ones with none.
    """
    return merge_shared_loops([work], rows, single)[0]


def merge_shared_loops(
    works: Sequence[Product], rows: Collection[Axis] | None = None, single: Collection[Axis] = ()
) -> list[Product]:
    """As `merge_product_loops`, for products in one kernel: loops that several have are fused in all of them, where
    they are neighbours in the same role and contiguous in every address of each.
    """
    merged = list(works)
    for part in ("rows", "depth"):
        for number in range(len(merged)):
            position = 0
            while position + 1 < len(getattr(merged[number], part)):
                a, b = getattr(merged[number], part)[position : position + 2]
                sharing = [n for n, work in enumerate(merged) if {a, b} & {*work.spatial, *work.depth}]
                neighbours = all((a, b) in pairwise(getattr(merged[n], part)) for n in sharing)
                separate = part == "rows" and rows is not None and (a in rows) != (b in rows)
                separate = separate or a in single or b in single
                if separate or not neighbours or not all(_are_one(merged[n], a, b) for n in sharing):
                    position += 1
                    continue
                fused = _fused_of(merged, a, b)
                if part == "rows" and rows is not None and a in rows:
                    rows = {*rows, fused}
                for n in sharing:
                    merged[n] = _with_fused(merged[n], (a, b), fused)
    return merged


def _are_one(work: Product, a: Axis, b: Axis) -> bool:
    """Whether two neighbouring loops of a product may run as one: no address, and nothing else, tells them apart."""
    stored = [each.address for each in work.statements if each.address is not None]
    indices = [work.a.index, work.b.index, *stored, *addresses(work.epilogue)]
    guards = [each.guard for each in (work.a, work.b) if each.guard is not None]
    return contiguous(a, b, indices) and not any(outside_reads(each, (a, b)) for each in (work.epilogue, *guards))


def _fused_of(works: Sequence[Product], a: Axis, b: Axis) -> Axis:
    """The loop that stands for two, with a name that no loop of these products has."""
    taken = {axis.name for work in works for axis in (*work.spatial, *work.depth)}
    return Axis(unique(f"{a.name}_{b.name}", taken), a.size * b.size)


def _with_fused(work: Product, pair: tuple[Axis, Axis], fused: Axis) -> Product:
    """The product with two neighbouring loops as one."""
    a, b = pair
    parts = (*work.stands_for(a), *work.stands_for(b))

    def loops(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(fused if axis == b else axis for axis in axes if axis != a)

    def names(called: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(fused.name if name == b.name else name for name in called if name != a.name)

    product = work.without_support_along(pair).with_substituted_loops({a: Const(0, INDEX), b: fused})
    statements = tuple(replace(each, axes=loops(each.axes), reduce=loops(each.reduce)) for each in product.statements)
    mapping: ProductMapping = work.mapping
    mapping = replace(mapping, rows=names(mapping.rows), depth=names(mapping.depth), padded=names(mapping.padded))
    return replace(product, statements=statements, mapping=mapping, fused={**work.fused, fused.name: parts})
