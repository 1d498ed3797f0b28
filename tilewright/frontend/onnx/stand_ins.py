"""Types of the results of nodes that failed, as ONNX infers them, so that the nodes behind are checked too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.errors import Unsupported
from tilewright.expr.dtypes import DType
from tilewright.frontend.onnx.element_types import dtype_of

Type = tuple[DType, tuple[int, ...]]

_SMALL = 256  # elements of a constant whose values inference may need: shapes, axes


def inferred_types(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Type]:
    """The types of values of the main graph that ONNX can tell for inputs of these shapes, by name."""
    import onnx

    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = model.graph.name
    light.graph.node.extend(model.graph.node)
    for value in model.graph.input:
        light.graph.input.append(value)
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            light.graph.input[-1].CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    for tensor in model.graph.initializer:
        light.graph.value_info.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        if tensor.ByteSize() <= 8 * _SMALL and not tensor.external_data:
            light.graph.initializer.append(tensor)
    try:
        graph = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}
    return {value.name: kind for value in graph.value_info if (kind := _type(value)) is not None}


def _type(value: Any) -> Type | None:
    """The type of a value, None where it is no tensor or is not fully known."""
    kind = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not kind.HasField("shape"):
        return None
    if not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    try:
        return dtype_of(kind.elem_type), tuple(dim.dim_value for dim in kind.shape.dim)
    except Unsupported:
        return None
