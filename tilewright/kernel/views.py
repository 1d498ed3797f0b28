"""Memory as the interpreters see it: flat arrays, what of them holds anything, and who has touched which element."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import Operation

from tilewright.dataclass import dataclass
from tilewright.kernel.elements import Array


@dataclass
class View:
    """A flat array; `written` says per byte whether it holds anything (None: all of it does).

    `start` is its first byte in the memory that it is of, `touches` what the programs of a launch do to it.
    """

    array: Array
    written: Array | None
    start: int = 0
    touches: Touches | None = None

    @property
    def element_bytes(self) -> int:
        return self.array.itemsize


READ, WRITE, UPDATE = "reads", "writes", "updates"
_AGAINST = {READ: (WRITE, UPDATE), WRITE: (WRITE, READ, UPDATE), UPDATE: (WRITE, READ)}
"""What of somebody else an access may not meet: atomic updates meet each other freely."""


class Touches:
    """Who has read, written and atomically updated each unit of a memory since the last moment of order.

    Somebody is a number above `base`, which grows with each such moment; `base` itself stands for several.
    """

    def __init__(self, units: int) -> None:
        self.by = {kind: np.zeros(units, np.int64) for kind in _AGAINST}
        self.latest = dict.fromkeys(_AGAINST, 0)  # of each kind, the last moment of order before it

    def note(self, kind: str, units: Array, who: Array, base: int) -> None:
        """Somebody does this to units, and that is no clash."""
        self.latest[kind] = base
        self.by[kind][units] = who

    def clash(self, kind: str, units: Array, who: Array | int, base: int) -> tuple[str, int, int] | None:
        """Note an access; what else was done by another, at which position of `units`, and by whom (base: several)."""
        if not isinstance(who, int):  # a number is compared as it is: to repeat it takes as long as a comparison
            who = np.broadcast_to(np.asarray(who, np.int64), units.shape)
        for earlier in _AGAINST[kind]:
            if self.latest[earlier] < base:  # none since
                continue
            seen = self.by[earlier][units]
            other = (seen >= base) & (seen != who)
            if other.any():
                position = int(np.flatnonzero(other)[0])
                return earlier, position, int(seen[position])
        self.latest[kind] = base
        mine = self.by[kind]
        seen = mine[units]
        mine[units] = np.where((seen >= base) & (seen != who), base, who)
        if isinstance(who, int):  # who touches a unit twice in this very access
            return None
        others = np.flatnonzero((mine[units] != who) & (mine[units] != base))  # in this very access
        if others.size and kind == WRITE:
            return WRITE, int(others[0]), int(mine[units[others[0]]])
        mine[units[others]] = base
        return None


def has_repeats(numbers: Array) -> bool:
    """Whether a number is there twice: by a sort, which is faster than `np.unique` for as many as a tile has."""
    if numbers.size < 2:
        return False
    ordered = np.sort(numbers, axis=None)
    return bool((ordered[1:] == ordered[:-1]).any())


def line(op: Operation) -> str:
    """The first line of an operation, for messages."""
    return str(op).splitlines()[0]


def first(mask: Array) -> Any:
    """The position of the first true element of a flat array."""
    return np.flatnonzero(mask)[0]
