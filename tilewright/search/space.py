"""The space that a search walks: its points, how to draw one, what lies next to one, and how one is written.

Level 1 searches trees and factors, level 2 knobs, level 3 mappings with schedules. Each makes its own `Space`; methods
know no more of it than this, and `tree_search.Decisions` or `genetic.Genomes` where they need more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError

if TYPE_CHECKING:
    from numpy.random import Generator

P = TypeVar("P")


class NoLegalPoint(CompileError):
    """A space none of whose points obeys its constraints, or a value that is no point of a space."""

    code = "no-legal-point"


class Space(Protocol[P]):
    """A finite set of points. A point is immutable."""

    @property
    def identity(self) -> Any:
        """A JSON value that differs for every other space: what a trace is compared by."""
        ...

    @property
    def size(self) -> int:
        """The number of points, exactly; points that the constraints refuse are counted too."""
        ...

    def points(self) -> Iterator[P]:
        """Every point once, in an order that is the same in every run; a cost refuses those that are illegal."""
        ...

    def sample(self, numbers: Generator) -> P:
        """A random legal point. Raises NoLegalPoint where there is none."""
        ...

    def neighbours(self, point: P) -> Sequence[P | None]:
        """Where each move from `point` leads; None where it would leave the space or end at an illegal point.

        Spaces with directions list them in a fixed order, so that a position in the list names a direction.
        """
        ...

    def to_json(self, point: P) -> Any:
        """The point as values of JSON, without infinities, in one fixed order: equal points are written equally."""
        ...

    def from_json(self, value: Any) -> P:
        """The point that `to_json` wrote. Raises CompileError for everything else."""
        ...


def canonical(space: Space[P], point: P) -> str:
    """The text of a point: equal for equal points, different for different ones."""
    return canonical_json(space.to_json(point))


def canonical_json(value: Any) -> str:
    """JSON without spaces, keys in the order that they have. Raises ValueError for infinities."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Listed(Generic[P]):
    """A space of points that are listed one by one; all are legal.

    `adjacent` says whether two points are neighbours, `write` gives a point as JSON.
    """

    identity: Any
    listed: Sequence[P]
    adjacent: Callable[[P, P], bool]
    write: Callable[[P], Any]

    @property
    def size(self) -> int:
        return len(self.listed)

    def points(self) -> Iterator[P]:
        return iter(self.listed)

    def sample(self, numbers: Generator) -> P:
        if not self.listed:
            raise NoLegalPoint("the list of points is empty", help="list one")
        return self.listed[int(numbers.integers(self.size))]

    def neighbours(self, point: P) -> Sequence[P]:
        return [each for each in self.listed if self.adjacent(each, point)]

    def to_json(self, point: P) -> Any:
        return self.write(point)

    def from_json(self, value: Any) -> P:
        try:
            return self._written[canonical_json(value)]
        except (KeyError, ValueError, TypeError):
            raise NoLegalPoint(f"{str(value)[:60]} is no point of the list", help="write it with to_json") from None

    @cached_property
    def _written(self) -> dict[str, P]:
        return {canonical(self, point): point for point in self.listed}
