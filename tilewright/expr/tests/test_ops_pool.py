"""Pooling against direct loops over windows and against torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np
import pytest

from tilewright.errors import InvalidExpression
from tilewright.expr import GraphBuilder
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import pool

Array = np.ndarray[Any, Any]


def run(build: Callable[..., Any], *arrays: Array) -> Any:
    b = GraphBuilder()
    out = build(*[b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)])
    several = isinstance(out, tuple)
    values = evaluate(b.finish(list(out) if several else [out]), list(arrays))
    for tensor, value in zip(out if several else [out], values, strict=True):
        assert value.shape == tensor.shape
    return values if several else values[0]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def windows(sizes: Any, kernel: Any, strides: Any, dilations: Any, begins: Any, ends: Any, ceil_mode: bool) -> Any:
    """For each output position the input positions of its window, padding included."""
    counts = []
    for n, k, s, d, p, e in zip(sizes, kernel, strides, dilations, begins, ends, strict=True):
        room = (n + p + e - d * (k - 1) - 1) / s
        count = (ceil(room) if ceil_mode else floor(room)) + 1
        counts.append(count - 1 if ceil_mode and (count - 1) * s >= n + p else count)
    for output in product(*map(range, counts)):
        places = [
            [o * s + r * d - p for r in range(k)]
            for o, s, d, p, k in zip(output, strides, dilations, begins, kernel, strict=True)
        ]
        yield output, list(product(*places))


def direct(x: Array, options: Any, fold: Callable[[Array, int, int], Any]) -> Array:
    """`fold(elements, elements and padding, …)` of every window of every plane; the windows' elements in float64."""
    kernel = options["kernel"]
    rank = len(kernel)
    lead = x.ndim - rank
    spread = [
        value if isinstance(value, tuple) else (value,) * rank
        for value in (options.get("strides", 1), options.get("dilations", 1), options.get("pads", 0))
    ]
    strides, dilations, pads = spread
    begins, ends = (pads, pads) if len(pads) == rank else (pads[:rank], pads[rank:])
    sizes = x.shape[lead:]
    found = dict(windows(sizes, kernel, strides, dilations, begins, ends, options.get("ceil_mode", False)))
    shape = np.max(list(found), axis=0) + 1
    result = np.zeros((*x.shape[:lead], *shape))
    for output, places in found.items():
        inside = [p for p in places if all(0 <= i < n for i, n in zip(p, sizes, strict=True))]
        padded = [p for p in places if all(-b <= i < n + e for i, n, b, e in zip(p, sizes, begins, ends, strict=True))]
        for outer in product(*map(range, x.shape[:lead])):
            elements = np.array([x[(*outer, *p)] for p in inside], np.float64)
            result[(*outer, *output)] = fold(elements, len(inside), len(padded))
    return result


CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 1), {"kernel": (1,)}),
    ((2, 3, 17), {"kernel": (3,), "strides": 2, "pads": 1}),
    ((2, 3, 7, 11), {"kernel": (3, 2), "strides": (2, 3), "pads": (1, 0, 0, 1)}),
    ((1, 2, 7, 7), {"kernel": (3, 3), "strides": 2, "ceil_mode": True}),
    ((1, 2, 8, 6), {"kernel": (3, 3), "strides": 3, "pads": 1, "ceil_mode": True}),
    ((1, 2, 5, 5), {"kernel": (2, 2), "strides": 3, "ceil_mode": True, "pads": (0, 0, 1, 1)}),
    ((1, 1, 13, 9), {"kernel": (3, 2), "dilations": (2, 3)}),
    ((2, 5, 3, 4), {"kernel": (2, 3, 2), "pads": (1, 1, 0)}),
    ((3, 1, 4, 4, 4), {"kernel": (2, 2, 2), "strides": 2}),
    ((4, 7), {"kernel": (3,), "pads": "same_upper", "strides": 2}),
]


def explicit(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "pads": (1, 1)} if options.get("pads") == "same_upper" else options


@pytest.mark.parametrize(("shape", "options"), CASES)
def test_max_pool(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x = random(*shape)
    want = direct(x, explicit(options), lambda elements, *_: elements.max(initial=-np.inf))
    assert np.array_equal(run(lambda t: pool.max_pool(t, **options), x), want)


@pytest.mark.parametrize(("shape", "options"), CASES)
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_average_pool(shape: tuple[int, ...], options: dict[str, Any], count_include_pad: bool) -> None:
    x = random(*shape)
    want = direct(
        x, explicit(options), lambda elements, n, m: elements.sum() / (max(m, 1) if count_include_pad else max(n, 1))
    )
    got = run(lambda t: pool.average_pool(t, count_include_pad=count_include_pad, **options), x)
    assert got.shape == want.shape
    assert np.allclose(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    x = random(2, 3, 7, 7)
    options = {"kernel": (3, 3), "strides": 2, "pads": 1}
    want = direct(x, options, lambda elements, *_: (abs(elements) ** p).sum() ** (1 / p))
    assert np.allclose(run(lambda t: pool.lp_pool(t, p=p, **options), x), want, rtol=1e-5)


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("per_plane", [False, True])
def test_max_pool_indices(column_major: bool, per_plane: bool) -> None:
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 7, 5)).astype(np.float32)  # many equal maxima
    options = {"kernel": (3, 3), "strides": 2, "pads": 1}
    values, indices = run(
        lambda t: pool.max_pool_indices(t, column_major=column_major, per_plane=per_plane, **options), x
    )
    assert indices.dtype == np.int64
    for (n, c, i, j), found in np.ndenumerate(indices):
        plane, place = (n * 3 + c, found) if per_plane else divmod(found, 35)
        assert plane == n * 3 + c
        h, w = divmod(place, 5) if not column_major else divmod(place, 7)[::-1]
        assert x[n, c, h, w] == values[n, c, i, j]
        earlier = [
            (r, s)
            for r in range(i * 2 - 1, i * 2 + 2)
            for s in range(j * 2 - 1, j * 2 + 2)
            if 0 <= r < 7 and 0 <= s < 5
        ]
        assert (h, w) in earlier
        ranks = [(s * 7 + r if column_major else r * 5 + s) for r, s in earlier if x[n, c, r, s] == values[n, c, i, j]]
        assert place == min(ranks)


