"""Graphs as JSON, and digests of their contents for cache keys.

The JSON holds structure only: of a constant its name, dtype and shape, never its values. Reading checks everything
and raises InvalidFile (or the CompileError of the rule that is broken).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple
from typing import Any, NoReturn

import numpy as np

from tilewright.errors import CompileError, InvalidFile
from tilewright.expr import dtypes
from tilewright.expr.core import (
    FUNCTIONS,
    Apply,
    Axis,
    Cast,
    Compute,
    Const,
    Dim,
    Expr,
    Extent,
    Read,
    Tensor,
    apply,
    scatter_body,
)
from tilewright.expr.graph import Carried, Graph, Loop, Sliced, Stacked, loop_of
from tilewright.expr.ordered import SCATTER, Ordered, PrefixScan, Scatter, Sort

FORMAT = "tilewright-graph"
VERSION = 1
_LARGEST_EXTENT = 1 << 62
_DEEPEST = 400  # levels of an expression in a file
_DEEPEST_LOOP = 20  # loops in loops in a file


def to_json(graph: Graph) -> dict[str, Any]:
    """The structure of a graph as lists, dicts, strings and numbers."""
    dims: dict[str, list[int]] = {}
    constants = [Tensor(name, a.shape, dtypes.from_numpy(a.dtype)) for name, a in graph.constants.items()]
    found = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "inputs": [_encode_tensor(tensor, dims) for tensor in graph.inputs],
        "constants": [_encode_tensor(tensor, dims) for tensor in constants],
        "nodes": _encode_steps(graph, dims),
        "outputs": [tensor.name for tensor in graph.outputs],
    }
    return {**found, "dims": dims}


def from_json(data: Any, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, *, where: str = "") -> Graph:
    """The graph that `to_json` wrote; `constants` are the values of its constants by name."""
    try:
        return _Reader(data, dict(constants or {})).graph()
    except CompileError as error:
        if where and not error.where:
            error.where = where
        raise


def dumps(graph: Graph) -> str:
    """`to_json` as text."""
    return json.dumps(to_json(graph), separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, *, where: str = "") -> Graph:
    """The graph that `dumps` wrote."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"not JSON: {error}", where=where) from None
    return from_json(data, constants, where=where)


def content_digest(graph: Graph) -> str:
    """SHA-256 of what a graph computes, constants' values included, in hexadecimal.

    Names (of graph, tensors, loops, dimensions) and `source` do not take part; the order of inputs, nodes and outputs
    does, and so do constants that something reads.
    """
    arrays = graph.all_constants()
    constants = dict.fromkeys(
        tensor.name for tensor in (*graph.tensors().values(), *graph.outputs) if tensor.name in arrays
    )
    defined = [name for step in graph.steps() for name in _defined(step)]
    tensors = (*(tensor.name for tensor in graph.inputs), *constants, *defined)
    names = {name: f"t{number}" for number, name in enumerate(tensors)}
    dims: dict[str, list[int]] = {}
    structure = [
        [_encode_tensor(tensor, dims, names) for tensor in graph.inputs],
        _encode_steps(graph, dims, names),
        [names[tensor.name] for tensor in graph.outputs],
    ]
    digest = hashlib.sha256(_canonical(structure, dims))
    for name in constants:
        array = arrays[name]
        digest.update(_canonical([dtypes.from_numpy(array.dtype), list(array.shape)], {}))
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def compute_digest(compute: Compute) -> str:
    """SHA-256 of one compute, independent of the names of tensors, loops and dimensions and of `source`."""
    tensors = (*compute.inputs(), compute.output)
    names = {tensor.name: f"t{number}" for number, tensor in enumerate(tensors)}
    dims: dict[str, list[int]] = {}
    inputs = [_encode_tensor(tensor, dims, names) for tensor in compute.inputs()]
    return hashlib.sha256(_canonical([inputs, _encode_node(compute, dims, names)], dims)).hexdigest()


