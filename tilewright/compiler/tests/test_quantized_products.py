"""Quantised ONNX models multiply bytes: their products run on the instruction for bytes, where there is one."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler.compile import compile_graph, import_any
from tilewright.compiler.make_plan import make_plan
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options

Array = np.ndarray[Any, Any]
KINDS = {np.dtype(np.int8): TensorProto.INT8, np.dtype(np.uint8): TensorProto.UINT8, np.dtype("f4"): TensorProto.FLOAT}
X, W = np.random.default_rng(0), np.random.default_rng(1)


def values(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return W.integers(limits.min, limits.max + 1, shape).astype(dtype)


def model(nodes: list[Any], shape: tuple[int, ...], dtype: Any, output: int, **constants: Any) -> Graph:
    """A model from ``x`` to ``y``."""
    x = helper.make_tensor_value_info("x", KINDS[np.dtype(dtype)], shape)
    y = helper.make_tensor_value_info("y", output, None)
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "quantised", [x], [y], kept)
    return import_any(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [*output.split()], **attributes)


def qlinear_convs(x: Any, w: Any, x_zero: int, w_zero: int) -> Graph:
    """Two convolutions with padding and per-channel scales, the result of the first read by the second."""
    scales = W.uniform(1e-4, 2e-4, 24).astype(np.float32)
    return model(
        [
            node("QLinearConv", "x s z w0 ws wz s z b", "t", pads=[1, 1, 1, 1]),
            node("QLinearConv", "t s z w1 ws wz s z", "y", pads=[1, 1, 1, 1], strides=[2, 2]),
        ],
        (1, 13, 9, 10), x, KINDS[np.dtype(x)], s=np.float32(0.02), z=x(x_zero), ws=scales, wz=np.full(24, w_zero, w),
        w0=values(w, 24, 13, 3, 3), w1=values(w, 24, 24, 3, 3), b=W.integers(-900, 900, 24).astype(np.int32),
    )  # fmt: skip


def conv_integer(x: Any, w: Any, x_zero: int, w_zero: int) -> Graph:
    return model(
        [node("ConvInteger", "x w z wz", "y", pads=[1, 2, 0, 1])],
        (2, 13, 9, 10), x, TensorProto.INT32, z=x(x_zero), wz=w(w_zero), w=values(w, 24, 13, 3, 3),
    )  # fmt: skip


def qlinear_matmul(x: Any, w: Any, x_zero: int, w_zero: int) -> Graph:
    return model(
        [node("QLinearMatMul", "x s z w s wz s z", "y")],
        (9, 35), x, KINDS[np.dtype(x)], s=np.float32(0.05), z=x(x_zero), w=values(w, 35, 21), wz=w(w_zero),
    )  # fmt: skip


def matmul_integer(x: Any, w: Any, x_zero: int, w_zero: int) -> Graph:
    return model(
        [node("MatMulInteger", "x w z wz", "y")],
        (9, 35), x, TensorProto.INT32, z=x(x_zero), wz=w(w_zero), w=values(w, 35, 21),
    )  # fmt: skip


MODELS = [qlinear_convs, conv_integer, qlinear_matmul, matmul_integer]
TYPES = [
    (np.uint8, np.int8, 3, 0), (np.uint8, np.int8, 3, -4), (np.int8, np.int8, -7, 0), (np.int8, np.int8, 0, 0),
    (np.uint8, np.uint8, 0, 128), (np.uint8, np.uint8, 200, 7), (np.int8, np.uint8, 5, 130),
]  # fmt: skip


def dynamic(kind: str, w: Any) -> Graph:
    """Quantisation with a scale and a zero point that are known when it runs."""
    shape, weights = ((9, 35), values(w, 35, 21)) if kind == "MatMulInteger" else ((1, 5, 9, 9), values(w, 8, 5, 3, 3))
    attributes = {} if kind == "MatMulInteger" else {"pads": [1, 1, 1, 1]}
    return model(
        [
            node("DynamicQuantizeLinear", "x", "q s z"),
            node(kind, "q w z wz", "i", **attributes),
            node("Cast", "i", "f", to=TensorProto.FLOAT),
            node("Mul", "f s", "y"),
        ],
        shape, np.float32, TensorProto.FLOAT, w=weights, wz=w(0),
    )  # fmt: skip


def instructions(graph: Graph, machine: str) -> list[str]:
    """What executes each product, and the kinds of its factors."""
    plan = make_plan(graph, resolve_cpu(machine), 1)
    return [d.chosen.split(" on ")[-1] for d in plan.decisions if d.subject.startswith("instruction of")]


@pytest.mark.covering(1)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("build", MODELS)
def test_products_of_quantised_models_multiply_bytes(build: Any, types: tuple[Any, Any, int, int]) -> None:
    graph = build(*types)
    found = instructions(graph, "znver5")
    assert len(found) == (2 if build is qlinear_convs else 1)
    assert set(found) == {"vpdpbusd_16x4_u8s8_s32"}
    (shape,) = (tensor.shape for tensor in graph.inputs)
    x = values(types[0], *(int(extent) for extent in shape))  # type: ignore[call-overload]
    module = compile_graph(graph, threads=1, options=Options(cache=False))
    result, (expected,) = module(x), evaluate(graph, [x])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("w", [np.int8, np.uint8])
@pytest.mark.parametrize("kind", ["MatMulInteger", "ConvInteger"])
def test_products_of_dynamically_quantised_models_multiply_bytes(kind: str, w: Any) -> None:
    graph = dynamic(kind, w)
    assert instructions(graph, "znver5") == ["vpdpbusd_16x4_u8s8_s32"]
    x = X.standard_normal([int(extent) for extent in graph.inputs[0].shape]).astype(np.float32)  # type: ignore[arg-type]
    result = compile_graph(graph, threads=1, options=Options(cache=False))(x)
    np.testing.assert_allclose(result, evaluate(graph, [x])[0], rtol=1e-6)


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("machine", ["x86-64-v2", "x86-64-v3"])
def test_machines_without_such_an_instruction_multiply_pairs_of_words(build: Any, machine: str) -> None:
    found = instructions(build(np.int8, np.int8, -7, 3), machine)
    assert found
    assert all(name.startswith("vpmaddwd") for name in found)


def test_explain_says_what_was_rewritten() -> None:
    graph = conv_integer(np.int8, np.int8, -7, 0)
    plan = make_plan(graph, resolve_cpu("znver5"), 1)
    (decision,) = (d for d in plan.decisions if d.subject == "factors of y")
    assert decision.chosen.startswith("u8 ")
    assert decision.chosen.endswith("and i8 w, corrected by constants")
    assert not [d for d in make_plan(graph, resolve_cpu("znver5"), 1, Options(disable=("offset-factors",))).decisions
                if d.subject.startswith("factors of")]  # fmt: skip
