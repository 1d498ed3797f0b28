"""ONNX → `expr.Graph`: walks the nodes, folds what is constant, collects every problem before it raises.

Level: frontend. In: a model file with shapes for its inputs. Out: a graph of computes with static shapes whose inputs
and outputs have the model's names. Operators come from the table in `registry`; those that have no importer but are
defined as functions of other operators are imported through their definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import CompileError, InvalidArgument, InvalidModel, Unsupported
from tilewright.expr import dtypes
from tilewright.expr.affine import simplify
from tilewright.expr.core import Compute, Const, Expr, Read, Tensor, static_shape
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.live import live
from tilewright.expr.ops.elementwise import identity
from tilewright.expr.rewrite import transform
from tilewright.files import reason
from tilewright.frontend.onnx import functions
from tilewright.frontend.onnx.element_types import Array, array_of, dtype_of
from tilewright.frontend.onnx.inputs import input_shapes
from tilewright.frontend.onnx.model_file import Source, read_model, read_source
from tilewright.frontend.onnx.names import result_name
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.problems import DependsOnFailed, NeedsInputs, NeedsValue, Problem, raise_problems
from tilewright.frontend.onnx.refusals import refusal
from tilewright.frontend.onnx.registry import Definition, Value, load_all, outputs_of
from tilewright.frontend.onnx.scope import FAILED, Failed, Scope
from tilewright.frontend.onnx.stand_ins import Type, inferred_types
from tilewright.frontend.onnx.weights import Weights

_FOLDED_POINTS = 1 << 20  # loop points: computes on constants up to this are evaluated while importing, in about 0.1 s
_GENERATED_POINTS = 1 << 12  # the same for computes that read nothing: larger ones are cheaper to form than to store
_LARGEST_TENSOR_BYTES = 1 << 36  # 64 GiB: a larger tensor is a mistake in the model or in a shape

#: What malformed attributes lead to in importers that pass the ONNX checker: reported as errors of the model.
_MALFORMED = (IndexError, KeyError, ValueError, TypeError, OverflowError, ZeroDivisionError, MemoryError)


def import_model(
    source: Any,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    *,
    values: Mapping[str, Array] | None = None,
) -> Graph:
    """The graph of an ONNX model: a path, the bytes of a file, or an `onnx.ModelProto`.

    `shapes` gives extents of inputs whose shape the model leaves open. `values` fixes inputs (a target shape, axes) to
    constants; they are then no inputs of the graph. Raises InvalidModel for a malformed model, InvalidArgument for
    shapes that do not fit, and UnsupportedModel, with every node that cannot be compiled.
    """
    return import_source(read_source(source), shapes, values)


def import_source(
    source: Source,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    values: Mapping[str, Array] | None = None,
) -> Graph:
    """`import_model` of a source that was read."""
    try:
        model, weights = read_model(source)
        return _Import(model, weights, source.where, shapes or {}, values or {}).run()
    except OSError as failure:
        raise InvalidModel(f"cannot be read: {reason(failure)}", where=source.where) from failure
    except MemoryError as failure:
        raise InvalidModel("cannot be read: it is larger than the memory", where=source.where) from failure
    except RecursionError as error:
        raise InvalidModel("graphs or expressions are nested too deeply", where=source.where) from error
    except UnicodeDecodeError as error:
        raise InvalidModel(f"a name in it is not UTF-8: {error.object!r}", where=source.where) from error


_STAND_IN = ""  # among the sources of a tensor: it depends on the result of a node that failed


class Importer:
    """The state of one import; operator importers reach it as ``node.importer`` for subgraphs."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.b = GraphBuilder()
        self.problems: list[Problem] = []
        self.sources: dict[str, frozenset[str]] = {}  # graph inputs that a tensor depends on
        self.table = load_all()

    # Names

    def lookup(self, name: str, scope: Scope | None) -> Value | Failed:
        """The value of a name; initializers become constants when they are first used."""
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            if name in scope.initializers:
                array = array_of(scope.initializers[name], scope.weights.get(name))
                scope.values[name] = self.b.constant(array, scope.prefix + name)
                return scope.values[name]
            scope = scope.outer
        raise InvalidModel(f"nothing defines {name!r}")

    def stand_in(self, name: str, scope: Scope) -> Tensor | Failed:
        """What later nodes are checked with in place of the result of a node that failed."""
        return FAILED

    # Graphs and functions

    def run_graph(self, graph: Any, scope: Scope) -> list[Value | Failed]:
        """Import the nodes of a (sub)graph and return its outputs."""
        for tensor in graph.initializer:
            scope.initializers[tensor.name] = tensor
        for tensor in graph.sparse_initializer:
            self._report(tensor.values.name, "SparseTensor", "sparse initializers", scope)
            scope.values[tensor.values.name] = FAILED
        for index, proto in enumerate(graph.node):
            self.run_node(proto, scope, index)
        found: list[Value | Failed] = []
        for output in graph.output:
            try:
                found.append(self.lookup(output.name, scope))
            except (Unsupported, InvalidModel) as error:
                self._report(output.name, "output", error.message, scope, invalid=isinstance(error, InvalidModel))
                found.append(FAILED)
        return found

    def run_node(self, proto: Any, scope: Scope, index: int = 0) -> None:
        """Import one node; a failure is recorded, and the import goes on with what stands in for its results."""
        label = scope.prefix + (proto.name or f"{proto.op_type} #{index}")
        start = len(self.b.nodes)
        try:
            inputs = [self.lookup(name, scope) if name else None for name in proto.input]
            results = None
            if any(value is FAILED for value in inputs):
                self._check_known(proto, scope)
            else:
                results = self._import(proto, scope, inputs, label)
            if results is not None:
                self._check_sizes(start)
                self._record_sources(inputs, results)
                self._fold(start)
        except DependsOnFailed:
            results = None
        except CompileError as error:
            self._failed(error, proto, label, scope)
            results = None
        except _MALFORMED as error:
            self._report(label, _operator(proto), f"malformed: {error or type(error).__name__}", scope, invalid=True)
            results = None
        for position, name in enumerate(proto.output):
            known = results is not None and position < len(results)
            scope.values[name] = results[position] if results is not None and known else self.stand_in(name, scope)
            if name and results is not None and not known:
                self._report(label, _operator(proto), f"its output {name!r}", scope)

    def _check_known(self, proto: Any, scope: Scope) -> None:
        """Raise Unsupported for a node that no importer and no definition is for, whatever its inputs are."""
        domain = _domain(proto)
        if (domain, proto.op_type) in self.table:
            return
        if not functions.has_definition(proto.op_type, domain, scope.opsets):
            raise Unsupported(refusal(str(proto.op_type), domain))

    def _import(self, proto: Any, scope: Scope, inputs: Sequence[Any], label: str) -> list[Value]:
        domain = _domain(proto)
        version = scope.opsets.get(domain, 1)
        attributes = functions.attributes_of(proto, scope.attributes)
        importer = self.table.get((domain, proto.op_type))
        names = [result_name(name, str(proto.op_type), scope) for name in proto.output]
        node = Node(proto, version, self.b, inputs, names, attributes, self, scope)
        if importer is not None:
            start = len(self.b.nodes)
            found = importer(node)
            if not isinstance(found, Definition):
                return list(outputs_of(found))
            del self.b.nodes[start:]
        body = functions.definition(proto, domain, scope.opsets, inputs, attributes)
        if body is None:
            raise Unsupported(refusal(str(proto.op_type), domain))
        return self._run_function(body, node, label)

    def _run_function(self, body: Any, node: Node, label: str) -> list[Value]:
        """Import the nodes of a function in a scope of its own."""
        scope = Scope(
            {("" if o.domain == "ai.onnx" else o.domain): o.version for o in body.opset_import},
            attributes=functions.arguments(body, node.attributes, node.proto.op_type, node.proto.domain, node.version),
            renamed=dict(zip(body.output, node.names, strict=False)),
            prefix=f"{label}/",
        )
        for position, name in enumerate(body.input):
            scope.values[name] = node.inputs[position] if position < len(node.inputs) else None
        before = len(self.problems)
        for index, proto in enumerate(body.node):
            self.run_node(proto, scope, index)
        self.raise_nested(before, "in its definition")
        outputs: list[Value] = []
        for position, name in enumerate(body.output):
            if position < len(node.proto.output) and node.proto.output[position]:
                value = self.lookup(name, scope)
                assert not isinstance(value, Failed), "a failed function body has problems"
                outputs.append(value)
            else:
                outputs.append(None)
        return outputs

    def raise_nested(self, before: int, where: str) -> None:
        """Turn the problems found since there were `before` into one error of the node that they are nested in."""
        problems = self.problems[before:]
        del self.problems[before:]
        if not problems:
            return
        message = f"{where}, {problems[0].operator}: {problems[0].reason}"
        if any(problem.invalid for problem in problems):
            raise InvalidModel(message)
        if all(problem.needs for problem in problems):
            raise NeedsInputs(message, tuple(sorted({name for problem in problems for name in problem.needs})))
        raise Unsupported(message)

    # After each node

    def _check_sizes(self, start: int) -> None:
        for compute in self.b.nodes[start:]:
            size = prod(static_shape(compute.output.shape)) * dtypes.size_bytes(compute.output.dtype)
            if size > _LARGEST_TENSOR_BYTES:
                del self.b.nodes[start:]
                raise InvalidModel(f"{compute.output} has {size} bytes", help=f"at most {_LARGEST_TENSOR_BYTES}")

    def _fold(self, start: int) -> None:
        """Replace the computes appended since `start` that depend on constants only by their values."""
        nodes = self.b.nodes[start:]
        del self.b.nodes[start:]
        for node in nodes:
            inputs, points = node.inputs(), prod(_extents(node))
            limit = _FOLDED_POINTS if inputs else _GENERATED_POINTS
            if points <= limit and all(tensor.name in self.b.constants for tensor in inputs):
                self.b.constants[node.name] = evaluate_compute(node, self.b.constants)
            else:
                self.b.nodes.append(node)

    def _record_sources(self, inputs: Sequence[Any], results: Sequence[Value]) -> None:
        found = frozenset().union(*(self.sources.get(t.name, frozenset()) for t in _flat(inputs)))
        for tensor in _flat(results):
            self.sources[tensor.name] = self.sources.get(tensor.name, frozenset()) | found

    # Problems

    def _failed(self, error: CompileError, proto: Any, label: str, scope: Scope) -> None:
        """Record an error; behind a node that failed only what is not supported, whatever the values are."""
        needs: tuple[str, ...] = ()
        behind = any(_STAND_IN in self.sources.get(tensor.name, ()) for tensor in self._inputs(proto, scope))
        if behind and (isinstance(error, NeedsInputs | NeedsValue) or not isinstance(error, Unsupported)):
            return
        if isinstance(error, NeedsInputs):
            needs = error.inputs
        elif isinstance(error, NeedsValue):
            value = self.lookup(error.value, scope)
            assert isinstance(value, Tensor), "a value that is needed is a tensor"
            needs = tuple(sorted(self.sources.get(value.name, ())))
        advice = f" ({error.help})" if error.help else ""
        invalid = not isinstance(error, Unsupported)
        self._report(label, _operator(proto), error.message + advice, scope, invalid=invalid, needs=needs)

    def _inputs(self, proto: Any, scope: Scope) -> list[Tensor]:
        """The inputs of a node that are known."""
        found = []
        for name in proto.input:
            try:
                found.append(self.lookup(name, scope) if name else None)
            except (Unsupported, InvalidModel):  # reported already, or about to be
                continue
        return _flat(found)

    def _report(
        self,
        label: str,
        operator: str,
        reason: str,
        scope: Scope,
        *,
        invalid: bool = False,
        needs: tuple[str, ...] = (),
    ) -> None:
        self.problems.append(Problem(label, operator, reason, invalid, needs))


