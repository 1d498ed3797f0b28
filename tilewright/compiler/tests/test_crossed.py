"""Transposing maps give what the NumPy evaluator does, in either order of their squares."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright.compiler.rows as rows_module
from tests.random_graphs import random_array
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.expr import GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.ops import elementwise, shape
from tilewright.machine import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.parts import program_of


def transposed(size: tuple[int, int, int], dtype: str) -> Graph:
    """y[n, j, i] = -x[n, i, j]."""
    b = GraphBuilder()
    x = b.input("x", size, dtype)
    return b.finish([elementwise.unary(shape.transpose(x, (0, 2, 1)), "neg", name="y")])


@pytest.mark.covering(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [(1, 64, 1024), (3, 33, 1024), (2, 17, 2048), (2, 1024, 33), (1, 67, 65)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8"])
def test_transposed(size: tuple[int, int, int], dtype: str, threads: int) -> None:
    graph = transposed(size, dtype)
    x = random_array(graph.inputs[0], seed=1)
    (expected,) = evaluate(graph, {"x": x})
    y = compile_graph(graph, threads=threads, options=Options(cache=False))(x)
    np.testing.assert_array_equal(y, expected)


def test_ragged_squares_are_among_those_that_follow_the_read() -> None:
    (kernel,) = make_plan(transposed((3, 33, 1024), "f32"), resolve_cpu("znver5"), 1).kernels
    *_, innermost = program_of(kernel.scheduled.tree).tiles.items()
    assert innermost == ("i1", 64)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [(3, 33, 1024), (3, 1024, 33)])
def test_squares_run_in_the_order_of_the_tree(
    size: tuple[int, int, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled, trees = rows_module.schedule_statements, []

    def swapped(*arguments: Any) -> Any:
        kernel, decision = scheduled(*arguments)
        text = re.sub(r"@L2 for (.*?)(\w+:\d+), (\w+:\d+) \{", r"@L2 for \1\3, \2 {", print_tree(kernel.tree))
        trees.append((kernel.tree, parse_tree(text)))
        return replace(kernel, tree=trees[-1][1]), decision

    graph = transposed(size, "f32")
    x = random_array(graph.inputs[0], seed=1)
    usual = compile_graph(graph, threads=threads, options=Options(cache=False))
    monkeypatch.setattr(rows_module, "schedule_statements", swapped)
    other = compile_graph(graph, threads=threads, options=Options(cache=False))
    assert all(before != after for before, after in trees)
    np.testing.assert_array_equal(other(x), usual(x))
    assert other.artifact.program != usual.artifact.program


def prefetches(size: tuple[int, int, int], machine: str) -> list[str]:
    """What a transposing map asks for ahead."""
    (kernel,) = make_plan(transposed(size, "f32"), resolve_cpu(machine), 1).kernels
    return re.findall(r"prefetch\([^)]*\)", print_tree(kernel.scheduled.tree))


def test_squares_ask_ahead_for_inputs_that_l2_does_not_hold_by_far() -> None:
    assert prefetches((3, 256, 401), "x86-64-v3") == ['prefetch("x", 64, 8)']  # 1.2 MB, of L2 256 KiB
    assert prefetches((3, 256, 301), "x86-64-v3") == []  # 0.9 MB
    assert prefetches((3, 256, 401), "znver5") == []


def test_squares_ask_ahead_along_every_line_that_they_read() -> None:
    graph = transposed((3, 256, 401), "f32")
    x = random_array(graph.inputs[0], seed=1)
    module = compile_graph(graph, machine="x86-64-v3", threads=1, options=Options(cache=False))
    np.testing.assert_array_equal(module(x), -x.transpose(0, 2, 1))
    program = module.artifact.program
    assert program.count("tile.prefetch") >= 8
    assert all(f"constant {401 * line + 64} :" in program for line in range(8))


def test_every_input_that_is_read_across_lines_is_asked_for() -> None:
    b = GraphBuilder()
    x, y, z, w = (b.input(name, (1200, 800), "f32") for name in "xyzw")
    crossed = shape.transpose(x + elementwise.unary(y, "abs"), (1, 0))
    along = b.input("along", (800, 1200), "f32")
    mixed = shape.transpose(z, (1, 0)) * along
    graph = b.finish([crossed, mixed, w + 1.0])
    plan = make_plan(graph, resolve_cpu("x86-64-v3"), 1)
    hints = {name for each in plan.kernels for name in re.findall(r'prefetch\("(\w+)', print_tree(each.scheduled.tree))}
    assert hints == {"x", "y", "z"}


def test_a_tensor_that_is_read_both_ways_has_no_hint_for_squares() -> None:
    b = GraphBuilder()
    x = b.input("x", (640, 640), "f32")
    (kernel,) = make_plan(b.finish([x + shape.transpose(x, (1, 0))]), resolve_cpu("x86-64-v3"), 1).kernels
    assert "prefetch" not in print_tree(kernel.scheduled.tree)
