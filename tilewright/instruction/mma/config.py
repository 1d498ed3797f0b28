"""The kernel configuration: what a code generator needs to know of a schedule or of a fall-back, per loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Literal

from tilewright.dataclass import dataclass
from tilewright.instruction.mma.initial import div_up
from tilewright.instruction.mma.policy import Path
from tilewright.instruction.mma.problem import MmaProblem, Sizes
from tilewright.instruction.mma.schedule import MmaSchedule

Pipeline = Literal["vector-distribute", "tile-and-fuse", "warp-reduction", "tensor-core", "tensor-core-mma-sync"]
PerLoop = tuple[int, ...]  # in the order of `MmaProblem.loops`: batch, m, n, k; 0 means not tiled at this level


@dataclass(frozen=True)
class KernelConfig:
    """Tiles per loop, threads and options.

    `workgroup` is in elements, and so is `reduction_elements`; `reduction` counts the innermost k in intrinsics where
    the operands are packed (tile-and-fuse with an intrinsic). `subgroup` holds tiles per subgroup (tile-and-fuse),
    `subgroup_counts` subgroups along m and n (vector distribution), `thread` elements per thread (fall-backs).
    `producer_threads` of the workgroup only copy, into one of `stages` buffers.
    """

    pipeline: Pipeline
    intrinsic: str | None
    subgroup_size: int
    workgroup_size: tuple[int, int, int]
    workgroup: PerLoop
    reduction: PerLoop
    reduction_elements: PerLoop
    subgroup_counts: tuple[int, int] | None = None
    subgroup: PerLoop | None = None
    thread: PerLoop | None = None
    padding: PerLoop | None = None
    promote: tuple[int, ...] = ()
    prefetch: bool = False
    bank_conflict_padding: bool = False
    stages: int = 1
    producer_threads: int = 0

    def __str__(self) -> str:
        parts = [f"pipeline={self.pipeline} workgroup={list(self.workgroup)} reduction={list(self.reduction)}"]
        if self.subgroup_counts is not None:
            parts.append(f"subgroups={self.subgroup_counts[0]},{self.subgroup_counts[1]}")
        for name in ("subgroup", "thread", "padding"):
            value = getattr(self, name)
            if value is not None:
                parts.append(f"{name}={list(value)}")
        parts.append(f"subgroup-size={self.subgroup_size} workgroup-size={list(self.workgroup_size)}")
        if self.promote:
            parts.append(f"promote={list(self.promote)}")
        if self.stages != 1 or self.producer_threads:
            parts.append(f"stages={self.stages}")
        if self.producer_threads:
            parts.append(f"producer-threads={self.producer_threads}")
        return " ".join(parts)


def kernel_config(problem: MmaProblem, schedule: MmaSchedule, path: Path, *, prefetch: bool = False) -> KernelConfig:
    """The configuration of a matrix schedule for the whole problem.

    The schedule covers the innermost m, n and k on the paths "VD", "VD+upcast" and "TC", and all m, n and k of known
    size on "TF" and "TF+pad"; other loops get a tile of 1. `prefetch` is the option of vector distribution.
    """
    x = schedule.intrinsic
    inner_only = path in ("VD", "VD+upcast", "TC")
    m_sizes, n_sizes, k_sizes = ((None,) * (len(sizes) - 1) + (sizes[-1],) if inner_only else sizes
                                 for sizes in (problem.m, problem.n, problem.k))  # fmt: skip
    m = _spread(m_sizes, _workgroup_tile(schedule.m_tiles, schedule.m_subgroups, x.m), 1)
    n = _spread(n_sizes, _workgroup_tile(schedule.n_tiles, schedule.n_subgroups, x.n), 1)
    k_steps = _spread(k_sizes, schedule.k_tiles, 1)
    k_elements = (*k_steps[:-1], k_steps[-1] * x.k)
    batch, no_k = (1,) * len(problem.batch), (0,) * len(k_steps)
    no_output = (0,) * (len(batch) + len(m) + len(n))
    padded = path == "TF+pad"
    tiles = (*_spread(m_sizes, schedule.m_tiles, 1), *_spread(n_sizes, schedule.n_tiles, 1))
    return KernelConfig(
        "vector-distribute" if inner_only else "tile-and-fuse", x.name, x.subgroup, (schedule.threads, 1, 1),
        workgroup=(*batch, *m, *n, *no_k), reduction=(*no_output, *(k_elements if inner_only else k_steps)),
        reduction_elements=(*no_output, *k_elements),
        subgroup_counts=(prod(schedule.m_subgroups), prod(schedule.n_subgroups)) if inner_only else None,
        subgroup=None if inner_only else ((0,) * len(batch) + tiles + no_k),
        padding=(*batch, *m, *n, *k_elements) if padded else None, promote=(0, 1, 2) if padded else (0, 1),
        prefetch=prefetch if inner_only else True, bank_conflict_padding=True,
    )  # fmt: skip


def per_loop(problem: MmaProblem, *, m: Sequence[int], n: Sequence[int], k: Sequence[int], batch: int) -> PerLoop:
    """One value per loop, from those of each role; short lists are filled with `batch`'s on the outside."""
    lists = ((problem.m, m), (problem.n, n), (problem.k, k))
    filled = (value for sizes, values in lists for value in (*(batch,) * (len(sizes) - len(values)), *values))
    return (*(batch,) * len(problem.batch), *filled)


def grid(problem: MmaProblem, config: KernelConfig) -> tuple[int | None, ...]:
    """Workgroups along every batch, m and n loop; None where a size is not known."""
    return _quotients(problem, config.workgroup, lambda role: role != "k")


def k_steps(problem: MmaProblem, config: KernelConfig) -> int | None:
    """How many slices of k a workgroup goes through; None where a size is not known."""
    return product_of(_quotients(problem, config.reduction_elements, lambda role: role == "k"))


def product_of(counts: Sequence[int | None]) -> int | None:
    """The product, or None if a factor is."""
    known = [count for count in counts if count is not None]
    return prod(known) if len(known) == len(counts) else None


def _quotients(problem: MmaProblem, tiles: PerLoop, wanted: Callable[[str], bool]) -> tuple[int | None, ...]:
    loops = zip(problem.roles, problem.extents, tiles, strict=True)
    return tuple(
        None if size is None else div_up(size, tile) if tile else 1 for role, size, tile in loops if wanted(role)
    )


def _workgroup_tile(tiles: Sequence[int], subgroups: Sequence[int], extent: int) -> PerLoop:
    products = [count * subgroup for count, subgroup in zip(tiles, subgroups, strict=True)]
    return (*products[:-1], products[-1] * extent)


def _spread(sizes: Sizes, values: Sequence[int], filler: int) -> PerLoop:
    """The values at the loops of known size, in order, and `filler` at the others."""
    assert sum(size is not None for size in sizes) == len(values), "the schedule belongs to another problem"
    found = iter(values)
    return tuple(filler if size is None else next(found) for size in sizes)
