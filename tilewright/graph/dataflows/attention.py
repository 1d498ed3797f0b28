"""The roles in attention: the product of queries and keys, what makes weights of scores, the product with values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.graph.dataflows.nests import Nests, in_turn
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import Kind, Scope, TileTree


@dataclass(frozen=True)
class Attention:
    """Operators and loops by their role: batches (b, h), query rows m, keys l, the depths a and n of the products."""

    nests: Nests
    scores: str
    weights: tuple[str, ...]  # of the softmax, in order; none where two products follow each other
    output: str
    batches: tuple[str, ...]
    m: str
    l: str
    a: str
    n: str

    @classmethod
    def of(cls, problem: Problem, levels: Sequence[str]) -> Self:
        """The roles in a chain of operators. Raises InvalidArgument where it is no attention."""
        first, *between, last = problem.computes
        if len(first.reduce) == len(last.reduce) == 1 and len(last.axes) >= 2 and first is not last:
            *batches, m, n = (problem.names[last.name, axis.name] for axis in last.axes)
            l, a = problem.names[last.name, last.reduce[0].name], problem.names[first.name, first.reduce[0].name]
            if {*batches, m, l, a} == problem.loops(first.name):
                weights = tuple(each.name for each in between)
                nests = Nests(problem, tuple(levels))
                return cls(nests, first.name, weights, last.name, tuple(batches), m, l, a, n)
        names = ", ".join(compute.name for compute in problem.computes)
        raise InvalidArgument(f"the operators {names} are no attention", where="problem",
                              help="a product over a depth first, last one over keys of the first")  # fmt: skip

    def sharing(self, loops: Sequence[str]) -> TileTree:
        """``@DRAM for loops { par loops { shar[ [QK], [SM], [PV] ] } }``: the results of all stay on the chip."""
        return self.nests.dram(loops, self.nests.units(loops, Scope(Kind.SHAR, self.parts(loops))))

    def parts(self, above: Sequence[str]) -> tuple[TileTree, ...]:
        """The nests of the scores, of the softmax in turn where there is one, and of the output."""
        weights = [self.nests.nest(op, above) for op in self.weights]
        softmax = (in_turn(weights),) if weights else ()
        return (self.nests.nest(self.scores, above), *softmax, self.nests.nest(self.output, above))
