"""The compiled graph: relayouts of operands are nodes of it, named by content, and it computes what the model does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.compiler.compile import compile_graph, place
from tilewright.compiler.plan import Plan, make_plan
from tilewright.compiler.tests.test_products_by_mapping import BUILD, OPERATORS
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg
from tilewright.instruction.relayout import PREFIX, fold_constants
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options

RNG = np.random.default_rng(0)


def arrays(graph: Graph) -> list[np.ndarray]:
    """Small whole numbers, so that every sum is exact in any order."""
    return [RNG.integers(-3, 4, static_shape(t.shape)).astype(dtypes.numpy_dtype(t.dtype)) for t in graph.inputs]


def relayouts(graph: Graph) -> list[Compute]:
    return [node for node in graph.nodes if node.name.startswith(PREFIX)]


def same(graph: Graph, machine: str = "x86-64-v4") -> Plan:
    plan = make_plan(graph, resolve_cpu(machine), 1)
    inputs = arrays(graph)
    for found, wanted in zip(evaluate(plan.mapped_graph(), inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(found, wanted)
    return plan


def convolution(constant: bool, types: tuple[str, str, str] = ("f32", "f32", "f32")) -> Graph:
    b = GraphBuilder()
    image = b.input("image", (1, 5, 9, 7), types[0])
    shape = (19, 5, 3, 3)
    values = RNG.integers(-3, 4, shape).astype(dtypes.numpy_dtype(types[1]))
    filters = b.constant(values, "filters") if constant else b.input("filters", shape, types[1])
    to = types[2]
    return b.finish([conv.conv(b, image, filters, pads=1, strides=2, accumulate=to, out_dtype=to, name="y")])


# What is in the graph ---------------------------------------------------------------------------------------------


def test_a_convolution_becomes_relayout_product_and_inverse_relayout() -> None:
    plan = same(convolution(constant=False))
    (into,) = relayouts(plan.mapped_graph())
    assert [tensor.name for tensor in into.inputs()] == ["filters"]
    product = next(node for node in plan.mapped_graph().nodes if node.accum == "sum")
    assert into.name in {tensor.name for tensor in product.inputs()}
    back = plan.mapped_graph().producers()["y"]
    assert [tensor.name for tensor in back.inputs()] == [product.name] == ["y.packed"]
    assert any(kernel.name == into.name for kernel in plan.kernels)


@pytest.mark.parametrize("types", [("f32", "f32", "f32"), ("u8", "i8", "i32"), ("bf16", "bf16", "f32")], ids="-".join)
def test_relayouts_of_constants_are_folded_to_what_the_module_holds(types: tuple[str, str, str]) -> None:
    plan = same(convolution(True, types), "znver5")
    (into,) = relayouts(plan.mapped_graph())
    assert not any(kernel.name == into.name for kernel in plan.kernels)
    folded = fold_constants(plan.mapped_graph())
    assert not relayouts(folded)
    placement = place(plan)
    start, values = placement.offsets[into.name], folded.constants[into.name]
    held = placement.packed(plan)[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    np.testing.assert_array_equal(held, values)


def test_equal_relayouts_of_one_tensor_are_one_node() -> None:
    b = GraphBuilder()
    w = b.input("w", (33, 40), "f32")
    y = linalg.matmul(b, b.input("x", (70, 33), "f32"), w)
    z = linalg.matmul(b, b.input("u", (70, 33), "f32"), w)
    plan = same(b.finish([y, z]))
    assert len(relayouts(plan.mapped_graph())) == 1


def test_names_say_what_is_computed_not_for_whom() -> None:
    names = []
    for node in ("first", "second"):
        b = GraphBuilder()
        x, w = b.input("x", (70, 33), "f32"), b.input("w", (33, 40), "f32")
        plan = same(b.finish([linalg.matmul(b, x, w, name=node)]))
        names.append([each.name for each in relayouts(plan.mapped_graph())])
    assert names[0] == names[1] != []


# What is computed while packing -----------------------------------------------------------------------------------


def scaled(rows: int, used_twice: bool = False) -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", (rows, 33), "f32"), b.input("w", (33, 40), "f32")
    doubled = elementwise.relu(b, elementwise.unary(b, w, "neg"), name="doubled")
    y = linalg.matmul(b, x, doubled, name="y")
    return b.finish([y, elementwise.unary(b, doubled, "neg")] if used_twice else [y])


def check(graph: Graph) -> None:
    inputs = arrays(graph)
    found = compile_graph(graph, threads=2, options=Options(cache=False))(*inputs)
    for result, wanted in zip(found if isinstance(found, tuple) else (found,), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_a_map_before_the_vector_operand_is_computed_while_that_is_packed() -> None:
    plan = same(scaled(70))
    assert [kernel.name.startswith(PREFIX) for kernel in plan.kernels] == [True, False]
    (into,) = relayouts(plan.mapped_graph())
    assert [tensor.name for tensor in into.inputs()] == ["w"]
    assert "computed with doubled" in " ".join(each.reason for each in plan.decisions)
    check(scaled(70))


@pytest.mark.parametrize("graph", [scaled(70, used_twice=True), scaled(7)], ids=["another reader", "few rows"])
def test_it_is_not_where_others_read_it_or_nothing_is_packed(graph: Graph) -> None:
    plan = same(graph)
    assert any(kernel.name == "doubled" for kernel in plan.kernels)
    check(graph)


# Any operator -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("name", "sizes"), OPERATORS, ids=[name for name, _ in OPERATORS])
@pytest.mark.parametrize("machine", ["x86-64-v3", "znver5"])
def test_the_compiled_graph_of_every_operator_computes_the_same(name: str, sizes: dict[str, int], machine: str) -> None:
    same(BUILD(name, **sizes), machine)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_compiled_graph_of_random_products_computes_the_same(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.sampled_from([1, 2, 5, 17, 40, 70])) for _ in "mnk")
    types = data.draw(st.sampled_from([("f32", "f32", "f32"), ("u8", "i8", "i32"), ("bf16", "bf16", "f32")]))
    b = GraphBuilder()
    transposed, constant = data.draw(st.booleans()), data.draw(st.booleans())
    shape = (n, k) if transposed else (k, n)
    values = RNG.integers(-3, 4, shape).astype(dtypes.numpy_dtype(types[1]))
    w = b.constant(values, "w") if constant else b.input("w", shape, types[1])
    x = b.input("x", (m, k), types[0])
    y = (linalg.linear if transposed else linalg.matmul)(b, x, w, accumulate=types[2], out_dtype=types[2])
    same(b.finish([y]), data.draw(st.sampled_from(["znver5", "x86-64-v2"])))
