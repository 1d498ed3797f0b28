"""Import of models: shapes, names, constants, and an error for everything that can be wrong with a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.errors import InvalidArgument, InvalidModel, Unsupported
from tilewright.expr import Graph
from tilewright.expr.affine import simplify
from tilewright.expr.evaluate import evaluate
from tilewright.frontend.onnx import UnsupportedModel, functions, import_model

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, array: Any, dtype: Any = np.float32) -> Any:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any] | None = None, opset: int = 18
) -> Any:
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def relu(shape: Any = (2, 3)) -> Any:
    return model([helper.make_node("Relu", ["x"], ["y"], "first")], [value("x", shape)], [value("y", shape)])


def run(graph: Graph, *arrays: Any) -> list[np.ndarray[Any, Any]]:
    return evaluate(graph, [np.asarray(array) for array in arrays])


# What is read


def test_path_bytes_and_proto_give_one_graph(tmp_path: Path) -> None:
    proto = relu()
    path = tmp_path / "relu.onnx"
    path.write_bytes(proto.SerializeToString())
    assert import_model(path) == import_model(str(path)) == import_model(proto) == import_model(path.read_bytes())


def test_numbered_tensors_are_named_after_their_operators() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["val_35"]),
        helper.make_node("Tanh", ["val_35"], ["onnx::Relu_36"]),
        helper.make_node("Relu", ["onnx::Relu_36"], ["encoder"]),
        helper.make_node("Neg", ["encoder"], ["37"]),
        helper.make_node("Abs", ["37"], ["38"]),
        helper.make_node("Exp", ["38"], ["neg_37"]),
    ]
    weights = [constant("w", np.ones((3, 3)))]
    graph = import_model(model(nodes, [value("x", (2, 3))], [value("38", (2, 3)), value("neg_37", (2, 3))], weights))
    assert [node.name for node in graph.nodes] == ["matmul_35", "tanh_36", "encoder", "37", "38", "neg_37"]
    assert [tensor.name for tensor in graph.outputs] == ["38", "neg_37"], "names of outputs are the model's"
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    expected = abs(-np.maximum(np.tanh(x @ np.ones((3, 3), np.float32)), 0))
    np.testing.assert_allclose(run(graph, x)[0], expected, rtol=1e-6)


def test_input_and_output_names_are_kept() -> None:
    graph = import_model(relu())
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    assert [tensor.name for tensor in graph.outputs] == ["y"]


def test_output_that_is_an_input_is_copied_under_its_name() -> None:
    proto = model([helper.make_node("Identity", ["x"], ["y"])], [value("x", [2])], [value("y", [2])])
    graph = import_model(proto)
    assert graph.outputs[0].name == "y"
    np.testing.assert_array_equal(run(graph, np.float32([1, 2]))[0], [1, 2])


def test_one_value_under_two_output_names() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Identity", ["a"], ["b"])]
    graph = import_model(model(nodes, [value("x", [2])], [value("a", [2]), value("b", [2])]))
    assert [tensor.name for tensor in graph.outputs] == ["a", "b"]


def test_bodies_are_simplified() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"]),
        helper.make_node("Pad", ["a", "pads"], ["b"]),
        helper.make_node("Slice", ["b", "starts", "ends"], ["y"]),
    ]
    initializers = [
        constant("shape", [2, 3, 4], np.int64), constant("pads", [0, 1, 0, 0, 1, 0], np.int64),
        constant("starts", [0, 1], np.int64), constant("ends", [2, 4], np.int64),
    ]  # fmt: skip
    graph = import_model(model(nodes, [value("x", [6, 4])], [value("y", [2, 3, 4])], initializers))
    assert all(simplify(node.body) == node.body for node in graph.nodes)


def test_weights_may_be_nan() -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [1])], [value("y", [1])], [
        constant("w", [np.nan])
    ])  # fmt: skip
    assert np.isnan(run(import_model(proto), np.float32([1]))[0]).all()


def test_scalar_and_empty_tensors() -> None:
    for shape in ((), (0,), (2, 0, 3)):
        graph = import_model(relu(shape))
        assert run(graph, np.zeros(shape, np.float32))[0].shape == shape


def test_initializer_with_an_input_of_its_name_is_a_constant() -> None:
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [1]), value("w", [1])], [value("y", [1])],
        [constant("w", [2])],
    )  # fmt: skip
    graph = import_model(proto)
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    assert run(graph, np.float32([1]))[0] == 3


def test_what_no_output_needs_is_dropped() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Mul", ["x", "w"], ["z"])]
    graph = import_model(model(nodes, [value("x", [2])], [value("y", [2])], [constant("w", [1, 2])]))
    assert [node.name for node in graph.nodes] == ["y"]
    assert not graph.constants


def test_scalar_constants_become_literals() -> None:
    nodes = [helper.make_node("Clip", ["x", "low", "high"], ["a"]), helper.make_node("Mul", ["a", "f"], ["y"])]
    weights = [constant("low", 0.0), constant("high", 6.0), constant("f", [0.5])]
    graph = import_model(model(nodes, [value("x", [4])], [value("y", [4])], weights))
    assert not graph.constants
    np.testing.assert_array_equal(run(graph, np.float32([-1, 1, 5, 9]))[0], [0, 0.5, 2.5, 3])


# Shapes


def test_unknown_extents_are_listed_with_the_option() -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x", ["batch", 3, 8]), value("w", ["n", 1, 8])], [value("y", None)])
    with pytest.raises(InvalidArgument) as caught:
        import_model(proto)
    assert "x: [batch, 3, 8]" in caught.value.message
    assert "w: [n, 1, 8]" in caught.value.message
    assert "--shape batch=1 --shape n=1" in caught.value.help
    graph = import_model(proto, {"batch": 4, "n": (1,)})
    assert [tensor.shape for tensor in graph.inputs] == [(4, 3, 8), (1, 1, 8)]
    with pytest.raises(InvalidArgument, match="no input and no extent") as caught:
        import_model(proto, {"bach": 4})
    assert "extents: batch, n" in caught.value.help
    for extent in (-1, (1, 2), 1.5, None, "4"):
        with pytest.raises(InvalidArgument):
            import_model(proto, {"batch": extent, "n": 1})


def test_symbols_are_shared_between_inputs() -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x", ["n", 3]), value("w", ["n", 1])], [value("y", None)])
    assert import_model(proto, {"x": [5, 3]}).inputs[1].shape == (5, 1)
    with pytest.raises(InvalidArgument, match="n is 5 in one shape and 4"):
        import_model(proto, {"x": [5, 3], "w": [4, 1]})


@pytest.mark.parametrize(
    ("shapes", "fact"),
    [
        ({"x": [2, 4]}, r"shape \[2, 4\] for x, declared as \[2, 3\]"),
        ({"x": [2]}, r"shape \[2\] for x, declared as \[2, 3\]"),
        ({"x": [-1, 3]}, r"shape \[-1, 3\] for x"),
        ({"z": [2, 3]}, "a shape for z, which is no input"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, list[int]], fact: str) -> None:
    with pytest.raises(InvalidArgument, match=fact):
        import_model(relu(), shapes)


def test_shape_subgraph_is_folded() -> None:
    """Flatten as old exporters wrote it: Shape, Gather, Unsqueeze, Concat, Reshape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    initializers = [
        constant("zero", 0, np.int64), constant("axes", [0], np.int64), constant("rest", [-1], np.int64)
    ]  # fmt: skip
    graph = import_model(model(nodes, [value("x", ["n", 2, 3])], [value("y", None)], initializers), {"x": [4, 2, 3]})
    assert [node.output.shape for node in graph.nodes] == [(4, 6)]
    assert not graph.constants


