"""Makes a schedule fit by taking one from one count at a time; nothing ever grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.instruction.mma.policy import Policy
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.schedule import LISTS, MmaSchedule, require_ranks
from tilewright.instruction.mma.target import MmaTarget
from tilewright.instruction.mma.trace import Trace
from tilewright.instruction.mma.validity import Verdicts


def fit(
    problem: MmaProblem, schedule: MmaSchedule, policy: Policy, target: MmaTarget, trace: Trace | None = None
) -> MmaSchedule | None:
    """The first valid schedule on the way down from `schedule`, or None if none is.

    All tiles of m are given up before any of n, then those of k, then the subgroups of m, then those of n; within a
    list the outermost loop first. Raises ScheduleError if the lists do not belong to the problem.
    """
    require_ranks(problem, schedule)
    kept = Trace() if trace is None else trace
    return shrink(schedule, Verdicts(problem, schedule.intrinsic, policy, target, kept), kept)


def shrink(schedule: MmaSchedule, valid: Callable[[MmaSchedule], bool], trace: Trace) -> MmaSchedule | None:
    """`schedule` with as few counts lowered, in the order of `LISTS`, as `valid` asks for; None at the end of all."""
    current, steps, way = schedule, 0, _way_down(schedule)
    while not valid(current):
        step = next(way, None)
        if step is None:
            trace.add("fit.fail", steps)
            return None
        name, dim, count = step
        steps += 1
        trace.add("fit.step", steps, name, dim, count + 1, count)
        current = current.with_count(name, dim, count)
    trace.add("fit.done", steps)
    return current


def _way_down(schedule: MmaSchedule) -> Iterator[tuple[str, int, int]]:
    """Every step to counts of 1: which list, which loop, and its next count."""
    for name in LISTS:
        for dim, count in enumerate(getattr(schedule, name)):
            for lower in range(count - 1, 0, -1):
                yield name, dim, lower
