"""Makes a schedule fit by taking one from one count at a time; nothing ever grows."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.instruction.mma.policy import Policy
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.schedule import LISTS, MmaSchedule, require_ranks
from tilewright.instruction.mma.target import MmaTarget
from tilewright.instruction.mma.trace import Trace
from tilewright.instruction.mma.validity import evaluate


def fit(
    problem: MmaProblem, schedule: MmaSchedule, policy: Policy, target: MmaTarget, trace: Trace | None = None
) -> MmaSchedule | None:
    """The first valid schedule on the way down from `schedule`, or None if none is.

    All tiles of m are given up before any of n, then those of k, then the subgroups of m, then those of n; within a
    list the outermost loop first. Raises ScheduleError if the lists do not belong to the problem.
    """
    require_ranks(problem, schedule)
    kept = Trace() if trace is None else trace

    def valid(candidate: MmaSchedule) -> bool:
        aligned, distributable, _, fits = evaluate(problem, candidate, policy, target, kept)
        return aligned and distributable and fits

    return shrink(schedule, valid, kept)


def shrink(schedule: MmaSchedule, valid: Callable[[MmaSchedule], bool], trace: Trace) -> MmaSchedule | None:
    """`schedule` with as few counts lowered, in the order of `LISTS`, as `valid` asks for; None at the end of all."""
    current, steps = schedule, 0
    while not valid(current):
        name = next((name for name in LISTS if max(getattr(current, name)) > 1), None)
        if name is None:
            trace.add("fit.fail", steps)
            return None
        dim, count = next((dim, count) for dim, count in enumerate(getattr(current, name)) if count > 1)
        steps += 1
        trace.add("fit.step", steps, name, dim, count, count - 1)
        current = current.with_count(name, dim, count - 1)
    trace.add("fit.done", steps)
    return current