def _canonical(structure: Any, dims: Mapping[str, list[int]]) -> bytes:
    return json.dumps([structure, list(dims.values()), VERSION], separators=(",", ":")).encode()


#: Ordered accumulations by name: how they are made, and the types of what follows the name.
_ORDERED: dict[str, tuple[Callable[..., Ordered], tuple[type, ...]]] = {
    "PrefixScan": (PrefixScan, (int, str, bool, bool)),
    "Sort": (Sort, (int, bool)),
    "Scatter": (Scatter, (list, str)),
}

# Writing. With `names`, tensors, loops and dimensions are renamed and `source` is left out.

Names = Mapping[str, str] | None


def _encode_extent(extent: Extent, dims: dict[str, list[int]], names: Names) -> int | str:
    if not isinstance(extent, Dim):
        return extent
    # Under renaming a dimension is known by its rank of appearance; the key keeps the original name meanwhile.
    content = [extent.low, extent.high, extent.divisor]
    if dims.setdefault(extent.name, content) != content:
        raise InvalidFile(f"two dimensions are called {extent.name}, with different ranges", help="use two names")
    return extent.name if names is None else f"d{list(dims).index(extent.name)}"


def _encode_tensor(tensor: Tensor, dims: dict[str, list[int]], names: Names = None) -> list[Any]:
    name = tensor.name if names is None else names[tensor.name]
    return [name, tensor.dtype, [_encode_extent(extent, dims, names) for extent in tensor.shape]]


def _encode_steps(graph: Graph, dims: dict[str, list[int]], names: Names = None) -> list[dict[str, Any]]:
    """Nodes and loops in the order of `steps`."""
    return [
        _encode_node(step, dims, names) if isinstance(step, Compute) else _encode_loop(step, dims, names)
        for step in graph.steps()
    ]


def _encode_loop(loop: Loop, dims: dict[str, list[int]], names: Names) -> dict[str, Any]:
    def tensor(each: Tensor) -> list[Any]:
        return _encode_tensor(each, dims, names)

    def known(each: Tensor) -> str:
        return each.name if names is None else names[each.name]

    constants = () if names is not None else loop.body.constants.items()
    return {
        "loop": "" if names is not None else loop.name,
        "trips": loop.trips,
        "sliced": [[tensor(each.part), known(each.whole), each.backwards] for each in loop.sliced],
        "carried": [
            [tensor(each.state), known(each.initial), known(each.following), tensor(each.final)]
            for each in loop.carried
        ],
        "stacked": [[known(each.part), tensor(each.whole), each.backwards] for each in loop.stacked],
        "constants": [tensor(Tensor(name, a.shape, dtypes.from_numpy(a.dtype))) for name, a in constants],
        "nodes": _encode_steps(loop.body, dims, names),
    }


def _defined(step: Compute | Loop) -> Iterator[str]:
    """Names of tensors that a node or a loop defines, constants aside."""
    if isinstance(step, Compute):
        yield step.name
        return
    yield from (tensor.name for tensor in step.parameters())
    for inner in step.body.steps():
        yield from _defined(inner)
    yield from (tensor.name for tensor in step.outputs())


def _encode_node(node: Compute, dims: dict[str, list[int]], names: Names = None) -> dict[str, Any]:
    loops = {axis: axis.name if names is None else f"l{number}" for number, axis in enumerate(node.loops)}
    found = {
        "output": _encode_tensor(node.output, dims, names),
        "axes": [loops[axis] for axis in node.axes],
        "reduce": [[loops[axis], _encode_extent(axis.extent, dims, names)] for axis in node.reduce],
        "accum": _encode_accum(node.accum),
        "body": _encode_expr(node.body, loops, names),
    }
    return found if names is not None else {**found, "source": node.source}


def _encode_accum(accum: str | Ordered | None) -> str | list[Any] | None:
    if not isinstance(accum, Ordered):
        return accum
    return [type(accum).__name__, *(list(each) if isinstance(each, tuple) else each for each in astuple(accum))]


