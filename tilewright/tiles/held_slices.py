"""What one memory holds of a tensor from visit to visit, with slices that are sets of elements.

The rules are those of `memories.Memories.visit`, for many visits at once. A visit is a *turn*; turns that follow each
other are visits between which the memory kept the slice. What visits need are rows: an element, a turn, and how it is
needed (`READ`, `WRITTEN`, `READY`, `OWN`). Rows are sorted by elements and then turns: where the turn before has left
an element, its row is the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

READ = 1
WRITTEN = 2
READY = 4  # read as the first value of a sum, which is not filled
OWN = 8  # in a visit that computes the tensor: what it writes stays to be stored
_BITS = 4
_NEVER = 1 << 40  # a turn that does not come


class HeldSlices:
    """The rows of one memory that later turns may need; the others have been counted.

    The memory `retains` what the next turn needs as well, or a turn that does not compute the tensor fills all anew.
    """

    def __init__(self, retains: bool) -> None:
        self.retains = retains
        self.rows = _Rows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))

    def touch(self, elements: Array, turns: Array, flags: Array, open_turn: int) -> tuple[int, int]:
        """Take rows; how many elements are filled and stored that were not counted before.

        Later rows are of `open_turn`, which has not ended, or of turns behind it.
        """
        given = self.rows.elements, self.rows.turns, self.rows.flags
        rows = _sorted(*(np.concatenate(both) for both in zip(given, (elements, turns, flags), strict=True)))
        ended = rows.turns < open_turn
        own = rows.has(OWN)
        follows = rows.follow()
        lacks = rows.has(READ) & ~rows.has(READY) & ~(follows & (own | self.retains))
        begins = ~(follows & own & np.append(False, own[:-1]))  # of turns in a row in which an element stays unstored
        dirty = _last(rows.has(WRITTEN) & own) >= _last(begins)
        leaves = np.append(begins[1:], True) & (rows.turns < open_turn - 1)
        kept = rows.turns >= open_turn - 1
        counted = np.where(dirty, OWN | WRITTEN, rows.flags & OWN)
        self.rows = _Rows(rows.elements[kept], rows.turns[kept], np.where(ended, counted, rows.flags)[kept])
        return int(np.count_nonzero(lacks & ended)), int(np.count_nonzero(dirty & leaves))

    def end(self) -> tuple[int, int]:
        """How many elements are filled and stored that were not counted before, when the run has ended."""
        nothing = np.zeros(0, np.int64)
        return self.touch(nothing, nothing, nothing, _NEVER)


class _Rows:
    """Rows in order, one for each element and turn."""

    def __init__(self, elements: Array, turns: Array, flags: Array) -> None:
        self.elements, self.turns, self.flags = elements, turns, flags

    def has(self, flag: int) -> Array:
        found: Array = (self.flags & flag) != 0
        return found

    def follow(self) -> Array:
        """Which rows are of the element of the row before, at the next turn."""
        found = np.zeros(len(self.elements), np.bool_)
        found[1:] = (self.elements[1:] == self.elements[:-1]) & (self.turns[1:] == self.turns[:-1] + 1)
        return found


def _sorted(elements: Array, turns: Array, flags: Array) -> _Rows:
    """Rows in order; those of one element and turn are one, with all their flags."""
    if not len(elements):
        return _Rows(elements, turns, flags)
    least, first = elements.min(), turns.min()
    span = turns.max() - first + 1
    assert (int(elements.max()) - int(least) + 1) * int(span) < 1 << 63 - _BITS, "an element and a turn are one word"
    codes = ((elements - least) * span + (turns - first)) << _BITS | flags
    codes.sort()
    pairs = codes >> _BITS
    begins = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
    elements, turns = np.divmod(pairs[begins], span)
    return _Rows(elements + least, turns + first, np.bitwise_or.reduceat(codes & ((1 << _BITS) - 1), begins))


def _last(marked: Array) -> Array:
    """For each row the last one up to it that is marked; -1 where there is none."""
    return np.maximum.accumulate(np.where(marked, np.arange(len(marked)), -1))
