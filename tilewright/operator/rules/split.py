"""Whether a kernel of few and long reductions is split in two, and in how many parts: by predicted times."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tilewright.decision import Cost, Decision, Refusal
from tilewright.operator.rewrites.split_reduction import SplitReduction, part_counts, split_loop, split_reduction
from tilewright.operator.statements import Statements

WORTH = 1.05  # times shorter than in one kernel, from which on there are two; less is not for the model to tell


def choose_split(
    statements: Statements,
    cycles: Callable[[Statements], float],
    launch_cycles: float,
    subject: str,
    taken: Collection[str] = (),
) -> tuple[SplitReduction | None, Decision | None]:
    """The number of parts with the fewest predicted cycles; None where one kernel does not take many more.

    `cycles` predicts those of a kernel as the machine's rule schedules it, infinitely many where none fits; a second
    launch takes `launch_cycles` more. Parts have other names than those `taken`.
    """
    axis = split_loop(statements)
    if axis is None:
        return None, None
    in_one = cycles(statements)
    if in_one < 2 * launch_cycles:
        return None, None
    ranked: list[tuple[float, int, SplitReduction]] = []
    for count in part_counts(axis.size):
        found = split_reduction(statements, axis, count, taken)
        ranked.append((cycles(found.first) + launch_cycles + cycles(found.second), count, found))
    ranked.sort(key=lambda each: each[:2])
    if not ranked:
        return None, None
    in_parts, count, best = ranked[0]
    if in_one < WORTH * in_parts:
        rule = f"one kernel takes {WORTH} times as long"
        values = f"{in_parts:.0f} cycles with a second kernel"
        refused = (Refusal(f"{count} parts of {axis.name}", rule, values, Cost(cycles=in_parts)),)
        reason = f"{in_one:.0f} predicted cycles"
        return None, Decision(f"parts of {subject}", "one", reason, refused=refused, cost=Cost(cycles=in_one))
    two, second = ("", ""), None
    if len(ranked) > 1:
        second = Cost(cycles=ranked[1][0])
        two = f"{ranked[1][1]} parts", f"{second.cycles:.0f} cycles"
    reason = f"{in_parts:.0f} predicted cycles with the kernel that adds them up, {in_one:.0f} in one"
    chosen, cost = f"{count} of {axis.name}", Cost(cycles=in_parts)
    return best, Decision(f"parts of {subject}", chosen, reason, *two, cost=cost, runner_up_cost=second)
