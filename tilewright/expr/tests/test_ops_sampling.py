"""Resizing and sampling: tables against direct formulas, index forms, agreement with PyTorch where it is installed."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import GraphBuilder, Tensor
from tilewright.expr.core import Compute
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import sampling as ops

Array = np.ndarray[Any, Any]


def resized(x: Array, sizes: dict[int, int], **options: Any) -> tuple[Array, tuple[Compute, ...]]:
    b = GraphBuilder()
    tensor = b.input("x", x.shape, "f32")
    tables = {d: ops.resize_table(x.shape[d], n, n / x.shape[d], **options) for d, n in sizes.items()}
    graph = b.finish([ops.resample(tensor, tables)])
    return evaluate(graph, [x])[0], graph.nodes


X = np.random.default_rng(0).standard_normal((2, 3, 6, 5)).astype(np.float32)


def test_nearest_doubling_repeats_elements_by_a_plain_read() -> None:
    found, nodes = resized(X, {2: 12, 3: 10}, position="asymmetric", rounding="floor")
    np.testing.assert_array_equal(found, X.repeat(2, 2).repeat(2, 3))
    assert len(nodes) == 1
    assert [tensor.name for tensor in nodes[0].inputs()] == ["x"]  # no table


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 10, 13])
def test_nearest_of_any_ratio(size: int) -> None:
    found, _ = resized(X, {3: size}, position="asymmetric", rounding="floor")
    np.testing.assert_array_equal(found, X[..., np.arange(size) * 5 // size])


def test_linear_interpolates_a_line_exactly() -> None:
    x = np.arange(5, dtype=np.float32)[None]
    found, _ = resized(x, {1: 9}, mode="linear", position="align_corners")
    np.testing.assert_allclose(found[0], np.arange(9) / 2, rtol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size", [1, 3, 5, 12])
def test_weights_add_to_one(mode: str, antialias: bool, size: int) -> None:
    table = ops.resize_table(5, size, size / 5, mode=mode, antialias=antialias)
    np.testing.assert_allclose(table.weights.sum(1), 1, rtol=1e-12)
    assert table.index.min() >= 0
    assert table.index.max() < 5


@pytest.mark.parametrize(("mode", "torch_mode"), [("linear", "bilinear"), ("cubic", "bicubic")])
@pytest.mark.parametrize("sizes", [(12, 10), (4, 7), (3, 2)])
@pytest.mark.parametrize("antialias", [False, True])
def test_agrees_with_torch(mode: str, torch_mode: str, sizes: tuple[int, int], antialias: bool) -> None:
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"cubic_a": -0.5 if antialias else -0.75}
    options |= {"antialias": antialias, "exclude_outside": antialias}
    found, _ = resized(X, dict(zip((2, 3), sizes, strict=True)), mode=mode, **options)
    expected = torch.nn.functional.interpolate(torch.from_numpy(X), sizes, mode=torch_mode, antialias=antialias)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_values_outside_are_extrapolated() -> None:
    b = GraphBuilder()
    table = ops.resize_table(4, 4, 1.0, mode="linear", position="tf_crop_and_resize", roi=(0.0, 2.0))
    out = ops.resample(b.input("x", (4,), "f32"), {0: table}, extrapolation=7.0)
    np.testing.assert_allclose(evaluate(b.finish([out]), [np.float32([0, 1, 2, 3])])[0], [0, 2, 7, 7])


@pytest.mark.parametrize(
    ("options", "fact"),
    [({"mode": "area"}, "'area'"), ({"position": "centre"}, "'centre'"), ({"rounding": "up"}, "'up'")],
)
def test_unknown_options(options: dict[str, str], fact: str) -> None:
    with pytest.raises(InvalidExpression, match=fact):
        ops.resize_table(4, 8, 2.0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_grid_sample_agrees_with_torch(mode: str, padding: str, align_corners: bool) -> None:
    torch = pytest.importorskip("torch")
    limit = 0.5 if (mode, padding) == ("cubic", "border") else 1.6  # beyond, PyTorch means something else
    grid = np.random.default_rng(1).uniform(-limit, limit, (2, 4, 3, 2)).astype(np.float32)
    names = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(X), torch.from_numpy(grid), names[mode], padding, align_corners
    )
    b = GraphBuilder()
    tensors: list[Tensor] = [b.input("x", X.shape, "f32"), b.input("grid", grid.shape, "f32")]
    out = ops.grid_sample(*tensors, mode=mode, padding=padding, align_corners=align_corners)
    np.testing.assert_allclose(evaluate(b.finish([out]), [X, grid])[0], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_grid_of_the_wrong_shape() -> None:
    b = GraphBuilder()
    with pytest.raises(ExtentMismatch, match="grid"):
        ops.grid_sample(b.input("x", X.shape, "f32"), b.input("grid", (2, 4, 3, 3), "f32"))


def _exact(extent: int, result: int, scale: Fraction, rounding: str) -> list[int]:
    """Nearest elements by half_pixel_symmetric, in fractions."""
    positions = [
        Fraction(extent, 2) * (1 - Fraction(result) / (scale * extent)) + (o + Fraction(1, 2)) / scale - Fraction(1, 2)
        for o in range(result)
    ]
    rounded = {
        "floor": floor, "ceil": ceil, "round_prefer_floor": lambda p: ceil(p - Fraction(1, 2)),
        "round_prefer_ceil": lambda p: floor(p + Fraction(1, 2)),
    }[rounding]  # fmt: skip
    return [min(max(rounded(p), 0), extent - 1) for p in positions]


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize(("extent", "scale"), [(5, "3/5"), (12, "1/3"), (3, "17/50"), (9, "2/3"), (7, "23/10"), (6, 3)])
def test_positions_are_exact_at_whole_coordinates(extent: int, scale: str, rounding: str) -> None:
    exact = Fraction(scale)
    result = floor(extent * exact)
    table = ops.resize_table(
        extent, result, float(np.float32(exact)), position="half_pixel_symmetric", rounding=rounding
    )
    assert table.index[:, 0].tolist() == _exact(extent, result, exact, rounding)
