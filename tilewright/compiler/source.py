"""What `compile` is given, before anything is made of it: its identity for the cache, and its graph on demand.

A source is identified by its content: the values of a graph, or the bytes of an ONNX model and of the files that hold
its weights. Identifying an ONNX model needs neither the onnx package nor its graph.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilewright.errors import InvalidArgument, InvalidExpression
from tilewright.files import open_regular

if TYPE_CHECKING:
    from tilewright.expr.graph import Graph
    from tilewright.frontend.onnx.header import Header
    from tilewright.frontend.onnx.model_file import Source as OnnxSource

Shapes = Mapping[str, int | Sequence[int]]
Interface = tuple[tuple[str, ...], tuple[str, ...]]


class Source(Protocol):
    """A model that can be identified without being imported."""

    def identity(self) -> str | None:
        """Hexadecimal digest of everything that the graph is made from; None if that is unknown.

        Files that the graph is read from later are read again in each call: another digest tells that they changed.
        """

    def interface(self) -> Interface | None:
        """Names of inputs and outputs; None where only the graph has them, as of no source that has an identity."""

    def graph(self) -> Graph:
        """The expression graph. Raises CompileError where there is none."""


def source_of(model: Any, inputs: Any = None, shapes: Shapes | None = None) -> Source:
    """The source that an argument of `compile` stands for. Raises CompileError for what cannot be compiled.

    A torch module is exported here: what its `forward` does is not known before.
    """
    if _is_graph(model):
        from tilewright.expr.infer import check_bounds

        with nesting():
            check_bounds(model)
        return GraphSource(model)
    if isinstance(model, str | os.PathLike | bytes) or type(model).__module__.startswith("onnx"):
        from tilewright.frontend.onnx.model_file import read_source

        return OnnxModel(read_source(model), shapes)
    if any(base.__module__.startswith("torch.nn") for base in type(model).__mro__):
        from tilewright.frontend.torch import import_module

        if inputs is None:
            raise InvalidArgument("a torch module needs example inputs", help="compile(module, (tensor, …))")
        return GraphSource(import_module(model, inputs))
    raise InvalidArgument(
        f"cannot compile a {type(model).__name__}",
        help="give a path to an ONNX file, an onnx.ModelProto, a torch.nn.Module or a tilewright.expr.Graph",
    )


@contextmanager
def nesting() -> Iterator[None]:
    """Passes visit expressions by recursion: one that is nested deeper than Python allows is the user's error."""
    try:
        yield
    except RecursionError as error:
        raise InvalidExpression(
            "an expression is nested too deeply", help="give a part of it a tensor of its own"
        ) from error


def _is_graph(model: Any) -> bool:
    from tilewright.expr.graph import Graph

    return isinstance(model, Graph)


class GraphSource:
    """A graph that is there."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def identity(self) -> str:
        """Of the structure with its names, and of the values of all constants."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        from tilewright.expr import serialize

        digest = hashlib.sha256(serialize.dumps(self._graph).encode())
        for name, array in self._graph.all_constants().items():
            digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def interface(self) -> Interface:
        graph = self._graph
        return tuple(tensor.name for tensor in graph.inputs), tuple(tensor.name for tensor in graph.outputs)

    def graph(self) -> Graph:
        return self._graph


class OnnxModel:
    """An ONNX model that is opened and not parsed."""

    def __init__(self, source: OnnxSource, shapes: Shapes | None) -> None:
        self._source, self._shapes = source, shapes

    def identity(self) -> str | None:
        """Of the bytes of the model and of the files with its other tensors, the shapes, and the onnx package."""
        from importlib.metadata import PackageNotFoundError, version  # brings `email` and `socket`

        from tilewright.frontend.onnx.content import sha256

        shapes = _plain_shapes(self._shapes or {})
        header = self._header
        if shapes is None or header is None:
            return None
        try:
            files = [(name, self._file_digest(name)) for name in header.external_files]
            parts = [sha256(self._source.content), files, shapes, version("onnx")]
        except (OSError, ValueError, PackageNotFoundError):
            return None
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def interface(self) -> Interface | None:
        return None if self._header is None else (self._header.inputs, self._header.outputs)

    def graph(self) -> Graph:
        from tilewright.frontend.onnx.importer import import_source

        return import_source(self._source, self._shapes)

    @cached_property
    def _header(self) -> Header | None:
        """None for what is no model: importing it says what is wrong."""
        from tilewright.frontend.onnx.header import read_header

        try:
            return read_header(self._source.content)
        except (OSError, ValueError, RecursionError):
            return None

    def _file_digest(self, name: str) -> str:
        if self._source.folder is None:
            raise ValueError(f"there is no folder for {name}")
        with open_regular(self._source.folder / name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _plain_shapes(shapes: Any) -> list[tuple[str, Any]] | None:
    """Shapes as values of JSON; None where one is of a type that only the importer can judge."""
    found: list[tuple[str, Any]] = []
    if not isinstance(shapes, Mapping):
        return None
    for name, shape in shapes.items():
        extents = list(shape) if isinstance(shape, list | tuple) else [shape]
        if not isinstance(name, str) or not all(_is_extent(extent) for extent in extents):
            return None
        numbers = [int(extent) for extent in extents]
        found.append((name, numbers if isinstance(shape, list | tuple) else numbers[0]))
    return sorted(found)


def _is_extent(extent: object) -> bool:
    return isinstance(extent, Integral) and not isinstance(extent, bool)
