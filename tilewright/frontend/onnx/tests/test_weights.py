"""Large initializers are taken out of the bytes of a model, and come back as the same arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.errors import InvalidModel
from tilewright.frontend.onnx.importer import import_model
from tilewright.frontend.onnx.weights import without_weights

LARGE = (129, 257)


def model(weights: dict[str, Any], opset: int = 17, function: bool = False) -> onnx.ModelProto:
    """y = x + w + …, an ONNX `Add` for each weight, or a function of the model's own."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, LARGE)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, LARGE)
    domain = "own" if function else ""
    nodes, last = [], "x"
    for number, name in enumerate(weights):
        made = "y" if number == len(weights) - 1 else f"t{number}"
        nodes.append(helper.make_node("Plus" if function else "Add", [last, name], [made], domain=domain))
        last = made
    initializers = [
        w if isinstance(w, TensorProto) else numpy_helper.from_array(w, name) for name, w in weights.items()
    ]
    graph = helper.make_graph(nodes, "sum", [x], [y], initializers)
    opsets = [helper.make_opsetid("", opset)]
    plus = helper.make_function("own", "Plus", ["a", "b"], ["c"], [helper.make_node("Add", ["a", "b"], ["c"])], opsets)
    given = {"functions": [plus], "opset_imports": [*opsets, helper.make_opsetid("own", 1)]} if function else {}
    return helper.make_model(graph, **{"opset_imports": opsets, "ir_version": 8, **given})


def values(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(LARGE).astype(np.float32)


def test_only_large_weights_are_taken_out() -> None:
    given = {"large": values(0), "small": values(1)[:1], "last": values(2)}
    content = memoryview(model(given).SerializeToString())
    light, weights = without_weights(content)
    assert len(light) < 5000
    assert list(weights) == ["large", "last"]
    assert all(bytes(weights[name]) == given[name].tobytes() for name in weights)
    parsed = onnx.ModelProto.FromString(light)
    assert [list(tensor.dims) for tensor in parsed.graph.initializer] == [[129, 257], [1, 257], [129, 257]]
    for tensor in parsed.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = bytes(weights[tensor.name])
    assert parsed.SerializeToString() == bytes(content)


@pytest.mark.parametrize("changes", [{}, {"opset": 9}, {"function": True}])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_constants_are_those_of_the_model(changes: dict[str, Any], as_bytes: bool) -> None:
    given = {"a": values(0), "b": values(1)}
    proto = model(given, **changes)
    graph = import_model(proto.SerializeToString() if as_bytes else proto)
    for name, array in given.items():
        found = graph.constants[name]
        assert found.dtype == np.float32
        assert found.flags.aligned
        assert np.array_equal(found, array)


def test_two_weights_of_one_name_are_left_in_place() -> None:
    proto = model({"a": values(0)})
    proto.graph.initializer.append(numpy_helper.from_array(values(1), "a"))
    with pytest.raises(ValueError, match="two initializers"):
        without_weights(memoryview(proto.SerializeToString()))


def test_elements_in_another_file_precede_those_in_the_model(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(values(0), "a")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="a.bin")
    (tmp_path / "a.bin").write_bytes(values(1).tobytes())
    (tmp_path / "model.onnx").write_bytes(model({"a": tensor}).SerializeToString())
    assert np.array_equal(import_model(tmp_path / "model.onnx").constants["a"], values(1))


def test_a_number_in_the_place_of_a_message_stays_one() -> None:
    content = model({"a": values(0)}).SerializeToString()
    number = b"\x39" + b"\x12\x06" + bytes(6)  # field 7 as a fixed value of 8 bytes: not a part of the graph
    light, _ = without_weights(memoryview(content + number))
    assert light.endswith(number)


@pytest.mark.parametrize("missing", [1, 4, 4000])
def test_too_few_elements_are_an_error_of_the_model(missing: int) -> None:
    tensor = numpy_helper.from_array(values(0), "a")
    tensor.raw_data = tensor.raw_data[:-missing]
    with pytest.raises(InvalidModel, match="'a' of shape"):
        import_model(model({"a": tensor}).SerializeToString())
