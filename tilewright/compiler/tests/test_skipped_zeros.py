"""Convolutions leave out taps that meet nothing but the border of zeros: which do, what the tree says, and results."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import build, compile_graph, plan_graph, resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv
from tilewright.machine import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.notation import print_tree
from tilewright.tiles.tree import InvalidTree

OPTIONS = Options(cache=False)


def convolution(image: tuple[int, ...], weights: tuple[int, ...], dtype: str = "f32", **sliding: Any) -> Graph:
    """Of constant weights, small whole numbers, whose sums are exact in any order."""
    b = GraphBuilder()
    w = np.random.default_rng(1).integers(-3, 4, weights).astype(numpy_dtype(dtype))
    return b.finish([conv.conv(b.input("x", image, dtype), b.constant(w, "w"), accumulate="f32", name="y", **sliding)])


def image_of(graph: Graph) -> np.ndarray[Any, Any]:
    (x,) = graph.inputs
    shape = [int(str(extent)) for extent in x.shape]
    return np.random.default_rng(0).integers(-3, 4, shape).astype(numpy_dtype(x.dtype))


def planned(graph: Graph, machine: str = "znver3", options: Options = OPTIONS) -> Plan:
    return make_plan(graph, resolve_cpu(machine), 1, options)


def tree(plan: Plan) -> str:
    return print_tree(next(each.scheduled.tree for each in plan.kernels if each.instruction))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any padding, which may be so wide that whole rows of the result are sums of zeros."""
    size, taps = st.sampled_from([1, 2, 5, 7, 13, 17]), st.sampled_from([(3, 3), (3, 1), (1, 3), (5, 3), (2, 4)])
    height, width, (rows, columns) = draw(size), draw(size), draw(taps)
    dilation, stride = draw(st.sampled_from([1, 1, 2, 5])), draw(st.sampled_from([1, 1, 2]))
    pads = tuple(draw(st.integers(0, dilation * (count - 1) + 2)) for count in (rows, columns, rows, columns))
    assume(height + pads[0] + pads[2] > dilation * (rows - 1) and width + pads[1] + pads[3] > dilation * (columns - 1))
    channels, filters = draw(st.sampled_from([1, 3, 16, 37, 256])), draw(st.sampled_from([1, 8, 17, 40]))
    dtype = draw(st.sampled_from(["f32", "f32", "bf16"]))
    shapes = (draw(st.sampled_from([1, 2])), channels, height, width), (filters, channels, rows, columns)
    return convolution(*shapes, dtype, pads=pads, strides=stride, dilations=dilation)


@given(graphs(), st.sampled_from([1, 2]))
@settings(max_examples=tries(12, 400), deadline=None)
def test_convolutions_without_zeros_are_right(graph: Graph, threads: int) -> None:
    """As compiled, and by trees without the hint."""
    x = image_of(graph)
    (expected,) = evaluate(graph, [x])
    whole = Options(cache=False, trees=trees_of(graph, "host", threads, skip=False))
    for options in (OPTIONS, whole):
        np.testing.assert_array_equal(compile_graph(graph, threads=threads, options=options)(x), expected)


def trees_of(graph: Graph, machine: str, threads: int, skip: bool) -> dict[str, Any]:
    """The trees of a plan, with the hint at the loops around all micro-kernels or at none."""
    trees: dict[str, Any] = json.loads(json.dumps(make_plan(graph, resolve_cpu(machine), threads, OPTIONS).trees()))
    for each in trees.values():
        _set_hint(each, skip)
    return trees


def _set_hint(node: dict[str, Any], skip: bool) -> None:
    child = node.get("child", {})
    if "kernel" in child:
        hints = [hint for hint in node.get("hints", []) if hint != ["skip_zeros"]]
        node["hints"] = [*hints, ["skip_zeros"]] if skip else hints
    for each in [child, *node.get("seq", [])]:
        if each:
            _set_hint(each, skip)


