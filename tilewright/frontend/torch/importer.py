"""torch → `expr.Graph`: captures a module with torch.export and walks its nodes.

Level: frontend. In: a module in evaluation mode and example inputs, whose shapes and dtypes are fixed. Out: a graph of
computes whose inputs are the tensors among the inputs, in order; parameters and buffers are constants. Operators come
from the table in `registry`. Every problem is collected before one error lists them all.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tilewright.errors import CompileError, Unsupported
from tilewright.expr.core import Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.elementwise import identity
from tilewright.frontend.onnx.problems import Problem, raise_problems
from tilewright.frontend.torch import numbers
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.capture import capture, split_example
from tilewright.frontend.torch.complex_numbers import Complex, constant, is_complex, refused
from tilewright.frontend.torch.complex_numbers import importer_of as complex_importer
from tilewright.frontend.torch.element_types import check_tensor, dtype_of
from tilewright.frontend.torch.refusals import refusal
from tilewright.frontend.torch.registry import COMPLEX, load_all


def import_module(module: Any, example_inputs: Any, *, name: str = "") -> Graph:
    """The graph of a `torch.nn.Module`, called with `example_inputs` (a tuple, or a mapping by parameter name).

    Constants share memory with parameters that are contiguous: change those after compiling, not before.
    Raises Unsupported where torch.export cannot capture the module, and UnsupportedModel with every operator that
    cannot be compiled, random operators and updates of buffers included: call `module.eval()` first.
    """
    args, kwargs = split_example(module, example_inputs)
    program = capture(module, args, kwargs)
    return _Import(program, name or type(module).__name__, {}).run()


def import_fx(module: Any, example_inputs: Sequence[Any], *, constants: Collection[int] = (), name: str = "") -> Graph:
    """The graph of a `torch.fx.GraphModule`, as Dynamo makes them: tensors in, a flat tuple of tensors out.

    Inputs at the positions `constants` get the values of the example and are no inputs of the graph. The graph has one
    output for every tensor that the module returns. Errors as for `import_module`.
    """
    args, kwargs = split_example(module, tuple(example_inputs))
    program = capture(module, args, kwargs)
    values = {position: example_inputs[position] for position in constants}
    return _Import(program, name or type(module).__name__, values).run()


class _Failed:
    """Stands for the results of a node that was not imported, where no tensor can (`_Import._stand_in`)."""


_FAILED = _Failed()


class _DependsOnFailed(Exception):
    """An argument comes from a node that was reported already."""


class _Import:
    """The state of one import."""

    def __init__(self, program: Any, name: str, constants: Mapping[int, Any]) -> None:
        self.program, self.where = program, name
        self.given = constants  # by position among the inputs
        self.b = GraphBuilder(name)
        self.values: dict[Any, Any] = {}
        self.problems: list[Problem] = []
        self.table = load_all()

    def run(self) -> Graph:
        signature = self.program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        inputs = 0
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                self._try(node, self._placeholder, spec, inputs)
                inputs += spec.kind.name == "USER_INPUT"
            elif node.op == "call_function":
                self._try(node, self._call)
            elif node.op != "output":
                self._try(node, self._attribute)
        outputs = self._outputs(signature)
        raise_problems(self.problems, self.where)
        return self.b.finish(outputs)

    def _try(self, node: Any, step: Callable[..., Any], *args: Any) -> None:
        """Run the import of one node; a failure is recorded, and the import goes on with what stands in for it."""
        try:
            self.values[node] = step(node, *args)
        except _DependsOnFailed:
            self.values[node] = self._stand_in(node)
            if node.op == "call_function" and not self._importer(node):
                self._report(node.name, str(node.target), refusal(str(node.target)))
        except CompileError as error:
            advice = f" ({error.help})" if error.help else ""
            self._report(node.name, str(node.target), error.message + advice)
            self.values[node] = self._stand_in(node)

    def _stand_in(self, node: Any) -> Any:
        """Tensors with the shapes and dtypes that torch promises of a node that failed, so that others are checked."""
        try:
            return self._unknown(node.name, node.meta.get("val"))
        except Unsupported:
            return _FAILED

    def _unknown(self, name: str, promised: Any) -> Any:
        if isinstance(promised, (tuple, list)):
            return [self._unknown(f"{name}.{position}", part) for position, part in enumerate(promised)]
        if hasattr(promised, "is_complex") and promised.is_complex():
            return Complex(self._unknown(f"{name}.re", promised.real), self._unknown(f"{name}.im", promised.imag))
        if not hasattr(promised, "shape"):
            raise Unsupported(f"{name} is no tensor")
        return Tensor(self.b.unique(name), tuple(promised.shape), check_tensor(promised)).bind(self.b)

    def _report(self, name: str, operator_: str, reason: str) -> None:
        self.problems.append(Problem(name, operator_, reason))

    # Inputs and constants

    def _placeholder(self, node: Any, spec: Any, position: int) -> Any:
        kind = spec.kind.name
        if kind == "USER_INPUT":
            if not hasattr(spec.arg, "value"):  # a tensor
                return self._user_input(node, position)
            return _literal(spec.arg.value)
        if kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            return _Constant(self._stored(spec), spec.target)
        raise Unsupported(f"an input of kind {kind.lower()}")

    def _user_input(self, node: Any, position: int) -> Any:
        if position in self.given:
            return _Constant(self.given[position], node.name)
        promised = node.meta["val"]
        if not hasattr(promised, "shape"):
            raise Unsupported(f"an input of type {type(promised).__name__}", help="a tensor")
        return self.b.input(node.name, tuple(promised.shape), check_tensor(promised))

    def _stored(self, spec: Any) -> Any:
        """The parameter, buffer or constant behind an input of the program."""
        if spec.target in self.program.state_dict:
            return self.program.state_dict[spec.target]
        return self.program.constants[spec.target]

    def _attribute(self, node: Any) -> Any:
        if node.op != "get_attr":
            raise Unsupported(f"a node of kind {node.op}")
        found = self.program.graph_module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return _Constant(found, str(node.target)) if hasattr(found, "shape") else found

    # Operators

    def _call(self, node: Any) -> Any:
        if node.target is operator.getitem:
            source, position = self.values[node.args[0]], node.args[1]
            if source is _FAILED:
                raise _DependsOnFailed
            return source[position]
        if numbers.is_arithmetic(node):
            return numbers.arithmetic(node, [self._value(arg) for arg in node.args])
        importer = self._importer(node)
        if importer is None:
            raise Unsupported(refusal(str(node.target)))
        args = [self._value(arg) for arg in node.args]
        kwargs = {key: self._value(value) for key, value in node.kwargs.items()}
        if is_complex(node, [args, list(kwargs.values())]):
            importer = complex_importer(str(node.target))
            if importer is None:
                raise refused(str(node.target))
        call = Call(self.b, node, node.name)
        try:
            bound = inspect.signature(importer).bind(call, *args, **kwargs)
        except TypeError as error:
            raise Unsupported(f"an argument that has no meaning here: {error}") from error
        numbers.resolve(bound)
        results = importer(*bound.args, **bound.kwargs)
        _check_results(node, results)
        return results

    def _importer(self, node: Any) -> Any:
        if node.target is operator.getitem or numbers.is_arithmetic(node):
            return self._call
        name = str(node.target)
        return self.table.get(name) or COMPLEX.get(name)

    def _value(self, arg: Any) -> Any:
        """An argument with nodes replaced by what they stand for."""
        import torch

        if isinstance(arg, torch.fx.Node):
            found = self.values[arg]
            if found is _FAILED:
                raise _DependsOnFailed
            if isinstance(found, _Constant):
                found = self.values[arg] = constant(self.b, found.tensor, found.name)
            return found
        if isinstance(arg, (list, tuple)):
            return [self._value(item) for item in arg]
        return arg

    # Outputs

    def _outputs(self, signature: Any) -> list[Tensor]:
        """Every tensor that the module returns; a tensor that is returned twice is copied."""
        (output,) = [node for node in self.program.graph.nodes if node.op == "output"]
        found: list[Tensor] = []
        for spec, node in zip(signature.output_specs, output.args[0], strict=True):
            kind = spec.kind.name
            if kind != "USER_OUTPUT":
                target = spec.target or "an input"
                self._report(str(target), kind.lower(), "changes a tensor in place that outlives the call")
            elif hasattr(node, "op"):
                self._add_output(node, found)
            elif node is not None:
                self._report("output", type(node).__name__, f"returns {node!r}, which is not a tensor")
        return found

    def _add_output(self, node: Any, found: list[Tensor]) -> None:
        try:
            value = self._value(node)
        except _DependsOnFailed:
            return
        except CompileError as error:
            self._report(node.name, "output", error.message)
            return
        if isinstance(value, Complex):
            self._report(node.name, "output", "returns complex numbers (return torch.view_as_real of them)")
            return
        if not isinstance(value, Tensor):
            shown = "a number that is computed" if isinstance(value, numbers.Computed) else repr(value)
            self._report(node.name, "output", f"returns {shown}, which is not a tensor")
            return
        found.append(identity(value, name=f"{value.name}.copy") if value in found else value)


class _Constant:
    """A tensor that becomes a constant of the graph when it is first used."""

    def __init__(self, tensor: Any, name: str) -> None:
        self.tensor, self.name = tensor, name


def _literal(value: Any) -> Any:
    """The value of an input that is no tensor and was fixed when the module was captured."""
    if not isinstance(value, (bool, int, float, str, type(None))):
        raise Unsupported(f"an input of type {type(value).__name__}", help="a tensor")
    return value


def _check_results(node: Any, results: Any) -> None:
    """Results have the shape and dtype that torch promises: anything else is a bug of the importer."""
    promised = node.meta.get("val")
    pairs = zip(results, promised, strict=False) if isinstance(results, (tuple, list)) else [(results, promised)]
    for result, value in pairs:
        parts = (result.re, result.im) if isinstance(result, Complex) else (result,)
        for part in [part for part in parts if isinstance(part, Tensor)]:
            wanted = tuple(value.shape), dtype_of(value.dtype.to_real())
            assert (part.shape, part.dtype) == wanted, f"{node.target} gives {part}, torch {wanted}"
