"""Whether a schedule can run: its tiles divide the problem, all threads copy, and the tiles fit into shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.instruction.mma.initial import tile_counts
from tilewright.instruction.mma.policy import Policy
from tilewright.instruction.mma.problem import MmaProblem, Sizes, bits
from tilewright.instruction.mma.schedule import MmaSchedule, require_ranks
from tilewright.instruction.mma.target import MmaTarget
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
    aligned = _aligned(problem, schedule, policy, trace)
    distributable = _distributable(schedule, policy, target, trace)
    shared_bytes = footprint(schedule, policy)
    fits = _fits(schedule, policy, shared_bytes, target.shared_limit, trace)
    trace.add("valid.result", aligned and distributable and fits)
    return aligned, distributable, shared_bytes, fits


def footprint(schedule: MmaSchedule, policy: Policy) -> int:
    """Bytes of shared memory: both operands in every stage, and the accumulators if they are staged."""
    total = policy.stages * schedule.bytes_ab
    if policy.stage_c:
        total += schedule.bytes_c * (policy.stages if policy.c_per_stage else 1)
    return total


def _aligned(problem: MmaProblem, schedule: MmaSchedule, policy: Policy, trace: Trace) -> bool:
    x = schedule.intrinsic
    if not policy.check_alignment:
        trace.add("valid.align", (), (), (), (), (), None)
        return True
    m_steps = [tiles * subgroups for tiles, subgroups in zip(schedule.m_tiles, schedule.m_subgroups, strict=True)]
    n_steps = [tiles * subgroups for tiles, subgroups in zip(schedule.n_tiles, schedule.n_subgroups, strict=True)]
    m = _quotients(problem.m, m_steps, x.m, policy)
    n = _quotients(problem.n, n_steps, x.n, policy)
    k = _quotients(problem.k, list(schedule.k_tiles), x.k, policy)
    ok = not any(size % step for size, step in (*m, *n, *k))
    m_factors = (x.m, schedule.m_tiles[-1], schedule.m_subgroups[-1])
    trace.add("valid.align", m, n, k, m_factors, (x.k, schedule.k_tiles[-1]), ok)
    return ok


def _quotients(sizes: Sizes, steps: list[int], extent: int, policy: Policy) -> tuple[tuple[int, int], ...]:
    """Size and step of each loop in elements; an unaligned innermost size is padded to whole intrinsics."""
    if policy.aligned_only:
        padded = [size for size in sizes if size is not None]
    else:
        padded = tile_counts(sizes, extent, policy)
        padded[-1] *= extent
    steps[-1] *= extent
    return tuple(zip(padded, steps, strict=True))


def _distributable(schedule: MmaSchedule, policy: Policy, target: MmaTarget, trace: Trace) -> bool:
    """Whether the widest loads of a row of each operand's tile and the threads divide each other."""
    x, threads = schedule.intrinsic, schedule.threads
    m, n, k = schedule.wg_m, schedule.wg_n, schedule.wg_k
    rhs_load = target.load_bits // bits(x.b)
    lhs_load = target.load_bits // bits(x.a) if policy.own_width else rhs_load
    lhs_inner = m if policy.lhs_transposed else k
    rhs_inner = k if policy.rhs_transposed else n
    lhs_loads, rhs_loads = lhs_inner // lhs_load, rhs_inner // rhs_load
    ok = _divide(lhs_loads, threads) and _divide(rhs_loads, threads)
    trace.add("valid.copy", threads, lhs_load, rhs_load, (m, n, k), lhs_inner, lhs_loads, rhs_inner, rhs_loads, ok)
    return ok


def _divide(loads: int, threads: int) -> bool:
    return loads % threads == 0 or threads % loads == 0  # a row narrower than one load: 0 loads, which pass


def _fits(schedule: MmaSchedule, policy: Policy, total: int, limit: int, trace: Trace) -> bool:
    x, m, n, k = schedule.intrinsic, schedule.wg_m, schedule.wg_n, schedule.wg_k
    ok = total <= limit
    lhs, rhs = (m, k, bits(x.a), schedule.bytes_a), (n, k, bits(x.b), schedule.bytes_b)
    c = (m, n, bits(x.c), schedule.bytes_c) if policy.stage_c else None
    trace.add("valid.shared", lhs, rhs, c, policy.stages, total, limit, ok)
    return ok
