"""A guarded factor of a product as a tensor: the dimensions in which its loops move, each from 0 to its extent."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Apply, Expr
from tilewright.tiles.product import Operand


@dataclass(frozen=True)
class BoxDim:
    """A dimension of memory: its step in elements, its extent, and which place along it is read."""

    stride: int
    extent: int
    place: Affine


def box_dims(operand: Operand) -> list[BoxDim] | None:
    """The dimensions of what a factor reads, the longest steps first: those of its guard, and one for any other loop.

    None where the address is not the sum of the places that the guard bounds, and of loops.
    """
    rest = affine(operand.index)
    if rest is None:
        return None
    found = []
    for place, extent in _bounded(operand.guard):
        axis = next(iter(place.terms))
        stride, left = divmod(rest.coefficient(axis), place.coefficient(axis))
        if left or stride < 1:
            return None
        found.append(BoxDim(stride, extent, place))
        rest = rest + place.scaled(-stride)
    if rest.constant or any(step < 1 for step in rest.terms.values()):
        return None
    found += [BoxDim(step, axis.size, Affine(0, {axis: 1})) for axis, step in rest.terms.items()]
    return sorted(found, key=lambda dim: -dim.stride)


def _bounded(guard: Expr | None) -> Iterator[tuple[Affine, int]]:
    """The places that a guard keeps from 0 to an extent: ``place >= 0 and place < extent``, and others."""
    terms, stack = [], [] if guard is None else [guard]
    while stack:
        term = stack.pop()
        assert isinstance(term, Apply), "a conjunction of comparisons"
        if term.function == "and":
            stack.extend(reversed(term.args))
        else:
            terms.append(term)
    below = {}
    for term in terms:
        if term.function == "lt":
            form = affine(term.args[0] - term.args[1])
            assert form is not None, "bounds of affine forms"
            below[tuple(form.terms.items())] = form.constant
    for term in terms:
        if term.function == "ge":
            place = affine(term.args[0] - term.args[1])
            assert place is not None, "bounds of affine forms"
            yield place, place.constant - below[tuple(place.terms.items())]
