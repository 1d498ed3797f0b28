"""The `torch.compile` backend: one compiled module per subgraph that Dynamo captures, for inference.

`torch.compile(model, backend="tilewright")` finds `backend` through the entry point `torch_dynamo_backends`.

Weights. Dynamo passes a module's parameters and buffers to the subgraph as inputs and marks them as static. Here they
become constants, so that they are packed when compiling. Dynamo does not check that they stay the same, so every call
does: the same tensor objects, storage and version counters as when they were compiled in. Other weights (a layer used
again with its own, or weights written in place) get a compiled module of their own, up to `_MOST_VARIANTS`; after
that, weights are inputs like others. Writes that torch's version counter does not count, through `.data` or a NumPy
view, are not seen: call `torch._dynamo.reset()` after them. Tensors made in inference mode have no version counter
and stay inputs.

Shapes. A module is compiled for fixed extents. When a size or an integer changes from one call to the next, Dynamo
hands the subgraph over again with symbols for them. Such a subgraph gets one compiled module per combination of sizes,
strides and integers that it is called with, up to `_MOST_SHAPES`; it runs in eager mode with others after that. A
warning says each, once.

Floats that change are inputs of the compiled module, tensors of rank 0. Where an operator needs the number itself when
it is compiled, each value of it is a further combination.

Fallback. A subgraph that cannot be compiled runs in eager mode, and a warning of the logger "tilewright.dynamo" says
why, once per subgraph.
"""

from __future__ import annotations

import logging
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidArgument, Unsupported
from tilewright.options import Options

logger = logging.getLogger("tilewright.dynamo")

_MOST_VARIANTS = 16  # compiled modules of one subgraph with different weights; equal layers of a network share one
_MOST_SHAPES = 16  # compiled modules of one subgraph for different sizes
_SETTINGS = ("machine", "threads", "options")

Run = Callable[..., Any]


