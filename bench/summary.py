"""Samples → the few numbers that are reported."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds per call: the middle of all samples, and their spread."""

    median: float
    p10: float
    p90: float
    fastest: float
    samples: int


def summarise(seconds: Sequence[float]) -> Times:
    """Raises ValueError without samples."""
    if not seconds:
        raise ValueError("no samples to summarise")
    ordered = sorted(seconds)
    return Times(
        median=quantile(ordered, 0.5),
        p10=quantile(ordered, 0.1),
        p90=quantile(ordered, 0.9),
        fastest=ordered[0],
        samples=len(ordered),
    )


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of sorted samples lie, interpolated linearly between neighbours.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def geometric_mean(values: Iterable[float]) -> float:
    """Raises ValueError without values.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    logarithms = [math.log(value) for value in values]
    if not logarithms:
        raise ValueError("no values to average")
    return math.exp(sum(logarithms) / len(logarithms))
