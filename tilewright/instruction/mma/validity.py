"""Whether a schedule can run: its tiles divide the problem, all threads copy, and the tiles fit into shared memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import mul

from tilewright.instruction.mma.initial import tile_counts
from tilewright.instruction.mma.policy import Policy
from tilewright.instruction.mma.problem import MmaProblem, Sizes, bits
from tilewright.instruction.mma.schedule import Counts, MmaSchedule, require_ranks
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget
from tilewright.instruction.mma.trace import Event, Trace, explain


@dataclass(frozen=True, slots=True)
class Validity:
    """Three verdicts; `numbers` are the events with every quotient that was formed."""

    aligned: bool
    distributable: bool
    fits: bool
    shared_bytes: int
    numbers: tuple[Event, ...]

    @property
    def valid(self) -> bool:
        return self.aligned and self.distributable and self.fits

    def __bool__(self) -> bool:
        return self.valid

    def __str__(self) -> str:
        return explain(self.numbers)


def check(problem: MmaProblem, schedule: MmaSchedule, policy: Policy, target: MmaTarget) -> Validity:
    """The three verdicts on a schedule. Raises ScheduleError if its lists do not belong to the problem."""
    require_ranks(problem, schedule)
    trace = Trace()
    aligned, distributable, shared_bytes, fits = evaluate(problem, schedule, policy, target, trace)
    return Validity(aligned, distributable, fits, shared_bytes, tuple(trace))


def evaluate(
    problem: MmaProblem, schedule: MmaSchedule, policy: Policy, target: MmaTarget, trace: Trace
) -> tuple[bool, bool, int, bool]:
    """Aligned, distributable, shared bytes, fits: always all of them, for the trace."""
    tile = schedule.tile
    aligned = _aligned(problem, schedule, policy, trace)
    distributable = _distributable(schedule, tile, policy, target, trace)
    shared_bytes = _shared_bytes(schedule.intrinsic, tile, policy, target.shared_limit, trace)
    fits = shared_bytes <= target.shared_limit
    trace.add("valid.result", aligned and distributable and fits)
    return aligned, distributable, shared_bytes, fits


def footprint(schedule: MmaSchedule, policy: Policy) -> int:
    """Bytes of shared memory: both operands in every stage, and the accumulators if they are staged."""
    return _shared_bytes(schedule.intrinsic, schedule.tile, policy, 1, Trace())


def _aligned(problem: MmaProblem, schedule: MmaSchedule, policy: Policy, trace: Trace) -> bool:
    x = schedule.intrinsic
    if not policy.check_alignment:
        trace.add("valid.align", (), (), (), (), (), None)
        return True
    sizes = (problem.m, problem.n, problem.k)
    m_sizes, n_sizes, k_sizes = _covered(sizes, (x.m, x.n, x.k), not policy.aligned_only, policy.pad_to_seed)
    m = _quotients(m_sizes, schedule.m_tiles, schedule.m_subgroups, x.m)
    n = _quotients(n_sizes, schedule.n_tiles, schedule.n_subgroups, x.n)
    k = _quotients(k_sizes, schedule.k_tiles, (1,) * len(k_sizes), x.k)
    ok = not any(size % step for size, step in (*m, *n, *k))
    m_factors = (x.m, schedule.m_tiles[-1], schedule.m_subgroups[-1])
    trace.add("valid.align", m, n, k, m_factors, (x.k, schedule.k_tiles[-1]), ok)
    return ok


@functools.lru_cache(4096)  # a step of a fit changes one of m, n and k
def _quotients(sizes: tuple[int, ...], tiles: Counts, subgroups: Counts, extent: int) -> tuple[tuple[int, int], ...]:
    """Size and step of each loop in elements."""
    *outer, inner = map(mul, tiles, subgroups)
    return tuple(zip(sizes, (*outer, inner * extent), strict=True))


@functools.lru_cache(1024)  # the same at every step of a fit
def _covered(
    sizes: tuple[Sizes, Sizes, Sizes], shape: tuple[int, int, int], padded: bool, pad_to_seed: bool
) -> list[tuple[int, ...]]:
    """The sizes of m, n and k that tiles must divide: an unaligned innermost one is padded to whole intrinsics."""
    if not padded:
        return [tuple(size for size in each if size is not None) for each in sizes]
    policy = Policy(aligned_only=False, pad_to_seed=pad_to_seed)
    counts = [tile_counts(each, extent, policy) for each, extent in zip(sizes, shape, strict=True)]
    return [(*outer, inner * extent) for (*outer, inner), extent in zip(counts, shape, strict=True)]


def _distributable(
    schedule: MmaSchedule, tile: tuple[int, int, int], policy: Policy, target: MmaTarget, trace: Trace
) -> bool:
    """Whether the widest loads of a row of each operand's tile and the threads divide each other."""
    x, threads = schedule.intrinsic, schedule.threads
    m, n, k = tile
    rhs_load = target.load_bits // bits(x.b)
    lhs_load = target.load_bits // bits(x.a) if policy.own_width else rhs_load
    lhs_inner = m if policy.lhs_transposed else k
    rhs_inner = k if policy.rhs_transposed else n
    lhs_loads, rhs_loads = lhs_inner // lhs_load, rhs_inner // rhs_load
    ok = _divide(lhs_loads, threads) and _divide(rhs_loads, threads)
    trace.add("valid.copy", threads, lhs_load, rhs_load, tile, lhs_inner, lhs_loads, rhs_inner, rhs_loads, ok)
    return ok


def _divide(loads: int, threads: int) -> bool:
    return loads % threads == 0 or threads % loads == 0  # a row narrower than one load: 0 loads, which pass


def _shared_bytes(x: MmaIntrinsic, tile: tuple[int, int, int], policy: Policy, limit: int, trace: Trace) -> int:
    m, n, k = tile
    lhs, rhs, result = m * k * bits(x.a) // 8, n * k * bits(x.b) // 8, m * n * bits(x.c) // 8
    total = policy.stages * (lhs + rhs)
    if policy.stage_c:
        total += result * (policy.stages if policy.c_per_stage else 1)
    c = (m, n, bits(x.c), result) if policy.stage_c else None
    trace.add("valid.shared", (m, k, bits(x.a), lhs), (n, k, bits(x.b), rhs), c, policy.stages, total, limit,
              total <= limit)  # fmt: skip
    return total
