"""Fewer cases that still meet: covering arrays for tests of many parameters, all cases with `pytest --full`.

A covering array of strength 2 has, for any two parameters, every pair of their values in one of its rows: an error that
two values cause together is found, at a fraction of the cases of the full product. (Kuhn, Wallace, Gallo: Software
fault interactions and implications for software testing, IEEE TSE 30(6), 2004.)

Three uses: the marker `covering` on a parametrised test (`tests/cases.py` drops the other cases), `rows` for loops
inside of a test, `some` and `tries` for random seeds and examples.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations, product
from typing import Any, TypeVar

T = TypeVar("T")
Row = Sequence[Hashable]

FULL = bool(os.environ.get("TILEWRIGHT_FULL"))
"""Whether every case runs: `pytest --full` sets the variable before tests are imported."""


def chosen(cases: Sequence[Row], strength: int = 2) -> list[int]:
    """Positions of some cases, in order, that together have every combination of `strength` values that all cases have.

    A case has one value per parameter; where it has fewer parameters than `strength`, all of them count together.
    """
    return cover([_meets(case, strength) for case in cases])


def cover(sets: Sequence[Iterable[Hashable]], most: int | None = None) -> list[int]:
    """Positions of some of the sets, in order, whose union is that of all, or of at most so many sets.

    Takes the set with the most elements that are not met yet, the first one among equals.
    """
    left = [frozenset(each) for each in sets]
    missing = set().union(*left)
    taken: list[int] = []
    while missing and (most is None or len(taken) < most):
        best = max(range(len(left)), key=lambda number: (len(left[number] & missing), -number))
        taken.append(best)
        missing -= left[best]
    return sorted(taken)


def _meets(case: Row, strength: int) -> set[tuple[tuple[int, Hashable], ...]]:
    return set(combinations(enumerate(case), min(strength, len(case))))


def rows(*parameters: Iterable[Any], strength: int = 2) -> list[tuple[Any, ...]]:
    """Rows of one value per parameter: a covering array of this strength, or the full product with `--full`."""
    values = [list(each) for each in parameters]
    numbers = list(product(*(range(len(each)) for each in values)))
    kept = range(len(numbers)) if FULL else chosen(numbers, strength)
    return [tuple(each[at] for each, at in zip(values, numbers[position], strict=True)) for position in kept]


def some(values: Sequence[T], count: int) -> list[T]:
    """So many of the values, evenly spread, the first among them; all with `--full`."""
    if FULL or count >= len(values):
        return list(values)
    return [values[number * len(values) // count] for number in range(count)]


def tries(usual: int, full: int) -> int:
    """How many random examples a test tries."""
    return full if FULL else usual
