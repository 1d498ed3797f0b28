"""Where a block of loops reaches in one dimension of a tensor: affine indices over the independent loops of a chain.

A derived loop (the rows of a first convolution, which follow from the tile of the second) is an `Index` inside another
one: its values are clipped to the rows that exist before the next operator's window is laid around them, so that rows
of padding count nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass

Size = Any  #: an int, or an array of ints: all formulas are evaluated for many tilings at once
Ranges = Mapping[str, tuple[int, int]]  #: first and one past the last value of each loop


@dataclass(frozen=True)
class Index:
    """``constant + sum of coefficient * variable``, of which the values in [0, extent) exist.

    A variable is the name of an independent loop, or an `Index` where the loop is derived. Of a derived loop that is
    `kept`, a step of the loop of this name has what the steps before it did not have.
    """

    terms: tuple[tuple[str | Index, int], ...]
    extent: int
    constant: int = 0
    kept: str = ""

    @cached_property
    def loops(self) -> frozenset[str]:
        """The independent loops that move the index, those inside derived loops included."""
        found: set[str] = set()
        for variable, _ in self.terms:
            found |= {variable} if isinstance(variable, str) else variable.loops
        return frozenset(found)

    @cached_property
    def plain(self) -> str | None:
        """The one loop that walks the whole dimension step by step, or None."""
        if self.constant == 0 and len(self.terms) == 1:
            variable, coefficient = self.terms[0]
            if coefficient == 1 and isinstance(variable, str):
                return variable
        return None

    def width(self, tile: Mapping[str, Size]) -> Size:
        """Elements of the bounding box of one block inside the tensor: ``1 + sum |c| * (T - 1)``, clipped."""
        if self.plain is not None:
            size, extent = tile[self.plain], self.extent
            if isinstance(size, int):
                return size if size < extent else extent
            return np.minimum(size, extent)
        width: Size = 1
        for variable, coefficient in self.terms:
            inner = tile[variable] if isinstance(variable, str) else variable.width(tile)
            width = width + abs(coefficient) * (inner - 1)
        return min(width, self.extent) if isinstance(width, int) else np.minimum(width, self.extent)

    def box(self, ranges: Ranges) -> tuple[int, int]:
        """First and one past the last element that a block reaches inside the tensor; equal if there is none."""
        low = high = self.constant
        for variable, coefficient in self.terms:
            begin, end = ranges[variable] if isinstance(variable, str) else variable.box(ranges)
            if begin >= end:
                return 0, 0
            ends = coefficient * begin, coefficient * (end - 1)
            low, high = low + min(ends), high + max(ends)
        low, high = max(low, 0), min(high + 1, self.extent)
        before = self._before(ranges)
        if before is not None:
            low = max(low, self.box(before)[1])
        return (low, high) if low < high else (0, 0)

    def elements(self, ranges: Ranges) -> frozenset[int]:
        """The elements that a block reads or writes: fewer than its box where a stride exceeds a kernel."""
        values = {self.constant}
        for variable, coefficient in self.terms:
            steps = range(*ranges[variable]) if isinstance(variable, str) else variable.elements(ranges)
            values = {value + coefficient * step for value in values for step in steps}
        before = self._before(ranges)
        done = frozenset[int]() if before is None else self.elements(before)
        return frozenset(value for value in values if 0 <= value < self.extent) - done

    def _before(self, ranges: Ranges) -> Ranges | None:
        """The ranges of all steps before this one along the loop `kept`; None at the first step."""
        begin = ranges[self.kept][0] if self.kept else 0
        return {**ranges, self.kept: (0, begin)} if begin else None

    def covered(self, tile: Mapping[str, int], extents: Mapping[str, int], *, exact: bool = False) -> int:
        """Elements summed over all blocks: the halo of each block counts for it.

        `exact` counts elements instead of boxes.
        """
        if self.plain is not None and self.extent == extents[self.plain]:
            return self.extent
        return _covered(self, tuple((loop, tile[loop], extents[loop]) for loop in sorted(self.loops)), exact)

    def distinct(self, extents: Mapping[str, int]) -> int:
        """Elements that all blocks together reach."""
        if self.plain is not None:
            return min(self.extent, extents[self.plain])
        return len(self.elements({loop: (0, extents[loop]) for loop in self.loops}))


@lru_cache(maxsize=1 << 16)
def _covered(index: Index, tiles: tuple[tuple[str, int, int], ...], exact: bool) -> int:
    """Elements of all blocks; `tiles` are loops with their tile and extent. Many candidates ask for the same."""
    tile, extents = {loop: size for loop, size, _ in tiles}, {loop: extent for loop, _, extent in tiles}
    total = 0
    for ranges in blocks(list(tile), tile, extents):
        begin, end = (0, len(index.elements(ranges))) if exact else index.box(ranges)
        total += end - begin
    return total


def blocks(
    loops: Sequence[str], tile: Mapping[str, int], extents: Mapping[str, int]
) -> list[dict[str, tuple[int, int]]]:
    """The ranges of every block of some loops, the last loop fastest; the last block of a loop may be shorter."""
    steps = [
        [(begin, min(begin + tile[loop], extents[loop])) for begin in range(0, extents[loop], tile[loop])]
        for loop in loops
    ]
    return [dict(zip(loops, ranges, strict=True)) for ranges in product(*steps)]
