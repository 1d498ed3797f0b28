"""Searches the factors of a named dataflow on a machine (spec 1, sections 5.11 and 6.2)."""

from __future__ import annotations

from typing import Any

from tilewright.dataclass import dataclass
from tilewright.graph.dataflows.table import Dataflow
from tilewright.graph.search_options import SearchOptions
from tilewright.graph.tree_cost import Objective, TreeCost
from tilewright.graph.tree_factors import TreeFactors
from tilewright.search.minimise import Outcome
from tilewright.tiles.analysis import Analysis, analyse
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import TileTree


@dataclass(frozen=True)
class Searched:
    """The best tree of a dataflow with its analysis, None where no factors are legal; and how it was found.

    `problem` has the operators that the dataflow runs.
    `per_step` is how many trees a step of the outcome's trace stands for, at most.
    """

    name: str
    problem: Problem
    tree: TileTree | None
    analysis: Analysis | None
    outcome: Outcome[Any]
    per_step: int = 1

    @property
    def evaluations(self) -> int:
        """How many trees were looked at, at most."""
        return len(self.outcome.trace.steps) * self.per_step

    def value(self, objective: Objective) -> float | None:
        return None if self.analysis is None else float(getattr(self.analysis, objective))


def search_dataflow(
    name: str, dataflow: Dataflow, problem: Problem, resources: Resources, options: SearchOptions
) -> Searched:
    """The best factors of a dataflow that the budget finds.

    Raises InvalidArgument where the operators have not the form of the dataflow, or the machine fewer than three memory
    levels, and what `search.minimise` raises.
    """
    problem = dataflow.rewrite(problem)
    tree = dataflow.tree(problem, [level.name for level in resources.levels])
    space = TreeFactors(tree, problem, resources)
    outcome = options.minimise(name, TreeCost(space, resources, options.objective), options.method_of(space))
    if outcome.best is None:
        return Searched(name, problem, None, None, outcome)
    found = space.filled(outcome.best)
    return Searched(name, problem, found, analyse(found, problem, resources), outcome)


def dram_words(analysis: Analysis) -> float:
    """Words that the outermost level gives and takes."""
    outer = analysis.levels[0]
    return float(outer.accesses)
