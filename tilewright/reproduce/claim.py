"""A reported result beside ours, and the verdict, which follows from them and from a bar: nobody states it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, Literal, TypeAlias

from tilewright.dataclass import dataclass

Figure: TypeAlias = float | str
Comparison: TypeAlias = Literal["=", ">=", "<="]
Verdict: TypeAlias = Literal["met", "differs", "open"]

NOT_STATED: Final = "not stated"  # of a figure that the publication does not have


@dataclass(frozen=True)
class Claim:
    """One figure: what was published, ours, and the bar that decides.

    `published` is text, as the publication has it, or `NOT_STATED`. `ours` is None where it takes a device, or a run,
    that there is none of. Ours is compared with `bar`, texts by "=" only. `reason` says how ours was obtained, why it
    is another figure than the published one, or why there is none. `unit` and the format `form` are of our figures.
    """

    name: str
    subject: str
    published: str
    ours: Figure | None
    bar: Figure
    comparison: Comparison
    reason: str
    unit: str = ""
    form: str = "g"

    def __post_init__(self) -> None:
        texts = (self.name, self.subject, self.published, self.reason, self.shown_bar)
        assert all(text.strip() for text in texts), f"bug: a claim lacks a field: {self}"
        assert self.comparison == "=" or not isinstance(self.bar, str), f"bug: texts have no order: {self}"
        same = self.ours is None or isinstance(self.ours, str) == isinstance(self.bar, str)
        assert same, f"bug: a number is compared with a text: {self}"

    @property
    def verdict(self) -> Verdict:
        """Open without a figure of ours, met where it passes the bar; else it differs."""
        if self.ours is None:
            return "open"
        return "met" if _holds(self.ours, self.comparison, self.bar) else "differs"

    @property
    def shown_bar(self) -> str:
        return f"{self.comparison} {self._shown(self.bar)}"

    @property
    def shown_ours(self) -> str:
        """In more digits where it misses the bar and would look like it."""
        if self.ours is None:
            return "-"
        text = self._shown(self.ours)
        if self.verdict == "differs" and text == self._shown(self.bar):
            return f"{self.ours:.9g}{self.unit}"
        return text

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}

    def _shown(self, figure: Figure) -> str:
        return figure if isinstance(figure, str) else f"{figure:{self.form}}{self.unit}"


def _holds(ours: Figure, comparison: Comparison, bar: Figure) -> bool:
    if isinstance(ours, str) or isinstance(bar, str):
        return ours == bar
    return {"=": ours == bar, ">=": ours >= bar, "<=": ours <= bar}[comparison]
