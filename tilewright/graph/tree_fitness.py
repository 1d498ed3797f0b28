"""The fitness of a genome: its best factors, found by a search of their own (spec 1, section 5.11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.graph.tree_factors import Factors, TreeFactors
from tilewright.graph.tree_space import Genome, TreeSpace
from tilewright.search.cost import Budget, Cost, Evaluation
from tilewright.search.method import Method
from tilewright.search.minimise import minimise
from tilewright.search.space import NoLegalPoint
from tilewright.tiles.tree import TileTree


@dataclass(frozen=True)
class TreeFitness:
    """A `Cost` of genomes: that of the best of `evaluations` trees with its order and mapping.

    `cost` makes the cost of a genome's factors, `method` the search for them. Equal genomes get equal answers where the
    costs do, so `best_tree` finds again what the search saw.
    """

    space: TreeSpace
    cost: Callable[[TreeFactors], Cost[Factors]]
    method: Callable[[TreeFactors], Method[Factors]]
    evaluations: int
    seed: int = 0

    def __call__(self, genome: Genome) -> Evaluation:
        return self.best_tree(genome)[1]

    @property
    def notes(self) -> dict[str, Any]:
        """What the value of a genome depends on besides its space and its costs."""
        return {"evaluations": self.evaluations, "seed": self.seed}

    def best_tree(self, genome: Genome) -> tuple[TileTree | None, Evaluation]:
        """The best tree of a genome with its cost, None where no factors are legal."""
        space = self.space
        factors = TreeFactors(space.tree(genome), space.problem, space.resources, space.recompute)
        if factors.start() is None:
            return None, Evaluation.refused(factors.reason() or "no factors are legal")
        try:
            found = minimise(self.cost(factors), self.method(factors), Budget(self.evaluations), seed=self.seed)
        except NoLegalPoint as error:
            return None, Evaluation.refused(error.message)
        if found.stopped == "interrupted":
            raise KeyboardInterrupt  # of the search around this one
        if found.best is None or found.evaluation is None:
            reasons = [step.evaluation.reason for step in found.trace.steps]
            return None, Evaluation.refused(reasons[0] if reasons else "no factors are legal")
        return factors.filled(found.best), found.evaluation
