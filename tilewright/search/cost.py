"""What a point costs: the answer of a prediction or a measurement, and how much of them a search may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import Protocol, TypeVar, runtime_checkable

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument

P_contra = TypeVar("P_contra", contravariant=True)


@dataclass(frozen=True)
class Evaluation:
    """What a cost says about one point: the value to make small if it is valid, else the reason why it is not.

    The cost says what a value is: seconds, cycles or energy.
    """

    value: float
    valid: bool = True
    reason: str = ""

    @classmethod
    def refused(cls, reason: str) -> Evaluation:
        """A point that cannot be used: its value is infinite."""
        return cls(inf, False, reason)

    def checked(self) -> Evaluation:
        """The same; refused where it is valid but its value is no finite number, with which nothing compares."""
        if self.valid and isfinite(self.value):
            return self
        return Evaluation.refused(self.reason or f"its value is {self.value}")


class Cost(Protocol[P_contra]):
    """How good a point is. Equal points get equal answers from a prediction; a measurement may vary."""

    def __call__(self, point: P_contra, /) -> Evaluation:
        """Predict or measure one point; never raises for a point of the space that the cost was made for."""
        ...


@runtime_checkable
class BatchCost(Cost[P_contra], Protocol[P_contra]):
    """A cost that takes less time for many points at once."""

    def batch(self, points: Sequence[P_contra], /) -> Sequence[Evaluation]:
        """What every point costs, in their order: as if it were asked for alone."""
        ...


@dataclass(frozen=True)
class Budget:
    """How much a search may use: evaluations, seconds since it began, or both; None: as much as the method wants.

    A search is reproducible if only its evaluations are limited. Raises InvalidArgument for a negative number.
    """

    evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("evaluations", self.evaluations), ("seconds", self.seconds)):
            if value is not None and not value >= 0:
                raise InvalidArgument(f"a budget of {value} {name}", where=name, help="0 or more, or None")
