"""Convolutions of Hopper: boxes of images, borders that are nowhere in memory, factors that are laid out anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import pytest

from tests.covering import FULL, some
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.compiler import gpu, gpu_borders
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import ChooseProduct, Plan
from tilewright.compiler.program import Placement
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, shape
from tilewright.instruction.block_tiles import Candidate, Ranking
from tilewright.kernel.interpreter import run_kernel
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.runtime import emulated

MACHINE = "sm_90a"
Build = Callable[[GraphBuilder], Tensor]
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Compiled:
    """A graph with its plan and code, and what the emulator made of it."""

    plan: Plan
    code: PtxCode

    @property
    def kernels(self) -> list[str]:
        return [kernel.name for kernel in self.plan.kernels]

    def said(self, subject: str) -> str:
        """The decisions about something."""
        return "\n".join(each.explain() for each in self.plan.decisions if each.subject.startswith(subject))


def graph_of(build: Build) -> Graph:
    b = GraphBuilder()
    return b.finish([build(b)])


def values(extents: tuple[int, ...], dtype: str = "f16") -> np.ndarray[Any, Any]:
    """Small whole numbers, whose sums are exact in any order."""
    return RNG.integers(-2, 3, extents).astype(dtypes.numpy_dtype(dtype))


def weights(b: GraphBuilder, extents: tuple[int, ...], known: bool, dtype: str = "f16") -> Tensor:
    return b.constant(values(extents, dtype), "w") if known else b.input("w", extents, dtype)


def by_boxes(ranking: Ranking, node: str) -> Candidate | None:
    return next((each for each in ranking.candidates if each.warpgroup), None)


def by_warps(ranking: Ranking, node: str) -> Candidate | None:
    return next((each for each in ranking.candidates if not each.warpgroup), None)


@pytest.fixture
def boxes_wherever_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave every border out of memory that boxes can bring, whatever is predicted."""
    monkeypatch.setattr(gpu_borders, "_pays", lambda without, with_it: without < inf)


def in_memory(made: Compiled, name: str) -> bool:
    """Whether a tensor has a border in memory."""
    return any(map(any, made.plan.stored[name].layout.halo))


def check(build: Build, choose: Any = by_boxes, **options: Any) -> Compiled:
    """Compile, run in the emulator without diagnostics, compare with the evaluator; nothing spills."""
    graph, settings = graph_of(build), Options(cache=False, verify_each=True, **options)
    plan = make_plan(graph, resolve(MACHINE), 1, settings, None if choose is None else ChooseProduct(tile=choose))
    placement = Placement(plan)
    program = gpu.tile_program(plan, placement, resolve(MACHINE))  # type: ignore[arg-type]
    gpu.distribute(program, settings)
    code = generate(program)
    resources = ptxas.check(code.ptx, MACHINE)
    assert resources is None or all(each.spills == 0 for each in resources.values())
    given = [values(static_shape(tensor.shape), tensor.dtype) for tensor in graph.inputs]
    found = [np.zeros(static_shape(tensor.shape), dtypes.numpy_dtype(tensor.dtype)) for tensor in graph.outputs]
    assert emulated.run_module(code, given, found, placement.packed(plan)).diagnostics == []
    for one, other in zip(found, evaluate(graph, given), strict=True):
        np.testing.assert_array_equal(one, other)
    return Compiled(plan, code)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("image", "window", "settings"),
    [
        ((3, 64, 7, 7), (72, 64, 3, 3), {"pads": 1}),
        ((5, 40, 9, 11), (24, 40, 3, 3), {"pads": 1}),  # a slice of k beyond the channels
        *(
            [((1, 64, 10, 12), (40, 64, 3, 3), {"pads": (1, 0)}), ((2, 72, 8, 8), (16, 72, 5, 5), {"pads": 2})]
            if FULL
            else []
        ),
        ((2, 32, 12, 11), (40, 32, 3, 3), {"pads": 2, "dilations": 2}),
        ((2, 32, 9, 20), (16, 32, 1, 3), {"pads": (0, 1)}),
        ((1, 24, 13, 10), (33, 24, 3, 3), {"pads": 1, "strides": 2}),  # one image: 5 dimensions
        ((2, 64, 8, 8), (48, 64, 3, 3), {"pads": 1, "strides": 2}),  # rows of even length: a row is steps of a column
    ],
    ids=str,
)
@pytest.mark.parametrize("known", [True, False])
def test_boxes_of_images(
    image: tuple[int, ...], window: tuple[int, ...], settings: dict[str, Any], known: bool
) -> None:
    made = check(lambda b: conv.conv(b.input("x", image, "f16"), weights(b, window, known), **settings))
    assert not known or "wgmma.mma_async" in made.code.ptx


