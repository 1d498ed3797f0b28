"""Blocked layouts, slices of layouts, and the layouts that memory accesses ask for."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.bits import is_power_of_two, powers_around
from tilewright.layouts.form import Distributed, checked_order
from tilewright.layouts.linear import LinearLayout, along, dims, product
from tilewright.layouts.shared import checked_bits


@dataclass(frozen=True)
class Blocked(Distributed):
    """Every lane holds a tile of `size_per_thread`, a warp a tile of lanes, the block a tile of warps.

    `order` lists the dimensions from the fastest to the slowest, for registers, lanes and warps alike.
    """

    FORM: ClassVar[str] = "blocked"
    KEYS: ClassVar[dict[str, str]] = {
        "S": "size_per_thread",
        "T": "threads_per_warp",
        "W": "warps",
        "O": "order",
    }

    size_per_thread: tuple[int, ...]
    threads_per_warp: tuple[int, ...]
    warps: tuple[int, ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        for key in ("S", "T", "W"):
            self.powers(key)
        if not len(self.size_per_thread) == len(self.threads_per_warp) == len(self.warps):
            raise self.refuse("S, T and W have different numbers of dimensions")
        checked_order(self.order, self.rank, self)

    @property
    def rank(self) -> int:
        return len(self.size_per_thread)

    def repetition(self, shape: tuple[int, ...]) -> LinearLayout:
        names = dims(self.rank)
        levels = (("register", self.size_per_thread), ("lane", self.threads_per_warp), ("warp", self.warps))
        return product(self.rank, *(along(level, sizes[d], names[d]) for level, sizes in levels for d in self.order))

    def rest_order(self, rank: int) -> tuple[int, ...]:
        return self.order

    def shares(self, shape: Sequence[int]) -> list[tuple[int, int, int]]:
        """Of a tile, per dimension: rounds of all threads along it, threads, and a thread's neighbours in a round.

        Rounds and neighbours are registers of one thread.

        >>> Blocked((1, 4), (1, 32), (2, 1), (1, 0)).shares((8, 256))
        [(4, 2, 1), (2, 32, 4)]
        """
        found = []
        for dim, extent in enumerate(shape):
            size = min(extent, self.size_per_thread[dim])
            across = min(extent // size, self.threads_per_warp[dim] * self.warps[dim])
            found.append((extent // size // across, across, size))
        return found


@dataclass(frozen=True)
class Slice(Distributed):
    """What remains of `parent` when dimension `dim` is reduced: lanes along it hold the same element."""

    FORM: ClassVar[str] = "slice"
    KEYS: ClassVar[dict[str, str]] = {"dim": "dim", "parent": "parent"}

    dim: int
    parent: Distributed

    def __post_init__(self) -> None:
        if not 0 <= self.dim < self.parent.rank:
            raise self.refuse(f"dim {self.dim} of {self.parent.rank} dimensions", help=f"0 to {self.parent.rank - 1}")

    @property
    def rank(self) -> int:
        return self.parent.rank - 1

    def repetition(self, shape: tuple[int, ...]) -> LinearLayout:
        whole = self.parent.to_linear((*shape[: self.dim], 1, *shape[self.dim :]))
        return whole.reshape(shape).without_zeros("register")

    def rest_order(self, rank: int) -> tuple[int, ...]:
        return ()  # the parent has walked through the tile


def default_blocked(
    shape: Sequence[int], size_per_thread: Sequence[int], order: Sequence[int], warps: int, lanes: int = 32
) -> Blocked:
    """Deal lanes and warps to the dimensions, fastest first, no more than there are elements; the last takes the rest.

    >>> str(default_blocked((64, 4), (1, 1), (1, 0), warps=4))
    '#blocked<S=[1,1], T=[8,4], W=[4,1], O=[1,0]>'
    """
    counts = ((warps, "warps"), (lanes, "lanes"), *((size, "elements per thread") for size in size_per_thread))
    for count, what in counts:
        if not is_power_of_two(count):
            raise InvalidArgument(f"{count} {what}", help=f"a power of two: {powers_around(count)}")
    rank = len(shape)
    checked_order(order, rank)
    if len(size_per_thread) != rank:
        raise InvalidArgument(f"{len(size_per_thread)} sizes for a tile of {rank} dimensions", help="one per dimension")
    T, W = [1] * rank, [1] * rank
    free_lanes, free_warps = lanes, warps
    for d in order[:-1]:
        threads = max(1, shape[d] // size_per_thread[d])  # as many as it takes
        T[d] = _clamp(threads, 1, free_lanes)
        W[d] = _clamp(threads // T[d], 1, free_warps)
        free_lanes //= T[d]
        free_warps //= W[d]
    if rank:
        T[order[-1]], W[order[-1]] = free_lanes, free_warps
    return Blocked(tuple(size_per_thread), tuple(T), tuple(W), tuple(order))


def initial_blocked(shape: Sequence[int], warps: int, lanes: int = 32) -> Blocked:
    """The layout that tiles start with: one element per thread, the last dimension fastest."""
    return default_blocked(shape, (1,) * len(shape), tuple(reversed(range(len(shape)))), warps, lanes)


def coalesced_blocked(
    shape: Sequence[int], order: Sequence[int], contiguous: int, warps: int, lanes: int = 32
) -> Blocked:
    """The layout for accesses of `contiguous` elements per thread along the fastest dimension.

    `contiguous` is the most that `widest_access` says of accesses with the same order and shape; a thread gets no more
    than its share of the tile.
    """
    if not is_power_of_two(contiguous):
        raise InvalidArgument(f"{contiguous} elements per access", help=f"a power of two: {powers_around(contiguous)}")
    each = min(contiguous, max(1, prod(shape) // max(1, lanes * warps)))
    sizes = [1] * len(shape)
    if order:
        sizes[order[0]] = each
    return default_blocked(shape, sizes, order, warps, lanes)


def widest_access(contiguity: int, divisibility_bytes: int, bits: int) -> int:
    """Elements of one access of at most 128 bits, whose address is a multiple of `divisibility_bytes`.

    >>> widest_access(contiguity=128, divisibility_bytes=16, bits=32)
    4
    """
    checked_bits(bits)
    if contiguity < 1 or divisibility_bytes < 1:
        raise InvalidArgument(
            f"{contiguity} elements in a row, addresses that are multiples of {divisibility_bytes}", help="1 or more"
        )
    alignment = max(1, (divisibility_bytes & -divisibility_bytes) * 8 // bits)
    return min(alignment, contiguity, max(1, 128 // bits))


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
