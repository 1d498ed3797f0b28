"""Grouped products, histograms, bags and places in sorted numbers against NumPy, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.core import Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import counting
from tilewright.expr.ops.grouped import grouped_matmul

RANDOM = np.random.default_rng(0)


def run(build: Callable[..., Tensor], *arrays: Any) -> Any:
    """The result of one operator."""
    b = GraphBuilder()
    tensors = [b.input(f"x{i}", array.shape, array.dtype.name.replace("float", "f").replace("int", "i"))
               for i, array in enumerate(arrays)]  # fmt: skip
    (found,) = evaluate(b.finish([build(*tensors)]), arrays)
    return found


@pytest.mark.parametrize("ends", [[2, 2, 7], [0, 0, 0], [7, 7, 7], [1, 3, 5]])
def test_grouped_products(ends: list[int]) -> None:
    x, w, bounds = RANDOM.standard_normal((7, 5)), RANDOM.standard_normal((3, 5, 4)), np.array(ends, np.int64)
    group = np.minimum(np.searchsorted(bounds, np.arange(7), side="right"), 2)
    rows = np.stack([x[i] @ w[group[i]] for i in range(7)])
    np.testing.assert_allclose(run(grouped_matmul, x, w, bounds), rows)
    np.testing.assert_allclose(run(grouped_matmul, w.transpose(0, 2, 1).copy(), x.T.copy(), bounds), rows.T)
    begins = [0, *ends[:-1]]
    parts = np.stack([x[begin:end].T @ x[begin:end] for begin, end in zip(begins, ends, strict=True)])
    np.testing.assert_allclose(run(grouped_matmul, x.T.copy(), x, bounds), parts)


def test_histogram_of_numbers_in_a_range() -> None:
    x = RANDOM.standard_normal(101)
    np.testing.assert_array_equal(run(lambda x: counting.histogram(x, 7, -1.0, 2.0), x), np.histogram(x, 7, (-1, 2))[0])


def test_what_is_refused() -> None:
    x, w, ends = np.zeros((7, 5)), np.zeros((3, 5, 4)), np.zeros(2, np.int64)
    with pytest.raises(ExtentMismatch, match="2 groups of"):
        run(grouped_matmul, x, w, ends)
    with pytest.raises(InvalidExpression, match="0 bins"):
        run(lambda x: counting.histogram(x, 0, 0.0, 1.0), np.zeros(3))
    with pytest.raises(InvalidExpression, match="bins from 2"):
        run(lambda x: counting.histogram(x, 3, 2.0, 1.0), np.zeros(3))
    with pytest.raises(InvalidExpression, match=r"weights .* for bags by mean"):
        run(
            lambda t, i, w: counting.embedding_bag(t, i, i, mode="mean", weights=w),
            np.zeros((3, 2)), np.zeros(4, np.int64), np.zeros(4),
        )  # fmt: skip
    with pytest.raises(ExtentMismatch, match="boundaries"):
        run(counting.search_sorted, np.zeros((2, 3)), np.zeros((3, 2)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_indices_behind_the_last_offset_are_in_no_bag(mode: str) -> None:
    table, indices, offsets = RANDOM.standard_normal((5, 3)), np.array([4, 0, 2, 1]), np.array([0, 2, 3])
    bags = run(lambda t, i, o: counting.embedding_bag(t, i, o, mode=mode, include_last=True),
               table, indices, offsets)  # fmt: skip
    combine = {"sum": np.sum, "mean": np.mean, "max": np.max}[mode]
    np.testing.assert_allclose(bags, [combine(table[[4, 0]], axis=0), table[2]])
