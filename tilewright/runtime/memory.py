"""Memory of a compiled module: where intermediate buffers live in one arena, and aligned allocation.

`plan_arena` is called by the compiler, `allocate` by whoever makes constants, arenas and scratch space.
"""

from __future__ import annotations

import contextlib
import mmap
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tilewright.dataclass import dataclass

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
HUGE_PAGE = 2 << 20  # bytes: a transparent huge page of x86-64 and of aarch64 with 4 KiB pages
_LEAST_USE = (
    8  # memory takes up to an eighth more for a last huge page: ordinary ones cost products 3 to 5 % of their time
)
_MAX_ROUNDS, _MAX_STEPS = 100, 1_000_000  # of placing all buffers; of meeting one that is live with another


@dataclass(frozen=True)
class LiveBuffer:
    """An intermediate buffer: `bytes` that are live from step `first_use` to step `last_use`, both included."""

    name: str
    bytes: int
    first_use: int
    last_use: int

    def __post_init__(self) -> None:
        if self.bytes < 0 or self.first_use > self.last_use:
            raise ValueError(f"not a buffer: {self}")


def plan_arena(buffers: Sequence[LiveBuffer]) -> tuple[dict[str, int], int]:
    """Give each buffer an offset so that buffers that are live together do not overlap.

    Returns the offsets by name, all multiples of `ALIGNMENT`, and the bytes of the arena. Each buffer goes into the
    smallest gap between the buffers that are live with it and already placed, largest first. While the arena is
    larger than the largest sum of sizes that are live at once, the buffer that ends last moves halfway to the front
    of the order and all are placed again. A round takes time linear in the pairs of buffers that are live together,
    but for logarithms.

    >>> plan_arena([LiveBuffer("a", 64, 0, 1), LiveBuffer("b", 128, 1, 2), LiveBuffer("c", 64, 2, 3)])
    ({'b': 0, 'a': 128, 'c': 128}, 192)
    """
    if len({buffer.name for buffer in buffers}) != len(buffers):
        raise ValueError("two buffers have the same name")
    order = sorted(buffers, key=lambda b: (-b.bytes, b.first_use, b.last_use))
    bound = _largest_live_sum(order)
    best = offsets, total = _place(order)
    rounds = min(_MAX_ROUNDS, _MAX_STEPS // max(1, _pairs(order)))
    for _ in range(rounds):
        if best[1] == bound:
            break
        last = next(index for index, b in enumerate(order) if offsets[b.name] + align(b.bytes) == total)
        order.insert(last // 2, order.pop(last))
        offsets, total = plan = _place(order)
        best = min(best, plan, key=lambda p: p[1])
    return best


def align(size: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment` that is not below `size`."""
    return -(-size // alignment) * alignment


def allocate(size: int) -> NDArray[np.uint8]:
    """Allocate `size` zeroed bytes, aligned to 64 bytes; large ones in huge pages where the system has them.

    The memory is private to the process: after a fork, parent and child have copies.
    """
    if size < HUGE_PAGE or not hasattr(mmap, "MAP_PRIVATE"):
        raw = np.zeros(size + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + size]
    # Aligning is free, since pages that are never touched cost no memory. The last huge page costs memory to its end:
    # where that is more than a small part of the whole, what is behind the other huge pages is in ordinary ones.
    rounded = align(size, HUGE_PAGE)
    huge = rounded if rounded - size <= size // _LEAST_USE else rounded - HUGE_PAGE
    try:
        pages = mmap.mmap(-1, max(size, huge) + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"cannot reserve {size} bytes: {error}") from error
    raw = np.frombuffer(pages, np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: ordinary pages are correct too
            pages.madvise(mmap.MADV_HUGEPAGE, start, huge)
    return raw[start : start + size]


def aligned(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`values` itself if it is contiguous and aligned to 64 bytes, else a copy that is."""
    if values.flags.c_contiguous and values.ctypes.data % ALIGNMENT == 0:
        return values
    copy = allocate(values.size)
    copy[:] = values
    return copy


def _place(buffers: Sequence[LiveBuffer]) -> tuple[dict[str, int], int]:
    """Place buffers in the order given."""
    placed = _Placed(max((buffer.last_use for buffer in buffers), default=0) + 1)
    offsets: dict[str, int] = {}
    total = 0
    for buffer in buffers:
        begin = _best_gap(sorted(placed.live_with(buffer)), buffer.bytes)
        end = begin + align(buffer.bytes)
        placed.add(buffer, begin, end)
        offsets[buffer.name] = begin
        total = max(total, end)
    return offsets, total


class _Placed:
    """Buffers that have a place, found by the steps at which they are live.

    What is live with a buffer is live at its first step or begins at a later one of its steps. For the first kind there
    is a segment tree over the steps, for the second a list that is sorted by first steps.
    """

    def __init__(self, steps: int) -> None:
        self._leaves = 1 << (steps - 1).bit_length()
        self._live: list[list[tuple[int, int]]] = [[] for _ in range(2 * self._leaves)]
        self._begins: list[tuple[int, int, int]] = []  # first step, begin, end

    def add(self, buffer: LiveBuffer, begin: int, end: int) -> None:
        insort(self._begins, (buffer.first_use, begin, end))
        low, high = buffer.first_use + self._leaves, buffer.last_use + 1 + self._leaves
        while low < high:
            if low & 1:
                self._live[low].append((begin, end))
                low += 1
            if high & 1:
                high -= 1
                self._live[high].append((begin, end))
            low, high = low // 2, high // 2

    def live_with(self, buffer: LiveBuffer) -> list[tuple[int, int]]:
        """The places of all buffers that are live with this one."""
        after = bisect_left(self._begins, (buffer.first_use + 1,))
        until = bisect_left(self._begins, (buffer.last_use + 1,))
        found = [(begin, end) for _, begin, end in self._begins[after:until]]
        node = buffer.first_use + self._leaves
        while node:
            found += self._live[node]
            node //= 2
        return found


def _largest_live_sum(buffers: Sequence[LiveBuffer]) -> int:
    """The largest sum of aligned sizes that are live at one step."""
    begins = [(b.first_use, 0, align(b.bytes)) for b in buffers]
    ends = [(b.last_use, 1, -align(b.bytes)) for b in buffers]
    return max(accumulate(size for _, _, size in sorted(begins + ends)), default=0)


def _pairs(buffers: Sequence[LiveBuffer]) -> int:
    """How many pairs of buffers are live together, each with itself included."""
    begins = sorted(b.first_use for b in buffers)
    ends = sorted(b.last_use for b in buffers)
    begun_before_end = sum(bisect_right(begins, b.last_use) for b in buffers)
    ended_before_begin = sum(bisect_left(ends, b.first_use) for b in buffers)
    return begun_before_end - ended_before_begin


def _best_gap(occupied: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap of at least `size` bytes between sorted intervals, or the end of the last."""
    best, best_size, end = -1, 0, 0
    for begin, stop in occupied:
        gap = begin - end
        if gap >= size and (best < 0 or gap < best_size):
            best, best_size = end, gap
        end = max(end, stop)
    return best if best >= 0 else end
