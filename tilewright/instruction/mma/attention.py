"""Attention: one intrinsic and one schedule for two products, ``S = Q K^T`` and ``O = P V`` with softmax between.

N is never split over subgroups, so that a row of the softmax stays inside one.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Final

from tilewright.dataclass import dataclass
from tilewright.instruction.mma import policy as policies
from tilewright.instruction.mma.deduce import DEFAULTS
from tilewright.instruction.mma.eligibility import eligible, target_order
from tilewright.instruction.mma.fitting import shrink
from tilewright.instruction.mma.initial import initial_k, tile_counts
from tilewright.instruction.mma.policy import Options, Policy, ScheduleSeeds, Switches
from tilewright.instruction.mma.problem import ElementType, MmaProblem, Sizes
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.schedule import MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget, mma_target
from tilewright.instruction.mma.trace import Event, Trace, explain
from tilewright.instruction.mma.validity import Verdicts, footprint
from tilewright.machine import Machine

SEEDS: Final = ScheduleSeeds(4, 4, 4)


@dataclass(frozen=True)
class AttentionProblem:
    """``o[m, n] = sum_k2 softmax(sum_k1 q[m, k1] * k[k2, k1]) * v[k2, n]``; P has the element type of V.

    The flags say that an operand is stored the other way round: q as [k1, m], k as [k1, k2], v as [n, k2].
    """

    m: Sizes
    n: Sizes
    k1: Sizes
    k2: Sizes
    batch: Sizes = ()
    q: ElementType = "f16"
    k: ElementType = "f16"
    v: ElementType = "f16"
    c: ElementType = "f32"
    q_transposed: bool = False
    k_transposed: bool = False
    v_transposed: bool = False

    def __post_init__(self) -> None:
        _ = self.first, self.second  # raises ScheduleError for sizes and types that do not fit

    @property
    def first(self) -> MmaProblem:
        """S = Q K^T."""
        return MmaProblem(self.m, self.k2, self.k1, self.batch, self.q, self.k, self.c,
                          lhs_transposed=self.q_transposed, rhs_transposed=not self.k_transposed)  # fmt: skip

    @property
    def second(self) -> MmaProblem:
        """O = P V."""
        return MmaProblem(self.m, self.n, self.k2, self.batch, self.v, self.v, self.c, rhs_transposed=self.v_transposed)


@dataclass(frozen=True)
class AttentionDeduction:
    """The schedules of both products, or the reason why there is none."""

    problem: AttentionProblem
    target: str
    first: MmaSchedule | None
    second: MmaSchedule | None
    upcast: bool
    shared_bytes: int | None
    reason: Reason | None
    events: tuple[Event, ...]

    def explain(self) -> str:
        """The trace as text, one line per event."""
        return explain(self.events)


def deduce_attention(
    problem: AttentionProblem,
    target: MmaTarget | Machine | str,
    *,
    policy: str | Switches = "tilewright",
    options: Options = DEFAULTS,
) -> AttentionDeduction:
    """Schedule both products of attention together; a second run may accumulate in a wider type than the result.

    Raises ScheduleError for an unknown policy and for options that the target cannot follow.
    """
    switches = policies.switches_of(policy)
    found = options.on(target if isinstance(target, MmaTarget) else mma_target(target))
    trace = Trace()
    trace.add("schedule.begin", "attention", found.name, found.architecture, switches.name)
    reason = _refusal(problem, found)
    for upcast in (False, True) if reason is None else ():
        flags = Policy(upcast_acc=upcast, own_width=switches.own_width, stages=options.stages or 1)
        answer = _attempt(problem, found, switches, options, flags, trace)
        if not isinstance(answer, Reason):
            first, second, shared = answer
            trace.add("schedule.end", "VD+upcast" if upcast else "VD", second.intrinsic.name)
            return AttentionDeduction(problem, found.name, first, second, upcast, shared, None, tuple(trace))
        reason = answer
        trace.add("attempt.fail", "attention-2" if upcast else "attention-1", reason)
    return AttentionDeduction(problem, found.name, None, None, False, None, reason, tuple(trace))


def attention_schedule(
    problem: AttentionProblem, x: MmaIntrinsic, seeds: ScheduleSeeds, trace: Trace | None = None
) -> MmaSchedule:
    """The wished-for schedule of the second product: n takes tiles only, then m subgroups and tiles, then k2."""
    second = problem.second
    m_counts, n_counts, k_counts = (
        tile_counts(sizes, extent, Policy()) for sizes, extent in ((second.m, x.m), (second.n, x.n), (second.k, x.k))
    )
    subgroups, tiles = seeds.subgroups, seeds.mn_tiles
    m_subgroups, m_tiles, n_tiles = [1] * len(m_counts), [1] * len(m_counts), [1] * len(n_counts)
    for dim in reversed(range(len(n_counts))):
        n_tiles[dim] = gcd(n_counts[dim], tiles)
        tiles //= n_tiles[dim]
    for dim in reversed(range(len(m_counts))):
        m_subgroups[dim] = gcd(m_counts[dim], subgroups)
        subgroups //= m_subgroups[dim]
        m_tiles[dim] = gcd(m_counts[dim] // m_subgroups[dim], tiles)
        tiles //= m_tiles[dim]
    k_tiles = initial_k(k_counts, x, seeds, trace)
    return MmaSchedule(x, tuple(m_subgroups), (1,) * len(n_counts), tuple(m_tiles), tuple(n_tiles), k_tiles)


def first_product(problem: AttentionProblem, second: MmaSchedule) -> MmaSchedule:
    """The schedule of ``S = Q K^T`` beside one of ``O = P V``: its n is the k of the other, and it takes all of k1."""
    x = second.intrinsic
    k1 = tile_counts(problem.k1, x.k, Policy())
    return MmaSchedule(x.with_n(x.k), second.m_subgroups, (1,) * len(problem.k2), second.m_tiles, second.k_tiles,
                       tuple(k1))  # fmt: skip


def _refusal(problem: AttentionProblem, target: MmaTarget) -> Reason | None:
    if not target_order(target):
        return Reason.NO_INTRINSICS
    if None in (*problem.m, *problem.n, *problem.k1, *problem.k2):
        return Reason.DYNAMIC_INNERMOST
    return None


def _attempt(
    problem: AttentionProblem, target: MmaTarget, switches: Switches, options: Options, flags: Policy, trace: Trace
) -> tuple[MmaSchedule, MmaSchedule, int] | Reason:
    first, second = problem.first, problem.second
    first_flags = replace(flags, lhs_transposed=first.lhs_transposed, rhs_transposed=first.rhs_transposed)
    second_flags = replace(flags, rhs_transposed=second.rhs_transposed)
    intrinsics = [
        each for each in target_order(target)
        if each.name not in options.forbid and options.force_intrinsic in (None, each.name)
    ]  # fmt: skip
    seeds = options.seeds or SEEDS
    trace.add("attempt.begin", "attention-2" if flags.upcast_acc else "attention-1", second.types, len(intrinsics),
              target.shared_limit, target.subgroup_size, flags.upcast_acc, True, False, False,
              second.rhs_transposed)  # fmt: skip
    trace.add("seeds", seeds.subgroups, seeds.mn_tiles, seeds.k_tiles, seeds.k_elements, "attention")

    def valid(schedule: MmaSchedule) -> bool:
        other = first_product(problem, schedule)
        one = Verdicts(first, other.intrinsic, first_flags, target, trace)
        two = Verdicts(second, schedule.intrinsic, second_flags, target, trace)
        valid_1, valid_2 = one(other), two(schedule)
        total = one.shared_bytes + two.shared_bytes
        trace.add("valid.total", one.shared_bytes, two.shared_bytes, target.shared_limit, total <= target.shared_limit)
        return valid_1 and valid_2 and total <= target.shared_limit

    result = Reason.NO_ELIGIBLE_INTRINSIC
    for index, x in enumerate(intrinsics, 1):
        trace.add("intrinsic.try", index, len(intrinsics), x.name, x.shape, x.types)
        reason = eligible(first, x, first_flags, trace) or eligible(second, x, second_flags, trace)
        if reason is not None:
            trace.add("intrinsic.skip", x.name, reason)
            continue
        trace.add("intrinsic.take", x.name)
        fitted = shrink(attention_schedule(problem, x, seeds, trace), valid, trace)
        if fitted is not None:
            other = first_product(problem, fitted)
            return other, fitted, footprint(other, first_flags) + footprint(fitted, second_flags)
        result = Reason.DOES_NOT_FIT
        if not switches.next_intrinsic:
            break
    return result
