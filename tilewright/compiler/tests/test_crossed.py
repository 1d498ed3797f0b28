"""Transposing maps give what the NumPy evaluator does, in either order of their squares."""

import numpy as np
import pytest

from tests.random_graphs import random_array
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.plan import make_plan
from tilewright.expr import GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.ops import elementwise, shape
from tilewright.lower.schedules import schedule_of
from tilewright.machine import resolve_cpu
from tilewright.operator.nest import NestSchedule
from tilewright.options import Options


def transposed(size: tuple[int, int, int], dtype: str) -> Graph:
    """y[n, j, i] = -x[n, i, j]."""
    b = GraphBuilder()
    x = b.input("x", size, dtype)
    return b.finish([elementwise.unary(shape.transpose(x, (0, 2, 1)), "neg", name="y")])


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
    assert isinstance(kernel.schedule, NestSchedule)
    assert kernel.schedule.order


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [(3, 33, 1024), (3, 1024, 33)])
def test_the_order_of_squares_is_read_back_from_the_tree(size: tuple[int, int, int], threads: int) -> None:
    (kernel,) = make_plan(transposed(size, "f32"), resolve_cpu("znver5"), threads).kernels
    assert schedule_of(kernel.scheduled) == (kernel.work, kernel.schedule)
