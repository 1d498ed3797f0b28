"""The weights of a model apart from its other content, so that they are neither parsed nor copied with it.

ONNX keeps large tensors as raw bytes among the initializers of the graph. The onnx package copies them when it parses a
model, when its checker looks at it, and for each access. Here the bytes stay where the file was read.
"""

from __future__ import annotations

from tilewright.frontend.onnx.content import Content
from tilewright.frontend.onnx.header import GRAPH_INITIALIZER, MODEL_GRAPH, TENSOR_EXTERNAL, TENSOR_NAME
from tilewright.frontend.onnx.wire import encoded, fields, spans, text

_LARGE_BYTES = 1 << 16  # smaller ones cost nothing
_TENSOR_RAW = 9

Weights = dict[str, Content]  # little-endian elements of initializers of the graph, by their names


def without_weights(model: Content) -> tuple[bytes, Weights]:
    """The bytes of a model whose large initializers are without their elements, and these.

    Nothing is taken apart where two initializers have one name. Raises ValueError for bytes that are no message.
    """
    weights: Weights = {}
    names: set[str] = set()
    parts = []
    for number, value, begin, end in spans(model):
        if number == MODEL_GRAPH and not isinstance(value, int):
            parts.append(encoded(number, _light_graph(value, weights, names)))
        else:
            parts.append(bytes(model[begin:end]))
    return b"".join(parts), weights


def _light_graph(graph: Content, weights: Weights, names: set[str]) -> bytes:
    parts = []
    for number, value, begin, end in spans(graph):
        if number == GRAPH_INITIALIZER and not isinstance(value, int):
            name = text(value, TENSOR_NAME)
            if name in names:
                raise ValueError(f"two initializers are called {name!r}")
            names.add(name)
            if len(value) >= _LARGE_BYTES:
                parts.append(encoded(number, _light_tensor(value, name, weights)))
                continue
        parts.append(bytes(graph[begin:end]))
    return b"".join(parts)


def _light_tensor(tensor: Content, name: str, weights: Weights) -> bytes:
    found = list(fields(tensor))
    raw = [value for number, value in found if number == _TENSOR_RAW and not isinstance(value, int)]
    elsewhere = any(number == TENSOR_EXTERNAL for number, _ in found)  # then its own bytes are not its elements
    if len(raw) != 1 or len(raw[0]) < _LARGE_BYTES or elsewhere:
        return bytes(tensor)
    weights[name] = raw[0]
    return b"".join(bytes(tensor[begin:end]) for number, _, begin, end in spans(tensor) if number != _TENSOR_RAW)