@pytest.mark.parametrize(
    ("size", "sliding", "skips"),
    [
        (7, {"pads": (1, 1, 1, 1)}, True),
        (65, {"pads": (12, 12, 12, 12), "dilations": 12}, True),
        (9, {}, False),
        (56, {"pads": (1, 1, 1, 1)}, False),  # tiles of two rows by three meet something in every tap
    ],
)
def test_which_convolutions_leave_out_zeros(size: int, sliding: dict[str, Any], skips: bool) -> None:
    plan = planned(convolution((1, 64, size, size), (64, 64, 3, 3), **sliding))
    assert ("skip_zeros" in tree(plan)) == skips, tree(plan)


def test_the_plan_says_what_is_left_out() -> None:
    plan = planned(convolution((1, 128, 7, 7), (128, 128, 3, 3), pads=(1, 1, 1, 1)))
    (found,) = (each for each in plan.decisions if each.subject == "zeros of y")
    assert found.chosen == "tiles leave out steps of rx that add only zeros"
    assert found.reason.startswith("9.5% of the steps: ")  # 2 of 21 rows of taps
    assert found.cost is not None
    assert found.runner_up_cost is not None
    assert found.cost.cycles < found.runner_up_cost.cycles


def test_a_tree_without_the_hint_runs_all_steps() -> None:
    graph = convolution((1, 64, 7, 7), (64, 64, 3, 3), pads=(1, 1, 1, 1))
    whole = Options(cache=False, trees=trees_of(graph, "znver3", 1, skip=False))
    programs = [build(graph, resolve_cpu("znver3"), 1, options).program for options in (OPTIONS, whole)]
    assert ["arith.maxsi" in program for program in programs] == [True, False]


def test_nothing_is_left_out_of_a_product_without_zeros() -> None:
    graph = convolution((1, 64, 9, 9), (32, 64, 3, 3))
    options = Options(cache=False, trees=trees_of(graph, "znver3", 1, skip=True))
    with pytest.raises(InvalidTree, match="skip_zeros: no step of the sums of y"):
        planned(graph, options=options)


