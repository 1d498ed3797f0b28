"""Which intrinsics an attempt tries, in which order, and whether one may execute a problem."""

from __future__ import annotations

from tilewright.instruction.mma.policy import Policy
from tilewright.instruction.mma.problem import ElementType, MmaProblem, bits, is_float
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget
from tilewright.instruction.mma.trace import Trace

SKINNY = 4  # rows or columns up to which a long product is better reduced than tiled


def target_order(target: MmaTarget) -> list[MmaIntrinsic]:
    """The vector-distribution order: the target's own, virtual ones after their parents."""
    return [each for each in target.intrinsics if each.subgroup == target.subgroup_size]


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

    listed = (each for each in target_order(target) if each.distributable and each.virtual_of is None)
    return sorted(listed, key=key)


def eligible(problem: MmaProblem, intrinsic: MmaIntrinsic, policy: Policy, trace: Trace | None = None) -> Reason | None:
    """The first rule that keeps `intrinsic` from executing `problem`, or None. The innermost sizes must be known."""
    add = (Trace() if trace is None else trace).add
    ok = _reads(problem.a, intrinsic.a, problem) and _reads(problem.b, intrinsic.b, problem)
    add("intrinsic.check", "input-types", (problem.a, problem.b, intrinsic.a, intrinsic.b), ok)
    if not ok:
        return Reason.INPUT_TYPES
    c, own = problem.c, intrinsic.c
    ok = c == own or (policy.upcast_acc and is_float(c) and is_float(own) and bits(c) < bits(own))
    add("intrinsic.check", "accumulator-type", (c, own), ok)
    if not ok:
        return Reason.ACCUMULATOR_TYPE
    if policy.aligned_only:
        sizes = ((problem.m[-1], intrinsic.m), (problem.n[-1], intrinsic.n), (problem.k[-1], intrinsic.k))
        ok = all(size is not None and size % step == 0 for size, step in sizes)
        add("intrinsic.check", "aligned", sizes, ok)
        return None if ok else Reason.UNALIGNED
    ok = not is_skinny(problem, intrinsic.subgroup)
    add("intrinsic.check", "skinny", (problem.m[-1], problem.n[-1], intrinsic.subgroup), ok)
    return None if ok else Reason.SKINNY


def is_skinny(problem: MmaProblem, subgroup_size: int) -> bool:
    """Whether the only m or n is at most 4 and the other one longer than a subgroup, or of unknown size."""
    if problem.batch or len(problem.m) != 1 or len(problem.n) != 1 or len(problem.k) != 1:
        return False
    m, n = problem.m[0], problem.n[0]
    return _is_short_beside(m, n, subgroup_size) or _is_short_beside(n, m, subgroup_size)


def _is_short_beside(size: int | None, other: int | None, subgroup_size: int) -> bool:
    return size is not None and size <= SKINNY and (other is None or other > subgroup_size)


def _reads(wanted: ElementType, own: ElementType, problem: MmaProblem) -> bool:
    return wanted == own or (own == "tf32" and wanted == "f32" and problem.tf32_allowed)
