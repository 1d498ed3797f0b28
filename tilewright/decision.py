"""A choice as a value: what was chosen and why, what came second, what was refused and by which rule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tilewright.dataclass import dataclass

ASKED = "it was asked for"  # the reason of a choice that no rule made


@dataclass(frozen=True)
class Cost:
    """What a candidate takes, by which candidates were compared; what was not asked is None.

    `cycles` are predicted, of all threads together on a CPU. `seconds` are measured, or predicted where no schedule is
    known yet (`instruction.offers`). `bytes` are moved beside the work; their time is part of the other two.
    """

    cycles: float | None = None
    seconds: float | None = None
    bytes: int | None = None

    def exceeds(self, other: Cost) -> bool:
        """Whether this is worse: by seconds where both have them, else by cycles."""
        if self.seconds is not None and other.seconds is not None:
            return self.seconds > other.seconds
        return self.cycles is not None and other.cycles is not None and self.cycles > other.cycles


@dataclass(frozen=True)
class Refusal:
    """A candidate that a rule forbids, with the values that break it."""

    candidate: str
    rule: str
    values: str = ""
    cost: Cost | None = None


@dataclass(frozen=True)
class Decision:
    """One choice about one subject (a kernel, a tensor, a group).

    `cost` and `runner_up_cost` have the numbers that the reasons say; a choice that was asked for may have the larger
    one. `kernel` is the name of the kernel that the choice is about, without `.part0` where parts of one are kernels of
    their own; it is empty for choices about the graph.
    """

    subject: str
    chosen: str
    reason: str
    runner_up: str = ""
    runner_up_reason: str = ""
    refused: tuple[Refusal, ...] = ()
    cost: Cost | None = None
    runner_up_cost: Cost | None = None
    kernel: str = ""

    def explain(self) -> str:
        """Say in words why the choice won, what came second, and what was refused by which rule."""
        lines = [f"{self.subject}: {self.chosen}, because {self.reason}"]
        if self.runner_up:
            lines.append(f"  second: {self.runner_up} ({self.runner_up_reason})")
        for refusal in self.refused:
            values = f": {refusal.values}" if refusal.values else ""
            lines.append(f"  refused: {refusal.candidate} by {refusal.rule}{values}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "chosen": self.chosen,
            "reason": self.reason,
            "runner_up": self.runner_up,
            "runner_up_reason": self.runner_up_reason,
            "refused": [asdict(refusal) for refusal in self.refused],
            "cost": _cost_as_json(self.cost),
            "runner_up_cost": _cost_as_json(self.runner_up_cost),
            "kernel": self.kernel,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Decision:
        refused = tuple(Refusal(**{**item, "cost": _read_cost(item.get("cost"))}) for item in value.get("refused", ()))
        costs = {name: _read_cost(value.get(name)) for name in ("cost", "runner_up_cost")}
        return cls(**{**value, "refused": refused, **costs})


def _cost_as_json(cost: Cost | None) -> dict[str, Any] | None:
    return None if cost is None else {"cycles": cost.cycles, "seconds": cost.seconds, "bytes": cost.bytes}


def _read_cost(value: dict[str, Any] | None) -> Cost | None:
    return None if value is None else Cost(**value)
