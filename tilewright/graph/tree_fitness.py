"""The fitness of a genome: its best factors, found by a tree search of their own (spec 1, section 5.11)."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dataclass import dataclass
from tilewright.graph.tree_factors import Factors, TreeFactors
from tilewright.graph.tree_space import Genome, TreeSpace
from tilewright.search.cost import Budget, Cost, Evaluation
from tilewright.search.minimise import minimise
from tilewright.search.tree_search import TreeSearch
from tilewright.tiles.tree import TileTree


@dataclass(frozen=True)
class TreeFitness:
    """A `Cost` of genomes: that of the best of `evaluations` trees with its order and mapping.

    `cost` makes that of the factors of one tree. Equal genomes get equal answers where it gives them, so `best_tree`
    finds again what the search saw.
    """

    space: TreeSpace
    cost: Callable[[TreeFactors], Cost[Factors]]
    evaluations: int = 200
    rollouts: int = 10
    seed: int = 0

    def __call__(self, genome: Genome) -> Evaluation:
        return self.best_tree(genome)[1]

    def best_tree(self, genome: Genome) -> tuple[TileTree | None, Evaluation]:
        """The best tree of a genome with its cost, None where no factors are legal."""
        space = self.space
        factors = TreeFactors(space.tree(genome), space.problem, space.resources, space.recompute)
        # Iterations are bounded too: a tree of which no draw is legal costs no evaluations.
        method = TreeSearch(factors, -(-self.evaluations // self.rollouts), self.rollouts)
        found = minimise(self.cost(factors), method, Budget(self.evaluations), seed=self.seed)
        if found.best is None or found.evaluation is None:
            reasons = [step.evaluation.reason for step in found.trace.steps]
            return None, Evaluation.refused(reasons[0] if reasons else "no factors are legal")
        return factors.filled(found.best), found.evaluation
