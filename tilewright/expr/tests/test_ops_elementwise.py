"""Elementwise operators against NumPy, their dtypes, and their errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import GraphBuilder, Tensor
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import elementwise as ops

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Any], *arrays: Array) -> Any:
    b = GraphBuilder()
    inputs = [b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)]
    result = build(*inputs)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    values = evaluate(b.finish(outputs), list(arrays))
    assert [value.shape for value in values] == [output.shape for output in outputs]
    return values[0] if isinstance(result, Tensor) else values


X = np.array([-50.0, -3.0, -1.0, -0.25, -0.0, 0.0, 0.25, 1.0, 3.0, 50.0], np.float32)
W = X.astype(np.float64)


def softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


ACTIVATIONS: list[tuple[Callable[..., Tensor], dict[str, Any], Array]] = [
    (ops.relu, {}, np.maximum(W, 0)),
    (ops.leaky_relu, {"alpha": 0.1}, np.where(W < 0, 0.1 * W, W)),
    (ops.elu, {"alpha": 2.0}, np.where(W < 0, 2 * np.expm1(W), W)),
    (ops.selu, {"alpha": 1.5, "gamma": 2.0}, 2 * np.where(W > 0, W, 1.5 * np.expm1(W))),
    (ops.celu, {"alpha": 0.5}, np.maximum(W, 0) + np.minimum(0, 0.5 * np.expm1(W / 0.5))),
    (ops.gelu, {}, W * 0.5 * (1 + np.vectorize(math.erf)(W / math.sqrt(2)))),
    (ops.gelu, {"approximate": "tanh"}, W * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (W + 0.044715 * W**3)))),
    (ops.softplus, {}, softplus(W)),
    (ops.softsign, {}, W / (1 + abs(W))),
    (ops.mish, {}, W * np.tanh(softplus(W))),
    (ops.swish, {"alpha": 0.5}, W / (1 + np.exp(-0.5 * W))),
    (ops.hard_sigmoid, {"alpha": 0.25, "beta": 0.5}, np.clip(0.25 * W + 0.5, 0, 1)),
    (ops.hard_swish, {}, W * np.clip(W / 6 + 0.5, 0, 1)),
    (ops.thresholded_relu, {"alpha": 0.5}, np.where(W > 0.5, W, 0)),
    (ops.shrink, {"bias": 0.1, "lambd": 0.5}, np.where(W < -0.5, W + 0.1, np.where(W > 0.5, W - 0.1, 0))),
]


@pytest.mark.parametrize(("build", "attributes", "expected"), ACTIVATIONS)
def test_activation(build: Callable[..., Tensor], attributes: dict[str, Any], expected: Array) -> None:
    """Some ten operations in f32 on terms no larger than about |x| + 1."""
    found = run(lambda x: build(x, **attributes), X)
    assert found.dtype == np.float32
    assert (abs(found - expected) <= 16 * 2.0**-23 * (abs(W) + 1)).all()


@pytest.mark.parametrize(("build", "attributes", "expected"), ACTIVATIONS)
def test_activation_passes_nan_on(build: Callable[..., Tensor], attributes: dict[str, Any], expected: Array) -> None:
    if build not in (ops.thresholded_relu, ops.shrink):  # these compare, and what is not above the threshold is 0
        assert np.isnan(run(lambda x: build(x, **attributes), np.array([np.nan], np.float32))).all()


def test_unknown_gelu() -> None:
    with pytest.raises(InvalidExpression, match="gelu approximation 'exact'"):
        run(lambda x: ops.gelu(x, approximate="exact"), X)


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3), (2, 3)), ((2, 1), (1, 3)), ((4, 1, 3), (2, 3)), ((), (2, 3)), ((0, 3), (1, 3))]
)
def test_broadcasting(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = np.random.default_rng(0).standard_normal(left), np.random.default_rng(1).standard_normal(right)
    np.testing.assert_array_equal(run(lambda x, y: ops.binary(x, y, "sub"), x, y), x - y)


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(ExtentMismatch, match=r"\[2, 3\] and \[2, 4\] do not broadcast"):
        run(lambda x, y: ops.binary(x, y, "add"), np.zeros((2, 3)), np.zeros((2, 4)))


def test_operands_of_two_dtypes() -> None:
    with pytest.raises(InvalidExpression, match="add of f32 and f64"):
        run(lambda x, y: ops.binary(x, y, "add"), np.zeros(2, np.float32), np.zeros(2))


def test_variadic_and_mean_are_one_node() -> None:
    b = GraphBuilder()
    tensors = [b.input(f"x{i}", (3,), "f32") for i in range(4)]
    ops.variadic(tensors, "max")
    ops.mean(tensors)
    assert len(b.nodes) == 2


def test_mean() -> None:
    x, y, z = np.random.default_rng(0).standard_normal((3, 5))
    np.testing.assert_allclose(run(ops_mean, x, y, z), (x + y + z) / 3, rtol=1e-15)


def ops_mean(*tensors: Tensor) -> Tensor:
    return ops.mean(tensors)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -1.0, 2.5])
def test_power_by_a_constant(exponent: float) -> None:
    x = np.array([0.5, 1, 2, 9], np.float32)
    np.testing.assert_allclose(run(lambda x: ops.power_constant(x, exponent), x), x**exponent, rtol=1e-6)


@pytest.mark.parametrize(
    ("base", "exponent"),
    [(np.float32, np.int64), (np.int32, np.float32), (np.int32, np.int64), (np.float32, np.float64)],
)
def test_power_of_two_dtypes(base: Any, exponent: Any) -> None:
    x, y = np.array([1, 2, 3], base), np.array([3, 2, 1], exponent)
    found = run(ops.power, x, y)
    assert found.dtype == base
    np.testing.assert_array_equal(found, [1, 4, 3])


@pytest.mark.parametrize(
    ("a", "c", "expected"),
    [("f32", "f16", "f32"), ("bf16", "f16", "f32"), ("i64", "f16", "f16"), ("u8", "i8", "i16"), ("bool", "i32", "i32")],
)
def test_promote(a: str, c: str, expected: str) -> None:
    assert ops.promote(a, c) == ops.promote(c, a) == expected


def test_clip_lets_the_upper_bound_win() -> None:
    x, low, high = np.array([-5, 0, 5.0]), np.array(2.0), np.array([1.0])
    np.testing.assert_array_equal(run(ops.clip, x, low, high), [1, 1, 1])
    np.testing.assert_array_equal(run(lambda x, h: ops.clip(x, None, h), x, high), [-5, 0, 1])


def test_infinities_of_each_sign() -> None:
    x = np.array([np.inf, -np.inf, 0, np.nan])
    for positive in (True, False):
        for negative in (True, False):
            found = run(lambda x, p=positive, n=negative: ops.is_inf(x, positive=p, negative=n), x)
            np.testing.assert_array_equal(found, [positive, negative, False, False])


def test_prelu_slope_must_not_widen() -> None:
    with pytest.raises(ExtentMismatch, match="does not broadcast"):
        run(ops.prelu, np.zeros((2, 1)), np.zeros((2, 3)))


def test_quantize_rounds_halves_to_even_and_saturates() -> None:
    x = np.array([-1000, 1, 3, 5, 1000], np.float32)
    scale, zero = np.array(2, np.float32), np.array(10, np.uint8)
    np.testing.assert_array_equal(run(ops.quantize_linear, x, scale, zero), np.uint8([0, 10, 12, 12, 255]))


@pytest.mark.parametrize("block", [0, 2])
def test_quantize_and_back_by_axis_and_block(block: int) -> None:
    x = np.random.default_rng(0).uniform(-4, 4, (3, 4)).astype(np.float32)
    scale = np.float32([0.1, 0.2, 0.4, 0.8]) if not block else np.float32([[0.1, 0.2], [0.4, 0.8], [0.1, 0.2]])
    wide = scale if not block else np.repeat(scale, 2, axis=1)

    def both(x: Tensor, s: Tensor) -> Tensor:
        quantised = ops.quantize_linear(x, s, axis=1, block=block, dtype="i8")
        return ops.dequantize_linear(quantised, s, axis=1, block=block)

    assert (abs(run(both, x, scale) - x) <= wide / 2 * 1.001).all()


def test_scale_of_the_wrong_shape() -> None:
    with pytest.raises(ExtentMismatch, match=r"a scale of shape \[4\]"):
        run(lambda x, s: ops.quantize_linear(x, s, axis=1), np.zeros((3, 4), np.float32), np.ones(3, np.float32))


@pytest.mark.parametrize("x", [np.zeros(3), np.array([1.0, 2, 3]), np.array([-4.0, 0, 4]), np.array(-7.0)])
def test_dynamic_quantisation_keeps_zero_exact(x: Array) -> None:
    values, scale, zero = run(ops.dynamic_quantize_linear, x.astype(np.float32))
    restored = (values.astype(np.float64) - zero) * scale
    assert (abs(restored - x) <= scale * 0.51).all()
    assert values.dtype == zero.dtype == np.uint8
