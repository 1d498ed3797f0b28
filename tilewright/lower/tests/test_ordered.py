"""Trees of ordered accumulations: they have every decision, changed ones change the program, and others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp

from tests.random_graphs import random_array
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement, sizes, steps
from tilewright.expr.core import Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import indexing, reduce
from tilewright.expr.ordered import Ordered
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import print_module
from tilewright.lower.module import build_module
from tilewright.machine.registry import resolve, resolve_cpu
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.legality import check
from tilewright.tiles.machines import program_resources
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.problem import problem_of
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.tree import InvalidTree, from_json, to_json

MACHINE = Resources((Level("DRAM"), Level("L2"), Level("L1"), Level("REG", reduce=True)))


def scan_of_columns(b: GraphBuilder) -> Tensor:
    return reduce.cum_sum(b.input("x", (30, 70), "i32"), axis=0)


def scan_of_rows(b: GraphBuilder) -> Tensor:
    return reduce.cum_sum(b.input("x", (7, 50), "i32"), axis=1)


def sort_of_rows(b: GraphBuilder) -> Tensor:
    return reduce.top_k(b.input("x", (7, 50), "f32"), 50, axis=1)[1]


def few_of_rows(b: GraphBuilder) -> Tensor:
    return reduce.top_k(b.input("x", (40, 50), "f32"), 3, axis=1)[1]


def scatter_of_rows(b: GraphBuilder) -> Tensor:
    x, i, u = b.input("x", (4, 70), "i32"), b.input("i", (30, 1), "i64"), b.input("u", (30, 70), "i32")
    return indexing.scatter_nd(x, i, u, reduction="add")


def scatter_of_elements(b: GraphBuilder) -> Tensor:
    x, i, u = b.input("x", (4, 70), "i32"), b.input("i", (30, 70), "i64"), b.input("u", (30, 70), "i32")
    return indexing.scatter_elements(x, i, u, axis=0, reduction="add")


def planned(build: Callable[[GraphBuilder], Tensor], threads: int = 1) -> tuple[Graph, Plan, Kernel]:
    """The graph, its plan, and the kernel of its ordered accumulation."""
    b = GraphBuilder("ordered")
    graph = b.finish([build(b)])
    plan = make_plan(graph, resolve("x86-64-v3"), threads)
    kernel = next(each.scheduled for each in plan.kernels if isinstance(each.scheduled.statements[0].accum, Ordered))
    return graph, plan, kernel


def program(plan: Plan) -> ModuleOp:
    placement = Placement(plan)
    return build_module(
        steps(plan), sizes(plan), placement.places, placement.sections, DictionaryAttr({}),
        program_resources(resolve_cpu("x86-64-v3")),
    )[0]  # fmt: skip


def changed(plan: Plan, kernel: Kernel, changes: Sequence[tuple[str, str]]) -> Plan:
    """The plan with changes in the text of one kernel's tree."""
    text = print_tree(kernel.tree)
    for old, new in changes:
        assert old in text, text
        text = text.replace(old, new)
    other = Kernel(kernel.statements, parse_tree(text))
    kernels = [replace(each, scheduled=other if each.scheduled == kernel else each.scheduled) for each in plan.kernels]
    return replace(plan, kernels=kernels)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "build", [scan_of_columns, scan_of_rows, sort_of_rows, few_of_rows, scatter_of_rows, scatter_of_elements]
)
def test_trees_are_legal_and_can_be_stored(build: Callable[[GraphBuilder], Tensor], threads: int) -> None:
    _, _, kernel = planned(build, threads)
    check(kernel.tree, problem_of(kernel), imperfect=True, resources=MACHINE)
    assert parse_tree(print_tree(kernel.tree)) == kernel.tree
    assert from_json(json.loads(json.dumps(to_json(kernel.tree)))) == kernel.tree


@pytest.mark.parametrize(
    ("build", "changes"),
    [
        (scan_of_columns, [("i1:3 {", "i1:5 {"), ("unroll i1:4", "unroll i1:2")]),
        (scan_of_rows, [("neighbours(8)", "neighbours(4)")]),
        (sort_of_rows, [('"counting"', '"digits"')]),
        (scatter_of_rows, [("unroll i1:4", "unroll i1:3")]),
    ],
)
def test_a_changed_tree_is_another_program_with_the_same_result(
    build: Callable[[GraphBuilder], Tensor], changes: Sequence[tuple[str, str]]
) -> None:
    graph, plan, kernel = planned(build)
    before, after = program(plan), program(changed(plan, kernel, changes))
    assert print_module(after) != print_module(before)
    inputs = {tensor.name: random_array(tensor, number) for number, tensor in enumerate(graph.inputs)}
    inputs |= {"i": np.arange(30).reshape(30, 1) % 5} if "i" in inputs else {}
    (expected,) = evaluate(graph, list(inputs.values()))
    found = np.zeros(expected.size, expected.dtype)
    run_main(after, [array.reshape(-1) for array in inputs.values()], [found], np.zeros(0, np.uint8))
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


LANES = [
    ("for once:1 { op scatter_elements", "unroll i1:1 { par i1:8 { op scatter_elements }"),
    ("i1:70", "i1:9"),
    (" with lanes(8)", ""),
]


@pytest.mark.parametrize(
    ("build", "changes", "message", "help"),
    [
        (scan_of_columns, [("i1:3 {", "i1:4 {")], "@L2 for i1:4 does not go with", "@L2 for i1:3"),
        (scan_of_columns, [("r0:30", "r0:31")], "r0:31", "r0:30"),
        (scan_of_columns, [("i1:3 {", "r0:30 {"), ("r0:30 { @REG", "i1:3 { @REG")], "r0 is no loop", "i1"),
        (scan_of_columns, [("op cum_sum", "op cum_sum with neighbours(8)")], "neighbours", "op t1"),
        (scan_of_rows, [("@L2 for i0:7", "@L2 unroll i0:7")], "unroll i0", "@L2 for i0:7"),
        (sort_of_rows, [('sort("counting"), ', "")], "a sort by no method without lanes", "counting, digits"),
        (sort_of_rows, [("counting", "insertion")], "a sort by insertion without lanes", "selected-counting"),
        (few_of_rows, [("insertion", "digits")], "a sort by digits with lanes along i0", "insertion"),
        (scatter_of_rows, [("op scatter_nd", "op scatter_nd with neighbours(8)")], "neighbours", "op t2"),
        (scatter_of_elements, LANES, "lanes along i1, on which the places of updates depend", "another loop"),
    ],
)  # fmt: skip
def test_a_tree_that_no_program_has_is_refused(
    build: Callable[[GraphBuilder], Tensor], changes: Sequence[tuple[str, str]], message: str, help: str
) -> None:
    _, plan, kernel = planned(build)
    with pytest.raises(InvalidTree, match=message) as raised:
        program(changed(plan, kernel, changes))
    assert help in raised.value.help