def test_a_border_of_zeros_is_nowhere_in_memory() -> None:
    made = check(
        lambda b: conv.conv(b.input("x", (4, 64, 12, 12), "f16"), weights(b, (64, 64, 3, 3), known=True), pads=1)
    )
    assert made.kernels == ["x.copy", "conv"]
    assert not in_memory(made, "x.copy")
    assert "cp.async.bulk.tensor.4d" in made.code.ptx
    said = made.said("border of x.copy")
    assert said.startswith("border of x.copy: zeros outside of boxes,")
    assert said.count("predicted cycles of what reads it") == 2  # one number for each way


@pytest.mark.usefixtures("boxes_wherever_they_can_be")
@pytest.mark.parametrize(("before", "boxes"), [(8, True), (4, False)])
def test_boxes_begin_at_multiples_of_16_bytes(before: int, boxes: bool) -> None:
    """Of a factor with a border along k; the copy engine takes no other places."""

    def build(b: GraphBuilder) -> Tensor:
        padded = shape.pad(b.input("x", (64, 48), "f16"), (0, before), (0, 16 - before))
        return linalg.matmul(padded, b.input("w", (64, 64), "f16"))

    made = check(build)
    assert in_memory(made, "x.copy") == (not boxes)
    assert "cp.async.bulk.tensor" in made.code.ptx


@pytest.mark.usefixtures("boxes_wherever_they_can_be")
def test_results_that_the_next_window_reads_need_no_border() -> None:
    def build(b: GraphBuilder) -> Tensor:
        y = elementwise.relu(conv.conv(b.input("x", (2, 32, 8, 8), "f16"), weights(b, (64, 32, 1, 1), known=True)))
        return conv.conv(y, b.constant(values((32, 64, 3, 3)), "v"), pads=1)

    assert not in_memory(check(build), "relu")


@pytest.mark.usefixtures("boxes_wherever_they_can_be")
def test_readers_inside_of_a_tensor_do_not_want_its_border() -> None:
    """A residual that is added, and a window of one point with steps, beside a window that reads outside."""

    def build(b: GraphBuilder) -> Tensor:
        y = elementwise.relu(conv.conv(b.input("x", (2, 32, 8, 8), "f16"), weights(b, (32, 32, 1, 1), known=True)))
        z = elementwise.binary(conv.conv(y, b.constant(values((32, 32, 3, 3)), "v"), pads=1), y, "add")
        down = conv.conv(y, b.constant(values((32, 32, 1, 1)), "u"), strides=2)
        return elementwise.binary(conv.conv(z, b.constant(values((32, 32, 1, 1)), "t"), strides=2), down, "add")

    assert not in_memory(check(build), "relu")


@pytest.mark.parametrize(
    ("settings", "options", "reason"),
    [
        ({"pads": 1, "strides": 2}, {}, "no copy engine brings what reads it"),
        ({"pads": 1}, {"disable": ("tensor-copies",)}, "no copy engine brings what reads it"),
    ],
    ids=["stride 2", "switched off"],
)
def test_other_borders_are_in_memory(settings: dict[str, Any], options: dict[str, Any], reason: str) -> None:
    image, window = (2, 32, 9, 8), (16, 32, 3, 3)
    made = check(
        lambda b: conv.conv(b.input("x", image, "f16"), weights(b, window, known=True), **settings), None, **options
    )
    assert made.plan.stored["x.copy"].zero_border
    assert reason in made.said("border of x.copy")


def test_a_window_that_steps_by_two_says_why_it_has_no_boxes() -> None:
    graph = graph_of(
        lambda b: conv.conv(b.input("x", (64, 64, 57, 57), "f16"), weights(b, (128, 64, 3, 3), True), pads=1, strides=2)
    )
    plan = make_plan(graph, resolve(MACHINE), 1, Options(cache=False))
    (said,) = (each for each in plan.decisions if each.subject.startswith("block of"))
    assert "x.copy is read along 6 dimensions, 5 at most" in said.explain()


@pytest.mark.usefixtures("boxes_wherever_they_can_be")
def test_what_is_outside_is_masked_where_threads_copy_it_all_the_same() -> None:
    """A factor whose copy would take longer than all else: no boxes, and no border in memory either."""
    made = check(
        lambda b: conv.conv(b.input("x", (1, 16, 6, 6), "f16"), weights(b, (16, 16, 3, 3), known=False), pads=1), None
    )
    assert made.kernels == ["x.copy", "conv"]
    assert not in_memory(made, "x.copy")
    assert "mma.sync" in made.code.ptx


@pytest.mark.usefixtures("boxes_wherever_they_can_be")
@pytest.mark.parametrize("choose", some([by_boxes, by_warps, None], 2))
def test_an_image_whose_border_is_not_in_memory_may_lie_in_another_order_than_the_result(choose: Any) -> None:
    """Rows of a tile follow the result, and memory follows what wrote the image."""

    def build(b: GraphBuilder) -> Tensor:
        y = elementwise.relu(conv.conv(b.input("x", (1, 40, 6, 7), "f16"), b.constant(values((40, 40, 1, 1)), "v")))
        return conv.conv(shape.transpose(y, (0, 1, 3, 2)), weights(b, (24, 40, 3, 3), known=True), pads=(0, 1))

    assert not in_memory(check(build, choose), "relu")


