"""Products of one factor run as one: what is alike, what the readers read, and which constants are kept."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.expr.core import Compute, Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, shape
from tilewright.expr.text import parse_graph, print_graph
from tilewright.graph.passes.combine_products import CombineProducts
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.layouts import row_major

RNG = np.random.default_rng(0)


def constant(*extents: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(-1, 1, extents).astype(np.float32)


def per_launch(node: Compute) -> float:
    """As if a kernel took as long as its launch."""
    return 1.0


def combined(graph: Graph, cycles: Any = per_launch) -> Rewritten:
    return CombineProducts(cycles).apply(Rewritten(graph))


def names(state: Rewritten) -> list[str]:
    return [node.name for node in state.graph.nodes]


def same(before: Graph, after: Graph) -> None:
    inputs = [constant(*map(int, map(str, tensor.shape))) for tensor in before.inputs]
    pairs = zip(evaluate(before, inputs, wide=True), evaluate(after, inputs, wide=True), strict=True)
    for expected, found in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


ATTENTION = """\
    graph g
    input x: f32[5, 7]
    const wq: f32[6, 7]
    const bq: f32[6]
    const wk: f32[3, 7]
    const bk: f32[3]
    q.acc: f32[i:5, n:6] += x[i, k] * wq[n, k] over k:7
    q: f32[i:5, n:6] = q.acc[i, n] + bq[n]
    k.acc: f32[a:5, b:3] += x[a, c] * wk[b, c] over c:7
    k: f32[a:5, b:3] = k.acc[a, b] + bk[b]
    y: f32[i:5, j:5] += q[i, r * 2 + 1] * k[j, r] over r:3
    output y
    """


def graph_of(text: str, **changed: np.ndarray[Any, Any]) -> Graph:
    arrays = {"wq": constant(6, 7), "bq": constant(6), "wk": constant(3, 7), "bk": constant(3), **changed}
    text = dedent(text)
    return parse_graph(text, {name: array for name, array in arrays.items() if f"const {name}:" in text})


def test_products_and_their_biases_become_one() -> None:
    before = graph_of(ATTENTION)
    state = combined(before)
    assert names(state) == ["q.acc.combined", "q.combined", "y"]
    text = print_graph(state.graph)
    assert "q.acc.combined: f32[i:5, n:9] += x[i, k] * wq.combined[n, k] over k:7" in text
    assert "y: f32[i:5, j:5] += q.combined[i, r * 2 + 1] * q.combined[j, r + 6] over r:3" in text
    assert sorted(state.graph.constants) == ["bq.combined", "wq.combined"]
    (decision,) = state.decisions
    assert decision.subject == "products of q.acc, k.acc"
    assert decision.cost is not None
    assert (decision.chosen, decision.cost.cycles) == ("one product", 1.0)
    same(before, state.graph)


def test_constants_are_found_in_those_that_hold_them() -> None:
    before = graph_of(ATTENTION)
    state = combined(before)
    for name, array in before.constants.items():
        part = state.parts[name]
        whole = state.graph.constants[part.whole]
        window = tuple(slice(low, extent - high) for extent, (low, high) in zip(whole.shape, part.widths, strict=True))
        np.testing.assert_array_equal(whole[window], array)


def test_products_stay_apart_where_one_is_not_predicted_to_be_faster() -> None:
    before = graph_of(ATTENTION)
    state = combined(before, lambda node: float(node.output.size))
    assert state.graph == before
    (decision,) = state.decisions
    assert decision.chosen == "a kernel each"
    assert decision.runner_up == "one product"
    assert not combined(before, lambda node: None).decisions


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("x[a, c] * wk[b, c]", "x[4 - a, c] * wk[b, c]"),  # other points
        ("output y", "output y\n    output k"),
        ("output y", "output y\n    output k.acc"),
        ("k: f32[a:5, b:3] = k.acc[a, b] + bk[b]", "k: f32[a:5, b:3] = k.acc[a, b] * bk[b]"),
        ("k: f32[a:5, b:3] = k.acc[a, b] + bk[b]", "k: f32[a:5, b:3] = k.acc[a, 2 - b] + bk[b]"),
        ("k: f32[a:5, b:3] = k.acc[a, b] + bk[b]", "k: f32[a:5, b:3] = k.acc[a, b] + q.acc[a, b]"),
        ("x[a, c] * wk[b, c] over c:7", "x[a, c] * wk[b, c + 1] over c:6"),
    ],
)  # fmt: skip
def test_products_that_are_not_alike_stay_apart(line: str, other: str) -> None:
    assert line in ATTENTION
    before = graph_of(ATTENTION.replace(line, other))
    assert combined(before).graph.nodes == before.nodes


def test_a_constant_that_something_else_reads_stays() -> None:
    before = graph_of(ATTENTION.replace("output y", "z: f32[n:6] = bq[n] * 2.0\n    output y\n    output z"))
    state = combined(before)
    assert sorted(state.graph.constants) == ["bq", "bq.combined", "wq.combined"]
    same(before, state.graph)


def test_a_product_of_which_a_product_is_made_is_combined_too() -> None:
    """The second layer reads one result of the first at other columns than before."""
    b = GraphBuilder("g")
    x = b.input("x", (3, 4), "f32")

    def layer(source: Tensor, number: int, width: int) -> Tensor:
        weight = b.constant(constant(int(str(source.shape[1])), width), f"w{number}")
        return elementwise.relu(linalg.matmul(source, weight))

    first, second = layer(x, 0, 5), layer(x, 1, 7)
    heads = [layer(second, 2, 2), layer(second, 3, 3), layer(first, 4, 3)]
    products = [
        linalg.matmul(head, b.constant(constant(int(str(head.shape[1])), 2), f"v{n}")) for n, head in enumerate(heads)
    ]
    before = b.finish(products)
    state = combined(before)
    assert len(state.decisions) == 2
    same(before, state.graph)


WIDTHS = st.sampled_from([1, 2, 3, 7, 17])


@st.composite
def branches(draw: st.DrawFn) -> Graph:
    """Branches from one image or matrix, with or without bias and activation, put together in the end."""
    b = GraphBuilder("g")
    image, channels = draw(st.booleans()), draw(WIDTHS)
    x = b.input("x", (2, channels, draw(WIDTHS), 3) if image else (draw(WIDTHS), channels), "f32")
    bias, relu = draw(st.booleans()), draw(st.sampled_from([0, 1, 2]))
    results = []
    for number in range(draw(st.integers(2, 4))):
        filters = draw(WIDTHS)
        if image:
            w = b.constant(constant(filters, channels, 1, 1), f"w{number}")
            y = conv.conv(x, w, b.constant(constant(filters), f"b{number}") if bias else None)
            v = b.constant(constant(2, filters, 3, 1), f"v{number}")
        else:
            y = linalg.matmul(x, b.constant(constant(channels, filters), f"w{number}"))
            v = b.constant(constant(filters, 2), f"v{number}")
            y = elementwise.binary(y, b.constant(constant(filters), f"b{number}"), "add") if bias else y
        if relu == 1 or (relu == 2 and number % 2):
            y = elementwise.relu(y)
        results.append(conv.conv(y, v, pads=(1, 0)) if image else linalg.matmul(y, v))
    return b.finish([shape.concat(results, axis=1)])


@settings(max_examples=tries(20, 400), deadline=None)
@given(branches())
def test_random_branches_keep_their_results(graph: Graph) -> None:
    state = combined(graph)
    assert len(state.graph.nodes) <= len(graph.nodes)
    same(graph, state.graph)
    for name, part in state.parts.items():
        held = row_major(graph.constants[name].shape)
        assert [e + a + c for e, (a, c) in zip(held.shape, part.widths, strict=True)] == list(
            state.graph.constants[part.whole].shape
        )
