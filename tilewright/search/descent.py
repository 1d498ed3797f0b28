"""Descent with random restarts: from the best of some random points to better neighbours until there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Generic, TypeVar

from tilewright.dataclass import dataclass
from tilewright.search.cost import Evaluation
from tilewright.search.method import Asking, Batch
from tilewright.search.tree_search import Decisions

_PATIENCE = 3  # starts in a row that draw nothing new, after which the space counts as drawn

P = TypeVar("P")
S = TypeVar("S")


@dataclass(frozen=True)
class Descent(Generic[P, S]):
    """Each of `starts` draws `samples` points, then goes on with neighbours as long as the best one is better.

    All neighbours of a point are one batch, which costs that evaluate many points at once are made for. Ends after
    `starts`, or when draws bring nothing new.
    """

    space: Decisions[P, S]
    samples: int = 100
    starts: int = 1000
    name: ClassVar[str] = "descent"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"samples": self.samples, "starts": self.starts}

    def ask(self, seed: int) -> Asking[P]:
        import numpy as np

        numbers, start = np.random.default_rng(seed), self.space.start()
        if start is None:
            return
        drawn: set[P] = set()
        fruitless = 0
        for _ in range(self.starts):
            points = list(dict.fromkeys(self.space.completions(start, self.samples, numbers)))
            points = points or [self.space.sample(numbers)]
            fruitless = fruitless + 1 if drawn.issuperset(points) else 0
            if fruitless == _PATIENCE:
                return
            drawn.update(points)
            best, value = _best(points, (yield Batch(points)))
            while best is not None:
                near = [each for each in self.space.neighbours(best) if each is not None]
                answers: Sequence[Evaluation] = (yield Batch(near)) if near else ()
                better, lower = _best(near, answers)
                if better is None or lower >= value:
                    break
                best, value = better, lower


def _best(points: Sequence[P], answers: Sequence[Evaluation]) -> tuple[P | None, float]:
    """The first of the best points; None where none is valid."""
    valid = [(each.value, number) for number, each in enumerate(answers) if each.valid]
    value, number = min(valid, default=(inf, -1))
    return (points[number] if valid else None), value
