"""Operators that move elements against NumPy, and the form of their index expressions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import Apply, GraphBuilder, Tensor
from tilewright.expr.affine import affine
from tilewright.expr.core import walk
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import shape as ops

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Any], *arrays: Array) -> Any:
    b = GraphBuilder()
    inputs = [b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)]
    result = build(*(inputs or [b]))
    outputs = [result] if isinstance(result, Tensor) else list(result)
    values = evaluate(b.finish(outputs), list(arrays))
    assert [value.shape for value in values] == [output.shape for output in outputs]
    return values[0] if isinstance(result, Tensor) else values


def iota(*shape: int) -> Array:
    return np.arange(prod(shape), dtype=np.int32).reshape(shape)


def indices(source: tuple[int, ...], target: tuple[int, ...]) -> list[str]:
    """The index expressions of a reshape, as text over i0, i1, …"""
    return [text(index) for index in ops.reshape_indices(source, ops.axes_of(target))]


def text(expr: Any) -> str:
    if isinstance(expr, Apply):
        symbol = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%"}[expr.function]
        return f"({text(expr.args[0])} {symbol} {text(expr.args[1])})"
    return str(expr.value) if hasattr(expr, "value") else str(expr.name)


# Reshape


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((2, 12, 5), (2, 3, 4, 5), ["i0", "((i1 * 4) + i2)", "i3"]),
        ((2, 3, 4, 5), (2, 12, 5), ["i0", "(i1 // 4)", "(i1 % 4)", "i2"]),
        ((128, 768), (128, 12, 64), ["i0", "((i1 * 64) + i2)"]),
        ((1, 6, 1), (6,), ["0", "i0", "0"]),
        ((6,), (1, 6, 1), ["i1"]),
        ((2, 3, 4), (24,), ["(i0 // 12)", "((i0 // 4) % 3)", "(i0 % 4)"]),
        ((8, 6), (4, 12), ["((i0 * 2) + (i1 // 6))", "(i1 % 6)"]),
    ],
)
def test_reshape_indices(source: tuple[int, ...], target: tuple[int, ...], expected: list[str]) -> None:
    assert indices(source, target) == expected


def test_split_of_a_dimension_is_affine() -> None:
    b = GraphBuilder()
    y = ops.reshape(b.input("x", (4, 60), "f32"), (4, 3, 4, 5))
    (read,) = b.nodes[-1].reads()
    assert y.shape == (4, 3, 4, 5)
    assert all(affine(index) is not None for index in read.indices)


shapes = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@given(shapes, st.randoms(use_true_random=False))
def test_reshape_agrees_with_numpy(source: tuple[int, ...], random: Any) -> None:
    factors = [p for extent in source for p in prime_factors(extent)]
    random.shuffle(factors)
    target: list[int] = []
    for factor in factors:
        if target and random.random() < 0.5:
            target[-1] *= factor
        else:
            target.append(factor)
        if random.random() < 0.2:
            target.append(1)
    x = iota(*source)
    np.testing.assert_array_equal(run(lambda x: ops.reshape(x, target), x), x.reshape(target))


def prime_factors(n: int) -> list[int]:
    for p in range(2, n + 1):
        if n % p == 0:
            return [p, *prime_factors(n // p)]
    return []


def test_reshape_of_nothing() -> None:
    assert run(lambda x: ops.reshape(x, (3, 0, 2)), iota(0, 5)).shape == (3, 0, 2)


def test_reshape_to_another_size() -> None:
    with pytest.raises(ExtentMismatch, match=r"cannot reshape .* to \[4, 2\]") as caught:
        run(lambda x: ops.reshape(x, (4, 2)), iota(3, 2))
    assert "6 elements, not 8" in caught.value.help


# Other views


@pytest.mark.parametrize("perm", [None, (0, 1, 2), (2, 0, 1), (-1, 0, 1)])
def test_transpose(perm: tuple[int, ...] | None) -> None:
    x = iota(2, 3, 4)
    np.testing.assert_array_equal(run(lambda x: ops.transpose(x, perm), x), np.transpose(x, perm))


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten(axis: int) -> None:
    x = iota(2, 3, 4)
    rows = prod(x.shape[: axis if axis >= 0 else axis + 3])
    np.testing.assert_array_equal(run(lambda x: ops.flatten(x, axis=axis), x), x.reshape(rows, -1))


def test_squeeze_and_unsqueeze() -> None:
    x = iota(1, 3, 1)
    np.testing.assert_array_equal(run(lambda x: ops.squeeze(x), x), x.squeeze())
    np.testing.assert_array_equal(run(lambda x: ops.squeeze(x, [-1]), x), x.squeeze(-1))
    np.testing.assert_array_equal(run(lambda x: ops.unsqueeze(x, [0, -1]), x), np.expand_dims(x, (0, -1)))
    with pytest.raises(ExtentMismatch, match="squeeze of dimension 1"):
        run(lambda x: ops.squeeze(x, [1]), x)
    with pytest.raises(InvalidExpression, match="name a dimension twice"):
        run(lambda x: ops.unsqueeze(x, [0, 0]), x)


def test_expand_works_both_ways() -> None:
    x = iota(3, 1)
    np.testing.assert_array_equal(run(lambda x: ops.expand(x, (2, 1, 4)), x), np.broadcast_to(x, (2, 3, 4)))
    np.testing.assert_array_equal(run(lambda x: ops.expand(x, (1,)), x), x)


def test_tile_flip_roll() -> None:
    x = iota(2, 3)
    np.testing.assert_array_equal(run(lambda x: ops.tile(x, (2, 3)), x), np.tile(x, (2, 3)))
    np.testing.assert_array_equal(run(lambda x: ops.tile(x, (0, 1)), x), np.tile(x, (0, 1)))
    np.testing.assert_array_equal(run(lambda x: ops.flip(x, [-1]), x), np.flip(x, -1))
    for shift in (-4, -1, 0, 2, 5):
        found = run(lambda x, s=shift: ops.roll(x, [s, 1], [1, 0]), x)
        np.testing.assert_array_equal(found, np.roll(x, (shift, 1), (1, 0)))


# Parts


@given(st.integers(0, 7), st.integers(-9, 9), st.integers(-9, 9), st.integers(-3, 3).filter(bool))
def test_slice_bounds_are_those_of_python(extent: int, start: int, stop: int, step: int) -> None:
    if step < 0 and stop < -extent:
        stop = -extent - 1  # before the first, as ONNX has it; Python's slices mean the same
    first, count = ops.slice_bounds(extent, start, stop, step)
    expected = list(range(extent))[slice(start, stop, step)]
    assert [first + step * i for i in range(count)] == expected


def test_slice_with_steps() -> None:
    x = iota(6, 5)
    found = run(lambda x: ops.slice_(x, (5, 1), (3, 2), (-2, 2)), x)
    np.testing.assert_array_equal(found, x[5:0:-2, 1:4:2])
    with pytest.raises(InvalidExpression, match="4 elements from 5 by -2"):
        run(lambda x: ops.slice_(x, (5, 0), (4, 5), (-2, 1)), x)


def test_split_and_concat_are_inverse() -> None:
    x = iota(2, 7, 3)
    parts = run(lambda x: ops.split(x, [1, 0, 4, 2], axis=1), x)
    for part, expected in zip(parts, np.split(x, [1, 1, 5], axis=1), strict=True):
        np.testing.assert_array_equal(part, expected)
    np.testing.assert_array_equal(run(lambda *xs: ops.concat(xs, axis=-2), *parts), x)
    with pytest.raises(ExtentMismatch, match="sizes that add to 7"):
        run(lambda x: ops.split(x, [1, 2], axis=1), x)


def test_concat_reads_are_affine_and_its_selects_balanced() -> None:
    b = GraphBuilder()
    ops.concat([b.input(f"x{i}", (2, 3), "f32") for i in range(8)], axis=0)
    (node,) = b.nodes
    assert all(affine(index) is not None for read in node.reads() for index in read.indices)
    assert depth(node.body) == 3


def depth(expr: Any) -> int:
    if isinstance(expr, Apply) and expr.function == "select":
        return 1 + max(depth(arg) for arg in expr.args[1:])
    return 0


@pytest.mark.parametrize(("other", "axis"), [((2, 4), 0), ((2, 3, 1), 0)])
def test_concat_of_unequal_tensors(other: tuple[int, ...], axis: int) -> None:
    with pytest.raises(ExtentMismatch, match="concat of"):
        run(lambda x, y: ops.concat([x, y], axis=axis), iota(2, 3), iota(*other))


def test_stack() -> None:
    x, y = iota(2, 3), -iota(2, 3)
    for axis in (0, 1, 2, -1):
        found = run(lambda x, y, a=axis: ops.stack([x, y], axis=a), x, y)
        np.testing.assert_array_equal(found, np.stack([x, y], axis))


@pytest.mark.parametrize("mode", ["constant", "reflect", "symmetric", "edge", "wrap"])
@pytest.mark.parametrize("pads", [((0, 0), (0, 0)), ((2, 1), (3, 2)), ((0, 2), (1, 0)), ((9, 7), (0, 11))])
def test_pad(mode: str, pads: tuple[tuple[int, int], tuple[int, int]]) -> None:
    x = iota(3, 4) + 1
    (top, bottom), (left, right) = pads
    found = run(lambda x: ops.pad(x, (top, left), (bottom, right), mode=mode), x)
    np.testing.assert_array_equal(found, np.pad(x, pads, mode=mode))  # type: ignore[call-overload]


def test_pad_with_a_value_and_negative_pads() -> None:
    x = iota(3, 4)
    found = run(lambda x: ops.pad(x, (-1, 1), (0, -2), value=7), x)
    np.testing.assert_array_equal(found, np.pad(x[1:, :2], ((0, 0), (1, 0)), constant_values=7))


def test_pad_guards_only_what_can_be_outside() -> None:
    b = GraphBuilder()
    ops.pad(b.input("x", (3, 4), "f32"), (0, 1), (0, 0))
    comparisons = [node for node in walk(b.nodes[-1].body) if isinstance(node, Apply) and node.function in ("ge", "lt")]
    assert len(comparisons) == 1


def test_pad_errors() -> None:
    with pytest.raises(InvalidExpression, match="pad mode 'mirror'"):
        run(lambda x: ops.pad(x, (1,), (1,), mode="mirror"), iota(3))
    with pytest.raises(InvalidExpression, match="which is empty"):
        run(lambda x: ops.pad(x, (1,), (1,), mode="edge"), iota(0))


# Generated tensors


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("k", [-5, -1, 0, 2, 9])
def test_triangle(upper: bool, k: int) -> None:
    x = iota(2, 3, 4) + 1
    expected = np.triu(x, k) if upper else np.tril(x, k)
    np.testing.assert_array_equal(run(lambda x: ops.trilu(x, k, upper=upper), x), expected)
    found = run(lambda x, k: ops.trilu(x, k, upper=upper), x, np.array(k))
    np.testing.assert_array_equal(found, expected)


def test_eye_and_iota() -> None:
    np.testing.assert_array_equal(run(lambda b: ops.eye(b, 3, 4, k=1)), np.eye(3, 4, 1))
    np.testing.assert_array_equal(run(lambda b: ops.iota(b, 5, start=3, step=-2)), np.arange(3, -7, -2))


def test_reverse_sequence() -> None:
    x, lengths = iota(4, 3), np.array([1, 4, 2])
    found = run(lambda x, n: ops.reverse_sequence(x, n, time_axis=0, batch_axis=1), x, lengths)
    for column, n in enumerate(lengths):
        np.testing.assert_array_equal(found[:, column], np.concatenate([x[:n, column][::-1], x[n:, column]]))