def _encode_expr(expr: Expr, loops: Mapping[Axis, str], names: Names) -> list[Any]:
    if isinstance(expr, Axis):
        return ["axis", loops[expr]]
    if isinstance(expr, Const):
        special = isinstance(expr.value, float) and not np.isfinite(expr.value)
        return ["const", expr.dtype, repr(expr.value) if special else expr.value]
    if isinstance(expr, Read):
        name = expr.tensor.name if names is None else names[expr.tensor.name]
        return ["read", name, *(_encode_expr(index, loops, names) for index in expr.indices)]
    if isinstance(expr, Cast):
        return ["cast", expr.dtype, _encode_expr(expr.arg, loops, names)]
    assert isinstance(expr, Apply), f"unknown expression {expr!r}"
    return [expr.function, *(_encode_expr(arg, loops, names) for arg in expr.args)]


# Reading


class _Reader:
    """Rebuilds a graph, naming the place of whatever is wrong: ``nodes[3].body``."""

    def __init__(self, data: Any, constants: dict[str, np.ndarray[Any, Any]]) -> None:
        self.data = data
        self.constants = constants
        self.dims: dict[str, Dim] = {}
        self.tensors: dict[str, Tensor] = {}
        self.given: dict[str, Tensor] = {}  # constants

    def fail(self, place: str, wanted: str) -> NoReturn:
        raise InvalidFile(f"{place or 'graph'}: expected {wanted}", help="write the file again with this version")

    def graph(self) -> Graph:
        top = self.take(self.data, dict, "")
        if top.get("format") != FORMAT or top.get("version") != VERSION:
            self.fail("format", f"{FORMAT} of version {VERSION}, not {top.get('format')!r} of {top.get('version')!r}")
        for name, entry in self.get(top, "dims", dict, "").items():
            place = f"dims.{name}"
            self.dims[name] = Dim(name, *(self.extent_size(size, place) for size in self.items(entry, place, 3)))
        inputs = [self.tensor(entry, place) for place, entry in self.entries(top, "inputs")]
        values = self.values(top, "")
        nodes, loops = self.steps(top, "", 0)
        outputs = [self.known(name, place) for place, name in self.entries(top, "outputs")]
        name = self.get(top, "name", str, "")
        return Graph(tuple(inputs), tuple(outputs), nodes, values, name, loops)

    def values(self, record: dict[str, Any], where: str) -> dict[str, np.ndarray[Any, Any]]:
        """The constants that are declared here; one of a body may be one of the graph around it."""
        values: dict[str, np.ndarray[Any, Any]] = {}
        for place, entry in self.entries(record, "constants", where):
            repeated = isinstance(entry, list) and entry[:1] and isinstance(entry[0], str) and entry[0] in self.given
            tensor = self.given[entry[0]] if repeated else self.tensor(entry, place)
            self.given[tensor.name] = tensor
            array = self.constants.get(tensor.name)
            if array is None:
                raise InvalidFile(f"{place}: the values of {tensor} are not given")
            if array.shape != tensor.shape or array.dtype != dtypes.numpy_dtype(tensor.dtype):
                raise InvalidFile(f"{place}: {tensor} is given as {array.dtype}{list(array.shape)}")
            values[tensor.name] = array
        return values

    def steps(self, record: dict[str, Any], where: str, depth: int) -> tuple[tuple[Compute, ...], tuple[Loop, ...]]:
        nodes: list[Compute] = []
        loops: list[Loop] = []
        for place, entry in self.entries(record, "nodes", where):
            if isinstance(entry, dict) and "loop" in entry:
                loops.append(self.loop(entry, place, depth + 1))
            else:
                nodes.append(self.node(entry, place))
        return tuple(nodes), tuple(loops)

    def loop(self, record: dict[str, Any], place: str, depth: int) -> Loop:
        if depth > _DEEPEST_LOOP:
            self.fail(place, f"loops at most {_DEEPEST_LOOP} deep")
        name, trips = self.get(record, "loop", str, place), self.extent_size(record.get("trips"), f"{place}.trips")
        sliced = []
        for where, entry in self.entries(record, "sliced", place):
            part, whole, backwards = self.items(entry, where, 3)
            sliced.append(Sliced(self.tensor(part, where), self.known(whole, where), self.take(backwards, bool, where)))
        begun = []
        for where, entry in self.entries(record, "carried", place):
            state, initial, following, final = self.items(entry, where, 4)
            begun.append((self.tensor(state, where), self.known(initial, where), following, final, where))
        constants = self.values(record, place)
        nodes, loops = self.steps(record, place, depth)
        carried = [
            Carried(state, initial, self.known(following, where), self.tensor(final, where))
            for state, initial, following, final, where in begun
        ]
        stacked = []
        for where, entry in self.entries(record, "stacked", place):
            part, whole, backwards = self.items(entry, where, 3)
            known = self.known(part, where)
            stacked.append(Stacked(known, self.tensor(whole, where), self.take(backwards, bool, where)))
        return loop_of(name, trips, nodes, loops, constants, sliced, carried, stacked)

    def take(self, value: Any, kind: type, place: str) -> Any:
        if type(value) is not kind:
            self.fail(place, f"{kind.__name__}, found {type(value).__name__}")
        return value

    def get(self, record: dict[str, Any], key: str, kind: type, place: str) -> Any:
        return self.take(record.get(key), kind, f"{place}.{key}" if place else key)

    def items(self, value: Any, place: str, count: int | None = None) -> list[Any]:
        found: list[Any] = self.take(value, list, place)
        if count is not None and len(found) != count:
            self.fail(place, f"{count} items, found {len(found)}")
        return found

    def entries(self, record: dict[str, Any], key: str, place: str = "") -> Iterable[tuple[str, Any]]:
        path = f"{place}.{key}" if place else key
        return ((f"{path}[{number}]", entry) for number, entry in enumerate(self.get(record, key, list, place)))

    def extent_size(self, value: Any, place: str) -> int:
        size: int = self.take(value, int, place)
        if not 0 <= size <= _LARGEST_EXTENT:
            self.fail(place, f"an integer in [0, {_LARGEST_EXTENT}], found {size}")
        return size

    def extent(self, value: Any, place: str) -> Extent:
        if isinstance(value, str):
            if value not in self.dims:
                self.fail(place, f"a dimension of this graph, found {value!r}")
            return self.dims[value]
        return self.extent_size(value, place)

    def tensor(self, entry: Any, place: str) -> Tensor:
        """A tensor that is defined here."""
        name, dtype, shape = self.items(entry, place, 3)
        self.take(name, str, place)
        if name in self.tensors:
            self.fail(place, f"a new name, found {name!r} again")
        extents = tuple(self.extent(extent, place) for extent in self.items(shape, place))
        self.tensors[name] = Tensor(name, extents, self.dtype(dtype, place))
        return self.tensors[name]

    def dtype(self, value: Any, place: str) -> dtypes.DType:
        if value not in dtypes.DTYPES:
            self.fail(place, f"a dtype ({', '.join(dtypes.DTYPES)}), found {value!r}")
        return str(value)

    def known(self, name: Any, place: str) -> Tensor:
        if not isinstance(name, str) or name not in self.tensors:
            self.fail(place, f"a tensor that is defined before, found {name!r}")
        return self.tensors[name]

    def node(self, entry: Any, place: str) -> Compute:
        record = self.take(entry, dict, place)
        name, dtype, shape = self.items(record.get("output"), f"{place}.output", 3)
        extents = [self.extent(extent, f"{place}.output") for extent in self.items(shape, f"{place}.output")]
        labels = self.items(record.get("axes"), f"{place}.axes", len(extents))
        axes = [Axis(self.take(label, str, f"{place}.axes"), e) for label, e in zip(labels, extents, strict=True)]
        reduced: list[Axis] = []
        for where, item in self.entries(record, "reduce", place):
            label, extent = self.items(item, where, 2)
            reduced.append(Axis(self.take(label, str, where), self.extent(extent, where)))
        accum = self.accum(record.get("accum"), f"{place}.accum")
        loops = {axis.name: axis for axis in (*axes, *reduced)}
        read = self.scatter if isinstance(accum, Scatter) else self.expr
        body = read(record.get("body"), loops, f"{place}.body", 0)
        output = self.tensor([name, dtype, shape], f"{place}.output")
        source = self.get(record, "source", str, place)
        return Compute(output, tuple(axes), body, tuple(reduced), accum, source)

    def accum(self, value: Any, place: str) -> str | Ordered | None:
        if value is None or isinstance(value, str):
            return value
        kind, *fields = self.items(value, place) or [None]
        found = _ORDERED.get(kind) if isinstance(kind, str) else None
        if found is None or len(fields) != len(found[1]):
            self.fail(place, f"an accumulation, or one of {', '.join(_ORDERED)} with its settings")
        for field, wanted in zip(fields, found[1], strict=True):
            self.take(field, wanted, place)
            for dim in field if wanted is list else ():
                self.take(dim, int, place)
        made: Ordered = found[0](*(tuple(field) if isinstance(field, list) else field for field in fields))
        return made

    def scatter(self, value: Any, loops: Mapping[str, Axis], place: str, depth: int) -> Expr:
        """The body of a scatter."""
        kind, *parts = self.items(value, place) or [None]
        if kind != SCATTER or len(parts) < 3:
            self.fail(place, f"{SCATTER}, initial values, updates, and places")
        initial, update, *places = (self.expr(part, loops, place, depth + 1) for part in parts)
        return scatter_body(initial, update, places)

    def expr(self, value: Any, loops: Mapping[str, Axis], place: str, depth: int) -> Expr:
        if depth > _DEEPEST:
            self.fail(place, f"an expression of at most {_DEEPEST} levels")
        found = self.items(value, place)
        if not found or not isinstance(found[0], str):
            self.fail(place, "a list that starts with a function, axis, const, read or cast")
        kind, rest = found[0], found[1:]
        special: dict[str, Callable[[], Expr]] = {
            "axis": lambda: self.axis(rest, loops, place),
            "const": lambda: self.const(rest, place),
            "read": lambda: Read(
                self.known(rest[0] if rest else None, place),
                tuple(self.expr(index, loops, place, depth + 1) for index in rest[1:]),
            ),
            "cast": lambda: self.cast(rest, loops, place, depth),
        }
        if kind in special:
            return special[kind]()
        if kind not in FUNCTIONS:
            self.fail(place, f"a function, found {kind!r}")
        return apply(kind, *(self.expr(arg, loops, place, depth + 1) for arg in rest))

    def axis(self, rest: list[Any], loops: Mapping[str, Axis], place: str) -> Expr:
        (label,) = self.items(rest, place, 1)
        if not isinstance(label, str) or label not in loops:
            self.fail(place, f"a loop of this node, found {label!r}")
        return loops[label]

    def const(self, rest: list[Any], place: str) -> Expr:
        dtype, value = self.items(rest, place, 2)
        if self.dtype(dtype, place) == "bool":
            return Const(self.take(value, bool, place), "bool")
        if dtypes.is_integer(dtype):
            return Const(self.take(value, int, place), dtype)
        if isinstance(value, str):
            if value not in ("nan", "inf", "-inf"):
                self.fail(place, f"nan, inf or -inf, found {value!r}")
            return Const(float(value), dtype)
        return Const(self.take(value, float, place), dtype)

    def cast(self, rest: list[Any], loops: Mapping[str, Axis], place: str, depth: int) -> Expr:
        dtype, arg = self.items(rest, place, 2)
        return Cast(self.expr(arg, loops, place, depth + 1), self.dtype(dtype, place))
