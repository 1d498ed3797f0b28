"""A choice as a value: what was chosen and why, what came second, what was refused and by which rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """A candidate that a rule forbids, with the values that break it."""

    candidate: str
    rule: str
    values: str = ""


@dataclass(frozen=True)
class Decision:
    """One choice about one subject (a kernel, a tensor, a group)."""

    subject: str
    chosen: str
    reason: str
    runner_up: str = ""
    runner_up_reason: str = ""
    refused: tuple[Refusal, ...] = ()

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
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Decision:
        refused = tuple(Refusal(**item) for item in value.get("refused", ()))
        return cls(**{**value, "refused": refused})