@pytest.mark.usefixtures("boxes_wherever_they_can_be")
def test_threads_bring_boxes_of_an_image_with_several_loops_of_k() -> None:
    """A k tile of threads would have points of the window too, where the channels are few."""

    def build(b: GraphBuilder) -> Tensor:
        image = b.input("x", (3, 32, 5, 5), "bf16")
        return conv.conv(image, weights(b, (6, 16, 2, 2), False, "bf16"), pads=2, dilations=2, groups=2)

    made = check(build, by_warps)
    assert not in_memory(made, "x.copy")
    assert "mma.sync" in made.code.ptx


def test_an_image_that_lies_along_its_rows_keeps_its_border() -> None:
    """Neighbours along m, outside of the shape: no box has them."""

    def build(b: GraphBuilder) -> Tensor:
        y = elementwise.relu(conv.conv(b.input("x", (1, 40, 1, 8), "f16"), b.constant(values((40, 40, 1, 1)), "v")))
        return conv.conv(y, b.input("w", (3, 40, 1, 3), "f16"), pads=1, dilations=2)

    assert "no copy engine brings what reads it" in check(build, None).said("border of relu")


def test_weights_that_are_given_are_laid_out_anew_where_that_is_cheaper() -> None:
    extents = (128, 256, 3, 3)

    def build(b: GraphBuilder) -> Tensor:
        return conv.conv(b.input("x", (8, 256, 8, 8), "f16"), b.input("w", extents, "f16"), pads=1)

    graph, machine = graph_of(build), resolve(MACHINE)
    plan = make_plan(graph, machine, 1, Options(cache=False))
    assert [kernel.name for kernel in plan.kernels] == ["x.copy", "w.packed", "conv"]
    (said,) = (each for each in plan.decisions if each.subject == "factors of conv.acc")
    assert "w copied in" in said.chosen
    assert said.runner_up == "x.copy in place, w in place"
    assert said.cost is not None
    assert said.runner_up_cost is not None
    assert said.runner_up_cost.exceeds(said.cost)
    given = [values(static_shape(tensor.shape)) for tensor in graph.inputs]
    np.testing.assert_array_equal(evaluate(plan.mapped_graph(), given)[0], evaluate(graph, given)[0])


def test_an_image_by_channels_is_laid_out_anew_for_what_is_read_of_it() -> None:
    extents = (32, 256, 56, 56)
    graph = graph_of(
        lambda b: conv.conv(b.input("x", extents, "f16"), b.input("w", (128, 256, 1, 1), "f16"), strides=2)
    )
    plan = make_plan(graph, resolve(MACHINE), 1, Options(cache=False))
    assert [kernel.name for kernel in plan.kernels] == ["x.packed", "conv"]
    (packed,) = (stored for name, stored in plan.stored.items() if name.startswith("relayout."))
    assert packed.layout.shape == (32, 28, 28, 256)


@pytest.mark.usefixtures("boxes_wherever_they_can_be")
def test_a_masked_load_of_a_box_is_what_the_box_is() -> None:
    """The tile program before and after boxes that nothing copies become loads of threads."""
    graph = graph_of(
        lambda b: conv.conv(b.input("x", (1, 16, 6, 6), "f16"), weights(b, (16, 16, 3, 3), known=True), pads=1)
    )
    settings = Options(cache=False)
    plan = make_plan(graph, resolve(MACHINE), 1, settings, ChooseProduct(tile=by_boxes))
    program = gpu.tile_program(plan, Placement(plan), resolve(MACHINE))  # type: ignore[arg-type]
    assert "tile.load_box" in str(program)
    image, tables = values((6 * 6 * 16,)), values((16 * 9 * 16,))
    results = []
    for pipeline in (False, True):
        if pipeline:
            gpu.distribute(program, Options(cache=False, verify_each=True, disable=("tensor-copies",)))
        out = np.zeros(16 * 36, np.float16)
        run_kernel(program, "conv", [image, tables, out])
        results.append(out)
    np.testing.assert_array_equal(*results)


def test_a_copy_of_weights_costs_a_launch_too() -> None:
    """The kernel that lays them out anew begins when the one before it has ended."""

    def build(b: GraphBuilder) -> Tensor:
        return conv.conv(b.input("x", (8, 256, 8, 8), "f16"), b.input("w", (128, 256, 3, 3), "f16"), pads=1)

    machine = resolve(MACHINE)
    assert isinstance(machine, Gpu)
    costs = []
    for seconds in (1e-6, 2e-6):
        plan = make_plan(graph_of(build), replace(machine, launch_seconds=seconds), 1, Options(cache=False))
        (said,) = (each.chosen for each in plan.decisions if each.subject == "factors of conv.acc")
        costs.append(float(said.split("w copied in ")[1].split()[0]))
    assert costs[1] - costs[0] == pytest.approx(1e-6 * machine.clock_hz, abs=1)