def test_fixed_input_is_no_input() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    proto = model(nodes, [value("x", [6]), value("shape", [2], INT64)], [value("y", None)])
    with pytest.raises(UnsupportedModel) as caught:
        import_model(proto)
    assert caught.value.problems[0].needs == ("shape",)
    graph = import_model(proto, values={"shape": np.array([2, 3])})
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    assert graph.outputs[0].shape == (2, 3)
    with pytest.raises(InvalidArgument, match="given as float64"):
        import_model(proto, values={"shape": np.array([2.0, 3.0])})


# Control flow


def branch(name: str, operator: str) -> Any:
    return helper.make_graph([helper.make_node(operator, ["x"], [name])], name, [], [value(name, [2])])


def if_model(condition: Any, initializers: list[Any]) -> Any:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("yes", "Neg"), else_branch=branch("no", "Identity"))
    return model([node], [value("x", [2]), *condition], [value("y", [2])], initializers)


def test_if_with_a_known_condition_takes_one_branch() -> None:
    graph = import_model(if_model([], [constant("c", True, np.bool_)]))
    assert len(graph.nodes) == 2  # the branch, and the copy under the output's name
    np.testing.assert_array_equal(run(graph, np.float32([1, 2]))[0], [-1, -2])


@pytest.mark.parametrize("condition", [True, False])
def test_if_with_a_computed_condition_merges_branches(condition: bool) -> None:
    graph = import_model(if_model([value("c", [], BOOL)], []))
    expected = [-1, -2] if condition else [1, 2]
    np.testing.assert_array_equal(run(graph, np.float32([1, 2]), np.bool_(condition))[0], expected)


