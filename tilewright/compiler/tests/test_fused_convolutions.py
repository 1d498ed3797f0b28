"""Chains of convolutions as one kernel: right on random sizes, and chosen by the predicted cycles of both ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given as draws
from hypothesis import settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.chains import fusions
from tilewright.compiler.compile import build, compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Kernel, Plan
from tilewright.compiler.tests.edited_trees import given
from tilewright.decision import Decision
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise
from tilewright.expr.text import parse_graph
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module
from tilewright.machine import resolve_cpu
from tilewright.operator.rules import cpu_fused
from tilewright.options import Options
from tilewright.tiles.legality import IllegalTree
from tilewright.tiles.notation import print_tree
from tilewright.tiles.parts import has_several_parts
from tilewright.tiles.tree import InvalidTree

Array = np.ndarray[Any, Any]
MACHINE = "znver5"
AUTO = Options(cache=False)
ALWAYS = Options(cache=False, fuse="always")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": elementwise.relu,
    "silu": elementwise.swish,
    "relu6": lambda x: elementwise.map_elements([x], lambda v: elementwise.clamp(v, 0.0, 6.0), name="relu6"),
}
EXTENTS = st.sampled_from([1, 2, 3, 5, 7, 11, 17, 23, 31])
CHANNELS = st.sampled_from([2, 3, 7, 16, 17, 31, 48, 97])


class Layer(NamedTuple):
    """A convolution of square windows that is padded by (kernel - 1) / 2, and what follows it.

    A depthwise one has a filter for every channel; `filters` are its channels.
    """

    filters: int
    kernel: int = 1
    stride: int = 1
    bias: bool = False
    activation: str = ""
    depthwise: bool = False


def convolutions(
    image: tuple[int, ...], layers: Sequence[Layer], *, residual: bool = False, cropped: int = 0
) -> Graph:  # fmt: skip
    """Convolutions of an image [batch, channels, rows, columns], perhaps added to another input.

    The last one reads only so many rows of the one before it as `cropped` says, if that is not 0.
    """
    b = GraphBuilder("convolutions")
    value = b.input("x", image, "f32")
    for number, layer in enumerate(layers):
        filters, kernel, stride, bias, activation, depthwise = layer
        if cropped and number == len(layers) - 1:
            value = value[:, :, :cropped]
        channels = static_shape(value.shape)[1]
        groups = channels if depthwise else 1
        w = b.input(f"w{number}", (filters, channels // groups, kernel, kernel), "f32")
        own = b.input(f"v{number}", (filters,), "f32") if bias else None
        name = f"c{number}"
        value = conv.conv(value, w, own, groups=groups, strides=stride, pads=(kernel - 1) // 2, name=name)
        value = ACTIVATIONS[activation](value)
    if residual:
        value = value + b.input("r", static_shape(value.shape), "f32")
    return b.finish([value])


def inputs(graph: Graph) -> list[Array]:
    """Small integers, whose sums are exact in any order."""
    generator = np.random.default_rng(0)
    return [generator.integers(-3, 4, static_shape(each.shape)).astype(np.float32) for each in graph.inputs]


def planned(graph: Graph, options: Options = ALWAYS, threads: int = 1, machine: str = "host") -> Plan:
    return make_plan(graph, resolve_cpu(machine), threads, options)


def fusion(plan: Plan) -> Decision:
    """The one decision about fusing products."""
    (found,) = (each for each in fusions(plan.decisions) if " + " in each.subject)
    return found


@settings(max_examples=tries(2, full=60), deadline=None)
@draws(
    image=st.tuples(st.integers(1, 3), CHANNELS, EXTENTS, EXTENTS), middle=CHANNELS, filters=CHANNELS,
    kernel=st.sampled_from([1, 3]), stride=st.integers(1, 2), bias=st.booleans(),
    activation=st.sampled_from(["", "relu", "relu6"]), residual=st.booleans(), threads=st.integers(1, 2),
)  # fmt: skip
def test_one_kernel_computes_both(
    image: tuple[int, ...], middle: int, filters: int, kernel: int, stride: int, bias: bool, activation: str,
    residual: bool, threads: int,
) -> None:  # fmt: skip
    layers = Layer(middle, kernel, stride, bias, activation), Layer(filters, bias=bias)
    graph = convolutions(image, layers, residual=residual)
    assert fusion(planned(graph, threads=threads)).chosen.startswith("one kernel")
    (expected,) = evaluate(graph, inputs(graph))
    np.testing.assert_array_equal(compile_graph(graph, threads=threads, options=ALWAYS)(*inputs(graph)), expected)


def test_costly_functions_run_between_the_convolutions() -> None:
    graph = convolutions((2, 19, 13, 11), [Layer(37, 3, 2, True, "silu"), Layer(21, bias=True, activation="silu")])
    assert fusion(planned(graph)).chosen.startswith("one kernel")
    (expected,) = evaluate(graph, inputs(graph))
    found = compile_graph(graph, threads=1, options=ALWAYS)(*inputs(graph))
    np.testing.assert_allclose(found, expected, rtol=0, atol=37 * 2.0**-20 * np.abs(expected).max())


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_rows_that_nothing_reads_are_not_computed(rows: int) -> None:
    graph = convolutions((2, 8, 13, 17), [Layer(24, 3), Layer(40)], cropped=rows)
    plan = planned(graph)
    (expected,) = evaluate(graph, inputs(graph))
    np.testing.assert_array_equal(compile_graph(graph, threads=1, options=ALWAYS)(*inputs(graph)), expected)
    if fusion(plan).chosen.startswith("one kernel"):
        (kernel,) = (each for each in plan.kernels if each.name == "c0+c1")
        assert kernel.scheduled.statements[0].axes[0].name == "b"
        assert rows in [axis.size for axis in kernel.scheduled.statements[0].axes]


def test_a_row_of_products_that_is_read_alone() -> None:
    """The first product had all its rows, and the second one wrote as many to a smaller result."""
    graph = parse_graph("""
        graph cropped
        input A: f32[40, 30]
        input B: f32[30, 50]
        input D: f32[50, 20]
        C: f32[m:40, l:50] += A[m, k] * B[k, l] over k:30
        E: f32[m:33, n:20] += C[m, l] * D[l, n] over l:47
        output E""")
    assert fusion(planned(graph)).chosen.startswith("one kernel")
    (expected,) = evaluate(graph, inputs(graph))
    np.testing.assert_array_equal(compile_graph(graph, threads=2, options=ALWAYS)(*inputs(graph)), expected)


def test_rows_of_an_image_that_make_less_than_a_block_share_one() -> None:
    plan = planned(convolutions((1, 16, 20, 20), [Layer(64, 3), Layer(32)]), machine=MACHINE)
    assert "i in blocks of" in fusion(plan).chosen
    assert "j in blocks of" not in fusion(plan).chosen


@pytest.mark.parametrize(
    ("image", "layers", "chosen"),
    [
        ((1, 64, 56, 56), [Layer(64), Layer(64)], "one kernel"),  # the link leaves L2
        ((1, 64, 28, 28), [Layer(64), Layer(64)], "a kernel each"),  # it stays there
    ],
)
def test_the_decision_has_both_predictions(image: tuple[int, ...], layers: list[Layer], chosen: str) -> None:
    found = fusion(planned(convolutions(image, layers), Options(cache=False), machine=MACHINE))
    assert found.chosen.startswith(chosen)
    assert found.cost is not None
    assert found.runner_up_cost is not None
    one, several = (found.cost.cycles or 0.0, found.runner_up_cost.cycles or 0.0)[
        :: 1 if chosen == "one kernel" else -1
    ]
    assert (one * cpu_fused.LEAST_GAIN <= several) == (chosen == "one kernel")


def test_why_convolutions_stay_apart() -> None:
    b = GraphBuilder("reversed")
    value = conv.conv(b.input("x", (1, 8, 12, 12), "f32"), b.input("w0", (16, 8, 1, 1), "f32"), name="c0")
    graph = b.finish([conv.conv(value[:, :, ::-1], b.input("w1", (16, 16, 3, 3), "f32"), name="c1")])
    found = fusion(planned(graph))
    assert found.chosen == "a kernel each"
    assert "which is no window" in found.refused[0].rule


# Depthwise convolutions before one of 1 x 1 ---------------------------------------------------------------------------


def separable(
    channels: int, filters: int, kernel: int = 3, stride: int = 1, activation: str = "", stem: int = 0
) -> list[Layer]:  # fmt: skip
    """A depthwise convolution and one of 1 x 1; behind a stem of 1 x 1 with `stem` filters channels are innermost."""
    first = [Layer(channels)] if stem else []
    return [*first, Layer(channels, kernel, stride, True, activation, True), Layer(filters, bias=True)]


def kernel_of(plan: Plan, part: str) -> Kernel:
    """The kernel that has a part in its name."""
    (found,) = (each for each in plan.kernels if part in each.name.split("+"))
    return found


@settings(max_examples=tries(2, full=60), deadline=None)
@draws(
    image=st.tuples(st.integers(1, 3), CHANNELS, EXTENTS, EXTENTS), filters=CHANNELS,
    kernel=st.sampled_from([3, 5]), stride=st.integers(1, 2), activation=st.sampled_from(["", "relu", "relu6"]),
    stem=st.booleans(), residual=st.booleans(), threads=st.integers(1, 2),
)  # fmt: skip
def test_a_depthwise_convolution_is_in_the_kernel_of_the_next_one(
    image: tuple[int, ...], filters: int, kernel: int, stride: int, activation: str, stem: bool, residual: bool,
    threads: int,
) -> None:  # fmt: skip
    layers = separable(image[1], filters, kernel, stride, activation, stem)
    graph = convolutions(image, layers, residual=residual)
    (expected,) = evaluate(graph, inputs(graph))
    np.testing.assert_array_equal(compile_graph(graph, threads=threads, options=ALWAYS)(*inputs(graph)), expected)
    last = f"c{len(layers) - 1}"
    if any(each.cost for each in fusions(planned(graph, threads=threads).decisions) if last in each.subject):
        assert has_several_parts(kernel_of(planned(graph, threads=threads), last).scheduled.tree)


@st.composite
def networks(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Layer]]:
    """An image and layers of all kinds, one behind the other."""
    image = draw(st.tuples(st.integers(1, 2), CHANNELS, EXTENTS, EXTENTS))
    channels, layers = image[1], []
    for _ in range(draw(st.integers(2, 5))):
        depthwise = draw(st.booleans())
        channels = channels if depthwise else draw(CHANNELS)
        kernel = draw(st.sampled_from([3, 5] if depthwise else [1, 1, 3]))
        activation = draw(st.sampled_from(["", "relu", "relu6"]))
        layers.append(Layer(channels, kernel, draw(st.integers(1, 2)), draw(st.booleans()), activation, depthwise))
    return image, layers


@settings(max_examples=tries(2, full=60), deadline=None)
@draws(network=networks(), threads=st.integers(1, 2))
def test_networks_are_right_whatever_is_fused(network: tuple[tuple[int, ...], list[Layer]], threads: int) -> None:
    graph = convolutions(*network)
    values = inputs(graph)
    apart = compile_graph(graph, threads=threads, options=Options(cache=False, fuse="never"))(*values)
    found = compile_graph(graph, threads=threads, options=ALWAYS)(*values)
    np.testing.assert_allclose(found, apart, rtol=0, atol=1e-5 * max(1.0, np.abs(apart).max()))


def test_a_depthwise_result_stays_in_a_buffer_of_a_block() -> None:
    plan = planned(convolutions((1, 24, 40, 40), separable(24, 16)))
    kernel = kernel_of(plan, "c1")
    assert not [name for name in (*kernel.reads, *kernel.writes) if name.startswith("c0")]
    text = print_tree(kernel.scheduled.tree)
    assert text.startswith("@L3 for i:")
    assert text.index("op c0") < text.index("op c1")


def test_a_depthwise_pair_is_fused_where_the_link_leaves_l2() -> None:
    layers = separable(144, 24, activation="relu6", stem=24)
    large, small = (planned(convolutions((1, 24, size, size), layers), AUTO, machine=MACHINE) for size in (56, 14))
    assert has_several_parts(kernel_of(large, "c2").scheduled.tree)
    assert not has_several_parts(kernel_of(small, "c2").scheduled.tree)
    (found,) = (each for each in fusions(large.decisions) if each.subject.endswith(" + c2") and each.cost)
    assert found.runner_up_cost is not None


def test_a_tree_with_rows_before_a_product_is_what_runs() -> None:
    graph, machine = convolutions((1, 24, 20, 20), separable(24, 16)), resolve_cpu(MACHINE)
    plan = planned(graph, machine=MACHINE)
    name = kernel_of(plan, "c1").name
    own = build(graph, machine, 1, ALWAYS).program
    assert build(graph, machine, 1, given(plan, name)).program == own


def test_a_tree_with_rows_before_a_product_comes_from_a_saved_plan(tmp_path: Path) -> None:
    graph, machine = convolutions((1, 24, 20, 20), separable(24, 16)), resolve_cpu(MACHINE)
    artifact = build(graph, machine, 1, ALWAYS)
    (tmp_path / "saved").write_text(json.dumps({"trees": artifact.stored_plan().trees}))
    assert build(graph, machine, 1, Options(cache=False, fuse=tmp_path / "saved")).program == artifact.program


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([("@REG unroll ry:3, j:4", "@REG unroll ry:3, j:3")], "loop j of c1.acc has extent 20"),
        ([("@REG unroll ry:3, ", "@REG unroll ")], "loop ry of c1.acc"),
        ([("i:5", "i:5, j:3"), ("i:1, j:3", "i:1, j:1"), ("i:4, j:5", "i:4, j:2")], "a register tile of c1.acc 4"),
        ([("i:5", "i:5, k:2"), ("j:5, k:2", "j:5, k:1"), ("k:16 { op c2", "k:8 { op c2")], "cut the sum of c2"),
    ],
)  # fmt: skip
def test_a_tree_with_other_rows_before_a_product_is_refused(edits: list[tuple[str, str]], message: str) -> None:
    graph = behind_a_shared_stem()
    plan = planned(graph, machine=MACHINE)
    name = kernel_of(plan, "c2").name
    with pytest.raises((IllegalTree, InvalidTree), match=message) as caught:
        planned(graph, given(plan, name, *edits), machine=MACHINE)
    assert caught.value.where.startswith(f"tile tree of {name}")


def behind_a_shared_stem() -> Graph:
    """A depthwise convolution and one of 1 x 1 behind a stem that another one reads too, and so has a kernel."""
    b = GraphBuilder("shared")
    stem = conv.conv(b.input("x", (1, 24, 20, 20), "f32"), b.input("w0", (64, 24, 1, 1), "f32"), name="c0")
    depthwise = b.input("w1", (64, 1, 3, 3), "f32")
    value = conv.conv(stem, depthwise, b.input("v1", (64,), "f32"), groups=64, pads=1, name="c1")
    value = conv.conv(value, b.input("w2", (16, 64, 1, 1), "f32"), name="c2")
    return b.finish([value, conv.conv(stem, b.input("w3", (16, 64, 1, 1), "f32"), name="c3")])


# Trees that are given -------------------------------------------------------------------------------------------------


def test_a_tree_that_was_given_is_what_runs() -> None:
    graph, machine = convolutions((1, 16, 20, 20), [Layer(64, 3), Layer(32)]), resolve_cpu(MACHINE)
    plan = planned(graph, machine=MACHINE)
    own = build(graph, machine, 1, ALWAYS).program
    assert build(graph, machine, 1, given(plan, "c0+c1")).program == own
    smaller = given(plan, "c0+c1", ("@L3 for i:4", "@L3 for i:10"), ("i:3", "i:1"))
    made, arrays = build(graph, machine, 1, smaller), inputs(graph)
    assert made.program != own
    (expected,) = evaluate(graph, arrays)
    found, flat = np.zeros(expected.size, np.float32), [array.reshape(-1) for array in arrays]
    run_main(parse_module(made.program), flat, [found], made.constants)  # this machine may lack its vectors
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_a_tree_with_blocks_of_other_sizes_is_refused() -> None:
    graph = convolutions((1, 16, 20, 20), [Layer(64, 3), Layer(32)])
    with pytest.raises(IllegalTree, match="loop i of c0 has extent 20") as caught:
        planned(graph, given(planned(graph, machine=MACHINE), "c0+c1", ("k:1, i:3", "k:1, i:1")), machine=MACHINE)
    assert caught.value.where.startswith("tile tree of c0+c1")


def test_a_tree_whose_blocks_cut_the_sum_of_a_window_is_refused() -> None:
    graph = convolutions((1, 16, 20, 20), [Layer(64, 3), Layer(32)])
    with pytest.raises((IllegalTree, InvalidTree)) as caught:
        planned(
            graph, given(planned(graph, machine=MACHINE), "c0+c1", ("@L3 for i:", "@L3 for rx:3, i:")), machine=MACHINE
        )
    assert caught.value.where.startswith("tile tree of c0+c1")
