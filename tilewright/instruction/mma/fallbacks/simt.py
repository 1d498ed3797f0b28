"""Thread-tiled products without matrix units: every thread computes a small tile of C."""

from __future__ import annotations

from typing import Final, NamedTuple

from tilewright.instruction.mma.config import KernelConfig, per_loop
from tilewright.instruction.mma.eligibility import is_skinny
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.target import MmaTarget
from tilewright.instruction.mma.trace import Trace


class Row(NamedTuple):
    """A workgroup's tile of m, n and k, its threads, and the subgroup size that it is for (0: any)."""

    m: int
    n: int
    k: int
    threads: tuple[int, int]
    subgroup: int = 0


ROWS: Final = (
    Row(64, 128, 64, (64, 16), subgroup=64),
    Row(32, 128, 32, (32, 8)),
    Row(128, 64, 8, (16, 8)),
    Row(16, 256, 32, (64, 2)),
    Row(8, 32, 32, (8, 8)),
    Row(32, 128, 4, (32, 8)),
    Row(8, 128, 4, (32, 1)),
    Row(16, 64, 4, (16, 2)),
    Row(1, 128, 8, (32, 1)),
)
SMALL_K = 4  # the tile of k where a subgroup has a thread for every element of C


def simt(problem: MmaProblem, target: MmaTarget, trace: Trace) -> KernelConfig | Reason:
    """The configuration, or why this is no work for it: a matrix-vector or skinny product, or no product at all."""
    if sum(size is not None and size != 1 for size in (*problem.m, *problem.n)) < 2:
        return Reason.MATVEC
    if not problem.broadcasts:
        return Reason.NOT_A_CONTRACTION
    if is_skinny(problem, target.subgroup_size):
        return Reason.SKINNY
    if problem.fused_producer:
        return Reason.FUSED_PRODUCER
    m, n = problem.m[-1], problem.n[-1]
    k = problem.k[0] if len(problem.k) == 1 else None  # several reduction loops: tiled by 1
    rows = [row for row in ROWS if row.subgroup in (0, target.subgroup_size)]
    if m is not None and n is not None and k is not None:
        if m * n <= target.subgroup_size:
            trace.add("fallback.rule", "SIMT", f"step 1: {m}*{n} <= {target.subgroup_size}, one thread per element")
            return _config(problem, target, Row(n, m, SMALL_K, (m, n)), SMALL_K)  # tiles in this order, as measured
        for row in rows:
            if m % row.m == 0 and n % row.n == 0 and k % row.k == 0:
                trace.add("fallback.rule", "SIMT", f"step 2: {row.m}x{row.n}x{row.k} divides {m}x{n}x{k}")
                return _config(problem, target, row, row.k)
    row = rows[0]
    depth = 1 if k is None else row.k
    while k is not None and k % depth:
        depth //= 2
    trace.add("fallback.rule", "SIMT", f"step 3: {row.m}x{row.n} with masks, k halved from {row.k} to {depth}")
    return _config(problem, target, row, depth)


def _config(problem: MmaProblem, target: MmaTarget, row: Row, depth: int) -> KernelConfig:
    reduction = tuple(depth if role == "k" else 0 for role in problem.roles)
    return KernelConfig(
        "tile-and-fuse", None, target.subgroup_size, (*row.threads, 1),
        workgroup=per_loop(problem, m=(row.m,), n=(row.n,), k=(1,) * len(problem.k), batch=1),
        reduction=reduction, reduction_elements=reduction,
        thread=per_loop(problem, m=(max(1, row.m // row.threads[0]),), n=(max(1, row.n // row.threads[1]),),
                        k=(0,) * len(problem.k), batch=1),
    )  # fmt: skip