def test_loop_stays_a_loop() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["go"]), helper.make_node("Add", ["state", "x"], ["next"])],
        "body",
        [value("i", [], INT64), value("going", [], BOOL), value("state", [2])],
        [value("go", [], BOOL), value("next", [2])],
    )
    proto = model(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)], [value("x", [2])], [value("y", [2])],
        [constant("trips", 3, np.int64)],
    )  # fmt: skip
    graph = import_model(proto)
    assert [loop.trips for loop in graph.loops] == [3]
    np.testing.assert_array_equal(run(graph, np.float32([1, 2]))[0], [4, 8])


def test_model_function_is_inlined() -> None:
    proto = model([helper.make_node("Twice", ["x"], ["y"], domain="own")], [value("x", [2])], [value("y", [2])])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.functions.append(
        helper.make_function(
            "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
        )
    )
    np.testing.assert_array_equal(run(import_model(proto), np.float32([1, 2]))[0], [2, 4])


# Versions


def test_old_opset_is_converted() -> None:
    """Opset 11 Softmax flattens to a matrix; the same node of opset 13 works along one axis."""
    proto = model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=1)], [value("x", [2, 3, 4])], [value("y", [2, 3, 4])], opset=11
    )
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    e = np.exp(x - x.max(axis=(1, 2), keepdims=True))
    np.testing.assert_allclose(run(import_model(proto), x)[0], e / e.sum(axis=(1, 2), keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("opset", [6, 9])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3), (2, 3, 5, 3)])
def test_slopes_are_of_channels_before_opset_7(opset: int, shape: tuple[int, ...]) -> None:
    """The last dimension is as long as the channels are many: today's meaning is another one, and no error."""
    inputs = [value("x", shape), value("slope", [3])]
    slope = np.float32([0.5, -1.0, 2.0])
    nodes = [helper.make_node("PRelu", ["x", "slope"], ["y"])]
    proto = model(nodes, inputs, [value("y", shape)], [constant("slope", slope)], opset)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    slopes = slope.reshape(3, *[1] * (len(shape) - 2)) if opset == 6 else slope
    np.testing.assert_array_equal(run(import_model(proto), x)[0], np.where(x < 0, x * slopes, x))


def test_one_slope_for_all_channels_before_opset_7() -> None:
    inputs = [value("x", (2, 3, 4)), value("slope", [1])]
    nodes = [helper.make_node("PRelu", ["x", "slope"], ["y"])]
    graph = import_model(model(nodes, inputs, [value("y", (2, 3, 4))], [constant("slope", [0.5])], 6))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(graph, x)[0], np.where(x < 0, x / 2, x))


def test_slopes_of_other_than_the_channels_before_opset_7() -> None:
    inputs = [value("x", (2, 3, 4)), value("slope", [4])]
    nodes = [helper.make_node("PRelu", ["x", "slope"], ["y"])]
    with pytest.raises(InvalidModel, match=r"\[4, 1\]"):
        import_model(model(nodes, inputs, [value("y", (2, 3, 4))], [constant("slope", [0.5] * 4)], 6))


def test_opset_newer_than_the_package() -> None:
    proto = relu()
    proto.opset_import[0].version = 999
    with pytest.raises(Unsupported, match="opset 999"):
        import_model(proto)


# Problems


def test_every_problem_is_reported_at_once() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], "one"),
        helper.make_node("Mystery", ["x"], ["b"], "two", domain="own"),
        helper.make_node("Relu", ["b"], ["depends"], "depends on two"),
        helper.make_node("Mystery", ["depends"], ["c"], "behind two", domain="own"),
        helper.make_node("RandomNormalLike", ["x"], ["d"], "three"),
    ]
    proto = model(nodes, [value("x", [2])], [value("a", None, INT64), value("c", None), value("d", None)])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(UnsupportedModel) as caught:
        import_model(proto)
    assert [(p.node, p.operator) for p in caught.value.problems] == [
        ("one", "NonZero"), ("two", "own.Mystery"), ("behind two", "own.Mystery"), ("three", "RandomNormalLike"),
    ]  # fmt: skip
    for text in ("one (NonZero): the values must be known", "two (own.Mystery): this operator has no importer",
                 "three (RandomNormalLike): random numbers"):  # fmt: skip
        assert text in str(caught.value)


def test_operators_defined_for_types_are_examined_without_any() -> None:
    """onnx ends the process where it makes the body of such an operator for inputs without types."""
    defined = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "CastLike", "CenterCropPad")
    nodes = [helper.make_node("NonZero", ["x"], ["a"], "one")]
    nodes += [helper.make_node(operator, ["a", "a"], [operator], operator) for operator in defined]
    proto = model(nodes, [value("x", [2])], [value("a", None, INT64)])
    with pytest.raises(UnsupportedModel) as caught:
        import_model(proto)
    assert [problem.node for problem in caught.value.problems] == ["one"]
    assert all(functions.has_definition(operator, "", {"": 18}) for operator in defined)
    assert not functions.has_definition("MatMulNBits", "com.microsoft", {"": 18})


