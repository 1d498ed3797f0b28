"""The two reference graphs of spec 1, section 1.5, built from raw computes and compared with plain NumPy."""

import numpy as np
import pytest

from tests.random_graphs import random_inputs
from tilewright.expr import Axis, Compute, Expr, Graph, Tensor, apply, select
from tilewright.expr.evaluate import evaluate
from tilewright.expr.infer import check_bounds
from tilewright.expr.text import parse_graph, print_graph


def loops(names: str, *extents: int) -> tuple[Axis, ...]:
    return tuple(Axis(name, extent) for name, extent in zip(names, extents, strict=True))


def node(
    name: str, axes: tuple[Axis, ...], body: Expr, reduce: tuple[Axis, ...] = (), accum: str | None = None
) -> Compute:
    return Compute(Tensor(name, tuple(axis.extent for axis in axes), body.dtype), axes, body, reduce, accum)


def edges(graph: Graph) -> set[tuple[str, str]]:
    producers = graph.producers()
    return {(t.name, n.name) for n in graph.nodes for t in n.inputs() if t.name in producers}


def convolution_layer(n: int, c: int, k: int, h: int, w: int, r: int, s: int) -> Graph:
    image, weight = Tensor("Img", (n, c, h, w), "f32"), Tensor("Weight", (k, c, r, s), "f32")
    mean, deviation = Tensor("Mean", (k,), "f32"), Tensor("Std", (k,), "f32")
    a, b, p, q = axes = loops("ncpq", n, c, h + r - 1, w + s - 1)
    y, x = p - r // 2, q - s // 2
    inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
    padded = node("Padded", axes, select(inside, image[a, b, y, x], 0.0))
    a, o, p, q = axes = loops("nkpq", n, k, h, w)
    b, i, j = reduced = loops("crs", c, r, s)
    conv = node("Conv", axes, padded.output[a, b, p + i, q + j] * weight[o, b, i, j], reduced, "sum")
    norm = node("BN", axes, (conv.output[a, o, p, q] - mean[o]) / deviation[o])
    value = norm.output[a, o, p, q]
    relu = node("ReLU", axes, select(value >= 0.0, value, 0.0))
    return Graph((image, weight, mean, deviation), (relu.output,), (padded, conv, norm, relu), name="layer")


def self_attention(b: int, h: int, n: int, d: int) -> Graph:
    query, key = Tensor("Q", (b, h, n, d), "f32"), Tensor("K", (b, h, d, n), "f32")
    value = Tensor("V", (b, h, d, n), "f32")
    x, y, i, l = rows = loops("bhil", b, h, n, n)
    (k,) = reduced = loops("k", d)
    score = node("S", rows, query[x, y, i, k] * key[x, y, k, l], reduced, "sum")
    high = node("Max", rows[:3], score.output[rows], (l,), "max")
    shifted = node("Sub", rows, score.output[rows] - high.output[x, y, i])
    exponential = node("Exp", rows, apply("exp", shifted.output[rows]))
    total = node("Sum", rows[:3], exponential.output[rows], (l,), "sum")
    share = node("Div", rows, exponential.output[rows] / total.output[x, y, i])
    x, y, i, j = axes = loops("bhij", b, h, n, d)
    result = node("A", axes, share.output[x, y, i, l] * value[x, y, j, l], (l,), "sum")
    nodes = (score, high, shifted, exponential, total, share, result)
    return Graph((query, key, value), (result.output,), nodes, name="attention")


@pytest.mark.parametrize("kernel", [(3, 3), (1, 5), (7, 3)])
def test_spec1_g02_convolution_layer(kernel: tuple[int, int]) -> None:
    r, s = kernel
    graph = convolution_layer(2, 3, 5, 8, 7, r, s)
    assert edges(graph) == {("Padded", "Conv"), ("Conv", "BN"), ("BN", "ReLU")}
    check_bounds(graph)
    inputs = random_inputs(graph)
    inputs["Std"] = np.abs(inputs["Std"]) + 1
    image, weight, mean, deviation = (array.astype(np.float64) for array in inputs.values())
    padded = np.pad(image, ((0, 0), (0, 0), (r // 2, r // 2), (s // 2, s // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (r, s), axis=(2, 3))
    conv = np.einsum("nchwrs,kcrs->nkhw", windows, weight)
    expected = np.maximum((conv - mean[:, None, None]) / deviation[:, None, None], 0)
    # Rounded once per node to float32: four roundings of values of the size of the sum.
    bound = 4 * 2.0**-24 * (np.einsum("nchwrs,kcrs->nkhw", abs(windows), abs(weight)) + 10)
    assert (np.abs(evaluate(graph, inputs)[0] - expected) <= bound).all()


def test_spec1_g02_self_attention() -> None:
    graph = self_attention(2, 3, 16, 8)
    assert len(graph.nodes) == 7
    assert edges(graph) == {
        ("S", "Max"), ("S", "Sub"), ("Max", "Sub"), ("Sub", "Exp"), ("Exp", "Sum"), ("Exp", "Div"), ("Sum", "Div"),
        ("Div", "A"),
    }  # fmt: skip
    assert [node.name for node in graph.consumers()["S"]] == ["Max", "Sub"]
    check_bounds(graph)
    inputs = random_inputs(graph, 3)
    query, key, value = (array.astype(np.float64) for array in inputs.values())
    score = query @ key
    weights = np.exp(score - score.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ value.swapaxes(-1, -2)
    found = evaluate(graph, inputs)[0]
    # The score's rounding error (2^-24 of at most 20) is the largest; it enters through exp.
    assert np.abs(found - expected).max() <= 40 * 2.0**-24 * np.abs(value).max()
    precise = evaluate(graph, inputs, precise=True, wide=True)[0]
    np.testing.assert_allclose(precise, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("graph", [convolution_layer(1, 2, 2, 4, 4, 3, 3), self_attention(1, 2, 4, 3)])
def test_reference_graphs_survive_the_text_form(graph: Graph) -> None:
    assert parse_graph(print_graph(graph)) == graph
