"""What an ONNX model says of itself, read from its bytes without the onnx package and without its weights.

Field numbers are those of onnx.proto. What is not read here is skipped; a malformed model raises ValueError, and the
importer says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.dataclass import dataclass
from tilewright.frontend.onnx.content import Content
from tilewright.frontend.onnx.wire import fields, messages, text

MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_FUNCTION_NODE = 7
_GRAPH_NODE, GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SPARSE = 1, 5, 11, 12, 15
_NODE_ATTRIBUTE = 5
_ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS, _ATTRIBUTE_SPARSE = (5, 10), (6, 11), (22, 23)
_SPARSE_TENSORS = (1, 2)  # values, indices
TENSOR_NAME, TENSOR_EXTERNAL = 8, 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_VALUE_NAME = 1


@dataclass(frozen=True)
class Header:
    """Names of a model's inputs and outputs, and the files with its other tensors as the model names them."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    external_files: tuple[str, ...]


def read_header(model: Content) -> Header:
    """The header of a model. Raises ValueError for bytes that are no message, RecursionError for too deep graphs."""
    graphs = list(messages(model, MODEL_GRAPH))  # parts of one message, if there are several
    initialized = {text(tensor, TENSOR_NAME) for graph in graphs for tensor in messages(graph, GRAPH_INITIALIZER)}
    inputs = [text(value, _VALUE_NAME) for graph in graphs for value in messages(graph, _GRAPH_INPUT)]
    outputs = [text(value, _VALUE_NAME) for graph in graphs for value in messages(graph, _GRAPH_OUTPUT)]
    tensors = [tensor for graph in graphs for tensor in _tensors_of_graph(graph)]
    for function in messages(model, _MODEL_FUNCTIONS):
        for node in messages(function, _FUNCTION_NODE):
            tensors += _tensors_of_node(node)
    files = {name for tensor in tensors for name in _files_of(tensor)}
    return Header(
        tuple(name for name in inputs if name not in initialized),
        tuple(outputs),
        tuple(sorted(files)),
    )


def _tensors_of_graph(graph: Content) -> Iterator[Content]:
    for number, value in fields(graph):
        if isinstance(value, int):
            continue
        if number == GRAPH_INITIALIZER:
            yield value
        elif number == _GRAPH_NODE:
            yield from _tensors_of_node(value)
        elif number == _GRAPH_SPARSE:
            yield from _tensors_of_sparse(value)


def _tensors_of_node(node: Content) -> Iterator[Content]:
    for attribute in messages(node, _NODE_ATTRIBUTE):
        for number, value in fields(attribute):
            if isinstance(value, int):
                continue
            if number in _ATTRIBUTE_TENSORS:
                yield value
            elif number in _ATTRIBUTE_GRAPHS:
                yield from _tensors_of_graph(value)
            elif number in _ATTRIBUTE_SPARSE:
                yield from _tensors_of_sparse(value)


def _tensors_of_sparse(sparse: Content) -> Iterator[Content]:
    for number, value in fields(sparse):
        if number in _SPARSE_TENSORS and not isinstance(value, int):
            yield value


def _files_of(tensor: Content) -> Iterator[str]:
    """The files that a tensor names for its elements: none, one, or several, of which readers take the last."""
    for entry in messages(tensor, TENSOR_EXTERNAL):
        if text(entry, _ENTRY_KEY) == "location":
            yield text(entry, _ENTRY_VALUE)
