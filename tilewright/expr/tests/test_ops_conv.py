"""Convolutions against direct sums and torch, the nodes they are made of, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch, InvalidArgument, InvalidExpression
from tilewright.expr import Dim, GraphBuilder, Tensor
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import conv, linalg, norm, pool

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Tensor], *arrays: Array) -> Array:
    b = GraphBuilder()
    inputs = [b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)]
    out = build(*inputs)
    (value,) = evaluate(b.finish([out]), list(arrays))
    assert value.shape == out.shape
    return value


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def assert_close(got: Array, want: Array, terms: int) -> None:
    """Float32 sums of `terms` products of standard normal values: errors beyond this bound are not rounding."""
    assert got.shape == want.shape
    assert np.max(abs(got - want), initial=0) <= terms * 2.0**-23 * max(1, np.max(abs(want), initial=0)) + 1e-6


def direct(x: Array, w: Array, strides: Any, dilations: Any, begins: Any, ends: Any, groups: int) -> Array:
    """Convolution as a sum over kernel places of shifted inputs, in float64."""
    rank = x.ndim - 2
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
    outputs = [(n - span) // s + 1 for n, span, s in zip(wide.shape[2:], spans, strides, strict=True)]
    result = np.zeros((x.shape[0], w.shape[0], *outputs))
    per_in, per_out = x.shape[1] // groups, w.shape[0] // groups
    for place in product(*(range(k) for k in w.shape[2:])):
        window = tuple(
            slice(r * d, r * d + (o - 1) * s + 1, s)
            for r, d, o, s in zip(place, dilations, outputs, strides, strict=True)
        )
        for g in range(groups):
            part = wide[(slice(None), slice(g * per_in, (g + 1) * per_in), *window)]
            weights = w[(slice(g * per_out, (g + 1) * per_out), slice(None), *place)].astype(np.float64)
            result[:, g * per_out : (g + 1) * per_out] += np.einsum("bc...,kc->bk...", part, weights)
    assert result.ndim == rank + 2
    return result


# batch, C, K, sizes, kernel, strides, dilations, pads, groups
CASES = [
    (1, 1, 1, (1,), (1,), 1, 1, 0, 1),
    (2, 3, 5, (17,), (3,), 2, 1, 1, 1),
    (1, 4, 6, (13,), (3,), 1, 3, (2, 4), 2),
    (2, 3, 5, (7, 11), (3, 2), (1, 2), 1, (1, 0, 2, 1), 1),
    (1, 6, 9, (7, 7), (3, 3), 1, 2, 2, 3),
    (1, 7, 7, (5, 17), (3, 3), 2, 1, 1, 7),
    (2, 3, 6, (9, 7), (2, 3), 1, 1, (0, 1), 3),
    (1, 5, 7, (13, 13), (7, 7), 2, 1, 3, 1),
    (1, 2, 3, (5, 7, 6), (3, 1, 2), (1, 2, 3), (2, 1, 1), 1, 1),
    (1, 4, 4, (3, 3, 3), (2, 2, 2), 1, 1, 0, 4),
    (1, 2, 2, (3, 3, 3, 3), (2, 1, 2, 1), 1, 1, (1, 0, 0, 1), 1),
    (3, 2, 2, (5, 5), (3, 3), 1, 1, (-1, -1), 1),
]


def spread(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


@pytest.mark.parametrize("case", CASES)
def test_conv_agrees_with_direct_sums(case: Any) -> None:
    batch, c, k, sizes, kernel, strides, dilations, pads, groups = case
    x, w, bias = random(batch, c, *sizes), random(k, c // groups, *kernel, seed=1), random(k, seed=2)
    rank = len(sizes)
    sides = spread(pads, rank) if isinstance(pads, int) or len(pads) == rank else pads
    begins, ends = (sides, sides) if len(sides) == rank else (sides[:rank], sides[rank:])
    cut = tuple(slice(max(0, -p), n - max(0, -e)) for p, e, n in zip(begins, ends, sizes, strict=True))
    want = direct(
        x[(slice(None), slice(None), *cut)], w, spread(strides, rank), spread(dilations, rank),
        [max(0, p) for p in begins], [max(0, e) for e in ends], groups,
    )  # fmt: skip
    got = run(lambda *t: conv.conv(*t, strides=strides, dilations=dilations, pads=pads, groups=groups), x, w, bias)
    assert_close(got, want + bias[(slice(None), *[None] * rank)], c * int(np.prod(kernel)))


@pytest.mark.parametrize("case", [case for case in CASES if case[8] > 1])
def test_split_channels_compute_the_same(case: Any) -> None:
    batch, c, k, sizes, kernel, strides, dilations, pads, groups = case
    x, w, bias = random(batch, c, *sizes), random(k, c // groups, *kernel, seed=1), random(k, seed=2)
    options = {"strides": strides, "dilations": dilations, "pads": pads}
    flat = run(lambda *t: conv.conv(*t, groups=groups, **options), x, w, bias)
    split = run(
        lambda *t: conv.conv(*t, channels="split", **options),
        x.reshape(batch, groups, c // groups, *sizes),
        w.reshape(groups, k // groups, *w.shape[1:]),
        bias.reshape(groups, -1),
    )
    assert split.shape == (batch, groups, k // groups, *flat.shape[2:])
    assert np.array_equal(split.reshape(flat.shape), flat)


@pytest.mark.parametrize("multiplier", [1, 3])
def test_depthwise_conv_in_both_forms(multiplier: int) -> None:
    x, w, bias = random(2, 5, 7, 9), random(5, multiplier, 3, 3, seed=1), random(5 * multiplier, seed=2)
    want = direct(x, w.reshape(-1, 1, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 5) + bias[:, None, None]
    flat = run(lambda *t: conv.depthwise_conv(*t, strides=2, pads=1), x, w, bias)
    assert_close(flat, want, 9)
    split = run(
        lambda *t: conv.depthwise_conv(*t, strides=2, pads=1, channels="split"), x, w, bias.reshape(5, multiplier)
    )
    assert np.array_equal(split.reshape(flat.shape), flat)


# C, K, sizes, kernel, strides, dilations, pads, output padding, groups
TRANSPOSED = [
    (1, 1, (1,), (1,), 1, 1, 0, 0, 1),
    (3, 5, (7,), (3,), 2, 1, 1, 1, 1),
    (4, 6, (5,), (4,), 3, 2, (0, 3), 0, 2),
    (2, 3, (5, 7), (3, 2), (2, 3), (1, 2), (1, 0, 0, 1), (1, 2), 1),
    (3, 3, (4, 4), (3, 3), 1, 1, 2, 0, 3),
    (4, 8, (3, 5), (2, 2), 2, 1, 0, 0, 4),
    (6, 4, (3, 5), (1, 1), 2, 1, 0, 1, 2),
    (2, 2, (3, 2, 4), (2, 3, 1), (2, 1, 2), 1, (0, 1, 0), 0, 1),
    (1, 1, (5,), (2,), 1, 1, 2, 0, 1),
]


def scatter(x: Array, w: Array, strides: Any, dilations: Any, begins: Any, shape: Any, groups: int) -> Array:
    """Transposed convolution from its definition: every input element adds a scaled kernel to the result."""
    batch, c = x.shape[:2]
    per_in, per_out = c // groups, w.shape[1]
    result = np.zeros((batch, per_out * groups, *shape))
    for position in product(*(range(n) for n in x.shape[2:])):
        for place in product(*(range(k) for k in w.shape[2:])):
            target = tuple(
                i * s + r * d - p for i, s, r, d, p in zip(position, strides, place, dilations, begins, strict=True)
            )
            if not all(0 <= t < n for t, n in zip(target, shape, strict=True)):
                continue
            for g in range(groups):
                inputs = x[(slice(None), slice(g * per_in, (g + 1) * per_in), *position)].astype(np.float64)
                kernel = w[(slice(g * per_in, (g + 1) * per_in), slice(None), *place)].astype(np.float64)
                result[(slice(None), slice(g * per_out, (g + 1) * per_out), *target)] += inputs @ kernel
    return result


@pytest.mark.parametrize("case", TRANSPOSED)
@pytest.mark.parametrize("keep_nodes", [False, True])
def test_transposed_conv_is_the_adjoint(case: Any, keep_nodes: bool) -> None:
    c, k, sizes, kernel, strides, dilations, pads, extra, groups = case
    rank = len(sizes)
    x, w, bias = random(2, c, *sizes), random(c, k // groups, *kernel, seed=1), random(k, seed=2)
    sides = spread(pads, rank) if isinstance(pads, int) or len(pads) == rank else pads
    begins, ends = (sides, sides) if len(sides) == rank else (sides[:rank], sides[rank:])
    s, d, e = spread(strides, rank), spread(dilations, rank), spread(extra, rank)
    shape = [(sizes[i] - 1) * s[i] - begins[i] - ends[i] + d[i] * (kernel[i] - 1) + 1 + e[i] for i in range(rank)]
    options = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "output_padding": extra,
        "keep_nodes": keep_nodes,
    }
    got = run(lambda *t: conv.conv_transpose(*t, groups=groups, **options), x, w, bias)
    want = scatter(x, w, s, d, begins, shape, groups)
    assert_close(got, want + bias[(slice(None), *[None] * rank)], c * int(np.prod(kernel)))
    split = run(
        lambda *t: conv.conv_transpose(*t, channels="split", **options),
        x.reshape(2, groups, c // groups, *sizes),
        w.reshape(groups, c // groups, *w.shape[1:]),
        bias.reshape(groups, -1),
    )
    assert np.array_equal(split.reshape(got.shape), got)


def test_conv_and_transposed_conv_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x, w, bias = random(2, 6, 17, 13), random(4, 3, 3, 5, seed=1), random(4, seed=2)
    options = {"dilations": (1, 2), "strides": (2, 3), "pads": (1, 4), "groups": 2}
    want = torch.nn.functional.conv2d(
        *map(torch.tensor, (x, w, bias)), stride=(2, 3), padding=(1, 4), dilation=(1, 2), groups=2
    ).numpy()
    assert_close(run(lambda *t: conv.conv(*t, **options), x, w, bias), want, 45)
    y, v = random(2, 4, 5, 3), random(4, 3, 3, 5, seed=1)
    want = torch.nn.functional.conv_transpose2d(
        *map(torch.tensor, (y, v)), stride=(2, 3), padding=(1, 4), dilation=(1, 2), groups=2, output_padding=(0, 1)
    ).numpy()
    assert_close(run(lambda *t: conv.conv_transpose(*t, output_padding=(0, 1), **options), y, v), want, 45)


@pytest.mark.parametrize(("rule", "begin", "end"), [("valid", 0, 0), ("same_upper", 0, 1), ("same_lower", 1, 0)])
def test_padding_rules(rule: Any, begin: int, end: int) -> None:
    x, w = random(1, 2, 8), random(3, 2, 3, seed=1)
    got = run(lambda *t: conv.conv(*t, strides=2, pads=rule), x, w)
    assert np.array_equal(got, run(lambda *t: conv.conv(*t, strides=2, pads=(begin, end)), x, w))


def test_transposed_pads_follow_from_the_output_shape() -> None:
    x, w = random(1, 1, 3, 3), random(1, 2, 3, 3, seed=1)
    full = scatter(x, w, (3, 2), (1, 1), (0, 0), (9, 7), 1)
    options = {"strides": (3, 2)}
    got = run(lambda *t: conv.conv_transpose(*t, output_shape=(10, 8), output_padding=1, **options), x, w)
    assert_close(got, np.pad(full, [(0, 0), (0, 0), (0, 1), (0, 1)]), 9)
    got = run(lambda *t: conv.conv_transpose(*t, strides=2, pads="same_upper"), x, w)
    assert_close(got, scatter(x, w, (2, 2), (1, 1), (0, 0), (7, 7), 1)[..., :6, :6], 9)
    got = run(lambda *t: conv.conv_transpose(*t, strides=2, pads="same_lower"), x, w)
    assert_close(got, scatter(x, w, (2, 2), (1, 1), (0, 0), (7, 7), 1)[..., 1:, 1:], 9)


def nodes_of(build: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: str = "f32") -> list[str]:
    b = GraphBuilder()
    build(*[b.input(f"x{n}", shape, dtype) for n, shape in enumerate(shapes)])
    return [node.name for node in b.nodes]


def test_nodes_of_a_convolution() -> None:
    shapes = [(1, 2, 8, 8), (4, 2, 3, 3)]
    assert nodes_of(conv.conv, *shapes) == ["conv"]
    assert nodes_of(lambda *t: conv.conv(*t, pads=1, name="c"), *shapes) == ["c.pad", "c"]
    assert nodes_of(lambda *t: conv.conv(*t, keep_nodes=True, name="c"), *shapes) == ["c.pad", "c"]
    assert nodes_of(lambda *t: conv.conv(*t, pads=1, name="c"), *shapes, (4,), dtype="f16") == [
        "c.pad", "c.acc", "c.wide", "c",
    ]  # fmt: skip
    assert nodes_of(lambda *t: conv.conv_transpose(*t, strides=2), (1, 4, 8, 8), (4, 2, 3, 3)) == [
        "conv_transpose.expand", "conv_transpose.pad", "conv_transpose",
    ]  # fmt: skip


def test_quantised_conv_accumulates_in_int32_and_pads_with_the_zero_point() -> None:
    x = np.random.default_rng(0).integers(0, 255, (1, 3, 5, 5), endpoint=True).astype(np.uint8)
    w = np.random.default_rng(1).integers(-128, 127, (2, 3, 3, 3), endpoint=True).astype(np.int8)
    zero = np.array(7, np.uint8)
    got = run(lambda x, w, z: conv.conv(x, w, pads=1, pad_value=z[()]), x, w, zero)
    assert got.dtype == np.int32
    moved = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=7)
    assert np.array_equal(got, direct(moved, w, (1, 1), (1, 1), (0, 0), (0, 0), 1))


ERRORS = [
    ({}, [(1, 3, 8, 8), (4, 2, 3, 3)], "has 3 channels for each filter", "read 3 channels"),
    ({"groups": 2}, [(1, 3, 8, 8), (4, 1, 3, 3)], "2 groups do not divide 3 channels", "use 1 or 3 groups"),
    ({"groups": 3}, [(1, 3, 8, 8), (4, 1, 3, 3)], "3 groups do not divide 4 channels", "use 2 or 4 groups"),
    ({"groups": 0}, [(1, 3, 8, 8), (3, 3, 3, 3)], "0 groups", "use 1 groups"),
    ({"dilations": 2}, [(1, 3, 8, 4), (4, 3, 3, 3)], "spans 5 (3 at dilation 2) in spatial dimension 1", "pad 1 more"),
    ({}, [(1, 3, 8, 8), (4, 3, 3)], "has rank 3", "rank 4"),
    ({}, [(1, 3), (4, 3)], "has rank 2", "at least 3"),
    ({}, [(1, 3, 8), (4, 3, 3), (3,)], "bias x2: f32[3] for 4 output channels", "[4]"),
    ({"channels": "split"}, [(1, 2, 3, 8), (3, 2, 3, 3)], "has 2 groups, x1: f32[3, 2, 3, 3] has 3", "equal"),
    ({"channels": "split", "groups": 3}, [(1, 2, 3, 8), (2, 2, 3, 3)], "has 2 groups, not 3", "leave out"),
    ({}, [(1, 3, 8), (4, 3, 0)], "a kernel of extent 0", "1 or more"),
]


@pytest.mark.parametrize(("options", "shapes", "message", "advice"), ERRORS)
def test_shapes_that_do_not_fit_are_refused(options: Any, shapes: Any, message: str, advice: str) -> None:
    with pytest.raises(ExtentMismatch) as caught:
        nodes_of(lambda *t: conv.conv(*t, **options), *shapes)
    assert message in caught.value.message
    assert advice in caught.value.help
    assert caught.value.where == "conv"


ATTRIBUTES = [
    ({"strides": 0}, "strides [0, 0]", "1 or more"),
    ({"strides": (1, 2, 3)}, "strides [1, 2, 3] for 2 spatial dimensions", "give 2"),
    ({"pads": (1, 2, 3)}, "pads [1, 2, 3]", "all begins, then all ends"),
    ({"pads": "same"}, "pads is a str: 'same'", "same_upper"),
]


@pytest.mark.parametrize(("options", "message", "advice"), ATTRIBUTES)
def test_attributes_that_do_not_fit_are_refused(options: Any, message: str, advice: str) -> None:
    with pytest.raises((InvalidExpression, InvalidArgument)) as caught:
        nodes_of(lambda *t: conv.conv(*t, **options), (1, 3, 8, 8), (4, 3, 3, 3))
    assert message in caught.value.message
    assert advice in caught.value.help


def test_transposed_conv_refuses_padding_that_leaves_nothing() -> None:
    with pytest.raises(ExtentMismatch, match="extent of 0 in spatial dimension 0") as caught:
        nodes_of(lambda *t: conv.conv_transpose(*t, pads=3), (1, 1, 5), (1, 1, 2))
    assert caught.value.help == "pad 1 less"


def test_batches_of_an_extent_known_only_at_run_time() -> None:
    b = GraphBuilder()
    n = Dim("N", 1, 64)
    x = b.input("x", (n, 3, 7, 7), "f32")  # type: ignore[arg-type]
    w = b.input("w", (4, 3, 3, 3), "f32")
    y = conv.conv(x, w, pads=1)
    y = pool.max_pool(norm.layer_norm(y), (2, 2), strides=2)
    out = norm.softmax(linalg.matmul(y, b.input("v", (3, 5), "f32")))
    assert out.shape == (n, 4, 3, 5)
    arrays = [random(2, 3, 7, 7), random(4, 3, 3, 3), random(3, 5)]
    (got,) = evaluate(b.finish([out]), arrays)
    assert got.shape == (2, 4, 3, 5)
    assert np.allclose(got.sum(-1), 1, atol=1e-6)
