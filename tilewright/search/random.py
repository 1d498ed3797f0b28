"""Random search: legal points drawn independently, each at most once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from tilewright.dataclass import dataclass
from tilewright.search.method import Asking, Batch
from tilewright.search.space import Space, canonical

P = TypeVar("P")


@dataclass(frozen=True)
class Random(Generic[P]):
    """Draws `batch` new points at a time. Ends after `patience` draws in a row that gave no new point."""

    space: Space[P]
    batch: int = 16
    patience: int = 1000
    name: ClassVar[str] = "random"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"batch": self.batch, "patience": self.patience}

    def ask(self, seed: int) -> Asking[P]:
        import numpy as np

        numbers = np.random.default_rng(seed)
        drawn: set[str] = set()
        fruitless = 0
        while fruitless < self.patience:
            fresh: list[P] = []
            while len(fresh) < self.batch and fruitless < self.patience:
                point = self.space.sample(numbers)
                key = canonical(self.space, point)
                fruitless = fruitless + 1 if key in drawn else 0
                if key not in drawn:
                    drawn.add(key)
                    fresh.append(point)
            if fresh:
                yield Batch(fresh)
