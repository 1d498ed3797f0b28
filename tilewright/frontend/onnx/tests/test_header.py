"""Headers are what the onnx package reads from the same bytes, and damaged bytes are a ValueError."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontend.onnx.header import Header, read_header
from tilewright.frontend.onnx.wire import fields


def external(name: str, file: str) -> TensorProto:
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", "4096"), ("length", "12")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def model() -> onnx.ModelProto:
    """Weights in files of the graph, of a branch in it, of a constant and of a function; an input with a default."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "w", "y", "ß")]
    x, w, y, z = info
    condition = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True), "v"))
    branches = [
        helper.make_graph([helper.make_node("Identity", [name], ["b"])], name, [], [y], [external(name, f"{name}.bin")])
        for name in ("then", "else")
    ]
    nodes = [
        condition,
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Constant", [], ["k"], value=external("k", "constant.bin")),
        helper.make_node("Add", ["x", "w"], ["ß"]),
    ]
    graph = helper.make_graph(nodes, "main", [x, w], [y, z], [external("w", "weights/w.bin")])
    constant = helper.make_node("Constant", [], ["f"], value=external("f", "function.bin"))
    function = helper.make_function("own", "F", [], ["f"], [constant], [helper.make_opsetid("", 17)])
    return helper.make_model(graph, functions=[function], opset_imports=[helper.make_opsetid("", 17)])


def test_a_header_names_inputs_outputs_and_files() -> None:
    files = ("constant.bin", "else.bin", "function.bin", "then.bin", "weights/w.bin")
    assert read_header(memoryview(model().SerializeToString())) == Header(("x",), ("y", "ß"), files)


def test_every_file_that_a_tensor_names_is_told() -> None:
    """Readers take the last one."""
    proto = model()
    (weight,) = proto.graph.initializer
    weight.external_data.add(key="location", value="last.bin")
    assert {"weights/w.bin", "last.bin"} <= set(read_header(memoryview(proto.SerializeToString())).external_files)


def test_a_number_in_the_place_of_a_message_is_none() -> None:
    """As in the onnx package: a field of another type is unknown."""
    content = model().SerializeToString()
    number = b"\x39" + b"\x5a\x06\x0a\x04" + b"evil"  # field 7 as a fixed value of 8 bytes: a graph's input
    assert onnx.ModelProto.FromString(content + number).graph == model().graph
    assert read_header(memoryview(content + number)) == read_header(memoryview(content))


def test_fields_are_those_that_the_onnx_package_knows() -> None:
    proto = model()
    proto.producer_name = "a" * 300
    found = [number for number, _ in fields(memoryview(proto.SerializeToString()))]
    assert set(found) == {descriptor.number for descriptor, _ in proto.ListFields()}


@pytest.mark.parametrize(
    "content", [b"\x3a", b"\x3a\x05ab", b"\x3b\x3c", b"\x80" * 11, b"\x39\0\0", b"\x3a\x02\x6a\x01"]
)
def test_damaged_bytes_are_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_header(memoryview(content))


def test_any_bytes_are_read_or_refused() -> None:
    rng, content = Random(0), model().SerializeToString()
    for _ in range(500):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 3, 10])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        end = rng.choice([len(damaged), rng.randrange(len(damaged))])
        with suppress(ValueError):
            read_header(memoryview(damaged[:end]))
