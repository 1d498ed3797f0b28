"""Closed forms for the chain of two products: block sizes, their rounding, and the bound (spec 1, 3.6 and 3.8 to 3.10).

All sizes are elements. M, N, K, L are the extents of ``C[m, l] += A[m, k] * B[k, l]; E[m, n] += C[m, l] * D[l, n]``,
`alpha` the smallest tile of k and n (and of l under KEEP). Raises InvalidArgument where memory holds no smallest tile.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt, sqrt

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument


@dataclass(frozen=True)
class TwoProducts:
    """Extents of the chain, and what memory holds."""

    M: int
    N: int
    K: int
    L: int
    capacity: int
    alpha: int = 1

    def __post_init__(self) -> None:
        if self.smallest > self.capacity:
            raise InvalidArgument(
                f"memory of {self.capacity} elements holds no tiles of {self.alpha}",
                where="capacity",
                help=f"{self.smallest} elements or more",
            )

    @property
    def smallest(self) -> int:
        """Memory of tiles of 1 by 1 with the smallest k and n."""
        return 1 + 2 * self.alpha

    # Section 3.6: order mlkn, nothing kept ----------------------------------------------------------------------------

    @property
    def tile(self) -> float:
        """T* = -alpha + sqrt(alpha^2 + MC), the real optimum of T_M = T_L; valid for alpha <= T* <= min(M, L)."""
        return -self.alpha + sqrt(self.alpha**2 + self.capacity)

    @property
    def volume(self) -> float:
        """DV* = 2 M L (K + N) / T*, the real optimum."""
        return 2 * self.M * self.L * (self.K + self.N) / self.tile

    def moved(self, tile_m: int, tile_l: int) -> int:
        """DV of integer tiles, in elements."""
        m, l = -(-self.M // tile_m), -(-self.L // tile_l)
        return self.M * (self.K + self.N) * l + self.L * (self.K + self.N) * m

    def memory(self, tile_m: int, tile_l: int) -> int:
        """MU of integer tiles with the smallest k and n."""
        return tile_m * tile_l + self.alpha * (tile_m + tile_l)

    @property
    def apart(self) -> int:
        """The same tiles without fusion: C is written once and read once more."""
        return self.moved(*self.clamped()) + 2 * self.M * self.L

    # Section 3.8 ------------------------------------------------------------------------------------------------------

    def clamped(self) -> tuple[int, int]:
        """The published rounding: the floor of T*, at most the extent."""
        whole = -self.alpha + isqrt(self.alpha**2 + self.capacity)
        return max(1, min(whole, self.M)), max(1, min(whole, self.L))

    def resolved(self) -> tuple[int, int]:
        """Where T* exceeds one extent, that tile is the extent and the other one is solved for again."""
        tile_m, tile_l = self.clamped()
        if self.tile > self.M:
            return self.M, max(1, min(self.L, self._other(self.M)))
        if self.tile > self.L:
            return max(1, min(self.M, self._other(self.L))), self.L
        return tile_m, tile_l

    def exact(self) -> tuple[int, int]:
        """The integer optimum: for each number of steps along m, the smallest tile, and the largest along l."""
        found: tuple[int, int, int] | None = None
        for tile_m in distinct_tiles(self.M, min(self.alpha, self.M)):
            tile_l = min(self.L, self._other(tile_m))
            if tile_l >= min(self.alpha, self.L):
                tile_l = balanced(self.L, tile_l)
                candidate = self.moved(tile_m, tile_l), tile_m, tile_l
                found = candidate if found is None or candidate < found else found
        if found is None:
            raise InvalidArgument(
                f"memory of {self.capacity} elements holds no tiles of {self.alpha} by {self.alpha}",
                where="capacity",
                help=f"{3 * self.alpha**2} elements or more",
            )
        return found[1], found[2]

    def _other(self, tile: int) -> int:
        """The largest tile along the other loop that fits beside one of `tile`."""
        return (self.capacity - self.alpha * tile) // (tile + self.alpha)

    # Section 3.9 ------------------------------------------------------------------------------------------------------

    def bound(self) -> float:
        """An upper bound of DV of the rounded tiles over DV*: the first form of Eq. 3.19, for alpha <= T* <= M, L."""
        tile_m, tile_l = self.clamped()
        return max(1 + self.tile / self.M + 1 / tile_m, 1 + self.tile / self.L + 1 / tile_l)

    # Section 3.10: A and E stay while l runs --------------------------------------------------------------------------

    def kept_tile(self) -> int:
        """T_M of KEEP: k and n whole, alpha along l."""
        inner = min(self.alpha, self.L)
        tile = (self.capacity - max(self.K, self.N) * inner) // (self.K + self.N + inner)
        if tile < 1:
            need = self.K + self.N + inner + max(self.K, self.N) * inner
            raise InvalidArgument(
                f"memory of {self.capacity} elements holds no row of A and E beside {inner} of l",
                where="capacity",
                help=f"{need} elements or more",
            )
        return min(tile, self.M)

    def kept_volume(self, tile_m: int) -> int:
        """DV of KEEP: A and E once, B and D once for each block along m."""
        return self.M * (self.K + self.N) + (self.K + self.N) * self.L * -(-self.M // tile_m)

    @property
    def compulsory(self) -> int:
        """A, B, D and E once."""
        return self.M * self.K + self.K * self.L + self.L * self.N + self.M * self.N


@lru_cache(maxsize=4096)
def distinct_tiles(extent: int, smallest: int = 1, multiple: int = 1) -> tuple[int, ...]:
    """For every number of steps that a loop can have, the smallest tile that needs no more; in increasing order.

    Tiles are multiples of `multiple`, of `smallest` or more, or the whole extent.

    >>> distinct_tiles(10)
    (1, 2, 3, 4, 5, 10)
    >>> distinct_tiles(100, multiple=16)
    (16, 32, 48, 64, 100)
    """
    found: set[int] = {extent}
    tile = min(max(smallest, 1), extent)
    tile = min(extent, -(-tile // multiple) * multiple)
    while tile < extent:
        found.add(tile)
        steps = -(-extent // tile)
        longer = -(-extent // (steps - 1))
        tile = min(extent, -(-max(longer, tile + 1) // multiple) * multiple)
    return tuple(sorted(found))


def balanced(extent: int, tile: int) -> int:
    """The smallest tile with as many steps: blocks of about one size (section 3.8, step 3)."""
    return -(-extent // -(-extent // tile))


def conv_rows(tile: int, stride: int, kernel: int) -> int:
    """Rows of the intermediate for `tile` rows of the result: ``g(T) = (T - 1) st2 + k2`` (section 3.13)."""
    return (tile - 1) * stride + kernel


def conv_input_rows(tile: int, strides: tuple[int, int], kernels: tuple[int, int]) -> int:
    """Input rows for `tile` rows of the result: ``e(T) = (T - 1) st1 st2 + (k2 - 1) st1 + k1``."""
    return conv_rows(conv_rows(tile, strides[1], kernels[1]), strides[0], kernels[0])
