"""Compile time is linear in the size of a graph: counted in calls of functions, not in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.calls import superlinear
from tilewright.compiler.compile import resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.program import Placement
from tilewright.expr.core import Tensor, select
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, norm, shape
from tilewright.options import Options
from tilewright.runtime.memory import LiveBuffer, plan_arena

Build = Callable[[GraphBuilder, int], list[Tensor]]


def chain_of_selects(b: GraphBuilder, n: int) -> list[Tensor]:
    x = b.input("x", (17, 33), "f32")
    for _ in range(n):
        x = elementwise.map_elements([x], lambda v: select(v > 0.0, v, v * 0.1), name="leaky")
    return [x]


def residual(b: GraphBuilder, n: int) -> list[Tensor]:
    x = b.input("x", (17, 33), "f32")
    for _ in range(n):
        x = elementwise.binary(x, elementwise.unary(x, "tanh"), "add")
    return [x]


def scaled_products(b: GraphBuilder, n: int) -> list[Tensor]:
    x = b.input("x", (4, 8), "f32")
    for i in range(n):
        weight = b.constant(np.full((8, 8), 1 / (i + 1), np.float32))
        scale = b.constant(np.full((8,), i + 2, np.float32))
        x = elementwise.binary(linalg.matmul(x, weight), scale, "mul")
    return [x]


def grouped_convolutions(b: GraphBuilder, n: int) -> list[Tensor]:
    x = b.input("x", (1, 4, 7, 7), "f32")
    for i in range(n):
        weight = b.constant(np.full((4, 2, 3, 3), i + 1, np.float32))
        x = elementwise.relu(conv.conv(x, weight, groups=2, pads=(1, 1, 1, 1)))
    return [x]


def row_groups(b: GraphBuilder, n: int) -> list[Tensor]:
    x = b.input("x", (5, 17), "f32")
    for _ in range(n):
        x = elementwise.relu(norm.softmax(x))
    return [x]


def fan_out_and_in(b: GraphBuilder, n: int) -> list[Tensor]:
    x = elementwise.unary(b.input("x", (n, 3), "f32"), "tanh")
    return [shape.concat([elementwise.relu(shape.narrow(x, 0, i, 1)) for i in range(n)], axis=0)]


def wide_sum(b: GraphBuilder, n: int) -> list[Tensor]:
    return [elementwise.variadic([b.input(f"x{i}", (1, 3), "f32") for i in range(n)], "add")]


def many_outputs(b: GraphBuilder, n: int) -> list[Tensor]:
    x = b.input("x", (n, 3), "f32")
    return [shape.narrow(x, 0, i, 1) for i in range(n)]


GRAPHS: dict[Build, int] = {
    chain_of_selects: 34,
    residual: 25,
    scaled_products: 8,
    grouped_convolutions: 6,  # of n products in turn, 2 n - 3 pairs and triples may be one kernel
    row_groups: 30,
    fan_out_and_in: 85,
    wide_sum: 150,
    many_outputs: 30,
}


@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
def test_planning_a_graph_of_twice_the_size_takes_twice_the_steps(build: Build) -> None:
    machine = resolve_target("host")
    options = Options(cache=False)

    def graph_of(n: int) -> Graph:
        b = GraphBuilder(build.__name__)
        return b.finish(build(b, n))

    def plan(n: int) -> None:
        made = make_plan(graph_of(n), machine, 1, options)
        Placement(made)
        made.mapped_graph()

    plan(2 * GRAPHS[build])  # what is kept from one graph to the next is known then
    assert not superlinear(plan, GRAPHS[build])


def test_importing_twice_the_nodes_takes_twice_the_steps() -> None:
    onnx = pytest.importorskip("onnx")
    from tilewright.frontend.onnx.importer import import_model

    def model(n: int) -> Any:
        helper = onnx.helper
        nodes = [helper.make_node(("Relu", "Tanh")[i % 2], [f"t{i}"], [f"t{i + 1}"]) for i in range(n)]
        nodes.append(helper.make_node("Concat", [f"t{i + 1}" for i in range(n)], ["y"], axis=0))
        values = [helper.make_tensor_value_info(name, 1, [rows, 3]) for name, rows in (("t0", 1), ("y", n))]
        graph = helper.make_graph(nodes, "g", values[:1], values[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    models = {n: model(n) for n in (3, 100, 200)}
    import_model(models[3])
    assert not superlinear(lambda n: import_model(models[n]), 100)


def test_placing_buffers_takes_steps_for_those_that_are_live_together_only() -> None:
    def place(n: int) -> None:
        plan_arena([LiveBuffer(f"b{i}", 100, i, i + i % 3) for i in range(n)])

    assert not superlinear(place, 300)


def test_a_sum_of_many_inputs_and_a_long_row_group_do_not_exhaust_the_stack() -> None:
    machine = resolve_target("host")
    for build, n in ((wide_sum, 1000), (row_groups, 300)):
        b = GraphBuilder(build.__name__)
        make_plan(b.finish(build(b, n)), machine, 1, Options(cache=False))
