"""Exhaustive search: every point in the order of the space. The oracle that other methods are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

from tilewright.dataclass import dataclass
from tilewright.search.method import Asking, Batch
from tilewright.search.space import Space

P = TypeVar("P")


@dataclass(frozen=True)
class Exhaustive(Generic[P]):
    """Asks for `batch` points at a time."""

    space: Space[P]
    batch: int = 256
    name: ClassVar[str] = "exhaustive"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"batch": self.batch}

    def ask(self, seed: int) -> Asking[P]:
        points = self.space.points()
        while chunk := list(islice(points, self.batch)):
            yield Batch(chunk)