@pytest.mark.parametrize(
    ("image", "weights", "dtype", "groups"),
    [
        ((1, 16, 13, 13), (24, 16, 3, 3), "f32", 1),
        ((2, 16, 13, 11), (17, 16, 3, 3), "bf16", 1),
        ((1, 32, 13, 13), (32, 16, 3, 3), "f32", 2),
        ((1, 16, 17), (24, 16, 3), "f32", 1),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_products_that_leave_out_zeros_are_right(
    image: tuple[int, ...], weights: tuple[int, ...], dtype: str, groups: int, threads: int
) -> None:
    """Tiles of every machine leave out taps where the dilation is half of the image."""
    pads = (6,) * 2 * (len(image) - 2)
    graph = convolution(image, weights, dtype, pads=pads, dilations=6, groups=groups)
    plan = make_plan(graph, resolve_cpu("host"), threads, OPTIONS)
    assert any("skip_zeros" in print_tree(each.scheduled.tree) for each in plan.kernels)
    x = image_of(graph)
    (expected,) = evaluate(graph, [x])
    np.testing.assert_array_equal(compile_graph(graph, threads=threads, options=OPTIONS)(x), expected)


def with_hints(plan: Plan, skip: bool) -> Options:
    """The trees of a plan with the hint at all micro-kernels, or at none."""
    trees = json.loads(json.dumps(plan.trees()))
    for each in trees.values():
        _set_hint(each, skip)
    assert ("skip_zeros" in json.dumps(trees)) == skip
    return Options(cache=False, trees=trees, fuse="always")


def test_the_hint_is_refused_in_trees_for_gpus() -> None:
    graph = convolution((1, 64, 7, 7), (64, 64, 3, 3), "f16", pads=(1, 1, 1, 1))
    plan = plan_graph(graph, resolve_target("sm_80", OPTIONS), 1, OPTIONS)
    same, other = (with_hints(plan, skip) for skip in (False, True))
    assert plan_graph(graph, resolve_target("sm_80", same), 1, same).trees() == plan.trees()
    with pytest.raises(InvalidTree):
        plan_graph(graph, resolve_target("sm_80", other), 1, other)


def test_the_hint_is_refused_in_trees_of_several_products() -> None:
    b, rng = GraphBuilder(), np.random.default_rng(0)
    first, second = (rng.standard_normal(shape).astype("f4") for shape in ((48, 16, 3, 3), (16, 48, 1, 1)))
    y = conv.conv(b.input("x", (1, 16, 20, 20), "f32"), b.constant(first, "first"), pads=(1, 1, 1, 1))
    graph = b.finish([conv.conv(y, b.constant(second, "second"))])
    plan = planned(graph, options=Options(cache=False, fuse="always"))
    assert any(each.instruction and len(each.scheduled.statements) > 1 for each in plan.kernels)
    assert planned(graph, options=with_hints(plan, skip=False)).trees() == plan.trees()
    with pytest.raises(InvalidTree):
        planned(graph, options=with_hints(plan, skip=True))


def test_a_border_of_another_value_is_not_left_out() -> None:
    graph = convolution((1, 16, 7, 7), (24, 16, 3, 3), pads=(1, 1, 1, 1), pad_value=1)
    x = image_of(graph)
    (expected,) = evaluate(graph, [x])
    np.testing.assert_array_equal(compile_graph(graph, threads=1, options=OPTIONS)(x), expected)
    assert "skip_zeros" not in tree(planned(graph))


def test_a_tree_is_predicted_to_take_longer_without_the_hint() -> None:
    graph = convolution((1, 64, 7, 7), (64, 64, 3, 3), pads=(1, 1, 1, 1))
    whole = Options(cache=False, trees=trees_of(graph, "znver3", 1, skip=False))
    cycles = [
        next(each.cycles for each in planned(graph, options=options).kernels if each.instruction)
        for options in (OPTIONS, whole)
    ]
    assert cycles[0] < cycles[1]


@pytest.mark.parametrize(("pad", "shared"), [(1, False), (12, True)])
def test_threads_share_large_borders(pad: int, shared: bool) -> None:
    graph = convolution((1, 128, 64, 64), (8, 128, 3, 3), pads=(pad,) * 4, dilations=pad)
    plan = make_plan(graph, resolve_cpu("znver3"), 2, OPTIONS)
    borders = [print_tree(each.scheduled.tree) for each in plan.kernels if ".border" in each.name]
    assert borders
    assert all(("par" in text.split("{")[0]) == shared for text in borders)


def test_sums_that_wait_in_memory_for_loops_that_may_not_run() -> None:
    """LLVM's NewGVN ended the process: it took what such a loop leaves for what memory holds."""
    graph = convolution((1, 256, 14, 14), (24, 256, 3, 3), pads=(1, 1, 1, 1))
    plan = planned(graph, "znver1")
    assert "stage y" in tree(plan)
    assert "skip_zeros" in tree(plan)
    assert "tile.func @y" in build(graph, resolve_cpu("znver1"), 1, OPTIONS).program


def test_a_tile_is_edited_without_its_loops_over_taps() -> None:
    """The rules would keep both loops over taps for this tile; the tree has one of them together with the channels."""
    graph = convolution((1, 64, 7, 7), (64, 64, 3, 3), pads=(1, 1, 1, 1))
    for skip in (False, True):
        trees = trees_of(graph, "znver3", 1, skip)
        edited = json.loads(
            json.dumps(trees["y"])
            .replace('[["k", 3], ["i", 7], ["j", 2]]', '[["k", 3], ["i", 4], ["j", 4]]')
            .replace('"quantum": [["i", 1], ["j", 4]', '"quantum": [["i", 2], ["j", 2]')
        )
        assert edited != trees["y"]
        options = Options(cache=False, trees={**trees, "y": edited})
        assert json.loads(json.dumps(planned(graph, options=options).trees()))["y"] == edited
