"""How tile trees are searched: the one value that says it for a dataflow, for genomes and for a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import field
from typing import Any, Literal, TypeAlias, TypeVar

from tilewright.dataclass import dataclass
from tilewright.graph.tree_cost import Objective
from tilewright.graph.tree_factors import Factors, TreeFactors
from tilewright.search.cost import Budget, Cost
from tilewright.search.descent import Descent
from tilewright.search.method import Method
from tilewright.search.minimise import Outcome, minimise
from tilewright.search.trace import Step
from tilewright.search.tree_search import TreeSearch

P = TypeVar("P")

MethodName: TypeAlias = Literal["descent", "tree-search"]
Progress: TypeAlias = Callable[[str, Step], None]  #: gets every evaluation, with the name of what is searched


@dataclass(frozen=True)
class SearchOptions:
    """How tile trees are searched; where `budget` limits only evaluations, the result is a function of the arguments.

    The evaluations of `budget` are of trees. `objective` is what is made small, `method` searches the factors of one
    tree, `seed` is of the random numbers. `trace` names a file that keeps every evaluation, from which a search goes
    on. `notes` are JSON values on which costs depend besides: a trace with others is of another search.
    """

    budget: Budget
    objective: Objective = "cycles"
    method: MethodName = "descent"
    seed: int = 0
    trace: str | os.PathLike[str] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None

    def method_of(self, space: TreeFactors, samples: int = 100) -> Method[Factors]:
        """The method for the factors of a tree, which draws `samples` of them at a time."""
        return Descent(space, samples) if self.method == "descent" else TreeSearch(space, rollouts=samples)

    def minimise(self, name: str, cost: Cost[P], method: Method[P], executor: Executor | None = None) -> Outcome[P]:
        """Search the space of `method` for the point of least value, under this name.

        An `executor` evaluates the points of a batch side by side. Errors are those of `search.minimise`.
        """
        progress = self.progress
        return minimise(
            cost, method, self.budget, seed=self.seed, executor=executor, trace=self.trace,
            notes={"objective": self.objective, **self.notes},
            progress=None if progress is None else lambda step: progress(name, step),
        )  # fmt: skip
