"""Statistics of samples."""

from __future__ import annotations

import random
import statistics

import pytest

from bench.summary import geometric_mean, quantile, summarise


def test_median_agrees_with_the_standard_library() -> None:
    values = [random.Random(0).random() for _ in range(101)]
    assert summarise(values).median == statistics.median(values)
    assert summarise(values[:-1]).median == pytest.approx(statistics.median(values[:-1]))


def test_spread_ignores_one_outlier() -> None:
    times = summarise([1.0] * 20 + [100.0])
    assert (times.p10, times.median, times.p90, times.fastest, times.samples) == (1.0, 1.0, 1.0, 1.0, 21)


def test_quantiles_interpolate() -> None:
    assert quantile([0.0, 10.0], 0.25) == 2.5
    assert quantile([3.0], 0.9) == 3.0


def test_geometric_mean_of_ratios() -> None:
    assert geometric_mean([0.25, 1.0, 4.0]) == pytest.approx(1.0)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarise([])
    with pytest.raises(ValueError, match="no values"):
        geometric_mean([])
