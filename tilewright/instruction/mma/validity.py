"""Whether a schedule can run: its tiles divide the problem, all threads copy, and the tiles fit into shared memory."""

from __future__ import annotations

from math import prod
from operator import mod, mul

from tilewright.dataclass import dataclass
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
    verdicts = Verdicts(problem, schedule.intrinsic, policy, target, trace)
    verdicts(schedule)
    return Validity(verdicts.aligned, verdicts.distributable, verdicts.fits, verdicts.shared_bytes, tuple(trace))


def footprint(schedule: MmaSchedule, policy: Policy) -> int:
    """Bytes of shared memory: both operands in every stage, and the accumulators if they are staged."""
    m, n, k = schedule.tile
    x = schedule.intrinsic
    lhs, rhs, result = m * k * bits(x.a) // 8, n * k * bits(x.b) // 8, m * n * bits(x.c) // 8
    return _shared_bytes(lhs + rhs, result, policy)


class Verdicts:
    """Whether schedules of one problem and one intrinsic are valid; always all three verdicts, for the trace.

    What a step of a fit leaves unchanged is not computed again.
    """

    def __init__(self, problem: MmaProblem, x: MmaIntrinsic, policy: Policy, target: MmaTarget, trace: Trace) -> None:
        self._x, self._policy, self._trace, self._limit = x, policy, trace, target.shared_limit
        self._bits = bits(x.a), bits(x.b), bits(x.c)
        self._rhs_load = target.load_bits // bits(x.b)
        self._lhs_load = target.load_bits // bits(x.a) if policy.own_width else self._rhs_load
        self._m, self._n, self._k = (
            _Side(_covered(sizes, extent, policy), extent)
            for sizes, extent in ((problem.m, x.m), (problem.n, x.n), (problem.k, x.k))
        )
        self._undivided_k = (1,) * len(problem.k)  # subgroups
        self.aligned = self.distributable = self.fits = False
        self.shared_bytes = 0

    def __call__(self, schedule: MmaSchedule) -> bool:
        """Whether `schedule` is valid; the verdicts and numbers on it are then the attributes."""
        self._m.take(schedule.m_tiles, schedule.m_subgroups)
        self._n.take(schedule.n_tiles, schedule.n_subgroups)
        self._k.take(schedule.k_tiles, self._undivided_k)
        self.aligned = self._aligned(schedule)
        self.distributable = self._distributable()
        self.fits = self._fits()
        valid = self.aligned and self.distributable and self.fits
        self._trace.add("valid.result", valid)
        return valid

    def _aligned(self, schedule: MmaSchedule) -> bool:
        if not self._policy.check_alignment:
            self._trace.add("valid.align", (), (), (), (), (), None)
            return True
        x, m, n, k = self._x, self._m, self._n, self._k
        ok = m.divides and n.divides and k.divides
        m_factors = (x.m, schedule.m_tiles[-1], schedule.m_subgroups[-1])
        self._trace.add(
            "valid.align", m.quotients, n.quotients, k.quotients, m_factors, (x.k, schedule.k_tiles[-1]), ok
        )
        return ok

    def _distributable(self) -> bool:
        """Whether the widest loads of a row of each operand's tile and the threads divide each other."""
        m, n, k = self._m.elements, self._n.elements, self._k.elements
        threads = self._m.subgroups * self._n.subgroups * self._x.subgroup
        lhs_inner = m if self._policy.lhs_transposed else k
        rhs_inner = k if self._policy.rhs_transposed else n
        lhs_loads, rhs_loads = lhs_inner // self._lhs_load, rhs_inner // self._rhs_load
        ok = _divide(lhs_loads, threads) and _divide(rhs_loads, threads)
        self._trace.add("valid.copy", threads, self._lhs_load, self._rhs_load, (m, n, k), lhs_inner, lhs_loads,
                        rhs_inner, rhs_loads, ok)  # fmt: skip
        return ok

    def _fits(self) -> bool:
        m, n, k = self._m.elements, self._n.elements, self._k.elements
        a, b, c_bits = self._bits
        lhs, rhs, result = m * k * a // 8, n * k * b // 8, m * n * c_bits // 8
        total = self.shared_bytes = _shared_bytes(lhs + rhs, result, self._policy)
        ok = total <= self._limit
        c = (m, n, c_bits, result) if self._policy.stage_c else None
        self._trace.add("valid.shared", (m, k, a, lhs), (n, k, b, rhs), c, self._policy.stages, total, self._limit, ok)
        return ok


class _Side:
    """m, n or k: the sizes that tiles must divide, and what follows from the counts taken last."""

    __slots__ = ("_counts", "_extent", "_sizes", "divides", "elements", "quotients", "subgroups")

    def __init__(self, sizes: tuple[int, ...], extent: int) -> None:
        self._sizes, self._extent = sizes, extent
        self._counts: tuple[Counts, Counts] = ((), ())

    def take(self, tiles: Counts, subgroups: Counts) -> None:
        """Size and step in elements of each loop, whether all divide, and the product of the steps."""
        if self._counts[0] is tiles and self._counts[1] is subgroups:
            return
        self._counts = tiles, subgroups
        *outer, inner = map(mul, tiles, subgroups)
        steps = (*outer, inner * self._extent)
        self.quotients = tuple(zip(self._sizes, steps, strict=True))
        self.divides = not any(map(mod, self._sizes, steps))
        self.elements = prod(steps)
        self.subgroups = prod(subgroups)


def _covered(sizes: Sizes, extent: int, policy: Policy) -> tuple[int, ...]:
    """The sizes that tiles must divide: an innermost one that need not be aligned is padded to whole intrinsics."""
    if policy.aligned_only:
        return tuple(size for size in sizes if size is not None)
    *outer, inner = tile_counts(sizes, extent, policy)
    return (*outer, inner * extent)


def _divide(loads: int, threads: int) -> bool:
    return loads % threads == 0 or threads % loads == 0  # a row narrower than one load: 0 loads, which pass


def _shared_bytes(operands: int, result: int, policy: Policy) -> int:
    total = policy.stages * operands
    return total + result * (policy.stages if policy.c_per_stage else 1) if policy.stage_c else total
