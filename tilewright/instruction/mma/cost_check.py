"""Compares a schedule with its neighbours under a performance model that the caller passes in."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.instruction.mma.policy import CostModel, Policy
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.schedule import LISTS, MmaSchedule
from tilewright.instruction.mma.target import MmaTarget
from tilewright.instruction.mma.trace import Trace
from tilewright.instruction.mma.validity import check

MAX_NEIGHBOURS = 8


def cheapest(
    problem: MmaProblem, schedule: MmaSchedule, policy: Policy, target: MmaTarget, cost: CostModel, trace: Trace
) -> MmaSchedule:
    """`schedule`, or the neighbour that is predicted to be faster: valid, one count halved or doubled, 8 at most."""
    heuristic = best_seconds = cost.seconds(problem, schedule, target)
    best, compared = schedule, 0
    for neighbour in _neighbours(schedule):
        if compared == MAX_NEIGHBOURS:
            break
        if neighbour.threads > target.max_threads or not check(problem, neighbour, policy, target):
            continue
        compared += 1
        seconds = cost.seconds(problem, neighbour, target)
        if seconds < best_seconds:
            best, best_seconds = neighbour, seconds
    trace.add("cost.compare", compared, str(best), best_seconds, heuristic)
    return best


def _neighbours(schedule: MmaSchedule) -> Iterator[MmaSchedule]:
    for name in LISTS:
        for dim, count in enumerate(getattr(schedule, name)):
            for other in (count // 2, count * 2) if count > 1 else (2,):
                yield schedule.with_count(name, dim, other)
