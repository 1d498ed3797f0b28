"""Products by groups of four subgroups, fed by producer threads through a circular buffer in shared memory."""

from __future__ import annotations

from dataclasses import replace

from tilewright.dataclass import dataclass
from tilewright.instruction.mma.config import KernelConfig, kernel_config
from tilewright.instruction.mma.eligibility import usable
from tilewright.instruction.mma.fitting import shrink
from tilewright.instruction.mma.initial import initial_schedule
from tilewright.instruction.mma.policy import CACHE_LINE_BITS, Policy, ScheduleSeeds
from tilewright.instruction.mma.problem import MmaProblem, bits
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.schedule import MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget
from tilewright.instruction.mma.trace import Trace
from tilewright.instruction.mma.validity import Verdicts

STAGES = 4  # buffers of the circular buffer, unless the caller says otherwise
FEWEST_STAGES = 2  # below which copies no longer overlap the products
PRODUCER_THREADS = 128


@dataclass(frozen=True)
class WarpgroupSchedule:
    """A schedule of warpgroups, the buffers it keeps, and the flags under which it was checked."""

    schedule: MmaSchedule
    policy: Policy


def warpgroup_seeds(problem: MmaProblem) -> ScheduleSeeds:
    """Two warpgroups with one tile each; a slice is one 128-byte row of the swizzle deep."""
    return ScheduleSeeds(2, 1, 4, CACHE_LINE_BITS // bits(problem.a))


def schedule_warpgroups(
    problem: MmaProblem,
    intrinsics: list[MmaIntrinsic],
    seeds: ScheduleSeeds,
    policy: Policy,
    target: MmaTarget,
    trace: Trace,
) -> WarpgroupSchedule | Reason:
    """The widest eligible intrinsic that fits; `policy.stages` buffers at first.

    What does not fit gives up buffers down to 2, then takes the next smaller n, then shrinks as any schedule does. The
    epilogue reuses the circular buffer, so accumulators take no room of their own.
    """
    candidates = usable(problem, intrinsics, policy, trace)
    x = next(candidates, None)
    if x is None:
        return Reason.NO_ELIGIBLE_INTRINSIC
    steps, stages = 0, policy.stages
    while True:
        schedule = initial_schedule(problem, x, seeds, policy, trace)
        while not Verdicts(problem, x, replace(policy, stages=stages), target, trace)(schedule):
            if stages <= FEWEST_STAGES:
                break
            steps, stages = steps + 1, stages - 1
            trace.add("fit.step", steps, "stages", 0, stages + 1, stages)
        else:
            trace.add("fit.done", steps)
            return WarpgroupSchedule(schedule, replace(policy, stages=stages))
        narrower = next(candidates, None)
        if narrower is None:
            break
        steps += 1
        trace.add("fit.step", steps, "n", 0, x.n, narrower.n)
        x = narrower
    policy = replace(policy, stages=stages)
    fitted = shrink(schedule, Verdicts(problem, x, policy, target, trace), trace)
    return Reason.DOES_NOT_FIT if fitted is None else WarpgroupSchedule(fitted, policy)


def warpgroup_config(problem: MmaProblem, found: WarpgroupSchedule) -> KernelConfig:
    """The configuration, with the producer threads in the workgroup."""
    config = kernel_config(problem, found.schedule, "TF")
    threads = found.schedule.threads + PRODUCER_THREADS
    return replace(config, workgroup_size=(threads, 1, 1), stages=found.policy.stages,
                   producer_threads=PRODUCER_THREADS)  # fmt: skip
