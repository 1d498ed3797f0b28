"""Transposed convolutions by phases of the stride: the same values, bit for bit, without the zeros in between."""

from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import compile_graph
from tilewright.errors import CompileError
from tilewright.expr.core import Compute
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.conv import conv_transpose
from tilewright.expr.ops.elementwise import relu
from tilewright.expr.text import parse_graph, print_graph
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.split_phases import SplitPhases
from tilewright.options import Options


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def transposed(x: tuple[int, ...], w: tuple[int, ...], dtype: Any = np.float32, **attributes: Any) -> Graph:
    """Input x [b, C, …], constant weights w [C, K/groups, kernel…], a bias and a rectifier behind it."""
    b = GraphBuilder()
    image = b.input("x", x, "f32" if dtype is np.float32 else "f16")
    weights = b.constant(array(*w).astype(dtype), "w")
    bias = b.constant(array(w[1] * attributes.get("groups", 1), seed=1).astype(dtype), "bias")
    return b.finish([relu(conv_transpose(image, weights, bias, **attributes))])


def split(graph: Graph) -> Graph:
    return SplitPhases().apply(Rewritten(graph)).graph


def names(graph: Graph) -> set[str]:
    return {node.name for node in graph.nodes}


def terms(node: Compute) -> int:
    """Products that a sum adds up."""
    return int(np.prod([axis.size for axis in node.loops])) if node.accum else 0


def test_every_place_reads_the_input_at_its_phase() -> None:
    state = SplitPhases().apply(Rewritten(transposed((1, 2, 5), (2, 16, 4), strides=2, pads=1)))
    lines = [
        line
        for line in print_graph(state.graph).splitlines()
        if not line.startswith(("graph", "input", "const", "output"))
    ]
    assert lines == [
        "conv_transpose.acc.pad: f32[i0:1, i1:2, i2:7] = i2 + -1 >= 0 and i2 + -1 < 5 ? x[i0, i1, i2 + -1] : 0.0",
        "w.phases: f32[i0:2, i1:16, p2:2, t2:2] = w[i0, i1, (p2 + 1) % 2 + (t2 * -2 + 2)]",
        "conv_transpose.acc: f32[b:1, k:16, i:10] += "
        "conv_transpose.acc.pad[b, rc, i // 2 + i % 2 + rx] * w.phases[rc, k, i % 2, rx] over rc:2, rx:2",
        "conv_transpose: f32[b:1, k:16, i:10] = conv_transpose.acc[b, k, i] + bias[k]",
        "relu: f32[i0:1, i1:16, i2:10] = max(conv_transpose[0, i1, i2], 0.0)",
    ]
    (decision,) = state.decisions
    assert decision.chosen == "conv_transpose.acc by phases of the stride 2"
    assert "4 products in place of 8" in decision.reason


@st.composite
def convolutions(draw: st.DrawFn) -> Graph:
    rank = draw(st.integers(1, 2))

    def sizes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, filters = draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([1, 3, 16]))
    kernel, strides = sizes(1, 5), sizes(1, 4)
    attributes = {
        "strides": strides,
        "pads": tuple(draw(st.integers(0, size - 1)) for _ in range(2) for size in kernel),
        "output_padding": tuple(draw(st.integers(0, stride - 1)) for stride in strides),
        "groups": groups,
    }
    try:
        return transposed((2, groups * channels, *sizes(1, 5)), (groups * channels, filters, *kernel), **attributes)
    except CompileError:  # padding that leaves nothing
        assume(False)
        raise


@settings(max_examples=tries(6, full=40), deadline=None)
@given(graph=convolutions())
def test_values_are_the_same_bit_for_bit(graph: Graph) -> None:
    x = {"x": array(*graph.inputs[0].shape, seed=2)}  # type: ignore[arg-type]
    np.testing.assert_array_equal(*(evaluate(g, x)[0] for g in (graph, split(graph))))


@settings(max_examples=tries(2, full=8), deadline=None)
@given(graph=convolutions())
def test_compiled_transposed_convolutions_agree(graph: Graph) -> None:
    x = array(*graph.inputs[0].shape, seed=2)  # type: ignore[arg-type]
    expected = evaluate(graph, {"x": x})[0]
    got = compile_graph(graph, threads=1, options=Options(cache=False))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "extra", "products"),
    [
        (4, 2, 1, 0, 2 * 14),  # DCGAN: as many phases as steps, two places each
        (2, 2, 0, 0, 1 * 14),
        (3, 2, 1, 1, 3 * 7),  # one and two places
        (16, 8, 4, 0, 2 * 64),  # the first and the last step are cut off in part
        (1, 2, 0, 0, 1 * 7),  # every other place is zero
        (2, 3, 0, 0, 2 * 7),
    ],
)
def test_no_product_with_inserted_zeros(kernel: int, stride: int, pad: int, extra: int, products: int) -> None:
    graph = transposed((1, 1, 7), (1, 16, kernel), strides=stride, pads=pad, output_padding=extra)
    after = split(graph)
    assert sum(map(terms, after.nodes)) == 16 * products
    assert "conv_transpose.expand" not in names(after)


