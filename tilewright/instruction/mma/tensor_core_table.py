"""The strategy "tensor-core-table": fixed tiles for tensor cores, those of IREE's CUDA back end and more of ours.

Tables: IREE 3.1, `LLVMGPU/KernelConfig.cpp`, tile sizes of the tensor-core pipelines. The first row that divides the
problem, and breaks no rule of `tensor_core_config`, is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from tilewright.dataclass import dataclass
from tilewright.instruction.mma.config import KernelConfig, Pipeline, kernel_config
from tilewright.instruction.mma.eligibility import usable
from tilewright.instruction.mma.policy import Policy, Route
from tilewright.instruction.mma.problem import ElementType, MmaProblem, bits
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.schedule import MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget
from tilewright.instruction.mma.tensor_core_config import (
    DOCUMENTED,
    ROW_ALIGNMENT,
    Extents,
    MatmulConfig,
    shared_bytes,
    verify,
    warp_tile,
    warps,
)
from tilewright.instruction.mma.trace import Trace
from tilewright.options import DOCUMENTED_MMA, OPAQUE_MMA


class Row(NamedTuple):
    """A block's tile of m, n and k, its threads along x and y, its buffers, and the elements of C it is for."""

    block: Extents
    threads: tuple[int, int]
    stages: int
    least_elements: int = 0


LARGE: Final = 1536 * 1536
WIDE_ROWS: Final = (
    Row((128, 256, 32), (128, 2), 3, LARGE),
    Row((32, 32, 32), (64, 2), 4),
)  # fmt: skip
NARROW_ROWS: Final = (
    Row((128, 256, 16), (128, 2), 4, LARGE),
    Row((32, 32, 16), (64, 2), 4),
    Row((16, 32, 16), (64, 1), 4),
    Row((32, 16, 16), (32, 2), 4),
    Row((16, 16, 16), (32, 1), 4),
)  # fmt: skip
IREE_ROWS: Final[Mapping[ElementType, tuple[Row, ...]]] = {"f16": WIDE_ROWS, "f32": NARROW_ROWS, "bf16": NARROW_ROWS}
ROWS: Final[Mapping[ElementType, tuple[Row, ...]]] = {
    "f16": WIDE_ROWS + NARROW_ROWS, "f32": NARROW_ROWS, "bf16": WIDE_ROWS + NARROW_ROWS,
}  # fmt: skip

PIPELINES: Final[Mapping[Route, Pipeline]] = {DOCUMENTED_MMA: "tensor-core-mma-sync", OPAQUE_MMA: "tensor-core"}


@dataclass(frozen=True)
class TableSchedule:
    """A row as a schedule, the problem and flags it holds for, the configuration, and its bytes of shared memory."""

    schedule: MmaSchedule
    scheduled: MmaProblem
    policy: Policy
    config: KernelConfig
    shared_bytes: int


def schedule_by_table(
    problem: MmaProblem, target: MmaTarget, routes: tuple[Route, ...], rows: Mapping[ElementType, tuple[Row, ...]],
    allowed: frozenset[MmaIntrinsic], trace: Trace,
) -> TableSchedule | Reason:  # fmt: skip
    """The first row of the first route with an eligible intrinsic in `allowed`, or why there is none.

    Covers the innermost m, n and k; other loops get a tile of 1. Operands are read as they are, not before widening.
    """
    if not target.tensor_core_table:
        return Reason.NO_INTRINSICS
    m, n, k = problem.m[-1], problem.n[-1], problem.k[-1]
    if m is None or n is None or k is None:
        return Reason.DYNAMIC_INNERMOST
    if problem.a != problem.b:
        return Reason.MIXED_INPUT
    if problem.fused_producer:
        return Reason.FUSED_PRODUCER
    if not problem.broadcasts:
        return Reason.NOT_A_CONTRACTION
    scheduled = replace(problem, narrow_a=None, narrow_b=None).innermost()
    flags = Policy(lhs_transposed=problem.lhs_transposed, rhs_transposed=problem.rhs_transposed)
    result = Reason.NO_ELIGIBLE_INTRINSIC
    for route in routes:
        listed = [x for x in target.intrinsics if x.distributable is DOCUMENTED[route] and x in allowed]
        for x in usable(scheduled, listed, flags, trace):
            for row in rows.get(_read_as(problem.a), ()):
                found = _take(problem, scheduled, x, route, row, target, flags, trace)
                if found is not None:
                    return found
            result = Reason.DOES_NOT_FIT
    return result


def _take(
    problem: MmaProblem, scheduled: MmaProblem, x: MmaIntrinsic, route: Route, row: Row, target: MmaTarget,
    flags: Policy, trace: Trace,
) -> TableSchedule | None:  # fmt: skip
    """The schedule of one row, or None where the row is for larger problems or a rule refuses it."""
    (m,), (n,), (k,) = scheduled.m, scheduled.n, scheduled.k
    assert m is not None
    assert n is not None
    if m * n < row.least_elements:
        trace.add("table.row", row.block, row.threads, row.stages, (f"m*n = {m * n} < {row.least_elements}",))
        return None
    stages = row.stages if target.async_copies and k != row.block[2] else 1
    pad = ROW_ALIGNMENT * 8 // bits(x.a) if route == OPAQUE_MMA else 0  # the other route swizzles
    config = MatmulConfig(row.block, (*row.threads, 1), stages, route=route, pad=pad)
    types = scheduled.a, scheduled.b, scheduled.c
    broken = [
        each for each in verify(
            config, (m, n, k), *types, shared_limit=target.shared_limit, intrinsics=(x,),
        ) if not each.warning
    ]  # fmt: skip
    trace.add("table.row", row.block, row.threads, stages, tuple(str(each) for each in broken))
    if broken:
        return None
    (m_warps, n_warps, _), (warp_m, warp_n, warp_k) = warps(config), warp_tile(config)
    schedule = MmaSchedule(x, (m_warps,), (n_warps,), (warp_m // x.m,), (warp_n // x.n,), (warp_k // x.k,))
    kernel = replace(
        kernel_config(problem, schedule, "TC"), workgroup_size=(*row.threads, 1), stages=stages,
        pipeline=PIPELINES[route], bank_conflict_padding=pad > 0,
    )  # fmt: skip
    return TableSchedule(schedule, scheduled, replace(flags, stages=stages), kernel,
                         shared_bytes(config, scheduled.a, scheduled.c))  # fmt: skip


def _read_as(element: ElementType) -> ElementType:
    """The type under which tables list an operand."""
    return "f32" if element == "tf32" else element
