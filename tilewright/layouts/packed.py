"""Packed layouts: dimensions in any order, split into blocks, with a border of zeros.

A layout is a list of storage digits, outermost first. Each digit belongs to one logical dimension; the digits of one
dimension are the mixed-radix digits of its index (shifted by the border in front of it). Row-major storage is one digit
per dimension in order; channels-last is the same in another order; weight panels ``[K/32][R][S][C][K%32]`` split K in
two digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.fields import Readable, items, required, several, size


@dataclass(frozen=True)
class Packed(Readable):
    """`digits` are (dimension, extent), outermost first; `halo` is (elements before, elements after) per dimension.

    The digits of a dimension multiply to at least its extent plus its halo; what is over is padding.
    """

    shape: tuple[int, ...] = required(several(size))
    digits: tuple[tuple[int, int], ...] = required(several(items(size, size)))
    halo: tuple[tuple[int, int], ...] = required(several(items(size, size)))

    def __post_init__(self) -> None:
        if len(self.halo) != len(self.shape):
            raise InvalidArgument(f"{len(self.halo)} halos for {len(self.shape)} dimensions")
        for dim, extent in enumerate(self.shape):
            room = prod(count for d, count in self.digits if d == dim)
            needed = extent + sum(self.halo[dim])
            if room < needed:
                raise InvalidArgument(
                    f"layout of {self.shape}: digits of dimension {dim} hold {room} of {needed} elements"
                )

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Stride of every digit, in elements."""
        found, stride = [], 1
        for _, extent in reversed(self.digits):
            found.append(stride)
            stride *= extent
        return tuple(reversed(found))

    @property
    def size(self) -> int:
        """Elements of storage, padding and halo included."""
        return prod(extent for _, extent in self.digits)

    def digits_of(self, dim: int) -> list[tuple[int, int, int]]:
        """The digits of one dimension, outermost first: (radix of the digits inside it, extent, stride)."""
        mine = [(extent, stride) for (d, extent), stride in zip(self.digits, self.strides, strict=True) if d == dim]
        radixes, inner = [], 1
        for extent, _ in reversed(mine):
            radixes.append(inner)
            inner *= extent
        return [(radix, extent, stride) for radix, (extent, stride) in zip(reversed(radixes), mine, strict=True)]

    @property
    def padded(self) -> bool:
        """Whether some storage belongs to no element."""
        return self.size != prod(self.shape)

    def pack(self, array: np.ndarray[Any, Any], out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """The storage, flat, that holds `array`; halo and padding are zeros. Written to `out`, where that is given."""
        widths, splits = [], []
        for dim, extent in enumerate(self.shape):
            before, _ = self.halo[dim]
            extents = [count for _, count, _ in self.digits_of(dim)]
            widths.append((before, prod(extents) - before - extent))
            splits.extend(extents)
        padded = np.pad(array, widths) if any(w != (0, 0) for w in widths) else array
        stored = padded.reshape(splits).transpose(self._order())
        if out is None:
            return np.ascontiguousarray(stored).reshape(-1)
        out.reshape(stored.shape)[...] = stored
        return out

    def unpack(self, storage: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array that `storage` holds: the inverse of `pack`."""
        order = self._order()
        split = storage.reshape([extent for _, extent in self.digits]).transpose(np.argsort(order))
        rooms = [prod(count for _, count, _ in self.digits_of(dim)) for dim in range(len(self.shape))]
        window = tuple(
            slice(before, before + extent) for (before, _), extent in zip(self.halo, self.shape, strict=True)
        )
        return np.ascontiguousarray(split.reshape(rooms)[window])

    def _order(self) -> list[int]:
        """Position, among the digits grouped by dimension, of every storage digit."""
        starts, count = [], 0
        for dim in range(len(self.shape)):
            starts.append(count)
            count += sum(1 for d, _ in self.digits if d == dim)
        seen = [0] * len(self.shape)
        order = []
        for dim, _ in self.digits:
            order.append(starts[dim] + seen[dim])
            seen[dim] += 1
        return order

    def __str__(self) -> str:
        parts = [f"d{dim}:{extent}" for dim, extent in self.digits]
        border = f" halo {list(self.halo)}" if any(h != (0, 0) for h in self.halo) else ""
        return f"[{' '.join(parts)}]{border}"


def packed(shape: Sequence[int], digits: Sequence[tuple[int, int]]) -> Packed:
    """A layout without halo."""
    return Packed(tuple(shape), tuple(digits), ((0, 0),) * len(shape))


def row_major(shape: Sequence[int]) -> Packed:
    return packed(shape, list(enumerate(shape)))


def permuted(shape: Sequence[int], order: Sequence[int], halo: Sequence[tuple[int, int]] | None = None) -> Packed:
    """Dimensions stored in `order`, outermost first, with a border."""
    border = tuple(halo) if halo is not None else ((0, 0),) * len(shape)
    digits = tuple((dim, shape[dim] + sum(border[dim])) for dim in order)
    return Packed(tuple(shape), digits, border)
