"""Merged results that products take apart again: what is between is split, bit for bit the same."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.attention import attention
from tilewright.expr.text import parse_graph
from tilewright.graph.passes.carry_splits import CarrySplits
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.split_channels import SplitChannels
from tilewright.instruction.products import product_factors


def shared_heads(queries: int, keys: int, output: bool = False) -> Graph:
    """Attention of which heads of keys are shared; with `output` the weights are one too."""
    builder = GraphBuilder("shared")
    q = builder.input("q", (2, queries, 5, 4), "f32")
    k, v = (builder.input(name, (2, keys, 7, 4), "f32") for name in "kv")
    result = attention(q, k, v, scale=0.5)
    graph = builder.finish([result])
    if not output:
        return graph
    (weights,) = (node.output for node in graph.nodes if node.name == "attention.weights")
    return Graph(graph.inputs, (*graph.outputs, weights), graph.nodes, graph.constants, graph.name, graph.loops)


def passed(graph: Graph) -> tuple[Graph, Graph]:
    """The graph with split channels, and with these carried on."""
    split = SplitChannels().apply(Rewritten(graph))
    return split.graph, CarrySplits(lambda node: product_factors(node) is not None).apply(split).graph


@pytest.mark.parametrize(("queries", "keys"), [(4, 2), (6, 2), (4, 1), (9, 3)])
def test_a_softmax_between_is_split(queries: int, keys: int) -> None:
    before, after = passed(shared_heads(queries, keys))
    merges = [node.name for node in before.nodes if node.name not in {each.name for each in after.nodes}]
    assert ("attention.masked" in merges) is (keys > 1)
    random = np.random.default_rng(0)
    given = [random.standard_normal(tuple(map(int, each.shape))).astype(np.float32) for each in before.inputs]
    for one, other in zip(evaluate(before, given), evaluate(after, given), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_output_between_stays_whole() -> None:
    before, after = passed(shared_heads(4, 2, output=True))
    assert after == before


@pytest.mark.parametrize(
    "last",
    [
        "y: f32[i:5] += m[h, i] over h:4",  # sums over what is merged
        "y: f32[h:4, i:5] = m[h, i] * 2.0",  # ends in no product
        "y: f32[h:4, j:3] += m[h, i] * B[i, j] over i:5",  # a product over the merged loop
        "y: f32[u:1, x:20] = m[x // 5, x % 5]",  # a view with a dimension of extent 1
    ],
)
def test_what_stays_merged(last: str) -> None:
    graph = parse_graph(f"""
        graph merged
        input A: f32[4, 6]
        input K: f32[2, 6, 5]
        input B: f32[5, 3]
        m: f32[h:4, i:5] += A[h, c] * K[h // 2, c, i] over c:6
        {last}
        output y""")
    before, after = passed(graph)
    assert after == before
