"""Padded convolutions without products with padding: the same values, from fewer products.

Tensors hold small integers, so that sums are exact in any order.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import compile_graph
from tilewright.errors import CompileError
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.conv import conv, conv_transpose, depthwise_conv
from tilewright.expr.ops.elementwise import relu
from tilewright.expr.text import parse_graph, print_graph
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.split_taps import CutCost, SplitTaps
from tilewright.options import Options

ALWAYS = SplitTaps(CutCost(element=0, kernel=0, rows=0))


def whole_numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def padded(x: tuple[int, ...], w: tuple[int, ...], constant: bool = True, **attributes: Any) -> Graph:
    """Input x [b, C, …], weights w [K, C/groups, kernel…], a bias and a rectifier behind it."""
    b = GraphBuilder()
    image = b.input("x", x, "f32")
    weights = b.constant(whole_numbers(*w), "w") if constant else b.input("w", w, "f32")
    bias = b.constant(whole_numbers(w[0], seed=1), "bias")
    return b.finish([relu(conv(image, weights, bias, **attributes))])


def products(graph: Graph) -> int:
    return sum(int(np.prod([axis.size for axis in node.loops])) for node in graph.nodes if node.accum)


def inputs_of(graph: Graph) -> list[np.ndarray[Any, Any]]:
    return [whole_numbers(*tensor.shape, seed=2 + n) for n, tensor in enumerate(graph.inputs)]  # type: ignore[arg-type]


def same_values(graph: Graph, after: Graph) -> None:
    for one, other in zip(evaluate(graph, inputs_of(graph)), evaluate(after, inputs_of(graph)), strict=True):
        np.testing.assert_array_equal(one, other)


def lines(graph: Graph) -> list[str]:
    kinds = ("graph", "input", "const", "output")
    return [line for line in print_graph(graph).splitlines() if line and not line.startswith(kinds)]


DILATED = """graph g
input x: f32[2, 14]
const w: f32[8, 2, 3]
P: f32[c:2, i:38] = i >= 12 and i < 26 ? x[c, i - 12] : 0.0
y: f32[k:8, o:14] += P[c, o + r * 12] * w[k, c, r] over c:2, r:3
output y
"""


def test_a_product_for_each_tap_over_the_places_at_which_it_meets_elements() -> None:
    state = ALWAYS.apply(Rewritten(parse_graph(DILATED, {"w": whole_numbers(8, 2, 3)})))
    assert lines(state.graph) == [
        "w.taps: f32[i0:8, i1:2, i2:1] = w[i0, i1, i2]",
        "y.taps0: f32[k:8, o:2] += x[c, o] * w.taps[k, c, 0] over c:2",
        "w.taps.1: f32[i0:8, i1:2, i2:1] = w[i0, i1, i2 + 1]",
        "y.taps1: f32[k:8, o:14] += x[c, o] * w.taps.1[k, c, 0] over c:2",
        "w.taps.2: f32[i0:8, i1:2, i2:1] = w[i0, i1, i2 + 2]",
        "y.taps2: f32[k:8, o:2] += x[c, o + 12] * w.taps.2[k, c, 0] over c:2",
        "y: f32[k:8, o:14] = y.taps1[k, o] + (o >= 12 ? y.taps0[k, o + -12] : 0.0) + (o < 2 ? y.taps2[k, o] : 0.0)",
    ]
    (decision,) = state.decisions
    assert decision.chosen == "y by taps of r"
    assert decision.reason.startswith("18 products in place of 42")


def test_what_a_cut_costs_may_be_more_than_it_saves() -> None:
    graph = parse_graph(DILATED, {"w": whole_numbers(8, 2, 3)})
    assert SplitTaps().apply(Rewritten(graph)).graph.nodes == graph.nodes


def test_taps_that_meet_only_padding_are_dropped_at_any_size() -> None:
    graph = padded((1, 3, 9, 9), (4, 3, 3, 3), dilations=(24, 1), pads=(24, 1, 24, 1))
    after = SplitTaps().apply(Rewritten(graph)).graph
    assert products(after) == products(graph) // 3
    assert ".pad: f32[i0:1, i1:3, i2:9, i3:11]" in lines(after)[0]
    same_values(graph, after)


def test_a_stride_that_leaves_out_taps_between_others() -> None:
    graph = padded((1, 2, 1), (8, 2, 3), strides=2, pads=2)
    after = ALWAYS.apply(Rewritten(graph)).graph
    assert {node.name for node in after.nodes if ".taps" in node.name and node.accum} == {
        "conv.acc.taps0",
        "conv.acc.taps2",
    }
    same_values(graph, after)


def test_no_tap_meets_an_element() -> None:
    graph = padded((1, 2, 1), (8, 2, 2), dilations=5, pads=3)
    after = SplitTaps().apply(Rewritten(graph)).graph
    assert products(after) == 0
    same_values(graph, after)


def test_small_sums_of_half_precision_are_not_rounded_on_the_way() -> None:
    graph = parse_graph(DILATED.replace("f32", "f16"), {"w": whole_numbers(8, 2, 3).astype("f2")})
    assert ALWAYS.apply(Rewritten(graph)).graph.nodes == graph.nodes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (": 0.0", ": 1.0"),  # padding with another value
        ("P[c, o + r * 12] * w[k, c, r]", "P[c, o + r * 12] * w[k, c, (o + r) % 3]"),  # weights by places
        ("P[c, o + r * 12] * w[k, c, r]", "P[c, o + r * 12] + w[k, c, r]"),  # zeros count
        ("P[c, o + r * 12] * w[k, c, r]", "P[c, o + r * 12] * w[k, c, r] * w[k, c, r]"),
        ("y: f32[k:8, o:14] +=", "y: f32[k:8, o:14] max="),
        ("i >= 12 and i < 26 ?", "i >= 12 and i < 26 and i % 2 == 0 ?"),  # more than padding
        ("i >= 12 and i < 26 ?", "i >= 12 and i < 26 and c + i < 26 ?"),
    ],
)
def test_other_sums_stay_as_they_are(old: str, new: str) -> None:
    assert old in DILATED
    graph = parse_graph(DILATED.replace(old, new), {"w": whole_numbers(8, 2, 3)})
    assert ALWAYS.apply(Rewritten(graph)).graph.nodes == graph.nodes


def test_padding_of_padding() -> None:
    text = DILATED.replace("P:", "Q: f32[c:2, i:20] = i >= 3 and i < 17 ? x[c, i - 3] : 0.0\nP:")
    text = text.replace("i >= 12 and i < 26 ? x[c, i - 12]", "i >= 9 and i < 29 ? Q[c, i - 9]")
    graph = parse_graph(text, {"w": whole_numbers(8, 2, 3)})
    after = ALWAYS.apply(Rewritten(graph)).graph
    assert products(after) == 8 * 2 * 18
    same_values(graph, after)


def test_an_interval_inside_of_the_image() -> None:
    graph = parse_graph(DILATED.replace("i >= 12 and i < 26", "i >= 15 and i < 20"), {"w": whole_numbers(8, 2, 3)})
    after = ALWAYS.apply(Rewritten(graph)).graph
    assert products(after) < products(graph)
    same_values(graph, after)


@st.composite
def convolutions(draw: st.DrawFn) -> Graph:
    rank = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["conv", "conv", "depthwise", "transposed"]))

    def sizes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    b, kernel = GraphBuilder(), sizes(1, 3)
    channels, filters, groups = draw(st.sampled_from([(1, 3, 1), (4, 6, 2), (2, 5, 1)]))
    image = b.input("x", (draw(st.integers(1, 2)), channels, *sizes(1, 6)), "f32")
    sliding: dict[str, Any] = {"dilations": sizes(1, 7), "strides": sizes(1, 3)}
    sliding["pads"] = tuple(draw(st.integers(0, 9)) for _ in range(2 * rank))
    try:
        if kind == "depthwise":
            weights = b.constant(whole_numbers(channels, 2, *kernel), "w")
            return b.finish([depthwise_conv(image, weights, **sliding)])
        if kind == "transposed":
            sliding["pads"] = tuple(draw(st.integers(0, 2)) for _ in range(2 * rank))
            weights = b.constant(whole_numbers(channels, filters, *kernel), "w")
            return b.finish([conv_transpose(image, weights, **sliding)])
        weights = b.constant(whole_numbers(filters, channels // groups, *kernel), "w")
        return b.finish([relu(conv(image, weights, groups=groups, **sliding))])
    except CompileError:  # padding that leaves nothing
        assume(False)
        raise


@settings(max_examples=tries(10, full=80), deadline=None)
@given(graph=convolutions(), cost=st.sampled_from([ALWAYS, SplitTaps()]))
def test_values_are_the_same(graph: Graph, cost: SplitTaps) -> None:
    after = cost.apply(Rewritten(graph)).graph
    same_values(graph, after)
    assert products(after) <= products(graph)


@settings(max_examples=tries(2, full=8), deadline=None)
@given(graph=convolutions())
def test_compiled_cuts_agree(graph: Graph) -> None:
    after = ALWAYS.apply(Rewritten(graph)).graph
    (expected,) = evaluate(graph, inputs_of(graph))
    got = compile_graph(after, threads=1, options=Options(cache=False))(*inputs_of(graph))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("constant", [True, False])
def test_a_dilated_convolution_of_a_small_image_is_cut(constant: bool) -> None:
    graph = padded((1, 128, 13, 15), (128, 128, 3, 3), constant, dilations=12, pads=12)
    after = SplitTaps().apply(Rewritten(graph)).graph
    assert products(after) == 128 * 128 * (1 + 13 + 1) * (3 + 15 + 3)
    (expected,) = evaluate(graph, inputs_of(graph))
    module = compile_graph(graph, threads=2, options=Options(cache=False))
    np.testing.assert_array_equal(module(*inputs_of(graph)), expected)
    bordered = [name for name in (each.name for each in module.manifest.launches) if "border" in name]
    assert not bordered, "no padding is stored"
