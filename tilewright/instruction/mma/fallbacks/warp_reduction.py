"""Warp reduction, for matrix-vector and skinny products: a workgroup reduces all of k for one element of C or a few."""

from __future__ import annotations

from math import gcd, prod

from tilewright.instruction.mma.config import KernelConfig, per_loop
from tilewright.instruction.mma.problem import MmaProblem, bits
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.target import MmaTarget
from tilewright.instruction.mma.trace import Trace

MAX_THREADS = 1024
ENOUGH_WORKGROUPS = 256
VECTORS_PER_LANE = 8
OUTPUT_BITS = (8, 16, 32)


def warp_reduction(problem: MmaProblem, target: MmaTarget, trace: Trace) -> KernelConfig | Reason:
    """The configuration, or why not: k is no multiple of a subgroup, or the output has 64 bits."""
    outputs, reductions = (*problem.batch, *problem.m, *problem.n), problem.k
    if not problem.static:
        size = target.subgroup_size
        trace.add("fallback.rule", "WR", f"a size is not known: one subgroup of {size}")
        return _config(problem, size, size, rows=(1, 1), inner_k=size)
    k = prod(size for size in reductions if size is not None)
    choice = next((each for each in target.subgroup_choices if k % each == 0), None)
    if choice is None:
        return Reason.NO_SUBGROUP_DIVIDES_K
    if bits(problem.c) not in OUTPUT_BITS:
        return Reason.ACCUMULATOR_TYPE
    vector = target.load_bits // bits(problem.c)
    while (k // vector) % choice:
        vector //= 2
    group = k // vector
    if group > MAX_THREADS:
        group = gcd(group, MAX_THREADS)
    parallel = prod(size for size in outputs if size is not None)
    while parallel > ENOUGH_WORKGROUPS and (group // 2) % choice == 0 and k // (group * vector) < VECTORS_PER_LANE:
        group, parallel = group // 2, parallel // 2
    if group // choice > choice:
        return Reason.TOO_MANY_SUBGROUPS
    rows = _rows(problem, group) if target.reduction_rows else (1, 1)
    inner = problem.k[-1]
    assert inner is not None
    inner_k = gcd(group, max(1, inner // vector)) * vector
    trace.add("fallback.rule", "WR", f"k={k} in vectors of {vector}: {group} threads; rows={rows[0] * rows[1]}")
    return _config(problem, choice, group, rows, inner_k)


def _rows(problem: MmaProblem, group: int) -> tuple[int, int]:
    """Elements of m and n per workgroup: several only along the one loop of a matrix-vector product."""
    if problem.batch or len(problem.m) != 1 or len(problem.n) != 1 or len(problem.k) != 1:
        return 1, 1
    m, n = problem.m[0], problem.n[0]
    if (m == 1) == (n == 1):
        return 1, 1
    bound = n if m == 1 else m
    assert bound is not None
    rows, factor = 1, 2
    while factor < group // 4 and bound % factor == 0 and factor < bound:
        rows, factor = factor, factor * 2
    return (1, rows) if m == 1 else (rows, 1)


def _config(problem: MmaProblem, subgroup: int, group: int, rows: tuple[int, int], inner_k: int) -> KernelConfig:
    outputs = len(problem.batch) + len(problem.m) + len(problem.n)
    reduction = (*(0,) * outputs, *(1,) * (len(problem.k) - 1), inner_k)
    return KernelConfig(
        "warp-reduction", None, subgroup, (group, 1, 1),
        workgroup=per_loop(problem, m=(rows[0],), n=(rows[1],), k=(0,) * len(problem.k), batch=1),
        reduction=reduction, reduction_elements=reduction,
    )  # fmt: skip
