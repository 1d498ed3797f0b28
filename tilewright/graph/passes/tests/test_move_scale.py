"""Computed factors of what a product reads move to its smaller operand."""

from textwrap import dedent

import numpy as np
import pytest

from tilewright.expr.evaluate import evaluate
from tilewright.expr.text import parse_graph
from tilewright.graph.passes.table import run_pass
from tilewright.graph.passes.tests.test_rewrites import array, is_product, lines, run, unchanged

GATED = """
    graph g
    input x: {dtype}[1, 5, 6, 7]
    input g: {dtype}[1, 5]
    input r: {dtype}[1, 5, 6, 7]
    const w: {dtype}[8, 5]
    m: {dtype}[n:1, c:5, i:6, j:7] = {body}
    p: {dtype}[n:1, k:8, i:6, j:7] += m[n, c, i, j] * w[k, c] over c:5
    output p
    """
GATED_CONSTANTS = {"w": array(8, 5, seed=1)}


def gated(body: str, dtype: str = "f32") -> str:
    return GATED.format(body=body, dtype=dtype)


@pytest.mark.parametrize("body", ["x[n, c, i, j] * sigmoid(g[n, c])", "sigmoid(g[n, c]) * x[n, c, i, j]"])
def test_move_scale(body: str) -> None:
    state = run("move-scale", gated(body), GATED_CONSTANTS)
    assert lines(state) == [
        "w.m: f32[d0:8, d1:5] = w[d0, d1] * sigmoid(g[0, d1])",
        "p: f32[n:1, k:8, i:6, j:7] += x[n, c, i, j] * w.m[k, c] over c:5",
    ]
    (decision,) = state.decisions
    assert decision.explain() == "factors of m: moved to w, because that has 40 elements, m 210"


@pytest.mark.parametrize(
    "body",
    [
        "x[n, c, i, j] * sigmoid(g[n, c])",
        "x[n, c, i, 6 - j] * g[n, 4 - c]",
        "x[n, c, i, j] * (g[n, c] - w[3, c])",
    ],
)
def test_move_scale_keeps_the_results(body: str) -> None:
    before = parse_graph(dedent(gated(body)), GATED_CONSTANTS)
    after = run_pass(before, "move-scale", is_product).graph
    assert "m" not in after.tensors()
    inputs = [array(1, 5, 6, 7, seed=2), array(1, 5, seed=3), array(1, 5, 6, 7, seed=4)]
    (expected,) = evaluate(before, inputs, precise=True, wide=True)
    (found,) = evaluate(after, inputs, precise=True, wide=True)
    assert abs(found - expected).max() <= 2.0**-23 * 5 * 64  # both round once; 5 products of three numbers below 4


@pytest.mark.parametrize(
    "body",
    [
        "x[n, c, i, j] * r[n, c, i, j]",  # along loops that w does not have
        "x[n, c, i, j] + g[n, c]",
        "x[n, c, i, j] * 0.25",  # not computed
        "x[n, c, i, j] * w[3, c]",
        "sigmoid(x[n, c, i, j]) * g[n, c]",  # not an element
    ],
)
def test_move_scale_leaves(body: str) -> None:
    assert unchanged("move-scale", gated(body), GATED_CONSTANTS)


def test_move_scale_leaves_f16() -> None:
    constants = {name: value.astype(np.float16) for name, value in GATED_CONSTANTS.items()}
    assert unchanged("move-scale", gated("x[n, c, i, j] * g[n, c]", "f16"), constants)


def test_move_scale_leaves_operands_of_as_many_elements() -> None:
    text = gated("x[n, c, i, j] * g[n, c]").replace("i:6", "i:2").replace("5, 6, 7]", "5, 2, 7]")
    assert unchanged("move-scale", text, GATED_CONSTANTS)


def test_move_scale_leaves_what_others_read() -> None:
    text = gated("x[n, c, i, j] * g[n, c]")
    assert unchanged("move-scale", text.replace("output p", "output p\n    output m"), GATED_CONSTANTS)
    other = "z: f32[c:5] += m[0, c, i, j] over i:6, j:7\n    output z\n    output p"
    assert unchanged("move-scale", text.replace("output p", other), GATED_CONSTANTS)


def test_move_scale_leaves_factors_of_a_result_that_nothing_else_reads() -> None:
    first = "y: f32[n:1, c:5, i:6, j:7] += r[n, d, i, j] * v[c, d] over d:5\n    m: f32"
    text = (
        gated("y[n, c, i, j] * g[n, c]").replace("m: f32", first).replace("const w", "const v: f32[5, 5]\n    const w")
    )
    constants = {**GATED_CONSTANTS, "v": array(5, 5, seed=5)}
    assert unchanged("move-scale", text, constants)
    read_twice = text.replace("output p", "z: f32[c:5] += y[0, c, i, j] over i:6, j:7\n    output z\n    output p")
    assert not unchanged("move-scale", read_twice, constants)
