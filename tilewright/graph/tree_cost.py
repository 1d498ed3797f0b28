"""What trees of one topology cost on a machine: the analysis of many factors at once, as a cost for searches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.graph.tree_factors import Factors, TreeFactors
from tilewright.search.cost import Evaluation
from tilewright.tiles.analysis import Analyser, Analysis
from tilewright.tiles.energy import access_energies, energy_of_operation
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.resources import Number, Resources

Objective: TypeAlias = Literal["cycles", "energy"]


@dataclass(frozen=True)
class TreeCost:
    """A `BatchCost` of the factors of a tree: cycles, or energy in 16-bit multiply-adds, by `tiles.analysis`.

    A tree that breaks a rule of `tiles.legality`, with the resources of the space, is refused. With `ties`, of trees
    with equal cycles the one that needs less energy is better: its part of the value is less than a cycle.
    """

    space: TreeFactors
    resources: Resources
    objective: Objective = "cycles"
    ties: bool = False

    def __call__(self, point: Factors) -> Evaluation:
        return self.batch([point])[0]

    def batch(self, points: Sequence[Factors]) -> list[Evaluation]:
        table = np.array(points, np.int64)
        legal = self.space.legal(table)
        try:
            analysis = self._analyser.analysis(table[legal]) if legal.any() else None
        except Unanalysable as error:
            return [Evaluation.refused(error.message)] * len(points)
        values = iter(np.broadcast_to(self._value(analysis), legal.sum()).tolist())
        return [
            Evaluation(next(values))
            if right
            else Evaluation.refused(self.space.reason(point) or "the tree is not legal")
            for point, right in zip(points, legal.tolist(), strict=True)
        ]

    def _value(self, analysis: Analysis | None) -> Number:
        if analysis is None:
            return 0.0
        if self.ties and self.objective == "cycles":
            return analysis.cycles + analysis.energy / self._most_energy
        return getattr(analysis, self.objective)

    @cached_property
    def _most_energy(self) -> float:
        """More than the energy of a tree that fetches every operand of every operation from the outermost level."""
        found = 1.0
        levels = [(level.word_bits, *access_energies(level)[:2]) for level in self.resources.levels]
        for compute in self.space.problem.computes:
            bits = [
                8 * dtypes.size_bytes(t.dtype) for t in (*(r.tensor for r in compute.reads()), *2 * [compute.output])
            ]
            words = sum(sum(bits) / word_bits * (read + 2 * write) for word_bits, read, write in levels)
            points = prod(axis.size for axis in compute.body_loops)
            found += points * (words + energy_of_operation(compute, self.resources))
        return found

    @cached_property
    def _analyser(self) -> Analyser:
        return Analyser(self.space.open_tree, self.space.problem, self.resources)
