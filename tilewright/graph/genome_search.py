"""Searches order, mapping and factors of a tile tree together (the three axes of spec 1, sections 2.7 and 5.11).

A genetic algorithm chooses genomes: what is fused, at which memory level, in which kind of scope. The fitness of a
genome is that of the best factors that a search of `PER_GENOME` trees finds for it.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from tilewright.graph.dataflow_search import Searched
from tilewright.graph.search_options import SearchOptions
from tilewright.graph.tree_cost import TreeCost
from tilewright.graph.tree_fitness import TreeFitness
from tilewright.graph.tree_space import TreeSpace, spatial_levels
from tilewright.search.cost import Budget
from tilewright.search.genetic import Genetic
from tilewright.tiles.analysis import analyse
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources

PER_GENOME = 100  #: trees, with which 50 generations for attention take less than five minutes on one core
_SAMPLES = 50  # of them that are drawn at a time


def search_genomes(
    name: str, problem: Problem, resources: Resources, options: SearchOptions, executor: Executor | None = None
) -> Searched:
    """The best tree of any order and mapping that the budget finds.

    The outcome is that of the genetic search: its points are genomes. At most 50 generations of 20 genomes are bred. An
    `executor`, such as `search.workers.processes`, evaluates those of a generation side by side; it changes no result.
    Raises InvalidArgument for a machine with fewer than two memory levels, NoLegalPoint where no genome is legal, and
    what `search.minimise` raises.
    """
    space = TreeSpace(problem, tuple(level.name for level in resources.levels), spatial_levels(resources), resources)
    budget = options.budget
    evaluations = PER_GENOME if budget.evaluations is None else min(PER_GENOME, max(1, budget.evaluations))
    fitness = TreeFitness(
        space,
        partial(TreeCost, resources=resources, objective=options.objective, ties=True),
        partial(replace(options, trace=None, progress=None).method_of, samples=_SAMPLES),
        evaluations,
        options.seed,
    )
    genomes = None if budget.evaluations is None else budget.evaluations // evaluations
    notes = {"factors": options.method, **fitness.notes, **options.notes}
    breeding = replace(options, budget=Budget(genomes, budget.seconds), notes=notes)
    outcome = breeding.minimise(name, fitness, Genetic(space), executor)
    tree = None if outcome.best is None else fitness.best_tree(outcome.best)[0]
    return Searched(
        name, problem, tree, None if tree is None else analyse(tree, problem, resources), outcome, evaluations
    )