def test_max_pool_indices_of_minus_infinity_and_nan() -> None:
    x = np.full((1, 1, 4), -np.inf, np.float32)
    x[0, 0, 3] = np.nan
    values, indices = run(lambda t: pool.max_pool_indices(t, (2,), strides=2, pads=0), x)
    assert indices.tolist() == [[[0, -1]]]
    assert np.isneginf(values[0, 0, 0])
    assert np.isnan(values[0, 0, 1])


def test_max_pool_of_integers() -> None:
    x = np.random.default_rng(0).integers(-128, 0, (1, 2, 5, 5)).astype(np.int8)  # padding with 0 would win
    want = direct(x, {"kernel": (3, 3), "pads": 1}, lambda elements, *_: elements.max())
    assert np.array_equal(run(lambda t: pool.max_pool(t, (3, 3), pads=1), x), want)


def test_global_pools() -> None:
    x = random(2, 3, 5, 7)
    assert np.allclose(run(pool.global_average_pool, x), x.mean((2, 3), keepdims=True), atol=1e-6)
    assert np.array_equal(run(pool.global_max_pool, x), x.max((2, 3), keepdims=True))
    want = np.sqrt((x.astype(np.float64) ** 2).sum((2, 3), keepdims=True))
    assert np.allclose(run(pool.global_lp_pool, x), want, rtol=1e-6)


@pytest.mark.parametrize("outputs", [(1, 1), (5, 7), (3, 4), (5, 2), (7, 9)])
def test_adaptive_pools(outputs: tuple[int, int]) -> None:
    x = random(2, 3, 5, 7)
    want = np.zeros((2, 2, 3, *outputs))
    for i, j in product(*map(range, outputs)):
        rows = slice(i * 5 // outputs[0], -(-(i + 1) * 5 // outputs[0]))
        columns = slice(j * 7 // outputs[1], -(-(j + 1) * 7 // outputs[1]))
        part = x[:, :, rows, columns].astype(np.float64)
        want[0, :, :, i, j], want[1, :, :, i, j] = part.mean((2, 3)), part.max((2, 3))
    average = run(lambda t: pool.adaptive_average_pool(t, outputs), x)
    assert np.allclose(average, want[0], rtol=0, atol=1e-6)
    assert np.array_equal(run(lambda t: pool.adaptive_max_pool(t, outputs), x), want[1])


def test_pools_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    x = random(2, 3, 14, 17)
    t = torch.tensor(x)
    options = {"strides": 3, "pads": 1, "ceil_mode": True}
    values, indices = run(lambda a: pool.max_pool_indices(a, (3, 3), per_plane=True, dilations=2, **options), x)
    want, places = f.max_pool2d(t, 3, 3, 1, 2, ceil_mode=True, return_indices=True)
    assert np.array_equal(values, want.numpy())
    assert np.array_equal(indices, places.numpy())
    for include in (False, True):
        want = f.avg_pool2d(t, 3, 3, 1, ceil_mode=True, count_include_pad=include).numpy()
        got = run(lambda a, i=include: pool.average_pool(a, (3, 3), count_include_pad=i, **options), x)
        assert np.allclose(got, want, rtol=0, atol=1e-6)


def test_nodes_of_a_pool() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 3, 8, 8), "f16")
    pool.max_pool(x, (2, 2), strides=2, name="m")
    pool.average_pool(x, (2, 2), pads=1, name="a")
    assert [(node.name, node.output.dtype) for node in b.nodes] == [
        ("m", "f16"), ("a.pad", "f16"), ("a.sum", "f32"), ("a", "f16"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "options", "message", "advice"),
    [
        ((1, 3, 4), {"kernel": (5,)}, "spans 5 (5 at dilation 1) in spatial dimension 0", "pad 1 more"),
        ((4,), {"kernel": (2, 2)}, "has rank 1", "2 kernel extents"),
        ((1, 3, 4), {"kernel": (2,), "strides": 0}, "strides [0]", "1 or more"),
    ],
)
def test_windows_that_do_not_fit_are_refused(shape: Any, options: Any, message: str, advice: str) -> None:
    b = GraphBuilder()
    with pytest.raises(InvalidExpression) as caught:
        pool.max_pool(b.input("x", shape, "f32"), **options)
    assert message in caught.value.message
    assert advice in caught.value.help
