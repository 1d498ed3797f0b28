"""Products in one kernel that reads their results through windows: right on random sizes and blocks, and predicted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, settings
from hypothesis import given as draws
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.chains import fusions
from tilewright.compiler.compile import build, compile_graph
from tilewright.compiler.count_reasons import GAPS, IN_REGISTERS
from tilewright.compiler.counting import count_plan, resources_of
from tilewright.compiler.plan import Kernel, Plan
from tilewright.compiler.tests.edited_trees import given
from tilewright.compiler.tests.test_fused_convolutions import (
    ACTIVATIONS,
    ALWAYS,
    AUTO,
    CHANNELS,
    EXTENTS,
    MACHINE,
    Layer,
    convolutions,
    inputs,
    planned,
)
from tilewright.expr.core import Tensor
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, pool
from tilewright.machine import resolve_cpu
from tilewright.machine.description import Cpu
from tilewright.operator.products_tree import products_tree
from tilewright.operator.rules import cpu_fused
from tilewright.operator.rules.cpu_fused import FusedPoint, fused_kernel, point_of
from tilewright.operator.rules.cpu_product import l2_bytes
from tilewright.operator.rules.cpu_windows import points_of_blocks, windowed
from tilewright.options import Options
from tilewright.tiles.dimensions import with_dimensions
from tilewright.tiles.legality import IllegalTree
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.movement import movement
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.problem import problem_of
from tilewright.tiles.traffic import Moved
from tilewright.tiles.tree import InvalidTree, TileTree, kernels, to_json
from tilewright.tiles.windows import window_reads

Array = np.ndarray[Any, Any]


def inverted(channels: int, expanded: int, filters: int, kernel: int = 3, stride: int = 1) -> list[Layer]:
    """An inverted residual block: 1 x 1, depthwise, 1 x 1."""
    return [
        Layer(expanded, bias=True, activation="relu6"),
        Layer(expanded, kernel, stride, True, "relu6", True),
        Layer(filters, bias=True),
    ]


def windowed_kernel(plan: Plan) -> Kernel | None:
    """The kernel of a plan that reads a value through windows."""
    found = [each for each in plan.kernels if window_reads(each.scheduled.statements)]
    return found[0] if found else None


def with_other_blocks(kernel: Kernel, machine: Cpu, roll: random.Random) -> TileTree:
    """The tree of a kernel with other blocks, kept or not, for so many programs."""
    tree = products_tree(kernel.scheduled)
    works = [each.work for each in tree.products]
    rows = {number: each.statements for number, each in tree.rows.items()}
    through = windowed(works, rows)
    assert through is not None
    cuts = through.cuts()
    if not cuts:
        return kernel.scheduled.tree
    cut = roll.choice(cuts)
    alone = [*through.moved(cut.axis), cut.axis]
    sizes = points_of_blocks(through, cut, 1, cpu_fused.ROWS_AT_ONCE, l2_bytes(machine))
    blocks = cut.blocks(roll.choice([*sizes[:6], sizes[-1]]) if sizes else cut.axis.size, roll.randint(1, 3))
    if roll.random() < 0.3:
        blocks = in_one_program(blocks)
    points = tuple(
        replace(each, rows=tuple(1 if axis in alone else size for axis, size in zip(work.rows, each.rows, strict=True)))
        for work, each in zip(works, point_of(tree).points, strict=True)
    )
    point = FusedPoint(points, blocks, roll.random() < 0.7 and through.shares(blocks))
    loops = [work.has_epilogue and roll.random() < 0.2 for work in works]
    return fused_kernel(works, point, loops, rows, machine).tree


def in_one_program(blocks: Sequence[SpatialLoop]) -> tuple[SpatialLoop, ...]:
    """The blocks where each program walks the loops around the cut one, such as images, and not one step of them."""
    *outside, cut = blocks
    return (*(replace(each, blocks=1) for each in outside), cut)


def require_right(graph: Graph, options: Options, threads: int) -> None:
    (expected,) = evaluate(graph, inputs(graph))
    found = compile_graph(graph, threads=threads, options=options)(*map(between_nan, inputs(graph)))
    np.testing.assert_array_equal(found, expected)


def between_nan(array: Array) -> Array:
    """The same values, with NaN before and behind them in memory: a sum with one of these is NaN."""
    whole = np.full(array.size + 256, np.nan, array.dtype)
    whole[128:-128] = array.ravel()
    return whole[128:-128].reshape(array.shape)


# Any sizes and blocks -------------------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Layer]]:
    """A convolution whose result another one, or a depthwise one before one of 1 x 1, reads through windows."""
    image = draw(st.tuples(st.integers(1, 3), CHANNELS, EXTENTS, EXTENTS))
    middle, filters = draw(CHANNELS), draw(CHANNELS)
    activation = st.sampled_from(["", "relu6"])
    first = Layer(middle, draw(st.sampled_from([1, 3])), draw(st.integers(1, 2)), draw(st.booleans()), draw(activation))
    kernel, stride = draw(st.sampled_from([3, 5])), draw(st.integers(1, 3))
    if draw(st.booleans()):
        return image, [first, Layer(filters, kernel, stride, draw(st.booleans()))]
    depthwise = Layer(middle, kernel, stride, True, draw(activation), True)
    return image, [first, depthwise, Layer(filters, bias=draw(st.booleans()))]


# One row of windows touches two rows of three: their loop in the window is one loop with that of the first convolution.
ONE_ROW_OF_WINDOWS = [Layer(2, 1, 2), Layer(2, 3, 3)]


@settings(max_examples=tries(3, full=100), deadline=None)
@example(chain=((1, 16, 31, 23), inverted(16, 48, 17)), residual=False, threads=2, seed=1)
@example(chain=((1, 2, 5, 7), ONE_ROW_OF_WINDOWS), residual=False, threads=1, seed=0)
@draws(chain=chains(), residual=st.booleans(), threads=st.integers(1, 2), seed=st.integers(0, 1 << 16))
def test_any_blocks_compute_the_same(
    chain: tuple[tuple[int, ...], list[Layer]], residual: bool, threads: int, seed: int
) -> None:
    graph = convolutions(*chain, residual=residual)
    require_right(graph, ALWAYS, threads)
    kernel = windowed_kernel(planned(graph, threads=threads))
    if kernel is not None:
        tree = with_other_blocks(kernel, resolve_cpu("host"), random.Random(seed))
        require_right(graph, Options(cache=False, fuse="always", trees={kernel.name: to_json(tree)}), threads)


@pytest.mark.parametrize("keep", [False, True])
def test_a_program_that_walks_several_images_begins_each_with_its_border(keep: bool) -> None:
    """Where the first block of an image computes nothing, its buffer has what the image before left there."""
    graph = convolutions((3, 8, 13, 11), [Layer(16, 3, 1, activation="relu6"), Layer(9, 3)])
    kernel = windowed_kernel(planned(graph))
    assert kernel is not None
    tree = products_tree(kernel.scheduled)
    works = [each.work for each in tree.products]
    rows = {number: each.statements for number, each in tree.rows.items()}
    through = windowed(works, rows)
    assert through is not None
    _, cut = through.cuts()
    alone = [*through.moved(cut.axis), cut.axis]
    points = tuple(
        replace(each, rows=tuple(1 if axis in alone else size for axis, size in zip(work.rows, each.rows, strict=True)))
        for work, each in zip(works, point_of(tree).points, strict=True)
    )
    point = FusedPoint(points, in_one_program(cut.blocks(4, 1)), keep)
    edited = fused_kernel(works, point, [False, False], rows, resolve_cpu("host")).tree
    assert print_tree(edited).startswith("@L3 for b:3, i.1:4" + keep * " keep relu6")
    require_right(graph, Options(cache=False, fuse="always", trees={kernel.name: to_json(edited)}), 1)


def test_values_of_other_images_are_other_values() -> None:
    """Every step reads both rows of its image, at the same places of the buffer as the step before."""
    graph, machine = (
        convolutions((3, 8, 2, 2), [Layer(16, 3, 1, activation="relu6"), Layer(9, 3)]),
        resolve_cpu(MACHINE),
    )
    kernel = windowed_kernel(planned(graph, machine=MACHINE))
    assert kernel is not None
    tree = products_tree(kernel.scheduled)
    works = [each.work for each in tree.products]
    through = windowed(works, {})
    assert through is not None
    blocks = tuple(replace(each, blocks=1) for each in through.cuts()[-1].blocks(2, 1))
    edited = fused_kernel(works, replace(point_of(tree), blocks=blocks), [False, False], {}, machine).tree
    assert print_tree(edited).startswith("@L3 for b:3 {")
    options = Options(cache=False, fuse="always", trees={kernel.name: to_json(edited)})
    _, counts = count_plan(planned(graph, options, machine=MACHINE), machine, inputs(graph))
    (counted,) = (each for each in counts if each.kernel == kernel.name)
    (link,) = (row for row in counted.levels["L2"] if row.tensor == "relu6")
    assert link.counted == link.model
    assert link.counted.loads >= 3 * 2 * 2 * 16


def test_points_between_windows_are_gaps() -> None:
    """They are computed, and not read; what is read comes from memory."""
    b = GraphBuilder("apart")
    value = conv.conv(b.input("x", (1, 8, 5), "f32"), b.input("w0", (17, 8, 1), "f32"), name="c0")
    value = pool.max_pool(value, [1], strides=2, name="p")
    graph, machine = b.finish([conv.conv(value, b.input("w1", (7, 17, 1), "f32"), name="c1")]), resolve_cpu(MACHINE)
    plan = planned(graph, machine=MACHINE)
    kernel = windowed_kernel(plan)
    assert kernel is not None
    (counted,) = (each for each in count_plan(plan, machine, inputs(graph))[1] if each.kernel == kernel.name)
    (link,) = (row for row in counted.levels["L3"] if row.tensor == "c0")
    assert (link.why, link.model.loads, link.counted.loads, link.counted.stores) == (GAPS, 5 * 17, 3 * 17, 5 * 17)


@settings(max_examples=tries(2, full=40), deadline=None)
@example(image=(1, 2, 5, 5), middle=17, kernel=3, stride=1, depthwise=True, seed=65536)  # reads in an epilogue's loop
@draws(
    image=st.tuples(st.integers(1, 2), st.sampled_from([2, 7]), *[st.sampled_from([5, 7, 11])] * 2),
    middle=st.sampled_from([3, 17]), kernel=st.sampled_from([3, 5]), stride=st.integers(1, 2), depthwise=st.booleans(),
    seed=st.integers(0, 1 << 16),
)  # fmt: skip
def test_all_addresses_are_inside_of_their_buffers(
    image: tuple[int, ...], middle: int, kernel: int, stride: int, depthwise: bool, seed: int
) -> None:
    """The interpreter refuses other ones. What the programs touch is what their trees say."""
    layers = inverted(image[1], middle, 9, kernel, stride) if depthwise else [Layer(middle), Layer(9, kernel, stride)]
    graph, machine = convolutions(image, layers), resolve_cpu(MACHINE)
    found = windowed_kernel(planned(graph, machine=MACHINE))
    assert found is not None
    tree = with_other_blocks(found, machine, random.Random(seed))
    plan = planned(graph, Options(cache=False, fuse="always", trees={found.name: to_json(tree)}), machine=MACHINE)
    (result,), counts = count_plan(plan, machine, inputs(graph))
    np.testing.assert_array_equal(result, *evaluate(graph, inputs(graph)))
    (counted,) = (each for each in counts if each.kernel == found.name)
    assert {row.why for rows in counted.levels.values() for row in rows} <= {"", IN_REGISTERS, GAPS}, counted
    assert not counted.refused


def separated(shape: Sequence[int], kernel: Sequence[int], strides: Any, pads: Any, dilations: Any) -> Graph:
    """A convolution of 1 x 1, a depthwise one of any windows with a bias, and one of 1 x 1."""
    b, ones = GraphBuilder("separated"), [1] * len(kernel)
    value = conv.conv(b.input("x", (2, 7, *shape), "f32"), b.input("w0", (24, 7, *ones), "f32"), name="c0")
    value = ACTIVATIONS["relu"](value)
    depthwise, bias = b.input("w1", (24, 1, *kernel), "f32"), b.input("v1", (24,), "f32")
    value = conv.conv(value, depthwise, bias, groups=24, strides=strides, pads=pads, dilations=dilations, name="c1")
    return b.finish([conv.conv(value, b.input("w2", (16, 24, *ones), "f32"), name="c2")])


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads", "dilations"),
    [
        ((17, 13), (3, 3), (2, 2), (2, 2), (2, 2)),
        ((17, 13), (3, 1), (1, 1), (1, 0), (1, 1)),
        ((17, 13), (1, 3), (1, 2), (0, 1), (1, 1)),
        ((17, 13), (3, 3), (1, 1), (0, 0), (1, 1)),
        ((17, 13), (3, 3), (1, 1), [0, 1, 1, 0], (1, 1)),
        ((33,), (5,), (2,), (2,), (1,)),
        ((7, 9, 5), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
        ((4, 13), (3, 3), (3, 1), (0, 1), (1, 1)),
        ((9, 7), (3, 5), (1, 3), (0, 0), (1, 1)),  # one window along a row, of 5 of its 7 points
        ((9, 7), (1, 3), (1, 1), [0, 1, 2, 1], (1, 1)),  # rows of windows that have no row of the image
    ],
)
@pytest.mark.parametrize(("threads", "other"), [(1, False), (2, True), (1, True), (2, False)])
def test_windows_of_any_kind(
    shape: Sequence[int], kernel: Sequence[int], strides: Any, pads: Any, dilations: Any, threads: int, other: bool
) -> None:
    """By the blocks that the rule chooses, or by others."""
    graph = separated(shape, kernel, strides, pads, dilations)
    found = windowed_kernel(planned(graph, threads=threads))
    assert found is not None
    tree = with_other_blocks(found, resolve_cpu("host"), random.Random(3))
    others = Options(cache=False, fuse="always", trees={found.name: to_json(tree)})
    require_right(graph, others if other else ALWAYS, threads)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_a_border_has_the_value_that_the_reader_selects(dtype: str) -> None:
    """Of a largest value that is minus infinity."""
    b = GraphBuilder("pooled")
    x, w0, w1 = (
        b.input(name, shape, dtype)
        for name, shape in (("x", (2, 7, 17, 13)), ("w0", (24, 7, 1, 1)), ("w1", (16, 24, 1, 1)))
    )
    value = pool.max_pool(conv.conv(x, w0, name="c0"), [3, 3], strides=2, pads=1, name="p")
    graph = b.finish([conv.conv(value, w1, name="c1")])
    kernel = windowed_kernel(planned(graph))
    assert kernel is not None
    (read,) = window_reads(kernel.scheduled.statements).values()
    assert read.border is not None
    assert read.border.value == -np.inf
    values = [each.astype(numpy_dtype(spec.dtype)) for each, spec in zip(inputs(graph), graph.inputs, strict=True)]
    (expected,) = evaluate(graph, values)
    found = compile_graph(graph, threads=1, options=ALWAYS)(*values)
    np.testing.assert_array_equal(np.asarray(found, np.float64), np.asarray(expected, np.float64))


@pytest.mark.covering(1)
@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f64", "i32"])
def test_elements_of_other_types(dtype: str, depthwise: bool) -> None:
    """Of bf16 the product behind a depthwise convolution reads the buffer of its rows in pairs."""
    b, type_ = GraphBuilder("typed"), numpy_dtype(dtype)
    weights = iter(np.random.default_rng(0).integers(-1, 2, (3, 1 << 13)))

    def constant(name: str, *shape: int) -> Tensor:
        return b.constant(next(weights)[: int(np.prod(shape))].reshape(shape).astype(type_), name)

    value = conv.conv(b.input("x", (1, 6, 7, 11), dtype), constant("w0", 17, 6, 1, 1), name="c0")
    value = ACTIVATIONS["relu"](value)
    if depthwise:
        value = conv.conv(value, constant("w1", 17, 1, 3, 3), groups=17, pads=1, name="c1")
        value = conv.conv(value, constant("w2", 9, 17, 1, 1), name="c2")
    else:
        value = conv.conv(value, constant("w1", 9, 17, 3, 3), pads=1, name="c1")
    graph, machine = b.finish([value]), resolve_cpu(MACHINE)
    plan = planned(graph, machine=MACHINE)
    kernel = windowed_kernel(plan)
    assert kernel is not None
    assert (dtype, depthwise) != ("bf16", True) or "vdpbf16ps" in kernel.instruction
    values = [each.astype(type_) for each in inputs(graph)]
    (found,), _ = count_plan(plan, machine, values)
    (expected,) = evaluate(graph, values)
    np.testing.assert_array_equal(np.asarray(found, np.float64), np.asarray(expected, np.float64))


# The tree -------------------------------------------------------------------------------------------------------------


def block() -> Graph:
    return convolutions((1, 24, 56, 56), inverted(24, 144, 24), residual=True)


def test_the_tree_keeps_the_rows_that_blocks_share() -> None:
    plan = planned(block(), machine=MACHINE)
    kernel = windowed_kernel(plan)
    assert kernel is not None
    assert not [name for name in (*kernel.reads, *kernel.writes) if name.startswith("relu6")]
    text = print_tree(kernel.scheduled.tree)
    assert text.startswith("@L3 for i.1:")
    assert "keep relu6 {" in text
    assert text.index("op relu6") < text.index("op c1.acc") < text.index("op c2.acc")
    tree = products_tree(kernel.scheduled)
    (cut,) = (loop.quantum for loop in tree.blocks if loop.tiles > 1)
    rows = dict(tree.buffers["relu6"].extents)
    assert [rows[axis] for axis in rows] == [cut + 2, 58, 144]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_the_model_has_what_a_block_of_real_size_moves(stride: int, kept: bool) -> None:
    """Of millions of steps most are equal."""
    channels, expanded, image = 24, 144, 56
    graph = convolutions((1, channels, image, image), inverted(channels, expanded, channels, stride=stride))
    kernel, resources = windowed_kernel(planned(graph, machine=MACHINE)), resources_of(resolve_cpu(MACHINE))
    assert kernel is not None
    tree = kernel.scheduled.tree
    (blocks,) = (loop for loop in products_tree(kernel.scheduled).blocks if loop.tiles > 1)
    if not kept:
        tree = parse_tree(print_tree(tree).replace(" keep relu6", ""), kernels(tree))
    assert ("keep relu6" in print_tree(tree)) == kept
    traffic = movement(tree, with_dimensions(problem_of(kernel.scheduled)), resources=resources)
    rows = out = image // stride
    touched = [
        range(max(0, first * stride - 1), min(image, (min(first + blocks.quantum, rows) - 1) * stride + 2))
        for first in range(0, rows, blocks.quantum)
    ]
    assert len(touched) == blocks.tiles
    computed = image if kept else sum(map(len, touched))
    at_l2, at_l3 = traffic.at("L2"), traffic.at("L3")
    assert at_l2["relu6"].stores == computed * image * expanded
    assert at_l2["relu6.1"] == Moved(out * out * expanded, out * out * expanded, out * out * expanded)
    assert at_l3["w1"].loads == 9 * expanded * blocks.tiles
    assert at_l3["x"].loads == computed * image * channels
    assert traffic.at("DRAM")["c2.packed"].stores == out * out * channels


def test_a_tree_with_windows_is_what_runs() -> None:
    graph, machine = block(), resolve_cpu(MACHINE)
    plan = planned(graph, machine=MACHINE)
    kernel = windowed_kernel(plan)
    assert kernel is not None
    own = build(graph, machine, 1, ALWAYS).program
    assert build(graph, machine, 1, given(plan, kernel.name)).program == own


@pytest.fixture(scope="module")
def small() -> tuple[Graph, Plan, str]:
    """An inverted residual block whose kernel has blocks of 2 rows that keep what they share."""
    graph = convolutions((1, 24, 20, 20), inverted(24, 48, 16))
    kernel = windowed_kernel(planned(graph, machine=MACHINE))
    assert kernel is not None
    tree = products_tree(kernel.scheduled)
    works, rows = [each.work for each in tree.products], {n: each.statements for n, each in tree.rows.items()}
    through = windowed(works, rows)
    assert through is not None
    points = tuple(replace(each, rows=(1, each.rows[-1])) for each in point_of(tree).points)
    point = FusedPoint(points, through.cuts()[-1].blocks(2, 1), keep=True)
    other = fused_kernel(works, point, [False, False], rows, resolve_cpu(MACHINE)).tree
    options = Options(cache=False, fuse="always", trees={kernel.name: to_json(other)})
    return graph, planned(graph, options, machine=MACHINE), kernel.name


def test_a_tree_that_computes_shared_rows_again(small: tuple[Graph, Plan, str]) -> None:
    graph, plan, name = small
    again = given(plan, name, (" keep relu6", ""))
    kept, computed = (windowed_kernel(planned(graph, each, machine=MACHINE)) for each in (given(plan, name), again))
    assert kept is not None
    assert computed is not None
    assert products_tree(kept.scheduled).kept == ("relu6",)
    assert not products_tree(computed.scheduled).kept
    programs = [build(graph, resolve_cpu(MACHINE), 1, each).program for each in (given(plan, name), again)]
    assert programs[0] != programs[1]


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([("i:4, j:", "i:2, j:")], "does not go with the rest of the tree"),
        ([(" keep relu6", ""), ("i:4, j:", "i:3, j:")], "does not go with the rest of the tree"),
        ([("keep relu6", "keep relu6.1")], "blocks keep relu6.1, whose windows they do not cut"),
        ([("keep relu6", "keep c2")], "L11 retention"),
        ([("@L3 for i.1:10", "@L3 for i:2, i.1:10")], "i:2 at L3 is no loop of c"),
        ([("keep relu6", "bypass relu6")], "does not go with the rest of the tree"),
    ],
)
def test_a_tree_with_other_windows_is_refused(
    small: tuple[Graph, Plan, str], edits: list[tuple[str, str]], message: str
) -> None:
    graph, plan, name = small
    with pytest.raises((IllegalTree, InvalidTree), match=message) as caught:
        planned(graph, given(plan, name, *edits), machine=MACHINE)
    assert caught.value.where.startswith(f"tile tree of {name}")


# Whether --------------------------------------------------------------------------------------------------------------


def test_a_block_is_fused_where_its_link_leaves_l2() -> None:
    layers = inverted(16, 96, 24, stride=2)
    large, small = (planned(convolutions((1, 16, size, size), layers), AUTO, machine=MACHINE) for size in (112, 14))
    assert windowed_kernel(large) is not None
    assert windowed_kernel(small) is None
    for plan in (large, small):
        (found,) = (each for each in fusions(plan.decisions) if each.subject.count("+") == 2)
        assert found.cost is not None
        assert found.runner_up_cost is not None


def test_blocks_that_keep_rows_and_blocks_that_compute_them_again_are_compared() -> None:
    plan = planned(block(), machine=MACHINE)
    kernel = windowed_kernel(plan)
    assert kernel is not None
    (found,) = (each for each in plan.decisions if each.subject == f"blocks of {kernel.name}")
    assert found.chosen.endswith("that keep what they share")
    assert not found.runner_up.endswith("that keep what they share")
    assert found.cost is not None
    assert found.runner_up_cost is not None
    assert (found.cost.cycles or 0.0) < (found.runner_up_cost.cycles or 0.0)


def test_every_thread_has_a_part_of_one_image() -> None:
    kernel = windowed_kernel(planned(block(), threads=2, machine=MACHINE))
    assert kernel is not None
    assert print_tree(kernel.scheduled.tree).startswith("@DRAM par i.1:")


def test_windows_wider_than_what_they_read_are_of_what_there_is() -> None:
    """An image of one column: of the windows only the middle column is left."""
    graph = convolutions((1, 8, 12, 1), inverted(8, 16, 8))
    kernel = windowed_kernel(planned(graph))
    assert kernel is not None
    (read,) = window_reads(kernel.scheduled.statements).values()
    assert len(read.read.indices) == 2
    require_right(graph, ALWAYS, 1)


@pytest.mark.parametrize(("rows", "stride", "touched"), [((0, 13), 1, 13), ((3, 13), 1, 10), ((0, 11), 5, 8)])
def test_points_that_no_window_touches_are_not_computed(rows: tuple[int, int], stride: int, touched: int) -> None:
    b = GraphBuilder("part")
    value = conv.conv(b.input("x", (1, 8, 13, 9), "f32"), b.input("w0", (16, 8, 1, 1), "f32"), name="c0")
    value = value[:, :, rows[0] : rows[1]]
    graph = b.finish([conv.conv(value, b.input("w1", (8, 16, 3, 3), "f32"), strides=stride, name="c1")])
    kernel = windowed_kernel(planned(graph))
    assert kernel is not None
    assert kernel.scheduled.statements[0].axes[0].size == touched
    require_right(graph, ALWAYS, 1)


def test_windows_as_large_as_what_they_read_have_one_point() -> None:
    """The product behind them has one loop, as its sums have one address before operands are placed."""
    b = GraphBuilder("all")
    value = conv.conv(b.input("x", (1, 17, 2, 2), "f32"), b.input("w0", (8, 17, 1, 1), "f32"), name="c0")
    value = pool.max_pool(value, [3, 5], pads=[1, 1, 0, 2], name="p")
    value = conv.conv(value, b.input("w1", (8, 8, 1, 1), "f32"), name="c1")
    graph = b.finish([ACTIVATIONS["relu"](value)])
    require_right(graph, ALWAYS, 1)


def test_channels_that_windows_move_along_stay_apart() -> None:
    """Of a convolution in groups; its first product would have to compute the channels of one group at a time."""
    b = GraphBuilder("groups")
    value = conv.conv(b.input("x", (1, 8, 9, 9), "f32"), b.input("w0", (24, 8, 1, 1), "f32"), name="c0")
    graph = b.finish([conv.conv(value, b.input("w1", (24, 6, 3, 3), "f32"), groups=4, pads=1, name="c1")])
    assert windowed_kernel(planned(graph)) is None
    require_right(graph, ALWAYS, 1)


def test_a_rearrangement_is_no_window() -> None:
    """A transposed read of the first product ends a chain."""
    b = GraphBuilder("rows")
    value = conv.conv(b.input("x", (1, 8, 9, 9), "f32"), b.input("w0", (16, 8, 1, 1), "f32"), name="c0")
    graph = b.finish([conv.conv(value[:, :, ::-1], b.input("w1", (8, 16, 3, 3), "f32"), name="c1")])
    assert windowed_kernel(planned(graph)) is None
    require_right(graph, ALWAYS, 1)
