"""What searches of tile trees take (MICRO 2023; spec 1, section 6.4, E16): of factors alone, and of whole trees.

Attention runs on Edge, its softmax with sums that are rescaled. Factors are those of TileFlow's dataflow, by Monte
Carlo tree search. Whole trees are genomes, which a genetic algorithm breeds, each with a search of its factors. Time
is that of the processor, so that other programs do not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.graph.chain.softmax import running
from tilewright.graph.chain.workloads import NETWORKS, shaped, workload
from tilewright.graph.dataflow_search import search_dataflow
from tilewright.graph.dataflows.table import ATTENTION
from tilewright.graph.search_options import SearchOptions
from tilewright.graph.tree_cost import TreeCost
from tilewright.graph.tree_fitness import TreeFitness
from tilewright.graph.tree_space import TreeSpace
from tilewright.machine.registry import resolve
from tilewright.reproduce.claim import NOT_STATED, Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Curves, Picture
from tilewright.reproduce.tileflow.study import chosen
from tilewright.search.cost import Budget
from tilewright.search.genetic import Genetic
from tilewright.search.minimise import minimise
from tilewright.search.trace import Step
from tilewright.search.tree_search import TreeSearch
from tilewright.tiles.machines import resources
from tilewright.tiles.problem import Problem

MACHINE: Final = "edge"
SHAPES: Final = ("bert-base",)
EVALUATIONS: Final = 10_000
CONVERGED: Final = 1.05  # times the best of the search
ROUND, ROUNDS_MOST, MILLISECONDS = 200, 32, 60  # E16: samples of a round, rounds until it converges, time of a sample
GENOMES_LEAST: Final = 5103  # E16: combinations of orders and mappings
GENERATIONS, POPULATION = 50, 20  # E16: of the search of whole trees
MINUTES: Final = 5  # our bar for all of them
FACTORS_EACH: Final = 200  # trees of one genome
EVALUATIONS_PER_GENOME: Final = 50  # of the evaluations above, one genome for so many


@dataclass(frozen=True)
class Convergence:
    """The best values of a search in the order of its evaluations, None before one is legal.

    `seconds` are those of the processor for one evaluation, `legal` counts evaluations with a value.
    """

    best: tuple[float | None, ...]
    seconds: float
    legal: int

    @property
    def final(self) -> float | None:
        return self.best[-1]

    @property
    def converged(self) -> int:
        """The evaluations until the best is `CONVERGED` times the final one, or better."""
        return next(
            (number for number, value in enumerate(self.best, 1)
             if value is not None and self.final is not None and value <= CONVERGED * self.final),
            len(self.best),
        )  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Both searches of one network; `space` counts genomes."""

    network: str
    space: int
    factors: Convergence
    trees: Convergence

    @property
    def tables(self) -> tuple[Table, ...]:
        columns = {"search": "left", "evaluations": "right", "legal": "right", "converged after": "right",
                   "best cycles": "right",
                   "processor ms each": "right"}  # fmt: skip
        rows = tuple(
            (name, f"{len(each.best):,}", f"{each.legal:,}", f"{each.converged:,}",
             "-" if each.final is None else f"{each.final:,.0f}",
             f"{1e3 * each.seconds:.1f}")
            for name, each in (("factors of TileFlow's dataflow", self.factors), ("genomes", self.trees))
        )  # fmt: skip
        return (Table(f"searches of attention of {self.network} on {MACHINE}", columns, rows),)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        curves = {"factors of TileFlow's dataflow": (self.factors, 1), "genomes": (self.trees, FACTORS_EACH)}
        lines = {
            name: tuple((float(trees * number), best) for number, best in enumerate(each.best, 1) if best is not None)
            for name, (each, trees) in curves.items()
        }
        lines = {name: points for name, points in lines.items() if points}
        title = f"searches of attention of {self.network} on {MACHINE}"
        return (Curves(title, "trees", "best so far, in cycles", lines, steps=True, logarithmic=True),) if lines else ()

    @property
    def claims(self) -> tuple[Claim, ...]:
        genomes = POPULATION + (GENERATIONS - 1) * (POPULATION - Genetic.keep)
        minutes = genomes * self.trees.seconds / 60
        ratio = self.trees.final / self.factors.final if self.trees.final and self.factors.final else None
        return (
            Claim("spec1-E16", "trees until factors converge", f"16 to {ROUNDS_MOST} rounds of {ROUND}",
                  self.factors.converged, ROUNDS_MOST * ROUND, "<=",
                  f"to {CONVERGED:g} times the best of {len(self.factors.best):,}; c = 1, 100 rollouts each", "",
                  ",.0f"),
            Claim("spec1-E16", "time of a tree", f"{MILLISECONDS} ms", 1e3 * self.factors.seconds, MILLISECONDS, "<=",
                  "of one processor; 100 trees are one evaluation of arrays", " ms", ".2f"),
            Claim("spec1-E16", "orders and mappings", f"{GENOMES_LEAST} to {4 * GENOMES_LEAST}", float(self.space),
                  GENOMES_LEAST, ">=", "genomes by their cells: levels, consumers, kinds of scope of six operators, "
                  "orders of the loops of seven; many of them are one tree, or none that is legal", "", ",.0f"),
            Claim("spec1-E16", f"genomes with legal factors, of {len(self.trees.best)}", NOT_STATED,
                  float(self.trees.legal), 1.0, ">=", f"{FACTORS_EACH} trees of each were drawn at most. The registers "
                  "of a unit hold three words; trees of genomes leave the factors there open, and draws seldom have "
                  "one step of every loop. Named dataflows have these factors fixed", "", ",.0f"),
            *(() if ratio is None else (
                Claim("spec1-E16", f"time of {GENERATIONS} generations of {POPULATION} genomes", NOT_STATED, minutes,
                      MINUTES, "<=", f"{genomes} new genomes at the mean time of those that ran, of {FACTORS_EACH} "
                      f"trees each. Published is that fewer than {GENERATIONS} generations converge", " min", ".1f"),
                Claim("spec1-E16", "best whole tree over the best of TileFlow's dataflow", NOT_STATED, ratio, CONVERGED,
                      "<=", f"cycles after {len(self.trees.best)} genomes of {FACTORS_EACH} trees, and after "
                      f"{len(self.factors.best):,} trees of the dataflow", "x", ".2f"),)),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        searches = {
            name: {"evaluations": len(each.best), "converged": each.converged, "best": each.final,
                   "legal": each.legal, "seconds_each": each.seconds}
            for name, each in (("factors", self.factors), ("trees", self.trees))
        }  # fmt: skip
        return {"network": self.network, "machine": MACHINE, "genomes": self.space, "searches": searches,
                "claims": [claim.to_json() for claim in self.claims]}  # fmt: skip


def report(layers: Sequence[str] = SHAPES, trials: int = EVALUATIONS) -> Report:
    """Run both searches for the first of the networks; `trials` are the trees of the search of factors.

    One genome is evaluated for every `EVALUATIONS_PER_GENOME` of them. Raises InvalidArgument for another network.
    """
    network, *_ = chosen(layers, NETWORKS)
    problem = Problem.of(workload(shaped("attention", network), "f16"))
    machine = resources(resolve(MACHINE))

    started = time.process_time()
    options = SearchOptions(Budget(trials), method="tree-search")
    outcome = search_dataflow("TileFlow", ATTENTION["TileFlow"], problem, machine, options)
    steps = outcome.outcome.trace.steps
    if not steps:
        raise InvalidArgument(f"TileFlow has no legal factors for {network} on {MACHINE}", where="--layers",
                              help=f"one of {', '.join(each for each in NETWORKS if each != network)}")  # fmt: skip
    factors = _convergence(steps, time.process_time() - started)

    names = tuple(level.name for level in machine.levels)
    space = TreeSpace(running(problem), names, frozenset(names[:-1]), machine)
    fitness = TreeFitness(
        space, lambda each: TreeCost(each, machine), lambda each: TreeSearch(each, rollouts=100), FACTORS_EACH
    )
    started = time.process_time()
    budget = Budget(max(1, trials // EVALUATIONS_PER_GENOME))
    bred = minimise(fitness, Genetic(space, POPULATION, rounds=GENERATIONS), budget).trace.steps
    return Report(network, space.size, factors, _convergence(bred, time.process_time() - started))


def _convergence(steps: Sequence[Step], seconds: float) -> Convergence:
    legal = sum(step.evaluation.valid for step in steps)
    return Convergence(tuple(step.best for step in steps), seconds / len(steps), legal)
