"""Predicted cycles of kernels: what costs more is predicted to, and what is counted."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tilewright.compiler.compile import resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Kernel
from tilewright.compiler.program import planned_launches
from tilewright.expr import GraphBuilder, Tensor
from tilewright.expr.ops import conv, elementwise, indexing, linalg, reduce, shape
from tilewright.expr.ordered import Ordered
from tilewright.machine import Cpu, resolve_cpu
from tilewright.operator.cycles import INSTRUCTIONS, _issue_cycles, accumulation_instructions, nest_cycles
from tilewright.operator.sorting import sort_methods
from tilewright.tiles.notation import parse_tree, print_tree


def cycles(function: str, extent: int) -> float:
    b = GraphBuilder()
    x = b.input("x", (extent, extent), "f32")
    y = shape.transpose(x, (1, 0), name="y") if function == "transpose" else elementwise.unary(x, function)
    (kernel,) = make_plan(b.finish([y]), resolve_target("znver5"), 1).kernels
    return kernel.cycles


def test_cycles_grow_with_points_and_with_instructions() -> None:
    assert cycles("neg", 64) == 4 * cycles("neg", 32) > 0
    assert cycles("erf", 64) > 3 * cycles("neg", 64)


def test_elements_that_are_no_neighbours_cost_more() -> None:
    assert cycles("transpose", 64) > 4 * cycles("neg", 64)


def kernels(build: Callable[[GraphBuilder], Tensor], machine: str = "znver5") -> list[Kernel]:
    b = GraphBuilder()
    return make_plan(b.finish([build(b)]), resolve_target(machine), 1).kernels


def product(epilogue: str, machine: str = "znver5") -> float:
    """Cycles of a product of 64 x 32 by 32 x 96 with an element-wise function of its sums."""

    def build(b: GraphBuilder) -> Tensor:
        y = linalg.matmul(b.input("x", (64, 32), "f32"), b.constant(np.ones((32, 96), "f4"), "w"))
        return elementwise.unary(y, epilogue) if epilogue else y

    (kernel,) = kernels(build, machine)
    return kernel.cycles


def test_functions_take_more_instructions_without_registers_of_masks() -> None:
    vectors = 64 * 96 / 8
    assert product("tanh", "znver3") - product("", "znver3") == pytest.approx(vectors * INSTRUCTIONS["tanh"][1] / 2)


def test_functions_take_as_long_as_the_machine_says() -> None:
    vectors = 64 * 96 / 8
    assert product("tanh", "znver1") - product("", "znver1") == pytest.approx(vectors * INSTRUCTIONS["tanh"][1])


def test_epilogues_of_products_are_counted() -> None:
    vectors = 64 * 96 / 16
    assert product("tanh") - product("") == pytest.approx(vectors * INSTRUCTIONS["tanh"][0] / 2)
    assert product("") < product("neg") < product("tanh")


def test_what_an_unrolled_loop_shares_is_loaded_once() -> None:
    def build(b: GraphBuilder) -> Tensor:
        image = shape.transpose(b.input("x", (1, 20, 20, 32), "f32"), (0, 3, 1, 2))
        weights = b.input("w", (32, 1, 3, 3), "f32")
        return shape.transpose(conv.depthwise_conv(image, weights), (0, 2, 3, 1))

    for kernel in kernels(build):
        text = print_tree(kernel.scheduled.tree)
        alone = re.sub(r"unroll \w+:[2-9], ", "unroll ", text)
        if alone != text:
            break
    assert alone != text
    once = replace(kernel.scheduled, tree=parse_tree(alone))
    assert nest_cycles(once, resolve_cpu("znver5")) > kernel.cycles


def test_points_that_a_row_of_a_window_shares_are_loaded_once() -> None:
    def build(b: GraphBuilder) -> Tensor:
        image = shape.transpose(b.input("x", (1, 20, 20, 32), "f32"), (0, 3, 1, 2))
        return shape.transpose(conv.depthwise_conv(image, b.input("w", (32, 1, 3, 3), "f32")), (0, 2, 3, 1))

    texts = {kernel: print_tree(kernel.scheduled.tree) for kernel in kernels(build, "znver3")}
    kernel, text = next((each, text) for each, text in texts.items() if "@L1" in text)
    separate = re.sub(r"@L1 for (\w+:3) \{ @REG unroll (\w+:3), ", r"@L1 for \1, \2 { @REG unroll ", text)
    assert separate != text
    assert nest_cycles(replace(kernel.scheduled, tree=parse_tree(separate)), resolve_cpu("znver3")) > kernel.cycles


@pytest.mark.parametrize(
    ("function", "dtype", "along", "expected"),
    [("mul", "f32", False, 0), ("mul", "f32", True, 1), ("sub", "f32", False, 1), ("mul", "i32", False, 1)],
)
def test_a_product_is_added_by_the_instruction_that_multiplies(
    function: str, dtype: str, along: bool, expected: int
) -> None:
    def build(b: GraphBuilder) -> Tensor:
        x = elementwise.binary(b.input("x", (64, 64), dtype), b.input("z", (64, 64), dtype), function)
        return reduce.reduce_sum(x, [0])

    (kernel,) = kernels(build)
    statement = next(each for each in kernel.scheduled.statements if each.accum is not None)
    vector = statement.reduce[0] if along else statement.axes[-1]
    assert accumulation_instructions(statement, vector) == expected


def reduction(rows: int, columns: int, accum: str = "sum") -> float:
    function = reduce.reduce_sum if accum == "sum" else reduce.reduce_max
    (kernel,) = kernels(lambda b: function(b.input("x", (rows, columns), "f32"), [1]))
    return kernel.cycles


def test_short_and_ragged_rows_cost_more() -> None:
    assert reduction(256, 64) > 1.5 * reduction(64, 256), "the lanes of each sum are combined"
    assert reduction(64, 208) == reduction(64, 256), "the last vectors of a row are masked, not fewer"


def test_an_extreme_of_floats_looks_for_nan() -> None:
    assert reduction(16, 4096, "max") > 1.3 * reduction(16, 4096)


@pytest.mark.parametrize("name", ["scan", "scan-of-rows", "sort", "scatter"])
def test_ordered_accumulations_have_cycles_that_grow(name: str) -> None:
    def cycles_of(extent: int) -> float:
        def build(b: GraphBuilder) -> Tensor:
            x = b.input("x", (extent, 64), "f32")
            if name.startswith("scan"):
                return reduce.cum_sum(x, axis=1 if name == "scan" else 0)
            if name == "sort":
                return reduce.top_k(x, 8, axis=1)[0]
            return indexing.scatter_nd(b.input("y", (40, 64), "f32"), b.input("i", (extent, 1), "i64"), x)

        ordered = [each for each in kernels(build) if isinstance(each.scheduled.statements[-1].accum, Ordered)]
        assert ordered
        return sum(each.cycles for each in ordered)

    assert 0 < cycles_of(64) < cycles_of(256) <= 4 * cycles_of(64)


def test_places_of_each_element_cost_more_than_places_of_rows() -> None:
    def updates(elements: bool) -> float:
        def build(b: GraphBuilder) -> Tensor:
            y, x = b.input("y", (40, 64), "f32"), b.input("x", (40, 64), "f32")
            if elements:
                return indexing.scatter_elements(y, b.input("i", (40, 64), "i64"), x)
            return indexing.scatter_nd(y, b.input("i", (40, 1), "i64"), x)

        return kernels(build)[-1].cycles

    assert updates(elements=True) > 16 * updates(elements=False)


def test_a_scatter_moves_the_places_of_its_updates_only() -> None:
    b = GraphBuilder()
    y = elementwise.relu(b.input("y", (4000, 64), "f32"))
    x, i = b.input("x", (5, 64), "f32"), b.input("i", (5, 1), "i64")
    plan = make_plan(b.finish([indexing.scatter_nd(y, i, x, reduction="add")]), resolve_target("znver5"), 1)
    (updates,) = [each for each in planned_launches(plan) if each.name.endswith(".updates")]
    assert updates.bytes == 5 * 64 * 4 * 3 + 5 * 8, "updates are read, places read and written"


def test_a_scatter_moves_places_that_come_again_once() -> None:
    b = GraphBuilder()
    y, x, i = b.input("y", (4, 64), "f32"), b.input("x", (500, 64), "f32"), b.input("i", (500, 1), "i64")
    plan = make_plan(b.finish([indexing.scatter_nd(y, i, x, reduction="add")]), resolve_target("znver5"), 1)
    (updates,) = [each for each in planned_launches(plan) if each.name.endswith(".updates")]
    assert updates.bytes == 500 * 64 * 4 + 2 * 4 * 64 * 4 + 500 * 8


@pytest.mark.parametrize(("elements", "least", "most"), [(True, 2.0, 4.0), (False, 1.2, 2.5)])
def test_updates_beyond_l2_wait_for_their_lines(elements: bool, least: float, most: float) -> None:
    """Predicted cycles of a scatter to 1 MiB were 0.4 of the measured ones on a core with 512 KiB of L2."""

    def updates(rows: int) -> float:
        def build(b: GraphBuilder) -> Tensor:
            y, x = b.input("y", (rows, 64), "f32"), b.input("x", (4096, 64), "f32")
            if elements:
                return indexing.scatter_elements(y, b.input("i", (4096, 64), "i64"), x, reduction="add")
            return indexing.scatter_nd(y, b.input("i", (4096, 1), "i64"), x, reduction="add")

        return kernels(build, "znver1")[-1].cycles

    assert updates(1024) == updates(2048)
    assert least < updates(4096) / updates(2048) < most


def test_sorts_by_vectors_take_as_long_as_the_machine_says() -> None:
    def cycles_on(machine: Cpu) -> dict[str, float]:
        b = GraphBuilder()
        graph = b.finish(list(reduce.top_k(b.input("x", (4, 4096), "f32"), 32, axis=1)))
        (sort,) = [
            each
            for each in make_plan(graph, machine, 1).kernels
            if isinstance(each.scheduled.statements[-1].accum, Ordered)
        ]
        statement = sort.scheduled.statements[-1]
        return {method.word: cycles for cycles, method in sort_methods(statement, 8, machine)}

    half, whole = (cycles_on(replace(resolve_cpu("znver1"), arithmetic_per_cycle=rate)) for rate in (1.0, 2.0))
    assert half["selected-counting"] == 2 * whole["selected-counting"]
    assert half["digits"] == whole["digits"], "its passes go by element"


def test_a_place_that_is_a_loop_is_only_added() -> None:
    """Predicted cycles of a scatter along one of two dimensions were 2.5 times of the measured ones."""
    b, n = GraphBuilder(), 64 * 64
    y, x, i = b.input("y", (64, 64), "f32"), b.input("x", (64, 64), "f32"), b.input("i", (64, 64), "i64")
    flat, places = b.input("flat", (n,), "f32"), b.input("places", (n, 1), "i64")
    made = [indexing.scatter_elements(y, i, x, axis=0), indexing.scatter_nd(flat, places, b.input("u", (n,), "f32"))]
    plan = make_plan(b.finish(made), resolve_target("znver5"), 1)
    along, every = [each.cycles for each in planned_launches(plan) if each.name.endswith(".updates")]
    assert every < along < 1.5 * every


def test_a_tile_of_as_many_sums_as_the_units_hold_under_way_loses_against_one_of_more() -> None:
    """512 rows are whole tiles of 2, and not of 6; without what is lost they would decide it."""
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("a", (512, 512), "f32"), b.input("b", (512, 512), "f32"), name="c")])
    plan = make_plan(graph, resolve_cpu("x86-64-v3"), 1)
    chosen = {each.subject: each.chosen for each in plan.decisions}
    assert chosen["register tile of c"] == "6 rows by 2 vectors"


def test_sums_that_take_little_more_than_the_latency_lose_cycles() -> None:
    """Of 256 bits: 8 sums lose a quarter of a cycle in each step, 10 half of that, 12 nothing."""
    assert [_issue_cycles(sums / 2) - sums / 2 for sums in (8, 10, 12, 14)] == [0.25, 0.125, 0.0, 0.0]
