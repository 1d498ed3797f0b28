"""Vectors over the two-element field, as integers: spans, and which vectors sum to a given one."""

from __future__ import annotations

from collections.abc import Iterable


class Span:
    """The sums (XORs) of some vectors. Vectors are numbered in the order in which they are added."""

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._reduced: dict[int, tuple[int, int]] = {}  # by length in bits: a vector, and which of the added sum to it
        self._added = 0
        for vector in vectors:
            self.add(vector)

    @property
    def rank(self) -> int:
        return len(self._reduced)

    def add(self, vector: int) -> bool:
        """Add a vector; whether it was outside of the span. One inside is never part of a later sum."""
        left, numbers = self.express(vector)
        if left:
            self._reduced[left.bit_length()] = left, numbers | 1 << self._added
        self._added += 1
        return left != 0

    def express(self, vector: int) -> tuple[int, int]:
        """What of `vector` is outside of the span (0: nothing), and the set of added vectors that sum to the rest.

        >>> Span([0b01, 0b11]).express(0b10)
        (0, 3)
        """
        numbers = 0
        while vector and (row := self._reduced.get(vector.bit_length())) is not None:
            vector ^= row[0]
            numbers ^= row[1]
        return vector, numbers

    def __contains__(self, vector: int) -> bool:
        return self.express(vector)[0] == 0


def independent(vectors: Iterable[int], beyond: Iterable[int] = ()) -> list[int]:
    """The vectors that are no sum of those before them and of `beyond`."""
    span = Span(beyond)
    return [vector for vector in vectors if span.add(vector)]


def intersection(first: Iterable[int], second: Iterable[int]) -> list[int]:
    """A basis of the vectors that are sums of `first` and also of `second`."""
    basis = independent(first)
    span, found = Span(basis), []
    for vector in independent(second):
        left, numbers = span.express(vector)
        if not left:  # a sum of some of `first` and some of `second`: its part from `first`
            found.append(_sum(basis[i] for i in range(len(basis)) if numbers >> i & 1))
        span.add(vector)
    return found


def _sum(vectors: Iterable[int]) -> int:
    total = 0
    for vector in vectors:
        total ^= vector
    return total


def log2(value: int) -> int:
    """The exponent of a power of two."""
    return value.bit_length() - 1


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def power_from(extent: int) -> int:
    """The least power of two that is not below a positive number.

    >>> [power_from(each) for each in (1, 5, 8, 9)]
    [1, 8, 8, 16]
    """
    return 1 << (extent - 1).bit_length()


def powers_around(value: int) -> str:
    """The nearest powers of two, in words.

    >>> powers_around(48), powers_around(0)
    ('32 or 64', '1')
    """
    if value < 1:
        return "1"
    below = 1 << log2(value)
    return str(below) if below == value else f"{below} or {2 * below}"
