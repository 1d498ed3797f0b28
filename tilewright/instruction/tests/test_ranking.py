"""Ranking metrics: the golden values of spec 3 and their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.instruction.ranking import accuracy_compat, accuracy_strict, noise_of, recall, recall_of

M, P = [1, 2, 3, 4, 5], [10, 30, 20, 50, 40]


def test_spec3_g28() -> None:
    assert accuracy_compat(M, P) == 0.84
    assert accuracy_strict(M, P, noise=0) == 0.8
    assert recall(M, P, 0.4) == 0.5
    assert recall(M, P, 0.6) == 1.0


def test_spec3_g29() -> None:
    rng = np.random.default_rng(0)
    base = np.arange(50)
    scores = [
        (accuracy_compat(base, p), accuracy_strict(base, p), recall(base, p, 0.4))
        for p in (rng.permutation(50) for _ in range(1000))
    ]
    assert np.mean(scores, axis=0) == pytest.approx([0.51, 0.50, 0.40], abs=0.01)


def test_a_perfect_and_a_reversed_order() -> None:
    assert accuracy_compat(M, M) == accuracy_strict(M, M) == recall(M, M, 0.2) == 1.0
    reverse = M[::-1]
    assert accuracy_strict(M, reverse) == 0.0
    assert accuracy_compat(M, reverse) == 0.2  # each with itself


def test_ties_of_predictions_count_one_half_and_close_measurements_not_at_all() -> None:
    assert accuracy_strict([1, 2], [7, 7]) == 0.5
    assert accuracy_strict([1, 2], [math.inf, math.inf]) == 0.5
    assert accuracy_strict([1, 1.5, 9], [2, 1, 3], noise=0.5) == 1.0
    assert math.isnan(accuracy_strict([1, 1], [1, 2]))


def test_recall_counts_as_written() -> None:
    assert recall(range(30), range(30), 0.1) == 1.0
    assert recall_of([1, 2, 3], [1, 3, 2], 2) == 0.5
    assert recall(range(30), [0, 1, *reversed(range(2, 30))], 0.1) == 2 / 3  # ceil(0.1 * 30) is 3, not 4


def test_noise_is_twice_the_median_absolute_deviation() -> None:
    assert noise_of([[1, 2, 9], [5, 5, 5]]) == 0.0
    assert noise_of([[1, 2, 3], [4, 6, 8]]) == 2.0


@pytest.mark.parametrize("call", [
    lambda: recall(M, P, 0), lambda: recall(M, P, 1.5), lambda: recall_of(M, P, 6), lambda: accuracy_compat([], []),
    lambda: accuracy_strict([1, 2], [1]), lambda: accuracy_compat([1, math.nan], [1, 2]),
])  # fmt: skip
def test_wrong_input_is_an_error(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArgument):
        call()