def test_element_types_without_an_equivalent() -> None:
    proto = model(
        [helper.make_node("Identity", ["x"], ["y"])], [value("x", [2], TensorProto.STRING)],
        [value("y", [2], TensorProto.STRING)],
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match="element type STRING"):
        import_model(proto)


@pytest.mark.parametrize(
    ("node", "shapes", "fact"),
    [
        (helper.make_node("Add", ["x", "w"], ["y"], "sum"), ([2, 3], [4]), "sum (Add): shapes [2, 3] and [4]"),
        (helper.make_node("MatMul", ["x", "w"], ["y"], "dot"), ([2, 3], [4, 5]), "dot (MatMul): contracts 3"),
        (helper.make_node("Concat", ["x", "w"], ["y"], "join", axis=7), ([2, 3], [2, 3]), "axis 7"),
        (helper.make_node("Transpose", ["x"], ["y"], "turn", perm=[0, 0]), ([2, 3], [1]), "permutation [0, 0]"),
        (helper.make_node("Conv", ["x", "w"], ["y"], "conv", strides=[0, 0]), ([1, 1, 4, 4], [1, 1, 3, 3]), "strides"),
    ],
)
def test_malformed_nodes_are_named(node: Any, shapes: tuple[list[int], list[int]], fact: str) -> None:
    proto = model([node], [value("x", shapes[0]), value("w", shapes[1])], [value("y", None)])
    with pytest.raises(InvalidModel) as caught:
        import_model(proto)
    assert fact in str(caught.value)


# Files


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="no such file"):
        import_model(tmp_path / "none.onnx")


def test_impossible_path() -> None:
    with pytest.raises(InvalidModel, match="holds a NUL"):
        import_model("a\0b.onnx")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="directory"):
        import_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 100, b"\xff" * 1000])
def test_garbage(content: bytes) -> None:
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        import_model(content)


@pytest.mark.parametrize("kind", [None, 3, [1, 2]])
def test_not_a_model(kind: Any) -> None:
    with pytest.raises(InvalidModel, match="a model of type"):
        import_model(kind)


def test_names_that_are_not_text() -> None:
    content = relu().SerializeToString().replace(b"first", b"fi\xffst").replace(b"test", b"t\xffst")
    with pytest.raises(InvalidModel, match="not UTF-8"):
        import_model(content)


def test_truncated() -> None:
    content = relu().SerializeToString()
    for end in range(len(content)):
        with pytest.raises((InvalidModel, InvalidArgument, Unsupported)):
            import_model(content[:end])


@pytest.mark.parametrize("size", [4, 1 << 20])
def test_weights_with_too_few_bytes(size: int) -> None:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [size])], [value("y", [size])], [
        constant("w", np.zeros(size))
    ])  # fmt: skip
    tensor = proto.graph.initializer[0]
    tensor.raw_data = tensor.raw_data[:-1]
    with pytest.raises(InvalidModel, match="w"):
        import_model(proto)


@pytest.mark.parametrize("shape", [[1 << 60], [1 << 31, 1 << 31], [1 << 40]])
def test_absurd_sizes(shape: list[int]) -> None:
    with pytest.raises(InvalidModel, match="too large"):
        import_model(relu(shape))
    proto = model([helper.make_node("ConstantOfShape", ["s"], ["y"], "big")], [], [value("y", None)], [
        constant("s", shape, np.int64)
    ])  # fmt: skip
    with pytest.raises(InvalidModel, match="big"):
        import_model(proto)


def test_external_data(tmp_path: Path) -> None:
    weights = np.arange(1000, dtype=np.float32)
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [1000])], [value("y", [1000])], [
        numpy_helper.from_array(weights, "w")
    ])  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    np.testing.assert_array_equal(run(import_model(path), np.zeros(1000, np.float32))[0], weights)
    with pytest.raises(InvalidModel, match="in other files"):
        import_model(path.read_bytes())
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InvalidModel, match="external data"):
        import_model(path)


def test_the_given_model_is_not_changed() -> None:
    proto = relu()
    before = proto.SerializeToString()
    import_model(proto)
    assert proto.SerializeToString() == before


def test_two_versions_of_the_default_domain_are_answered_in_words() -> None:
    """Found by fuzzing: the checker accepts the second import, the first has no operators."""
    graph = helper.make_graph(
        [helper.make_node("ReduceL1", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    imports = [helper.make_opsetid("ai.onnx", 0), helper.make_opsetid("", 18)]
    with pytest.raises((InvalidModel, Unsupported), match=r"opset 0|checker"):
        import_model(helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString())
