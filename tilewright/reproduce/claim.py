"""A reported result beside ours, and the verdict, which follows from them and from a bar: nobody states it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, Literal, TypeAlias

from tilewright.dataclass import dataclass

Figure: TypeAlias = float | str
Comparison: TypeAlias = Literal["=", ">=", "<=", "±"]  # the last: at most `Claim.tolerance` from the bar
Verdict: TypeAlias = Literal["met", "differs", "open"]

NOT_STATED: Final = "not stated"  # of a figure that the publication does not have


@dataclass(frozen=True)
class Claim:
    """One figure: what was published, ours, and the bar that decides.

    `published` is text, as the publication has it, or `NOT_STATED`, and `ours` the same quantity; it is None where it
    was not measured here, for lack of a device, of a program, or of a kernel to measure. Ours is compared with `bar`,
    texts by "=" only. `reason` says how ours was obtained, why it is another figure than the published one, or why
    there is none. `unit` and the format `form` are of our figures, of the bar and of the `tolerance`.
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
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        texts = (self.name, self.subject, self.published, self.reason, self.shown_bar)
        assert all(text.strip() for text in texts), f"bug: a claim lacks a field: {self}"
        assert self.comparison == "=" or not isinstance(self.bar, str), f"bug: texts have no order: {self}"
        assert (self.comparison == "±") == (self.tolerance > 0), f"bug: a tolerance that nothing asks for: {self}"
        same = self.ours is None or isinstance(self.ours, str) == isinstance(self.bar, str)
        assert same, f"bug: a number is compared with a text: {self}"

    @property
    def verdict(self) -> Verdict:
        """Open where ours was not measured here, met where it passes the bar; else it differs."""
        if self.ours is None:
            return "open"
        return "met" if self._holds(self.ours) else "differs"

    @property
    def shown_bar(self) -> str:
        if self.comparison == "±":
            return f"{self._shown(self.bar)} ± {self._shown(self.tolerance)}"
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

    def _holds(self, ours: Figure) -> bool:
        if isinstance(ours, str) or isinstance(self.bar, str):
            return ours == self.bar
        if self.comparison == "±":
            return abs(ours - self.bar) <= self.tolerance
        return {"=": ours == self.bar, ">=": ours >= self.bar, "<=": ours <= self.bar}[self.comparison]
