"""How well predictions order what was measured: pairwise accuracy in two forms, and recall of the best (spec 3, 4.3).

`measured` and `predicted` are numbers for the same candidates in the same order; smaller is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.errors import InvalidArgument

Floats = NDArray[np.float64]


def accuracy_compat(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Fraction of all N*N ordered pairs, a candidate with itself included, on whose "less than" both agree.

    Random predictions score ``0.5 + 1 / (2 * N)``.

    >>> accuracy_compat([1, 2, 3, 4, 5], [10, 30, 20, 50, 40])
    0.84
    """
    m, p = _both(measured, predicted)
    return float(np.mean((m[:, None] < m) == (p[:, None] < p)))


def accuracy_strict(measured: ArrayLike, predicted: ArrayLike, noise: float = 0.0) -> float:
    """Fraction of the unordered pairs whose measurements differ by more than `noise` that are ordered alike.

    A tie of predictions counts one half. Random predictions score 0.5; NaN where no pair differs.

    >>> accuracy_strict([1, 2, 3, 4, 5], [10, 30, 20, 50, 40])
    0.8
    """
    m, p = _both(measured, predicted)
    first, second = np.triu_indices(len(m), k=1)
    distinct = np.abs(m[first] - m[second]) > noise
    order, guess = np.sign(m[first] - m[second])[distinct], _sign(p[first], p[second])[distinct]
    return float(np.mean(np.where(guess == 0, 0.5, order == guess))) if distinct.any() else float("nan")


def recall(measured: ArrayLike, predicted: ArrayLike, fraction: float) -> float:
    """Which part of the best ``ceil(fraction * N)`` by measurement is among as many that are best by prediction.

    Ties go to the earlier candidate. Random predictions score `fraction`.

    >>> recall([1, 2, 3, 4, 5], [10, 30, 20, 50, 40], 0.4)
    0.5
    """
    if not 0 < fraction <= 1:
        raise InvalidArgument(f"a fraction of {fraction}", where="recall", help="above 0, at most 1")
    m, p = _both(measured, predicted)
    count = ceil(Fraction(str(fraction)) * len(m))  # as written: 0.1 * 30 is 3
    return recall_of(m, p, count)


def recall_of(measured: ArrayLike, predicted: ArrayLike, count: int) -> float:
    """`recall` of the best `count` candidates."""
    m, p = _both(measured, predicted)
    if not 1 <= count <= len(m):
        raise InvalidArgument(f"the best {count} of {len(m)}", where="recall", help=f"1 to {len(m)}")
    best = [set(np.argsort(values, kind="stable")[:count].tolist()) for values in (m, p)]
    return len(best[0] & best[1]) / count


def noise_of(repeats: Sequence[ArrayLike]) -> float:
    """Differences below this are noise: twice the median absolute deviation of repeated runs from their medians.

    `repeats` holds the runs of each candidate.
    """
    timings = [np.asarray(runs, np.float64) for runs in repeats]
    return 2 * float(np.median(np.concatenate([np.abs(runs - np.median(runs)) for runs in timings])))


def _sign(a: Floats, b: Floats) -> Floats:
    """The sign of a - b; two infinities tie."""
    return (a > b).astype(np.float64) - (a < b)


def _both(measured: ArrayLike, predicted: ArrayLike) -> tuple[Floats, Floats]:
    m, p = np.asarray(measured, np.float64), np.asarray(predicted, np.float64)
    if m.ndim != 1 or m.shape != p.shape or not len(m):
        raise InvalidArgument(f"measurements {list(m.shape)} and predictions {list(p.shape)}", where="ranking",
                              help="two lists of the same length, not empty")  # fmt: skip
    if np.isnan(m).any() or np.isnan(p).any():
        raise InvalidArgument("not a number among measurements or predictions", where="ranking",
                              help="leave out candidates that failed")  # fmt: skip
    return m, p
