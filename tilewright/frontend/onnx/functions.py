"""Operators that ONNX defines by other operators: their bodies, and the attributes that bodies refer to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.expr.core import Tensor, static_shape
from tilewright.frontend.onnx.element_types import code_of


def attributes_of(proto: Any, outer: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a node as Python values; references are replaced by the attributes `outer` of the function."""
    from onnx import helper

    found: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            if outer.get(attribute.ref_attr_name) is not None:
                found[attribute.name] = outer[attribute.ref_attr_name]
        else:
            found[attribute.name] = helper.get_attribute_value(attribute)
    return found


def arguments(body: Any, attributes: Mapping[str, Any], operator: str, domain: str, version: int) -> dict[str, Any]:
    """The attributes that the body of a function sees: those of the node, else the defaults."""
    from onnx import defs, helper

    found: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in body.attribute_proto}
    if defs.has(operator, version, domain):
        for name, attribute in defs.get_schema(operator, version, domain).attributes.items():
            if attribute.default_value.name:
                found[name] = helper.get_attribute_value(attribute.default_value)
    return {**found, **attributes}


def has_definition(operator: str, domain: str, opsets: Mapping[str, int]) -> bool:
    """Whether ONNX defines the operator by others, for some types of its inputs.

    What `definition` makes for a node needs these types: onnx 1.23 reads them unchecked.
    """
    from onnx import defs

    version = opsets.get(domain, 1)
    if not defs.has(operator, version, domain):
        return False
    schema: Any = defs.get_schema(operator, version, domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def definition(
    proto: Any, domain: str, opsets: Mapping[str, int], inputs: Sequence[Any], attributes: Mapping[str, Any]
) -> Any | None:
    """The FunctionProto that defines this node in these opsets, or None where there is none."""
    import onnx
    from onnx import defs

    version = opsets.get(domain, 1)
    if not defs.has(proto.op_type, version, domain):
        return None
    schema: Any = defs.get_schema(proto.op_type, version, domain)
    if schema.has_function:
        content = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, version))
    elif schema.has_context_dependent_function:
        node = onnx.NodeProto()
        node.CopyFrom(proto)
        del node.attribute[:]
        node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
        content = schema.get_context_dependent_function_with_opset_version(
            _newest(schema.context_dependent_function_opset_versions, version),
            node.SerializeToString(),
            [_type(value).SerializeToString() for value in inputs],
        )
    else:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(content)
    if not any(opset.domain in ("", "ai.onnx") for opset in body.opset_import):
        body.opset_import.append(onnx.helper.make_opsetid("", opsets.get("", version)))
    return body if len(body.node) else None


def _newest(versions: Sequence[int], wanted: int) -> int:
    """The newest of `versions` that `wanted` includes, or the oldest."""
    return max((v for v in versions if v <= wanted), default=min(versions))


def _type(value: Any) -> Any:
    import onnx

    if not isinstance(value, Tensor):
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(code_of(value.dtype), static_shape(value.shape))
