"""Gather and scatter against NumPy, with indices that count from the end or leave the range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import GraphBuilder, Tensor
from tilewright.expr.affine import affine
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import indexing as ops

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Tensor], *arrays: Array) -> Any:
    b = GraphBuilder()
    inputs = [b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)]
    output = build(*inputs)
    (value,) = evaluate(b.finish([output]), list(arrays))
    assert value.shape == output.shape
    return value


X = np.random.default_rng(0).standard_normal((3, 4, 5))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather(axis: int, shape: tuple[int, ...], dtype: Any) -> None:
    extent = X.shape[axis]
    picks = np.asarray(np.random.default_rng(1).integers(-extent, extent, shape), dtype)
    np.testing.assert_array_equal(run(lambda x, i: ops.gather(x, i, axis=axis), X, picks), np.take(X, picks, axis))


def test_indices_out_of_range_read_the_nearest_end() -> None:
    picks = np.array([-100, -5, 4, 100])
    np.testing.assert_array_equal(run(ops.gather, X[:, 0, 0], picks), X[[0, 0, 2, 2], 0, 0])


def test_gather_at_known_indices_is_affine() -> None:
    b = GraphBuilder()
    ops.gather_at(b.input("x", (6, 4), "f32"), 5, -2, 3)
    (read,) = b.nodes[-1].reads()
    assert all(affine(index) is not None for index in read.indices)
    np.testing.assert_array_equal(run(lambda x: ops.gather_at(x, 2, -2, 2), X), X[[2, 0]])
    np.testing.assert_array_equal(run(lambda x: ops.gather_at(x, 1, 0, None, axis=1), X), X[:, 1])
    with pytest.raises(InvalidExpression, match="indices 2 to 3"):
        run(lambda x: ops.gather_at(x, 2, 1, 2), X)


def test_gather_from_nothing() -> None:
    with pytest.raises(InvalidExpression, match="which is empty"):
        run(ops.gather, np.zeros((0, 2)), np.zeros(1, np.int64))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis: int) -> None:
    shape = [2, 3, 4]
    shape[axis] = 7
    extent = X.shape[axis]
    picks = np.random.default_rng(1).integers(-extent, extent, shape)
    cut = tuple(slice(None) if d == axis % 3 else slice(n) for d, n in enumerate(shape))
    expected = np.take_along_axis(X[cut], picks, axis)
    np.testing.assert_array_equal(run(lambda x, i: ops.gather_elements(x, i, axis=axis), X, picks), expected)


def test_gather_nd() -> None:
    picks = np.array([[[0, 1], [-1, -1]], [[2, 0], [1, 3]]])
    np.testing.assert_array_equal(run(ops.gather_nd, X, picks), X[picks[..., 0], picks[..., 1]])
    batched = np.array([[1], [3], [-1]])
    expected = X[np.arange(3), batched[:, 0]]
    np.testing.assert_array_equal(run(lambda x, i: ops.gather_nd(x, i, batch=1), X, batched), expected)
    with pytest.raises(ExtentMismatch, match="positions of 4 numbers"):
        run(ops.gather_nd, X, np.zeros((2, 4), np.int64))


def test_compress() -> None:
    np.testing.assert_array_equal(run(lambda x: ops.compress(x, [0, 3], axis=1), X), X[:, [0, 3]])


# Scatter

COMBINE: dict[str, Callable[[float, float], float]] = {
    "none": lambda _, new: new, "add": lambda old, new: old + new, "mul": lambda old, new: old * new,
    "max": max, "min": min,
}  # fmt: skip


@pytest.mark.parametrize("reduction", COMBINE)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements(reduction: str, axis: int) -> None:
    rng = np.random.default_rng(2)
    shape = [2, 3, 4]
    shape[axis] = 6  # with repetitions
    picks = rng.integers(-X.shape[axis], X.shape[axis], shape)
    updates = rng.standard_normal(shape)
    expected = X.copy()
    for place in np.ndindex(*shape):
        target = list(place)
        target[axis] = picks[place]
        expected[tuple(target)] = COMBINE[reduction](expected[tuple(target)], updates[place])
    found = run(lambda x, i, u: ops.scatter_elements(x, i, u, axis=axis, reduction=reduction), X, picks, updates)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("reduction", COMBINE)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd(reduction: str, depth: int) -> None:
    rng = np.random.default_rng(3)
    picks = np.stack([rng.integers(-X.shape[d], X.shape[d], (4, 2)) for d in range(depth)], -1)
    updates = rng.standard_normal((4, 2, *X.shape[depth:]))
    expected = X.copy()
    for place in np.ndindex(4, 2):
        target = tuple(picks[place])
        combined = np.vectorize(COMBINE[reduction])(expected[target], updates[place])
        expected[target] = combined
    found = run(lambda x, i, u: ops.scatter_nd(x, i, u, reduction=reduction), X, picks, updates)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_scatter_ignores_what_is_out_of_range() -> None:
    found = run(ops.scatter_elements, np.zeros(3), np.array([7, -9, 1]), np.ones(3))
    np.testing.assert_array_equal(found, [0, 1, 0])


def test_scatter_errors() -> None:
    with pytest.raises(InvalidExpression, match="reduction 'median'"):
        run(lambda x, i: ops.scatter_elements(x, i, x, reduction="median"), np.zeros(3), np.zeros(3, np.int64))
    with pytest.raises(ExtentMismatch, match="updates"):
        run(ops.scatter_nd, np.zeros(3), np.zeros((2, 1), np.int64), np.zeros(3))


def test_update_cache() -> None:
    cache, update, starts = np.zeros((2, 5, 1)), np.ones((2, 3, 1)), np.array([1, 4])
    found = run(lambda c, u, s: ops.update_cache(c, u, s, axis=1, circular=True), cache, update, starts)
    np.testing.assert_array_equal(found[..., 0], [[0, 1, 1, 1, 0], [1, 1, 0, 0, 1]])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis: int) -> None:
    picks = np.array([0, 2, -1, 9])
    hot = np.array([[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]])
    found = run(lambda i, v: ops.one_hot(i, 3, v, axis=axis), picks, np.array([5, 7]))
    np.testing.assert_array_equal(found, np.where(hot, 7, 5) if axis else np.where(hot, 7, 5).T)
