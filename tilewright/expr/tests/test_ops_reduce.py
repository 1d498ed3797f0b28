"""Reductions, arg-reductions, scans and sorting against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import InvalidExpression
from tilewright.expr import GraphBuilder, Tensor
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import reduce as ops

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Any], *arrays: Array) -> Any:
    b = GraphBuilder()
    inputs = [b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)]
    result = build(*inputs)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    values = evaluate(b.finish(outputs), list(arrays))
    assert [value.shape for value in values] == [output.shape for output in outputs]
    return values[0] if isinstance(result, Tensor) else values


REDUCTIONS: dict[Callable[..., Tensor], Callable[..., Any]] = {
    ops.reduce_sum: np.sum,
    ops.reduce_mean: np.mean,
    ops.reduce_max: np.max,
    ops.reduce_min: np.min,
    ops.reduce_prod: np.prod,
    ops.reduce_l1: lambda x, **k: np.sum(abs(x), **k),
    ops.reduce_l2: lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    ops.reduce_sum_square: lambda x, **k: np.sum(x * x, **k),
    ops.reduce_log_sum: lambda x, **k: np.log(np.sum(x, **k)),
    ops.reduce_log_sum_exp: lambda x, **k: np.log(np.sum(np.exp(x), **k)),
}


@pytest.mark.parametrize("build", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, (0,), (1, -1), ()])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reduction(build: Callable[..., Tensor], axes: tuple[int, ...] | None, keepdims: bool) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (3, 4, 2))
    expected = REDUCTIONS[build](x, axis=axes, keepdims=keepdims)
    found = run(lambda x: build(x, axes, keepdims=keepdims), x)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("build", [ops.reduce_sum, ops.reduce_mean, ops.reduce_l2, ops.reduce_log_sum_exp])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_summed_in_f32_and_rounded_once(build: Callable[..., Tensor], dtype: Any) -> None:
    x = np.random.default_rng(0).uniform(0, 1, (2000,)).astype(dtype)
    wide = float(REDUCTIONS[build](x.astype(np.float64)))
    found = run(lambda x: build(x, keepdims=False), x)
    assert found.dtype == dtype
    assert abs(float(found) - wide) <= abs(wide) * (2.0**-8 if dtype == ml_dtypes.bfloat16 else 2.0**-11) * 1.01


def test_integer_mean_divides_towards_zero() -> None:
    assert run(lambda x: ops.reduce_mean(x, keepdims=False), np.array([-3, -2, 0], np.int32)) == -1


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([[1000.0, 1000], [-1000, -1000], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    found = run(lambda x: ops.reduce_log_sum_exp(x, [1], keepdims=False), x)
    np.testing.assert_allclose(found, [1000 + np.log(2), -1000 + np.log(2), -np.inf, np.inf], rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "expected"),
    [(ops.reduce_sum, 0), (ops.reduce_prod, 1), (ops.reduce_max, -np.inf), (ops.reduce_log_sum_exp, -np.inf)],
)
def test_reduction_of_nothing(build: Callable[..., Tensor], expected: float) -> None:
    found = run(lambda x: build(x, [1], keepdims=False), np.zeros((2, 0, 3)))
    np.testing.assert_array_equal(found, np.full((2, 3), expected))


def test_axis_out_of_range() -> None:
    with pytest.raises(InvalidExpression, match="axis 2 of a tensor of rank 2"):
        run(lambda x: ops.reduce_sum(x, [2]), np.zeros((2, 3)))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_positions_of_extremes(last: bool, axis: int, keepdims: bool, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 3, (4, 5, 6)).astype(dtype)
    for build, numpy in ((ops.arg_max, np.argmax), (ops.arg_min, np.argmin)):
        found = run(lambda x, f=build: f(x, axis=axis, keepdims=keepdims, select_last_index=last), x)
        expected = numpy(np.flip(x, axis) if last else x, axis=axis, keepdims=keepdims)
        np.testing.assert_array_equal(found, x.shape[axis] - 1 - expected if last else expected)


def test_nan_is_the_extreme() -> None:
    x = np.array([1.0, np.nan, 3.0, np.nan])
    assert run(lambda x: ops.arg_max(x, keepdims=False), x) == 1
    assert run(lambda x: ops.arg_min(x, keepdims=False, select_last_index=True), x) == 3


def test_arg_max_of_nothing() -> None:
    with pytest.raises(InvalidExpression, match="which is empty"):
        run(lambda x: ops.arg_max(x, axis=1), np.zeros((2, 0)))


def test_hardmax() -> None:
    x = np.array([[1.0, 3, 3], [2, 1, 0]])
    np.testing.assert_array_equal(run(ops.hardmax, x), [[0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(axis: int, exclusive: bool, reverse: bool) -> None:
    x = np.random.default_rng(0).integers(1, 4, (3, 5)).astype(np.int64)
    for build, numpy, neutral in ((ops.cum_sum, np.cumsum, 0), (ops.cum_prod, np.cumprod, 1)):
        y = np.flip(x, axis) if reverse else x
        expected = numpy(y, axis=axis)
        if exclusive:
            expected = np.roll(expected, 1, axis)
            expected[(0, slice(None)) if axis == 0 else (slice(None), 0)] = neutral
        expected = np.flip(expected, axis) if reverse else expected
        found = run(lambda x, f=build: f(x, axis=axis, exclusive=exclusive, reverse=reverse), x)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_top_k_is_sorted_and_stable(largest: bool, k: int) -> None:
    x = np.random.default_rng(0).integers(0, 4, (2, 5, 3))
    values, index = run(lambda x: ops.top_k(x, k, axis=1, largest=largest), x)
    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(index, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_top_k_with_nan() -> None:
    values, index = run(lambda x: ops.top_k(x, 3), np.array([1.0, np.nan, 2.0]))
    np.testing.assert_array_equal(index, [1, 2, 0])
    np.testing.assert_array_equal(values, [np.nan, 2, 1])


def test_top_too_many() -> None:
    with pytest.raises(InvalidExpression, match="top 4 of dimension 0"):
        run(lambda x: ops.top_k(x, 4), np.zeros(3))
