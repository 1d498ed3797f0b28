"""Attention against NumPy in float64 and torch, and its nodes as spec 1 counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ExtentMismatch
from tilewright.expr import Graph, GraphBuilder, Tensor
from tilewright.expr.dtypes import from_numpy
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import attention

Array = np.ndarray[Any, Any]


def graph_of(build: Callable[..., Tensor], *arrays: Array) -> Graph:
    b = GraphBuilder()
    out = build(*[b.input(f"x{n}", array.shape, from_numpy(array.dtype)) for n, array in enumerate(arrays)])
    return b.finish([out])


def run(build: Callable[..., Tensor], *arrays: Array) -> Array:
    return evaluate(graph_of(build, *arrays), list(arrays))[0]


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def attention64(q: Array, k: Array, v: Array, scale: float = 1.0, bias: Any = 0.0, cap: float = 0.0) -> Array:
    s = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64) * scale
    s = (np.tanh(s / cap) * cap if cap else s) + bias
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v.astype(np.float64)


SHAPES = [
    ((1, 1, 1, 1), (1, 1, 1, 1), 1),
    ((2, 3, 7, 5), (2, 3, 11, 5), 13),
    ((7, 4), (5, 4), 3),
    ((3, 7, 4), (3, 5, 4), 2),
]


@pytest.mark.parametrize(("query", "key", "width"), SHAPES)
def test_attention_agrees_with_numpy(query: tuple[int, ...], key: tuple[int, ...], width: int) -> None:
    q, k, v = random(*query), random(*key, seed=1), random(*key[:-1], width, seed=2)
    assert np.allclose(run(attention.attention, q, k, v), attention64(q, k, v), atol=2e-6)
    stored = [q, np.ascontiguousarray(k.swapaxes(-1, -2)), np.ascontiguousarray(v.swapaxes(-1, -2))]
    got = run(lambda *t: attention.attention(*t, keys="columns", values="columns"), *stored)
    assert np.allclose(got, attention64(q, k, v), atol=2e-6)
    got = run(lambda *t: attention.attention(*t, scale=0.25, simplified_softmax=True, softcap=2.0), q, k, v)
    assert np.allclose(got, attention64(q, k, v, 0.25, cap=2.0), atol=2e-6)


@pytest.mark.parametrize("offset", [0, 4])
def test_masks_and_causality(offset: int) -> None:
    q, k, v = random(2, 3, 7, 5), random(2, 3, 11, 5, seed=1), random(2, 3, 11, 5, seed=2)
    keep = np.random.default_rng(0).random((2, 1, 7, 11)) < 0.7
    keep[..., 0] = True
    bias = random(7, 11, seed=3)
    seen = np.arange(11) <= np.arange(7)[:, None] + offset
    for mask, added in ((keep, np.where(keep, 0, -np.inf)), (bias, bias)):
        got = run(lambda *t: attention.attention(*t, scale=0.5), q, k, v, mask)
        assert np.allclose(got, attention64(q, k, v, 0.5, added), atol=2e-6)
        got = run(lambda *t: attention.attention(*t, causal=True, causal_offset=offset), q, k, v, mask)
        assert np.allclose(got, attention64(q, k, v, 1.0, added + np.where(seen, 0, -np.inf)), atol=2e-6)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_heads_share_keys_and_values(kv_heads: int) -> None:
    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (attention.split_heads(each, kv_heads) for each in (k, v))
        return attention.merge_heads(attention.attention(attention.split_heads(q, 6), k, v, scale=0.5))

    q, k, v = random(2, 7, 6 * 4), random(2, 5, kv_heads * 4, seed=1), random(2, 5, kv_heads * 3, seed=2)
    got = run(mixed, q, k, v)
    heads = [
        array.reshape(*array.shape[:2], n, -1).swapaxes(1, 2) for array, n in ((q, 6), (k, kv_heads), (v, kv_heads))
    ]
    repeated = [heads[0], *(np.repeat(array, 6 // kv_heads, 1) for array in heads[1:])]
    want = attention64(*repeated, 0.5).swapaxes(1, 2).reshape(2, 7, 18)
    assert np.allclose(got, want, atol=2e-6)


def test_spec1_self_attention_has_7_vertices_and_8_edges() -> None:
    graph = graph_of(
        lambda *t: attention.attention(*t, keys="columns", values="columns", name="A"),
        random(1, 2, 5, 4), random(1, 2, 4, 6), random(1, 2, 4, 6),
    )  # fmt: skip
    producers = graph.producers()
    edges = {(tensor.name, node.name) for node in graph.nodes for tensor in node.inputs() if tensor.name in producers}
    assert [node.name for node in graph.nodes] == [
        "A.scores", "A.weights.max", "A.weights.sub", "A.weights.exp", "A.weights.sum", "A.weights", "A",
    ]  # fmt: skip
    assert edges == {
        ("A.scores", "A.weights.max"), ("A.scores", "A.weights.sub"), ("A.weights.max", "A.weights.sub"),
        ("A.weights.sub", "A.weights.exp"), ("A.weights.exp", "A.weights.sum"), ("A.weights.exp", "A.weights"),
        ("A.weights.sum", "A.weights"), ("A.weights", "A"),
    }  # fmt: skip


def test_half_precision_keeps_scores_wide_and_multiplies_halves() -> None:
    q, k, v = (random(2, 7, 8, seed=n, dtype=np.float16) for n in range(3))
    graph = graph_of(lambda *t: attention.attention(*t, scale=0.3, name="A"), q, k, v)
    types = {node.name: node.output.dtype for node in graph.nodes}
    assert (types["A.scores"], types["A.weights.sub"], types["A.weights"], types["A"]) == ("f32", "f32", "f16", "f16")
    (got,) = evaluate(graph, [q, k, v])
    assert np.allclose(got, attention64(q, k, v, 0.3), atol=3e-3)


def test_attention_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = random(2, 4, 7, 8), random(2, 4, 7, 8, seed=1), random(2, 4, 7, 5, seed=2)
    want = torch.nn.functional.scaled_dot_product_attention(*map(torch.tensor, (q, k, v)), is_causal=True).numpy()
    got = run(lambda *t: attention.attention(*t, scale=8**-0.5, causal=True), q, k, v)
    assert np.allclose(got, want, atol=2e-6)


ERRORS = [
    ([(2, 7, 4), (2, 5, 3), (2, 5, 4)], "has heads of 4"),
    ([(2, 7, 4), (2, 5, 4), (2, 6, 4)], "has 5 keys"),
    ([(2, 7, 4), (5, 4), (5, 4)], "has rank 2"),
    ([(6, 7, 4), (4, 5, 4), (4, 5, 4)], "has 4 in dimension 0, q has 6"),
    ([(2, 7, 4), (2, 5, 4), (2, 5, 4), (7, 4)], "does not broadcast to [2, 7, 5]"),
]


@pytest.mark.parametrize(("shapes", "message"), ERRORS)
def test_operands_that_do_not_fit_are_refused(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ExtentMismatch) as caught:
        graph_of(attention.attention, *[random(*shape) for shape in shapes])
    assert message in caught.value.message
    assert caught.value.help


def test_width_that_is_no_multiple_of_the_heads_is_refused() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 3, 10), "f32")
    with pytest.raises(ExtentMismatch, match=r"10 columns of x.* for 4 heads"):
        attention.split_heads(x, 4)
