"""Searches order, mapping and factors of a tile tree together (the three axes of spec 1, sections 2.7 and 5.11).

A genetic algorithm chooses genomes: what is fused, at which memory level, in which kind of scope. The fitness of a
genome is that of the best factors that a search of `PER_GENOME` trees finds for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tilewright.graph.dataflow_search import MethodName, Searched
from tilewright.graph.tree_cost import Objective, TreeCost
from tilewright.graph.tree_factors import Factors, TreeFactors
from tilewright.graph.tree_fitness import TreeFitness
from tilewright.graph.tree_space import TreeSpace, spatial_levels
from tilewright.search.cost import Budget
from tilewright.search.descent import Descent
from tilewright.search.genetic import Genetic
from tilewright.search.method import Method
from tilewright.search.minimise import Progress, minimise
from tilewright.search.tree_search import TreeSearch
from tilewright.tiles.analysis import analyse
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources

PER_GENOME = 100  #: trees, with which 50 generations for attention take less than five minutes on one core
_SAMPLES = 50  # of them that are drawn at a time


def search_genomes(
    name: str,
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
    """The best tree of any order and mapping; `method` searches factors. The evaluations of `budget` are of trees.

    The outcome is that of the genetic search: its points are genomes. At most 50 generations of 20 genomes are bred.
    Raises InvalidArgument for a machine with fewer than two memory levels, NoLegalPoint where no genome is legal.
    """
    space = TreeSpace(problem, tuple(level.name for level in resources.levels), spatial_levels(resources), resources)

    def cost(factors: TreeFactors) -> TreeCost:
        return TreeCost(factors, resources, objective, ties=True)

    def inner(factors: TreeFactors) -> Method[Factors]:
        return Descent(factors, samples=_SAMPLES) if method == "descent" else TreeSearch(factors, rollouts=_SAMPLES)

    evaluations = PER_GENOME if budget.evaluations is None else min(PER_GENOME, max(1, budget.evaluations))
    fitness = TreeFitness(space, cost, inner, evaluations, seed)
    genomes = None if budget.evaluations is None else budget.evaluations // evaluations
    notes = {"objective": objective, "factors": method, **fitness.notes, **(notes or {})}
    outcome = minimise(
        fitness, Genetic(space), Budget(genomes, budget.seconds), seed=seed, trace=trace, notes=notes, progress=progress
    )
    tree = None if outcome.best is None else fitness.best_tree(outcome.best)[0]
    return Searched(
        name, problem, tree, None if tree is None else analyse(tree, problem, resources), outcome, evaluations
    )
