"""Generic tile and fuse, the last resort: spread C over one subgroup, with idle threads where nothing divides."""

from __future__ import annotations

from typing import Final, NamedTuple

from tilewright.instruction.mma.config import KernelConfig
from tilewright.instruction.mma.problem import MmaProblem, Sizes, bits
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.target import MmaTarget
from tilewright.instruction.mma.trace import Trace

LOSSES: Final = (32, 16, 8, 4, 2, 1)  # one part in this many threads may idle; tried in this order
PREFERRED_DEPTH = 4
MAX_PRIME = 50


class Spread(NamedTuple):
    """Tiles of a workgroup and of a thread per output loop, outermost first, the workgroup's threads, threads left."""

    workgroup: tuple[int, ...]
    thread: tuple[int, ...]
    threads: int
    left: int


def generic(problem: MmaProblem, target: MmaTarget, trace: Trace) -> KernelConfig | Reason:
    """The configuration; this strategy takes everything."""
    outputs = (*problem.batch, *problem.m, *problem.n)
    vector = max(4, target.load_bits // bits(problem.c))
    spread, loss = _spread(outputs, target.subgroup_size, vector, None), 0
    for loss in LOSSES if spread.left != 1 else ():
        spread = _spread(outputs, target.subgroup_size, vector, loss)
        if spread.left == 1:
            break
    trace.add("fallback.rule", "GTF", f"at most 1 thread in {loss} idles" if loss else "no thread idles")
    depth = _depth(problem.k[-1])
    reduction = (*(0,) * len(outputs), *(1,) * (len(problem.k) - 1), depth)
    no_k = (0,) * len(problem.k)
    matrix = any(size != 1 for size in problem.m) and any(size != 1 for size in problem.n)
    return KernelConfig(
        "tile-and-fuse", None, target.subgroup_size, (spread.threads, 1, 1),
        workgroup=(*spread.workgroup, *no_k), reduction=reduction, reduction_elements=reduction,
        thread=(*spread.thread, *no_k), promote=(0, 1) if matrix else (),
    )  # fmt: skip


def _spread(sizes: Sizes, threads: int, vector: int, loss: int | None) -> Spread:
    """Give the threads to the loops, innermost first; without loss a thread may take a vector of the innermost."""
    workgroup, thread = [1] * len(sizes), [1] * len(sizes)
    used, first = 1, True
    for dim in reversed(range(len(sizes))):
        size = sizes[dim]
        if size is None:
            continue
        wide = vector
        while wide * threads > size and wide > 4:
            wide //= 2
        vectors = first and loss is None
        for candidate in ((wide * threads,) if vectors else ()) + _halvings(threads):
            idle = candidate - size % candidate if size % candidate else 0
            if idle and (loss is None or idle > candidate // loss):
                continue
            if vectors and candidate % wide == 0:
                thread[dim] = wide
            workgroup[dim] = candidate
            used *= candidate // thread[dim]
            threads //= candidate // thread[dim]
            break
        first = False
        if threads == 1:
            break
    return Spread(tuple(workgroup), tuple(thread), used, threads)


def _halvings(threads: int) -> tuple[int, ...]:
    return tuple(threads >> shift for shift in range(threads.bit_length()))


def _depth(k: int | None) -> int:
    """The tile of the innermost k.

    >>> [_depth(k) for k in (880, 6, 35, 53, None)]
    [4, 2, 5, 1, 1]
    """
    if k is None:
        return 1
    if k % PREFERRED_DEPTH == 0:
        return PREFERRED_DEPTH
    return next((prime for prime in range(2, MAX_PRIME) if k % prime == 0), 1)
