"""Orders of an operator's loops, and which of them are one: loops that replace the same slices may change places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, permutations
from math import factorial
from typing import TYPE_CHECKING, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.tiles.problem import Problem

if TYPE_CHECKING:
    from numpy.random import Generator

Replaced: TypeAlias = tuple[object, ...]  #: what steps of a loop replace; loops with equal values commute


@dataclass(frozen=True)
class Orders:
    """Every order of some loops, as a text of their names; the given one first. None is made before it is asked for."""

    loops: tuple[str, ...]

    @property
    def count(self) -> int:
        return factorial(len(self.loops))

    def __iter__(self) -> Iterator[str]:
        return map(" ".join, permutations(self.loops))

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, str) and sorted(value.split()) == sorted(self.loops) and value == " ".join(value.split())
        )

    def __str__(self) -> str:
        return f"an order of {' '.join(self.loops)}"

    def drawn(self, numbers: Generator) -> str:
        """One of them, all at equal odds."""
        return " ".join(self.loops[place] for place in numbers.permutation(len(self.loops)))

    def swapped(self, order: str) -> list[str]:
        """The orders in which two loops that follow each other have changed places."""
        loops = order.split()
        pairs = range(len(loops) - 1)
        return [" ".join((*loops[:n], loops[n + 1], loops[n], *loops[n + 2 :])) for n in pairs]

    def canonical(self, order: str, replaced: Mapping[str, Replaced]) -> str:
        """The order with the same movement in which neighbours that replace the same slices stand as in `loops`."""
        runs = groupby(order.split(), key=lambda loop: replaced[loop])
        return " ".join(loop for _, run in runs for loop in sorted(run, key=self.loops.index))


def replaced_slices(problem: Problem, ops: Sequence[str], loops: Sequence[str]) -> dict[str, Replaced]:
    """For each loop, which slices of these operators' tensors a step of it replaces as a whole.

    A loop whose values are the indices of a dimension moves a slice to one without common elements, so that two such
    loops next to each other move the same number of elements in either order. A loop that moves a slice in any other
    way, as the row of an image and that of a window do together, commutes with none; nor do the loops of an ordered
    accumulation, whose steps run in their order.
    """
    accesses = [access for op in ops for access in problem.accesses(op)]
    ordered = {loop for op in ops if problem.compute(op).ordered is not None for loop in problem.reductions(op)}
    found: dict[str, Replaced] = {}
    for loop in loops:
        alone = loop in ordered or any(loop in each.moving and loop not in each.axes for each in accesses)
        found[loop] = (loop,) if alone else tuple(loop in each.axes for each in accesses)
    return found
