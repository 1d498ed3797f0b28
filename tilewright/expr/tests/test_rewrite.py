import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tests.random_graphs import graphs, random_inputs
from tilewright.expr import Axis, Compute, Const, Expr, Graph, Read, Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.rewrite import inline, substitute, transform, with_floats
from tilewright.expr.text import parse_graph


@settings(max_examples=tries(25, full=100), deadline=None)
@given(graphs(nodes=5, points=1000), st.integers(0, 99))
def test_inlining_keeps_the_results(graph: Graph, seed: int) -> None:
    inputs = random_inputs(graph, seed)
    # float64 throughout, so that rounding between nodes does not matter
    expected = evaluate(graph, inputs, precise=True, wide=True)
    outputs = {tensor.name for tensor in graph.outputs}
    nodes = list(graph.nodes)
    for name in [node.name for node in graph.nodes]:
        producer = next(node for node in nodes if node.name == name)  # with what was inlined into it
        if producer.accum is None and producer.name not in outputs and sum(map(len_body, nodes)) < 500:
            nodes = [
                inline(n, producer) if producer.output in n.inputs() else n for n in nodes if n.name != producer.name
            ]
    found = evaluate(Graph(graph.inputs, graph.outputs, tuple(nodes), graph.constants), inputs, precise=True, wide=True)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-9, atol=1e-9)


def len_body(compute: Compute) -> int:
    return len(str(compute.body)) // 40


def test_inline_refuses_a_reduction() -> None:
    x, i, k = Tensor("x", (3, 4), "f32"), Axis("i", 3), Axis("k", 4)
    total = Compute(Tensor("y", (3,), "f32"), (i,), x[i, k], (k,), "sum")
    user = Compute(Tensor("z", (3,), "f32"), (i,), total.output[i] * 2.0)
    with pytest.raises(AssertionError):
        inline(user, total)


def test_substitution_is_simultaneous() -> None:
    i, j = Axis("i", 4), Axis("j", 4)
    x = Tensor("x", (4, 4), "f32")
    assert substitute(x[i, j], {i: j, j: i}) == x[j, i]


def test_inlined_loops_of_one_name_do_not_mix() -> None:
    i, j = Axis("i", 4), Axis("j", 4)
    x = Tensor("x", (4, 4), "f32")
    producer = Compute(Tensor("y", (4, 4), "f32"), (i, j), x[j, i])
    consumer = Compute(Tensor("z", (4, 4), "f32"), (i, j), producer.output[j, i] + 1.0)
    assert inline(consumer, producer).body == x[i, j] + 1.0


def test_transform_rebuilds_only_what_changes() -> None:
    i = Axis("i", 4)
    x, y = Tensor("x", (4,), "f32"), Tensor("y", (4,), "f32")
    expr = (x[i] * 2.0) + y[i]

    def rename(node: Expr) -> Expr | None:
        return Read(x, node.indices) if isinstance(node, Read) and node.tensor == y else None

    found = transform(expr, rename)
    assert found == (x[i] * 2.0) + x[i]
    assert found.children()[0] is expr.children()[0]
    assert transform(expr, lambda node: None) is expr
    assert transform(Const(1, "i64"), lambda node: i if isinstance(node, Const) else None) == i


def test_with_floats_changes_floats_and_nothing_else() -> None:
    (node,) = parse_graph("""
        input x: f32[8]
        input n: i32[8]
        y: f32[i:8] = n[i] >= 3 ? max(x[i] * 1.5, 0.0) + f32(n[i]) : x[i]
        output y
    """).nodes
    found = with_floats(node, "f16")
    assert found.output.dtype == "f16"
    assert [(tensor.name, tensor.dtype) for tensor in found.inputs()] == [("n", "i32"), ("x", "f16")]
    assert with_floats(found, "f32") == node
    assert with_floats(node, "f32") == node
