"""The roles in a chain of two convolutions, with maps between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.affine import affine
from tilewright.expr.core import Compute, Expr
from tilewright.graph.dataflows.nests import Nests, in_turn
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import Kind, Scope, TileTree


@dataclass(frozen=True)
class Convolutions:
    """Operators and loops by their role.

    Batches b; `image`, the places h and w of the result; its channels k; l, those between the two convolutions.
    """

    nests: Nests
    first: str
    maps: tuple[str, ...]
    last: str
    batches: tuple[str, ...]
    image: tuple[str, ...]
    k: tuple[str, ...]
    l: tuple[str, ...]

    @classmethod
    def of(cls, problem: Problem, levels: Sequence[str]) -> Self:
        """The roles in a chain of operators. Raises InvalidArgument where it is no pair of convolutions."""
        first, *between, last = problem.computes
        link = (between[-1] if between else first).output
        read = [set(_axes(index)) for each in last.reads() if each.tensor == link for index in each.indices]
        axes = [problem.names[last.name, axis.name] for axis in last.axes]
        needed = {problem.names[last.name, axis] for axes_of in read for axis in axes_of}
        image = _image(problem, first, last, [name for name in axes if name in needed])
        if image and first is not last and first.reduce and last.reduce and not any(each.reduce for each in between):
            sums = [problem.names[last.name, axis.name] for axis in last.reduce]
            return cls(
                Nests(problem, tuple(levels)), first.name, tuple(each.name for each in between), last.name,
                tuple(name for name in axes if name in needed and name not in image), image,
                tuple(name for name in axes if name not in needed),
                tuple(name for name in sums if name not in _windows(problem, last)),
            )  # fmt: skip
        names = ", ".join(compute.name for compute in problem.computes)
        raise InvalidArgument(f"the operators {names} are no chain of two convolutions", where="problem",
                              help="sums over windows first and last, and maps between them")  # fmt: skip

    def pipeline(self, image: Sequence[str]) -> TileTree:
        """``@DRAM for b,image { pipe[ par image { [CONV1] }, par image { [CONV2] } ] }``."""
        turns = (*self.batches, *image)
        stages = (self.producer(turns), self.nest(self.last, turns))
        scope = Scope(Kind.PIPE, tuple(self.nests.units(image, stage) for stage in stages))
        return self.nests.dram(turns, scope)

    def producer(self, above: Sequence[str]) -> TileTree:
        """The nests of the first convolution and of the maps behind it, in turn."""
        return in_turn([self.nest(op, above) for op in (self.first, *self.maps)])

    def nest(self, op: str, above: Sequence[str]) -> TileTree:
        """``[CONV] = @L1 for c,l,h,w,r,s { par … { @L0 for r,s { op } } }``: windows are innermost."""
        problem = self.nests.problem
        return self.nests.nest(op, above, _windows(problem, problem.compute(op)))


def _axes(index: Expr) -> list[str]:
    """The axes of an index; none where it is not affine."""
    form = affine(index)
    return [] if form is None else [axis.name for axis in form.terms]


def _composite(compute: Compute) -> set[str]:
    """The axes that are added to others in an index of a read."""
    indices = [_axes(index) for each in compute.reads() for index in each.indices]
    return {axis for axes in indices if len(axes) > 1 for axis in axes}


def _windows(problem: Problem, compute: Compute) -> tuple[str, ...]:
    added = _composite(compute)
    return tuple(problem.names[compute.name, axis.name] for axis in compute.reduce if axis.name in added)


def _image(problem: Problem, first: Compute, last: Compute, needed: Sequence[str]) -> tuple[str, ...]:
    """The places of the result: those that a window is added to, else the two innermost that no weight has."""
    if places := _places(problem, last):
        return places
    moved = _places(problem, first)
    if moved:
        return tuple(name for name in needed if name in moved)
    produced = {compute.output for compute in problem.computes}
    weights = {axis for read in last.reads() if read.tensor not in produced for index in read.indices
               for axis in _axes(index)}  # fmt: skip
    plain = [name for name in needed if name not in {problem.names[last.name, axis] for axis in weights}]
    return tuple(plain[-2:]) if len(plain) > 1 else ()


def _places(problem: Problem, compute: Compute) -> tuple[str, ...]:
    added = _composite(compute)
    return tuple(problem.names[compute.name, axis.name] for axis in compute.axes if axis.name in added)