def _domain(proto: Any) -> str:
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


def _operator(proto: Any) -> str:
    """The name of an operator, with its domain where that is another than ONNX."""
    return f"{_domain(proto)}.{proto.op_type}" if _domain(proto) else str(proto.op_type)


class _Import(Importer):
    """The import of a whole model."""

    def __init__(
        self,
        model: Any,
        weights: Weights,
        where: str,
        shapes: Mapping[str, int | Sequence[int]],
        values: Mapping[str, Array],
    ) -> None:
        super().__init__(where)
        self.model, self.weights, self.shapes, self.fixed = model, weights, shapes, values
        self.scope: Scope | None = None  # of the main graph

    def run(self) -> Graph:
        graph = self.model.graph
        self.b.name = graph.name or "main"
        opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in self.model.opset_import}
        kept = {output.name: output.name for output in graph.output}
        scope = self.scope = Scope(opsets, weights=self.weights, renamed=kept)
        self._add_inputs(graph, scope)
        results = self.run_graph(graph, scope)
        raise_problems(self.problems, self.where)
        outputs = [self._output(value, proto.name) for value, proto in zip(results, graph.output, strict=True)]
        raise_problems(self.problems, self.where)
        return live(_scalars_inlined(self.b.finish(outputs)))

    @cached_property
    def _types(self) -> dict[str, Type]:
        return inferred_types(self.model, {tensor.name: static_shape(tensor.shape) for tensor in self.b.inputs})

    def stand_in(self, name: str, scope: Scope) -> Tensor | Failed:
        """A tensor of the type that ONNX infers, for values of the main graph."""
        if scope is not self.scope or name not in self._types:
            return FAILED
        dtype, shape = self._types[name]
        tensor = Tensor(self.b.unique(name), shape, dtype).bind(self.b)
        self.sources[tensor.name] = frozenset([_STAND_IN])
        return tensor

    def _add_inputs(self, graph: Any, scope: Scope) -> None:
        initialized = {tensor.name for tensor in graph.initializer}
        given = [value for value in graph.input if value.name not in initialized]
        unknown = sorted(set(self.fixed) - {value.name for value in graph.input})
        if unknown:
            raise InvalidArgument(f"no input is called {', '.join(unknown)}", where=self.where)
        open_ = [value for value in given if value.name not in self.fixed]
        shapes = input_shapes(open_, self.shapes, self.where)
        for value in given:
            if value.name in self.fixed:
                scope.values[value.name] = self._fixed(value)
            elif value.name in shapes:
                self._add_input(value, shapes[value.name], scope)
            else:
                kind = value.type.WhichOneof("value") or "no type"
                self._report(value.name, "input", f"{kind.removesuffix('_type')} inputs", scope)
                scope.values[value.name] = FAILED

    def _add_input(self, value: Any, shape: tuple[int, ...], scope: Scope) -> None:
        try:
            dtype = dtype_of(value.type.tensor_type.elem_type)
        except Unsupported as error:
            self._report(value.name, "input", error.message, scope)
            scope.values[value.name] = FAILED
            return
        if prod(shape) * dtypes.size_bytes(dtype) > _LARGEST_TENSOR_BYTES:
            raise InvalidModel(f"input {value.name} of shape {list(shape)} is too large", where=self.where)
        tensor = self.b.input(value.name, shape, dtype)
        self.sources[tensor.name] = frozenset([value.name])
        scope.values[value.name] = tensor

    def _fixed(self, value: Any) -> Tensor:
        expected = dtypes.numpy_dtype(dtype_of(value.type.tensor_type.elem_type))
        array = np.asarray(self.fixed[value.name])
        if array.dtype != expected:
            raise InvalidArgument(f"{value.name} is given as {array.dtype}", help=f"an array of {expected}")
        return self.b.constant(array, value.name)

    def _output(self, value: Value | Failed, name: str) -> Tensor:
        """The output under its own name; a copy where that name belongs to another tensor."""
        if not isinstance(value, Tensor):
            self.problems.append(Problem(name, "output", "outputs that are not tensors"))
            return Tensor(name, (), "f32")
        if value.name == name or name in self.b.constants:
            return value
        return identity(value, name=name)


def _flat(values: Sequence[Any]) -> list[Tensor]:
    """The tensors among values, and in sequences among them."""
    found: list[Tensor] = []
    for value in values:
        found.extend(value if isinstance(value, list) else [value] if isinstance(value, Tensor) else [])
    return found


def _extents(node: Compute) -> tuple[int, ...]:
    return static_shape(tuple(axis.extent for axis in node.loops))


def _scalars_inlined(graph: Graph) -> Graph:
    """Literals in place of reads of constants that have one element."""
    constants = graph.all_constants()

    def rule(expr: Expr) -> Expr | None:
        if isinstance(expr, Read) and expr.tensor.size == 1 and expr.tensor.name in constants:
            return Const(constants[expr.tensor.name].reshape(()).item(), expr.dtype)
        return None

    def inlined(node: Compute) -> Compute:
        body = transform(node.body, rule)
        return node if body is node.body else replace(node, body=simplify(body))

    return graph.map_graphs(lambda each: replace(each, nodes=tuple(inlined(node) for node in each.nodes)))