def test_few_channels_and_their_phases_fill_vectors() -> None:
    after = split(transposed((1, 64, 8, 8), (64, 3, 4, 4), strides=2, pads=1))
    node = next(node for node in after.nodes if node.accum)
    assert [axis.extent for axis in node.axes] == [1, 12, 9, 9]


def test_one_element_meets_each_kernel_place_once() -> None:
    after = split(transposed((1, 100, 1, 1), (100, 32, 4, 4)))
    assert sum(map(terms, after.nodes)) == 100 * 32 * 16


def test_weights_that_are_an_input_are_split_at_run_time() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (1, 3, 4, 4), "f32"), b.input("w", (3, 5, 4, 4), "f32")
    graph = b.finish([conv_transpose(x, w, strides=2, pads=1)])
    values = {"x": array(1, 3, 4, 4), "w": array(3, 5, 4, 4)}
    expected = evaluate(graph, values)[0]
    got = compile_graph(graph, threads=1, options=Options(cache=False))(values["x"], values["w"])
    assert "conv_transpose.expand" not in names(split(graph))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_half_precision_sums_in_f32_as_before() -> None:
    graph = transposed((1, 3, 5, 5), (3, 4, 3, 3), np.float16, strides=2)
    x = {"x": array(1, 3, 5, 5).astype(np.float16)}
    np.testing.assert_array_equal(*(evaluate(g, x)[0] for g in (graph, split(graph))))


@pytest.mark.parametrize(
    "text",
    [
        # a dense convolution, padded
        """
        P: f32[i:7] = i >= 1 and i < 6 ? x[i - 1] : 0.0
        y: f32[o:5] += P[o + r] * w[r] over r:3
        """,
        # zeros at places that are no multiple of the stride stay, others go: not the whole of x
        """
        E: f32[i:9] = i % 2 == 0 ? x[i // 2] : 0.0
        P: f32[i:9] = i < 5 ? E[i] : 0.0
        y: f32[o:7] += P[o + r] * w[r] over r:3
        """,
        # ones between the elements
        """
        E: f32[i:9] = i % 2 == 0 ? x[i // 2] : 1.0
        y: f32[o:7] += E[o + r] * w[r] over r:3
        """,
        # a condition on something else
        """
        E: f32[i:9] = i % 4 == 0 ? x[i // 2] : 0.0
        y: f32[o:7] += E[o + r] * w[r] over r:3
        """,
        # every element repeated
        """
        E: f32[i:9] = x[i // 2]
        y: f32[o:7] += E[o + r] * w[r] over r:3
        """,
        # not a sum of products: zeros count
        """
        E: f32[i:9] = i % 2 == 0 ? x[i // 2] : 0.0
        y: f32[o:7] += E[o + r] * w[r] + 1.0 over r:3
        """,
        # strides of the convolution itself
        """
        E: f32[i:9] = i % 2 == 0 ? x[i // 2] : 0.0
        y: f32[o:4] += E[o * 2 + r] * w[r] over r:3
        """,
        # the other factor depends on the place
        """
        E: f32[i:9] = i % 2 == 0 ? x[i // 2] : 0.0
        y: f32[o:3] += E[o + r] * w[o * 0 + r] * w[o] over r:3
        """,
    ],
)
def test_other_sums_are_left_alone(text: str) -> None:
    graph = parse_graph("graph g\ninput x: f32[5]\ninput w: f32[3]\n" + dedent(text).lstrip() + "output y\n")
    assert split(graph).nodes == graph.nodes


def test_a_division_that_leaves_remainders_inserts_no_zeros() -> None:
    """One element along the window, at every place of it: all places after the first were zeros."""
    graph = parse_graph(
        "input x: i16[1, 17, 8]\n"
        "y: i16[i:5, j:2] += x[(j + s)//4, i*3 + r, k] * x[s, k + 8, k] over k:8, r:3, s:1\n"
        "output y"
    )
    assert SplitPhases().apply(Rewritten(graph)).graph == graph
