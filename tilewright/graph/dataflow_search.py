"""Searches the factors of a named dataflow on a machine (spec 1, sections 5.11 and 6.2)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.graph.dataflows.table import Dataflow
from tilewright.graph.tree_cost import Objective, TreeCost
from tilewright.graph.tree_factors import Factors, TreeFactors
from tilewright.search.cost import Budget
from tilewright.search.descent import Descent
from tilewright.search.method import Method
from tilewright.search.minimise import Outcome, Progress, minimise
from tilewright.search.tree_search import TreeSearch
from tilewright.tiles.analysis import Analysis, analyse
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import TileTree

MethodName: TypeAlias = Literal["descent", "tree-search"]


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
    name: str,
    dataflow: Dataflow,
    problem: Problem,
    resources: Resources,
    budget: Budget,
    *,
    objective: Objective = "cycles",
    method: MethodName = "descent",
    seed: int = 0,
    trace: str | os.PathLike[str] | None = None,
    notes: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Searched:
    """The best factors that the budget finds; `trace`, `notes` and `progress` are those of `minimise`.

    The result is a function of the arguments where only evaluations are limited. Raises InvalidArgument where the
    operators have not the form of the dataflow, or the machine fewer than three memory levels.
    """
    problem = dataflow.rewrite(problem)
    tree = dataflow.tree(problem, [level.name for level in resources.levels])
    space = TreeFactors(tree, problem, resources)
    notes = {"objective": objective, **(notes or {})}
    outcome = minimise(
        TreeCost(space, resources, objective), method_of(method, space), budget,
        seed=seed, trace=trace, notes=notes, progress=progress,
    )  # fmt: skip
    if outcome.best is None:
        return Searched(name, problem, None, None, outcome)
    found = space.filled(outcome.best)
    return Searched(name, problem, found, analyse(found, problem, resources), outcome)


def method_of(name: MethodName, space: TreeFactors) -> Method[Factors]:
    """The method of this name for the factors of a tree."""
    methods: Mapping[MethodName, Method[Factors]] = {"descent": Descent(space), "tree-search": TreeSearch(space)}
    return methods[name]


def dram_words(analysis: Analysis) -> float:
    """Words that the outermost level gives and takes."""
    outer = analysis.levels[0]
    return float(outer.accesses)
