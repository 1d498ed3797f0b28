"""Basic indexing as in NumPy: integers, slices, new dimensions and an ellipsis, in one node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.core import Axis, Expr, Tensor, const, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import emit


@operator
def part(x: Tensor, indices: Sequence[object], *, name: str = "part") -> Tensor:
    """``x[indices]``: an integer takes one position, a slice several, None adds a dimension of extent 1.

    An ellipsis stands for the dimensions that no index names; without one these are the last. Slices are cut to the
    extent, as Python does it. Raises InvalidExpression for an integer outside of the extent and for other indices.
    """
    where = f"{x.name}[{', '.join(map(_shown, indices))}]"
    shape = iter(static_shape(x.shape))
    axes: list[Axis] = []
    read: list[Expr] = []
    for index in _of_every_dimension(x, indices, where):
        if index is None:
            axes.append(Axis(f"i{len(axes)}", 1))
        elif isinstance(index, slice):
            chosen = _chosen(index, next(shape), where)
            axes.append(Axis(f"i{len(axes)}", len(chosen)))
            read.append(axes[-1] * chosen.step + chosen.start)
        else:
            read.append(const(_position(index, next(shape), where), INDEX))
    if not read:
        raise ExtentMismatch(f"{x} has no dimensions", where=where, help="x[None] has one")
    return emit(x.builder, axes, x[tuple(read)], name=name)


def _of_every_dimension(x: Tensor, indices: Sequence[object], where: str) -> list[object]:
    """`indices` without an ellipsis: one for every dimension of `x`, and None between them."""
    for index in indices:
        if isinstance(index, Tensor | np.ndarray | list):
            help = "indexing.gather(x, indices, axis=…) reads at computed positions"
            raise InvalidExpression(f"an index is a {type(index).__name__}", where=where, help=help)
        known = index is None or index is ... or isinstance(index, int | np.integer | slice)
        if not known or isinstance(index, bool):
            help = "integers, slices, None and one Ellipsis"
            raise InvalidExpression(f"an index is a {type(index).__name__}: {index!r}", where=where, help=help)
    dots = [place for place, index in enumerate(indices) if index is ...]
    if len(dots) > 1:
        raise InvalidExpression("two ellipses", where=where, help="one Ellipsis at most")
    named = sum(index is not None and index is not ... for index in indices)
    if named > x.rank:
        fact = f"{named} indices of {x}, which has rank {x.rank}"
        raise ExtentMismatch(fact, where=where, help=f"at most {x.rank}, and None for new dimensions")
    place = dots[0] if dots else len(indices)
    return [*indices[:place], *[slice(None)] * (x.rank - named), *indices[place + 1 :]]


def _chosen(index: slice, extent: int, where: str) -> range:
    try:
        return range(extent)[index]
    except (TypeError, ValueError) as error:
        raise InvalidExpression(str(error), where=where, help="integers, and a step other than 0") from error


def _position(index: object, extent: int, where: str) -> int:
    assert isinstance(index, int | np.integer)
    if not -extent <= index < extent:
        fact = f"index {index} of a dimension of extent {extent}"
        legal = f"an index in [{-extent}, {extent - 1}]" if extent else "no integer is inside an empty dimension"
        raise InvalidExpression(fact, where=where, help=legal)
    return int(index) % extent


def _shown(index: object) -> str:
    if isinstance(index, slice):
        bounds = ["" if bound is None else str(bound) for bound in (index.start, index.stop, index.step)]
        return ":".join(bounds if bounds[2] else bounds[:2])
    return "..." if index is ... else getattr(index, "name", None) or str(index)
