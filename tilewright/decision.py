"""A choice as a value: what was chosen and why, what came second, what was refused and by which rule."""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.fields import Readable, optional, real, record, required, several, string, whole

APART, FUSED = "a kernel each", "one kernel"  # what a decision about products in one kernel chooses, and begins with
ASKED = "it was asked for"  # the reason of a choice that no rule made


@dataclass(frozen=True)
class Cost(Readable):
    """What a candidate takes, by which candidates were compared; what was not asked is None.

    `cycles` are predicted, of all threads together on a CPU. `seconds` are measured, or predicted where no schedule is
    known yet (`instruction.offers`). `bytes` are moved beside the work; their time is part of the other two.
    """

    cycles: float | None = optional(real)
    seconds: float | None = optional(real)
    bytes: int | None = optional(whole(0, 90))

    def exceeds(self, other: Cost) -> bool:
        """Whether this is worse: by seconds where both have them, else by cycles."""
        if self.seconds is not None and other.seconds is not None:
            return self.seconds > other.seconds
        return self.cycles is not None and other.cycles is not None and self.cycles > other.cycles


@dataclass(frozen=True)
class Refusal(Readable):
    """A candidate that a rule forbids, with the values that break it."""

    candidate: str = required(string)
    rule: str = required(string)
    values: str = optional(string, "")
    cost: Cost | None = optional(record(Cost))


@dataclass(frozen=True)
class Proposal(Readable):
    """A candidate that was compared with the others, whatever became of it: who proposed it, and what it takes."""

    candidate: str = required(string)
    by: str = required(string)
    cost: Cost | None = optional(record(Cost))


@dataclass(frozen=True)
class Decision(Readable):
    """One choice about one subject (a kernel, a tensor, a group).

    `cost` and `runner_up_cost` have the numbers that the reasons say; a choice that was asked for may have the larger
    one. `proposals` are what rules proposed beside the candidates that are tried anyway. `kernel` is the name of the
    kernel that the choice is about, without `.part0` where parts of one are kernels of their own; it is empty for
    choices about the graph.
    """

    subject: str = required(string)
    chosen: str = required(string)
    reason: str = required(string)
    runner_up: str = optional(string, "")
    runner_up_reason: str = optional(string, "")
    refused: tuple[Refusal, ...] = optional(several(record(Refusal)), ())
    cost: Cost | None = optional(record(Cost))
    runner_up_cost: Cost | None = optional(record(Cost))
    kernel: str = optional(string, "")
    proposals: tuple[Proposal, ...] = optional(several(record(Proposal)), ())

    def explain(self) -> str:
        """Say in words why the choice won, what came second, what rules proposed and what they refused."""
        lines = [f"{self.subject}: {self.chosen}, because {self.reason}"]
        if self.runner_up:
            lines.append(f"  second: {self.runner_up} ({self.runner_up_reason})")
        for each in self.proposals:
            cycles = f" ({each.cost.cycles:.0f} cycles)" if each.cost is not None and each.cost.cycles else ""
            lines.append(f"  proposed by {each.by}: {each.candidate}{cycles}")
        for refusal in self.refused:
            values = f": {refusal.values}" if refusal.values else ""
            lines.append(f"  refused: {refusal.candidate} by {refusal.rule}{values}")
        return "\n".join(lines)


def keep(
    subject: str,
    kept: str,
    cycles: float,
    other: str,
    other_cycles: float,
    gain: float,
    refused: tuple[Refusal, ...] = (),
) -> Decision:
    """The decision for what is there, where `other` is not predicted to be `gain` times as fast.

    A faster one that gains less is refused by that rule; a slower one came second.
    """
    reason, cost, other_cost = f"{cycles:.0f} predicted cycles", Cost(cycles=cycles), Cost(cycles=other_cycles)
    if other_cycles < cycles:
        gains = Refusal(other, f"it is {gain} times as fast", f"{other_cycles:.0f} cycles", other_cost)
        return Decision(subject, kept, reason, refused=(*refused, gains), cost=cost)
    return Decision(subject, kept, reason, other, f"{other_cycles:.0f} cycles", refused, cost, other_cost)