def backend(gm: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Run:
    """Compile an FX graph that Dynamo captured; returns a function of torch tensors.

    `torch.compile(..., options={"threads": 2})` sets arguments of `tilewright.compile`: `machine`, `threads` and
    `options`. Raises InvalidArgument for others.
    """
    static, settings = _static_positions(gm, example_inputs), _settings(kwargs)
    try:
        _check_inference(gm, example_inputs)
        if _has_symbols(gm, example_inputs) or _numbers(gm):
            return _ByShape(gm, static, settings)
        subgraph = _Subgraph(gm, static, settings)
        subgraph.compile(example_inputs)
    except CompileError as error:
        return _eager(gm, error)
    return subgraph


@dataclass(frozen=True)
class _Weight:
    """A weight as it was when it was compiled in."""

    tensor: weakref.ref[Any]
    version: int
    address: int

    @classmethod
    def of(cls, tensor: Any) -> _Weight:
        return cls(weakref.ref(tensor), tensor._version, tensor.data_ptr())

    def is_now(self, tensor: Any) -> bool:
        same = self.tensor() is tensor
        return same and self.version == tensor._version and self.address == tensor.data_ptr()

    def is_current(self) -> bool:
        tensor = self.tensor()
        return tensor is not None and self.is_now(tensor)


@dataclass(frozen=True)
class _Variant:
    """A compiled module with these weights inside."""

    weights: tuple[_Weight, ...]
    run: Run

    def fits(self, tensors: Sequence[Any]) -> bool:
        return all(map(_Weight.is_now, self.weights, tensors))


class _Subgraph:
    """One subgraph and its compiled modules; a call runs the one that has the weights inside."""

    def __init__(self, gm: Any, static: Sequence[int], settings: Mapping[str, Any]) -> None:
        self.gm, self.static, self.settings = gm, static, settings
        self.variants: list[_Variant] = []
        self.general: Run | None = None  # takes weights as inputs
        self.compiled = 0

    def __call__(self, *inputs: Any) -> Any:
        if self.general is not None:
            return self.general(*inputs)
        weights = [inputs[position] for position in self.static]
        for variant in self.variants:
            if variant.fits(weights):
                return variant.run(*inputs)
        try:
            return self.compile(inputs)(*inputs)
        except CompileError as error:
            self.general = _eager(self.gm, error)
            return self.general(*inputs)

    def compile(self, inputs: Sequence[Any]) -> Run:
        """Compile with these weights inside; once there were too many, for any weights. Stale variants are dropped."""
        variants = [variant for variant in self.variants if all(map(_Weight.is_current, variant.weights))]
        if self.compiled == _MOST_VARIANTS:
            logger.warning("weights changed %d times: from now on they are inputs of the subgraph", self.compiled)
            self.general, self.variants = _compiled(self.gm, inputs, (), self.settings), []
            return self.general
        self.compiled += 1
        weights = tuple(_Weight.of(inputs[position]) for position in self.static)
        run = _compiled(self.gm, inputs, self.static, self.settings)
        self.variants = [_Variant(weights, run), *variants]
        return run


class _ByShape:
    """A subgraph with symbolic sizes: a `_Subgraph` for each combination of sizes that it is called with."""

    def __init__(self, gm: Any, static: Sequence[int], settings: Mapping[str, Any]) -> None:
        self.gm, self.static, self.settings = gm, static, settings
        self.fixed: list[int] = []  # positions of floats that are compiled in; the others are inputs
        self.subgraphs: dict[Any, Run] = {}
        self.others: Run | None = None  # runs what no subgraph is for, once no more are made

    def __call__(self, *inputs: Any) -> Any:
        key = self._key(inputs)
        run = self.subgraphs.get(key) or self.others or self._specialised(key, inputs)
        return run(*inputs)

    def _key(self, inputs: Sequence[Any]) -> Any:
        sizes = tuple((each.shape, each.stride()) if hasattr(each, "stride") else _exact(each) for each in inputs)
        return sizes, tuple(_exact(inputs[place].item()) for place in self.fixed)

    def _specialised(self, key: Any, inputs: Sequence[Any]) -> Run:
        if len(self.subgraphs) == _MOST_SHAPES:
            error = Unsupported(
                f"it is compiled for {_MOST_SHAPES} combinations of sizes and numbers, which is the most"
            )
            self.others = _eager(self.gm, error)
            return self.others
        if len(self.subgraphs) == 1:
            count = _operators(self.gm)
            logger.warning(
                "sizes or numbers change: a subgraph of %d operators is compiled for each, up to %d",
                count,
                _MOST_SHAPES,
            )
        gm = _with_numbers(self.gm, {place: inputs[place].item() for place in self.fixed})
        subgraph = _Subgraph(gm, self.static, self.settings)
        try:
            subgraph.compile(inputs)
        except CompileError as error:
            if not self.fixed and not self.subgraphs and _numbers(self.gm):
                self.fixed = _numbers(self.gm)
                return self._specialised(self._key(inputs), inputs)
            run = _eager(self.gm, error)
            if not self.subgraphs:
                self.others = run  # an operator that is not supported is so for all sizes
                return run
            self.subgraphs[key] = run
            return run
        self.subgraphs[key] = subgraph
        return subgraph


# What Dynamo hands over -----------------------------------------------------------------------------------------


def _settings(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `compile_graph`, given to torch.compile as a mapping `options`."""
    given = dict(kwargs)
    if not isinstance(given.get("options"), Options):
        given.update(given.pop("options", None) or {})
    unknown = sorted(given.keys() - set(_SETTINGS))
    if unknown:
        raise InvalidArgument(
            f"no setting is called {', '.join(unknown)}", where="torch.compile", help=f"one of {', '.join(_SETTINGS)}"
        )
    return given


def _static_positions(gm: Any, example_inputs: Sequence[Any]) -> tuple[int, ...]:
    """Positions of inputs that belong to modules (parameters, buffers) and whose changes can be seen."""
    import torch

    found = []
    for position, (node, value) in enumerate(zip(_placeholders(gm), example_inputs, strict=True)):
        marked = node.meta.get("tensor_dict") or {}
        owned = isinstance(value, torch.nn.Parameter) or "_dynamo_static_input_type" in marked
        if owned and isinstance(value, torch.Tensor) and not value.is_inference():
            found.append(position)
    return tuple(found)


def _check_inference(gm: Any, example_inputs: Sequence[Any]) -> None:
    """Raise Unsupported for what must run in eager mode whatever the operators are."""
    import torch

    for node, value in zip(_placeholders(gm), example_inputs, strict=True):
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise Unsupported(f"{node.name} is on {value.device}", help="tensors on the CPU")
    tensors = [value for value in (*example_inputs, *gm.parameters()) if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise Unsupported("gradients are wanted", help="call it under torch.inference_mode() or torch.no_grad()")


def _has_symbols(gm: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether sizes or numbers are inputs of the subgraph, and known when it is called only."""
    promised = [
        node.meta.get("example_value", value) for node, value in zip(_placeholders(gm), example_inputs, strict=True)
    ]
    return any(
        not hasattr(value, "shape") or any(not isinstance(extent, int) for extent in (*value.shape, *value.stride()))
        for value in promised
    )


def _numbers(gm: Any) -> list[int]:
    """Positions of inputs that hold a Python float, which Dynamo passes as a tensor and takes out with `item`."""
    return [place for place, node in enumerate(_placeholders(gm)) if any(user.target == "item" for user in node.users)]


def _exact(number: Any) -> Any:
    """What is equal only for the same type and bits: 0.0 == -0.0, 1 == 1.0, and NaN differs from itself."""
    return struct.pack("d", number) if isinstance(number, float) else (type(number), number)


def _with_numbers(gm: Any, numbers: Mapping[int, float]) -> Any:
    """`gm` with these numbers in place of what `item` takes from the inputs at these positions."""
    import torch

    if not numbers:
        return gm
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    fixed = torch.fx.GraphModule(gm, graph)
    placeholders = _placeholders(fixed)
    for place, number in numbers.items():
        for user in [user for user in placeholders[place].users if user.target == "item"]:
            for reader in list(user.users):
                swap = lambda node, user=user, number=number: number if node is user else node  # noqa: E731
                reader.args = torch.fx.map_arg(reader.args, swap)
                reader.kwargs = torch.fx.map_arg(reader.kwargs, swap)
            graph.erase_node(user)
    fixed.recompile()
    return fixed


def _placeholders(gm: Any) -> list[Any]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def _eager(gm: Any, error: CompileError) -> Run:
    """The subgraph as it is, with a warning."""
    logger.warning("a subgraph of %d operators runs in eager mode: %s", _operators(gm), error)
    forward: Run = gm.forward
    return forward


def _operators(gm: Any) -> int:
    return sum(node.op.startswith("call") for node in gm.graph.nodes)


# Compiling ------------------------------------------------------------------------------------------------------


def _compiled(gm: Any, inputs: Sequence[Any], constants: Sequence[int], settings: Mapping[str, Any]) -> Run:
    """A function with the inputs and results of `gm`, with the inputs at `constants` compiled in.

    A subgraph that only makes views of its inputs computes nothing: it is run as it is.
    """
    from tilewright.compiler.compile import compile_graph
    from tilewright.frontend.torch import import_fx

    results = _results(gm, inputs)
    fresh = [node for node, form in results if isinstance(form, _Fresh)]
    views = [node for node, form in results if form is _VIEW]
    if not fresh:
        run_views: Run = gm.forward
        return run_views
    graph = import_fx(_with_outputs(gm, fresh), inputs, constants=constants)
    module = compile_graph(graph, **settings)
    fixed = frozenset(constants)
    read = [place for place, value in enumerate(inputs) if place not in fixed and hasattr(value, "shape")]
    assert len(module.manifest.inputs) == len(read), "a compiled module has all inputs of its graph"
    empty = [] if read else [form.empty for _, form in results if isinstance(form, _Fresh)]
    view = _with_outputs(gm, views, views=True).forward if views else None

    def run(*inputs: Any) -> tuple[Any, ...]:
        # Without an input that is a tensor of torch, the module would return arrays.
        found = module(*[inputs[position] for position in read], out=[make() for make in empty] or None)
        computed = iter(found if isinstance(found, tuple) else (found,))
        viewed: Iterator[Any] = iter(view(*inputs)) if view else iter(())
        returned = []
        for literal, form in results:
            if isinstance(form, _Fresh):
                returned.append(form.arranged(next(computed)))
            else:
                returned.append(next(viewed) if form is _VIEW else literal)
        return tuple(returned)

    return run


@dataclass(frozen=True)
class _Fresh:
    """A result in memory of its own, with the strides that eager mode would give it; none if row-major."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: Any

    def empty(self) -> Any:
        """A row-major tensor for it, not initialised."""
        import torch

        return torch.empty(self.shape, dtype=self.dtype)

    def arranged(self, tensor: Any) -> Any:
        if self.strides is None:
            return tensor
        return tensor.new_empty_strided(self.shape, self.strides).copy_(tensor)


_VIEW = "view"  # a result that is a view of an input: made from it in each call
_LITERAL = "literal"  # a result that is no tensor

Form = _Fresh | str


def _results(gm: Any, inputs: Sequence[Any]) -> list[tuple[Any, Form]]:
    """The results of `gm`, and what each is; learned by running it on tensors without elements.

    Raises Unsupported where two results overlap: writing to one would have to change the other.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    (output,) = [node for node in gm.graph.nodes if node.op == "output"]
    nodes = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    symbols = ShapeEnv()  # for numbers that are taken out of tensors
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True, shape_env=symbols) as mode:
        given = [
            mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
            for value in inputs
        ]
        try:
            values = gm(*given)
        except (RuntimeError, TypeError, ValueError) as error:
            raise Unsupported(f"its shapes depend on data: {error}") from error
    owned = {value.untyped_storage()._cdata for value in given if isinstance(value, torch.Tensor)}
    results: list[tuple[Any, Form]] = []
    fresh: list[Any] = []
    for node, value in zip(nodes, values if isinstance(values, (tuple, list)) else (values,), strict=True):
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise Unsupported("it returns a number that is computed")
        if not isinstance(value, torch.Tensor):
            results.append((value, _LITERAL))
        elif value.untyped_storage()._cdata in owned:
            results.append((node, _VIEW))
        else:
            plain = value.is_contiguous() or 0 in value.stride()  # an expanded result cannot be written to as it is
            strides = None if plain else tuple(value.stride())
            results.append((node, _Fresh(tuple(value.shape), strides, value.dtype)))
            fresh.append(value)
    for position, value in enumerate(fresh):
        if any(_overlap(value, other) for other in fresh[:position]):
            raise Unsupported("two of its results share memory")
    return results


def _overlap(left: Any, right: Any) -> bool:
    """Whether two tensors without elements would have an element in common: marked on a map of their storage."""
    import torch

    if left.untyped_storage()._cdata != right.untyped_storage()._cdata:
        return False
    marks = torch.zeros(left.untyped_storage().nbytes() // left.element_size(), dtype=torch.bool)
    marks.as_strided(left.shape, left.stride(), left.storage_offset()).fill_(True)
    return bool(marks.as_strided(right.shape, right.stride(), right.storage_offset()).any())


def _with_outputs(gm: Any, outputs: Sequence[Any], *, views: bool = False) -> Any:
    """`gm` with these nodes as results; with `views`, only the operators that lead to them, which write nothing."""
    import torch

    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    graph.graph_copy(gm.graph, copies)
    graph.output(tuple(copies[node] for node in outputs))
    if views:
        graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return torch.fx.GraphModule(gm, graph)
