"""Softmax and normalisations against NumPy in float64 and against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import GraphBuilder, Tensor
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import norm

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Any], *arrays: Array) -> Any:
    """What `build` returns for inputs of these arrays: one array, or a list for several tensors."""
    b = GraphBuilder()
    out = build(*[b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)])
    several = isinstance(out, tuple)
    values = evaluate(b.finish(list(out) if several else [out]), list(arrays))
    for tensor, value in zip(out if several else [out], values, strict=True):
        assert (value.shape, from_numpy(value.dtype)) == (tensor.shape, tensor.dtype)
    return values if several else values[0]


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def assert_close(got: Array, want: Array, *, relative: float = 2e-5) -> None:
    assert got.shape == want.shape
    assert np.max(abs(got.astype(np.float64) - want), initial=0) <= relative * max(1, np.max(abs(want), initial=0))


def softmax64(x: Array, axis: int) -> Array:
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True).astype(np.float64))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize(
    ("shape", "axis"), [((1,), 0), ((7, 17), -1), ((7, 17), 0), ((2, 1, 5, 3), 1), ((2, 3, 13), 1)]
)
def test_softmax_and_log_softmax(shape: tuple[int, ...], axis: int) -> None:
    x = random(*shape) * 30
    want = softmax64(x, axis)
    assert_close(run(lambda t: norm.softmax(t, axis=axis), x), want)
    assert_close(run(lambda t: norm.log_softmax(t, axis=axis), x), np.log(want))


def test_softmax_of_large_values_does_not_overflow_and_of_small_ones_is_the_simplified_one() -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    assert_close(run(norm.softmax, x), softmax64(x, -1))
    y = random(3, 7)
    assert_close(run(lambda t: norm.softmax(t, simplified=True), y), softmax64(y, -1))


def nodes_of(build: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    b = GraphBuilder()
    build(*[b.input(f"x{n}", shape, "f32") for n, shape in enumerate(shapes)])
    return [node.name for node in b.nodes]


def test_nodes_of_softmax() -> None:
    full = ["softmax.max", "softmax.sub", "softmax.exp", "softmax.sum", "softmax"]
    assert nodes_of(norm.softmax, (3, 4)) == full
    simplified = ["softmax.exp", "softmax.sum", "softmax"]
    assert nodes_of(lambda x: norm.softmax(x, simplified=True), (3, 4)) == simplified


def normal64(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    wide = x.astype(np.float64)
    return (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_norm(axis: int) -> None:
    x = random(5, 7, 13) + 100  # a mean far from 0: one-pass variances fail here
    scale, bias = random(*x.shape[axis:], seed=1), random(*x.shape[axis:], seed=2)
    axes = tuple(range(axis % 3, 3))
    want = normal64(x, axes, 1e-3) * scale + bias
    results = run(lambda *t: norm.layer_norm_statistics(*t, axis=axis, epsilon=1e-3), x, scale, bias)
    assert_close(results[0], want, relative=2e-4)  # x - mean cancels two digits
    assert_close(results[1], x.astype(np.float64).mean(axes, keepdims=True))
    assert_close(results[2], 1 / np.sqrt(x.astype(np.float64).var(axes, keepdims=True) + 1e-3), relative=2e-4)
    assert np.array_equal(run(lambda *t: norm.layer_norm(*t, axis=axis, epsilon=1e-3), x, scale, bias), results[0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_rounds_once(dtype: Any) -> None:
    x = random(3, 257, dtype=dtype)
    exact = normal64(x, (1,), 1e-5)
    got = run(norm.layer_norm, x)
    step = float(ml_dtypes.finfo(dtype).eps)
    assert (abs(got.astype(np.float64) - exact) <= 0.51 * step * abs(exact) + 1e-6).all()
    exact = softmax64(x, -1)
    got = run(norm.softmax, x).astype(np.float64)
    assert (abs(got - exact) <= 0.51 * step * exact + 2.0**-24).all()


def test_rms_norm() -> None:
    x, scale = random(5, 17), random(17, seed=1)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * scale
    assert_close(run(norm.rms_norm, x, scale), want)


def test_batch_norm() -> None:
    x, scale, bias, mean = random(2, 5, 3, 7), random(5, seed=1), random(5, seed=2), random(5, seed=3)
    variance = abs(random(5, seed=4))
    shape = (5, 1, 1)
    want = (x.astype(np.float64) - mean.reshape(shape)) / np.sqrt(variance.astype(np.float64) + 1e-2).reshape(shape)
    want = want * scale.reshape(shape) + bias.reshape(shape)
    got = run(lambda *t: norm.batch_norm(*t, epsilon=1e-2), x, scale, bias, mean, variance)
    assert_close(got, want)


def test_batch_norm_in_training_updates_running_statistics() -> None:
    x, scale, bias, mean = random(3, 5, 7), random(5, seed=1), random(5, seed=2), random(5, seed=3)
    variance = abs(random(5, seed=4))
    y, new_mean, new_variance = run(
        lambda *t: norm.batch_norm_training(*t, momentum=0.75), x, scale, bias, mean, variance
    )
    assert_close(y, normal64(x, (0, 2), 1e-5) * scale[:, None] + bias[:, None])
    assert_close(new_mean, mean * 0.75 + x.astype(np.float64).mean((0, 2)) * 0.25)
    assert_close(new_variance, variance * 0.75 + x.astype(np.float64).var((0, 2)) * 0.25)


@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("per_group", [False, True])
def test_group_norm(groups: int, per_group: bool) -> None:
    x = random(2, 6, 5, 7)
    count = groups if per_group else 6
    scale, bias = random(count, seed=1), random(count, seed=2)
    want = normal64(x.reshape(2, groups, -1), (2,), 1e-5).reshape(x.shape)
    want = want * np.repeat(scale, 6 // count)[:, None, None] + np.repeat(bias, 6 // count)[:, None, None]
    assert_close(run(lambda *t: norm.group_norm(*t, groups=groups), x, scale, bias), want)


def test_instance_norm_and_mean_variance_norm() -> None:
    x, scale, bias = random(2, 3, 5, 7), random(3, seed=1), random(3, seed=2)
    want = normal64(x, (2, 3), 1e-5) * scale[:, None, None] + bias[:, None, None]
    assert_close(run(norm.instance_norm, x, scale, bias), want)
    wide = x.astype(np.float64)
    want = (wide - wide.mean((0, 2, 3), keepdims=True)) / (wide.std((0, 2, 3), keepdims=True) + 1e-9)
    assert_close(run(norm.mean_variance_norm, x), want)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_norm_of_zeros_is_zero(p: int) -> None:
    x = random(3, 7, 5)
    x[1, :, 2] = 0
    wide = x.astype(np.float64)
    length = np.linalg.norm(wide, p, axis=1, keepdims=True)
    assert_close(run(lambda t: norm.lp_norm(t, axis=1, p=p), x), wide / np.where(length == 0, 1, length))


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_local_response_norm(size: int) -> None:
    x = random(2, 5, 3, 3)
    wide = x.astype(np.float64)
    squares = np.zeros_like(wide)
    for c in range(5):
        low, high = max(0, c - (size - 1) // 2), min(4, c + size // 2)
        squares[:, c] = (wide[:, low : high + 1] ** 2).sum(1)
    want = wide / (2.0 + 0.01 / size * squares) ** 0.6
    got = run(lambda t: norm.local_response_norm(t, size=size, alpha=0.01, beta=0.6, bias=2.0), x)
    assert_close(got, want)


def test_norms_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    x, scale, bias = random(2, 6, 5, 7), random(6, seed=1), random(6, seed=2)
    t, s, o = map(torch.tensor, (x, scale, bias))
    assert_close(run(lambda *a: norm.group_norm(*a, groups=2), x, scale, bias), f.group_norm(t, 2, s, o).numpy())
    assert_close(run(norm.instance_norm, x, scale, bias), f.instance_norm(t, weight=s, bias=o).numpy())
    assert_close(run(lambda a: norm.layer_norm(a, axis=2), x), f.layer_norm(t, (5, 7)).numpy())
    want = f.local_response_norm(t, 3, alpha=0.1, beta=0.5, k=1.5).numpy()
    got = run(lambda a: norm.local_response_norm(a, size=3, alpha=0.1, beta=0.5, bias=1.5), x)
    assert_close(got, want)


ERRORS: list[tuple[Callable[..., Tensor], list[tuple[int, ...]], str, str]] = [
    (lambda x: norm.softmax(x, axis=2), [(3, 4)], "axis 2 of a tensor of rank 2", "[-2, 1]"),
    (norm.layer_norm, [(3, 4), (3,)], "x1: f32[3] does not broadcast to [3, 4]", "[3, 4]"),
    (lambda x: norm.group_norm(x, groups=4), [(1, 6, 5)], "4 groups do not divide 6 channels", "3 or 6"),
    (lambda x, s: norm.group_norm(x, s, groups=3), [(1, 6, 5), (5,)], "x1: f32[5] for", "[6] or [3]"),
    (norm.instance_norm, [(1, 6, 5), (5,)], "x1: f32[5] for 6 channels", "[6]"),
    (norm.instance_norm, [(1, 6)], "has rank 2", "at least 3"),
    (lambda x: norm.lp_norm(x, p=3), [(1, 6)], "a norm of order 3", "1 or 2"),
    (lambda x: norm.local_response_norm(x, size=0), [(1, 6)], "a window of 0 channels", "1 or more"),
]


@pytest.mark.parametrize(("build", "shapes", "message", "advice"), ERRORS)
def test_arguments_that_do_not_fit_are_refused(build: Any, shapes: Any, message: str, advice: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        nodes_of(build, *shapes)
    assert message in caught.value.message
    assert advice in caught.value.help


def test_integers_are_refused() -> None:
    b = GraphBuilder()
    with pytest.raises(InvalidExpression, match="not of a float type"):
        norm.softmax(b.input("x", (3, 4), "i32"))
    with pytest.raises(ExtentMismatch):
        norm.batch_norm(b.input("y", (3, 4), "f32"), *[b.input(f"p{n}", (n + 3,), "f32") for n in range(4)])
