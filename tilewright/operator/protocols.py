"""What level 2 asks of others: what each point of a choice costs. `compiler` passes them in."""

from __future__ import annotations

from typing import Protocol, TypeVar

from tilewright.dataclass import dataclass

P_contra = TypeVar("P_contra", contravariant=True)


@dataclass(frozen=True)
class Evaluation:
    """What a cost says about one point: predicted or measured seconds if it is valid, else the reason why it is not."""

    seconds: float
    valid: bool = True
    reason: str = ""

    @classmethod
    def refused(cls, reason: str) -> Evaluation:
        """A point that cannot be used: it takes infinitely long."""
        return cls(float("inf"), False, reason)


class Cost(Protocol[P_contra]):
    """How good a point is. Equal points get equal answers from a prediction; a measurement may vary."""

    def __call__(self, point: P_contra) -> Evaluation:
        """Predict or measure one point; never raises for a point of the space that the cost was made for."""
        ...
