"""Which intrinsics an attempt tries, in which order, and whether one may execute a problem."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tilewright.instruction.mma.policy import Policy
from tilewright.instruction.mma.problem import ElementType, MmaProblem, bits, is_float
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget
from tilewright.instruction.mma.trace import Event, Trace

SKINNY = 4  # rows or columns up to which a long product is better reduced than tiled


def target_order(target: MmaTarget) -> list[MmaIntrinsic]:
    """The vector-distribution order: the target's own, virtual ones after their parents."""
    return list(target.own_intrinsics)


def sorted_order(problem: MmaProblem, target: MmaTarget, very_large: bool = False) -> list[MmaIntrinsic]:
    """The tile-and-fuse order: what divides the problem first, then the widest operands; without virtual ones.

    `very_large`: among those that divide equally well the most arithmetic comes first, then the narrowest operands.
    """
    m, n, k = problem.m[-1], problem.n[-1], problem.k[-1]
    assert m is not None
    assert n is not None
    assert k is not None

    def key(each: MmaIntrinsic) -> tuple[int | bool, ...]:
        operands = (each.m + each.n) * each.k
        size = (-each.m * each.n * each.k, operands, each.k) if very_large else (-operands, -each.k)
        return k % each.k != 0, m % each.m != 0 or n % each.n != 0, *size

    listed = (each for each in target_order(target) if each.distributable and not each.virtual)
    return sorted(listed, key=key)


def eligible(problem: MmaProblem, intrinsic: MmaIntrinsic, policy: Policy, trace: Trace | None = None) -> Reason | None:
    """The first rule that keeps `intrinsic` from executing `problem`, or None. The innermost sizes must be known."""
    trace = Trace() if trace is None else trace
    reason, events = _by_types(intrinsic, problem.a, problem.b, problem.c, problem.tf32_allowed, policy.upcast_acc)
    trace.extend(events)
    return _by_sizes(problem, intrinsic, policy, trace) if reason is None else reason


def usable(problem: MmaProblem, intrinsics: list[MmaIntrinsic], policy: Policy, trace: Trace) -> Iterator[MmaIntrinsic]:
    """The eligible ones of a list, in order; each is tried when it is asked for, for the trace."""
    types = (problem.a, problem.b, problem.c, problem.tf32_allowed, policy.upcast_acc)
    for x, events in _of_types(tuple(intrinsics), *types):
        trace.extend(events)
        if x is not None:
            reason = _by_sizes(problem, x, policy, trace)
            if reason is None:
                trace.add("intrinsic.take", x.name)
                yield x
            else:
                trace.add("intrinsic.skip", x.name, reason)


def is_skinny(problem: MmaProblem, subgroup_size: int) -> bool:
    """Whether the only m or n is at most 4 and the other one longer than a subgroup, or of unknown size."""
    if problem.batch or len(problem.m) != 1 or len(problem.n) != 1 or len(problem.k) != 1:
        return False
    m, n = problem.m[0], problem.n[0]
    return _is_short_beside(m, n, subgroup_size) or _is_short_beside(n, m, subgroup_size)


def _is_short_beside(size: int | None, other: int | None, subgroup_size: int) -> bool:
    return size is not None and size <= SKINNY and (other is None or other > subgroup_size)


def _by_sizes(problem: MmaProblem, x: MmaIntrinsic, policy: Policy, trace: Trace) -> Reason | None:
    if policy.aligned_only:
        sizes = ((problem.m[-1], x.m), (problem.n[-1], x.n), (problem.k[-1], x.k))
        ok = all(size is not None and size % step == 0 for size, step in sizes)
        trace.add("intrinsic.check", "aligned", sizes, ok)
        return None if ok else Reason.UNALIGNED
    ok = not is_skinny(problem, x.subgroup)
    trace.add("intrinsic.check", "skinny", (problem.m[-1], problem.n[-1], x.subgroup), ok)
    return None if ok else Reason.SKINNY


@functools.lru_cache(1024)  # most intrinsics of a list are for other types, in every attempt
def _of_types(
    intrinsics: tuple[MmaIntrinsic, ...], a: ElementType, b: ElementType, c: ElementType, tf32: bool, upcast: bool
) -> tuple[tuple[MmaIntrinsic | None, list[Event]], ...]:
    """Those whose types fit, each with the events since the one before it; None with those after the last."""
    found: list[tuple[MmaIntrinsic | None, list[Event]]] = []
    events: list[Event] = []
    for index, x in enumerate(intrinsics, 1):
        reason, checks = _by_types(x, a, b, c, tf32, upcast)
        events += (Event("intrinsic.try", (index, len(intrinsics), x.name, x.shape, x.types)), *checks)
        if reason is None:
            found.append((x, events))
            events = []
        else:
            events.append(Event("intrinsic.skip", (x.name, reason)))
    return (*found, (None, events))


def _by_types(
    x: MmaIntrinsic, a: ElementType, b: ElementType, c: ElementType, tf32: bool, upcast: bool
) -> tuple[Reason | None, tuple[Event, ...]]:
    """The rules on types, and their events."""
    ok = _reads(a, x.a, tf32) and _reads(b, x.b, tf32)
    inputs = Event("intrinsic.check", ("input-types", (a, b, x.a, x.b), ok))
    if not ok:
        return Reason.INPUT_TYPES, (inputs,)
    ok = c == x.c or (upcast and is_float(c) and is_float(x.c) and bits(c) < bits(x.c))
    return None if ok else Reason.ACCUMULATOR_TYPE, (
        inputs, Event("intrinsic.check", ("accumulator-type", (c, x.c), ok))
    )  # fmt: skip


def _reads(wanted: ElementType, own: ElementType, tf32: bool) -> bool:
    return wanted == own or (own == "tf32" and wanted == "f32" and tf32)
