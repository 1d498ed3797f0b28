"""What is listed of a model with several nodes that cannot be imported, some behind others."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.frontend.onnx import import_model
from tilewright.frontend.onnx.problems import UnsupportedModel

onnx = pytest.importorskip("onnx")
helper = onnx.helper


def test_nodes_behind_a_failed_one_are_checked() -> None:
    """Only what no value of its inputs could change is listed: no shape that would have to be known."""
    nodes = [
        helper.make_node("RoiAlign", ["x", "rois", "batch"], ["regions"], "align", output_height=4, output_width=4),
        helper.make_node("Relu", ["regions"], ["positive"], "relu"),
        helper.make_node("Det", ["positive"], ["y"], "det"),
        helper.make_node("NonZero", ["y"], ["places"], "places"),
        helper.make_node("Compress", ["places", "kept"], ["z"], "compress", axis=0),
        helper.make_node("StringConcat", ["names", "names"], ["both"], "names"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", 1, ["batch", 3, 9, 9]), helper.make_tensor_value_info("rois", 1, [5, 4]),
        helper.make_tensor_value_info("batch", 7, [5]), helper.make_tensor_value_info("names", 8, [2]),
        helper.make_tensor_value_info("kept", 9, [2]),
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("z", 7), ("y", 1), ("both", 8))]
    weights = [onnx.numpy_helper.from_array(np.ones(3, np.float32), "unused")]
    graph = helper.make_graph(nodes, "several", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(UnsupportedModel) as caught:
        import_model(model, {"x": (2, 3, 9, 9)})
    reasons = {problem.node: problem.reason for problem in caught.value.problems}
    assert sorted(reasons) == ["align", "det", "names"]
    assert "at most 3 by 3" in reasons["det"]
