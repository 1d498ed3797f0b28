"""What trees of one topology cost on a machine: the analysis of many factors at once, as a cost for searches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.graph.tree_factors import Factors, TreeFactors
from tilewright.search.cost import Evaluation
from tilewright.tiles.analysis import Analyser
from tilewright.tiles.legality import violations
from tilewright.tiles.resources import Resources
from tilewright.tiles.topology import Unanalysable

Objective: TypeAlias = Literal["cycles", "energy"]


@dataclass(frozen=True)
class TreeCost:
    """A `BatchCost` of the factors of a tree: cycles, or energy in 16-bit multiply-adds, by `tiles.analysis`.

    A tree that breaks a rule of `tiles.legality`, with the resources of the space, is refused.
    """

    space: TreeFactors
    resources: Resources
    objective: Objective = "cycles"

    def __call__(self, point: Factors) -> Evaluation:
        return self.batch([point])[0]

    def batch(self, points: Sequence[Factors]) -> list[Evaluation]:
        table = np.array(points, np.int64)
        legal = self.space.legal(table)
        try:
            analysis = self._analyser.analysis(table[legal]) if legal.any() else None
        except Unanalysable as error:
            return [Evaluation.refused(error.message)] * len(points)
        values = iter(np.broadcast_to(getattr(analysis, self.objective, 0.0), legal.sum()).tolist())
        return [
            Evaluation(next(values)) if right else Evaluation.refused(self._reason(point))
            for point, right in zip(points, legal.tolist(), strict=True)
        ]

    def _reason(self, point: Factors) -> str:
        space = self.space
        broken = violations(
            space.filled(point), space.problem, recompute=space.recompute, resources=space.resources
        )  # fmt: skip
        return next((each.message for each in broken), "the tree is not legal")

    @cached_property
    def _analyser(self) -> Analyser:
        return Analyser(self.space.open_tree, self.space.problem, self.resources)
