"""Bytes of global memory that a launch loads as constant (``ld.global.nc``) and those that it writes.

A byte that is both is a diagnostic, whichever comes first and whichever threads do it: such loads may come from a cache
that knows nothing of writes.
"""

from __future__ import annotations

import numpy as np

from tilewright.emulator.scalars import Array


class _Touched:
    """Which bytes were touched, and the range in which they lie."""

    def __init__(self, length: int) -> None:
        self.bytes = np.zeros(length, np.bool_)
        self.views = {width: self.bytes.view(f"<u{width}") for width in (1, 2, 4, 8)}
        self.low, self.high = length, 0

    def words(self, offsets: Array, size: int) -> tuple[Array, Array]:
        """A view of the bytes, and where the words of accesses to aligned offsets lie in it: (n, words)."""
        width = min(size, 8)
        return self.views[width], offsets[:, None] // width + np.arange(size // width)


class Constants:
    """What a launch has loaded and written so far."""

    def __init__(self, length: int) -> None:
        length = -(-length // 8) * 8
        self.loaded, self.written = _Touched(length), _Touched(length)

    def load(self, offsets: Array, size: int) -> Array | None:
        """Note loads; which of them load what the launch has written, None if none does."""
        return self._touch(self.loaded, self.written, offsets, size)

    def write(self, offsets: Array, size: int) -> Array | None:
        """Note writes; which of them write what the launch has loaded as constant, None if none does."""
        return self._touch(self.written, self.loaded, offsets, size)

    @staticmethod
    def _touch(own: _Touched, others: _Touched, offsets: Array, size: int) -> Array | None:
        if not len(offsets):
            return None
        view, words = own.words(offsets, size)
        view[words] = (1 << 8 * view.itemsize) // 255  # every byte is 1
        low, high = int(offsets.min()), int(offsets.max()) + size
        own.low, own.high = min(own.low, low), max(own.high, high)
        if high <= others.low or low >= others.high:
            return None
        view, words = others.words(offsets, size)
        both = np.asarray((view[words] != 0).any(axis=1))
        return both if both.any() else None
