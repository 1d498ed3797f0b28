"""Conditions and loops: conditions are chosen or merged while importing, loops stay loops where all trips are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import CompileError, InvalidModel, Unsupported
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, Loop
from tilewright.expr.ops import elementwise, shape
from tilewright.expr.ops.nodes import normal_axis
from tilewright.expr.ops.shape import transpose
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.problems import DependsOnFailed, NeedsValue
from tilewright.frontend.onnx.registry import Value, op
from tilewright.frontend.onnx.scope import Scope

_MOST_TRIPS = 1024  # unrolled iterations
_MOST_COUNTED = 1 << 24  # iterations that are all alike: their numbers are a constant, of 128 MiB
_FOLDED_POINTS = 1 << 22  # of all trips of a loop over constants


def _run(node: Node, graph: Any, arguments: list[Value], label: str) -> list[Value]:
    """Import a subgraph on `arguments`; its problems stay in the list of the importer."""
    outer = node.scope
    scope = Scope(outer.opsets, outer, attributes=outer.attributes, prefix=f"{outer.prefix}{label}/")
    initialized = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in initialized]
    if len(names) != len(arguments):
        raise InvalidModel(f"a body with {len(names)} inputs for {len(arguments)} values")
    scope.values.update(zip(names, arguments, strict=True))
    before = len(node.importer.problems)
    results = node.importer.run_graph(graph, scope)
    node.importer.raise_nested(before, "in its body")
    found = [value for value in results if value is None or isinstance(value, Tensor | list)]
    if len(found) < len(results):
        raise DependsOnFailed("a value of an outer graph")
    return found


@op("If")
def if_(node: Node) -> tuple[Value, ...]:
    """A known condition chooses a branch; otherwise both are computed and merged element by element."""
    label = node.proto.name or node.name
    condition = node.known(0)
    branches = {True: node.attributes["then_branch"], False: node.attributes["else_branch"]}
    if condition is not None:
        return tuple(_run(node, branches[bool(condition.reshape(-1)[0])], [], label))
    yes, no = (_run(node, branches[which], [], label) for which in (True, False))
    merged: list[Value] = []
    for position, (this, other) in enumerate(zip(yes, no, strict=True)):
        if not (isinstance(this, Tensor) and isinstance(other, Tensor)):
            raise NeedsValue(node.proto.input[0], "a condition that chooses between sequences")
        if this.shape != other.shape or this.dtype != other.dtype:
            raise NeedsValue(node.proto.input[0], f"a condition that chooses between {this} and {other}")
        flag = node.input(0)
        scalar = shape.reshape(flag, [], name=f"{node.name}.condition") if flag.rank else flag
        merged.append(elementwise.where(scalar, this, other, name=node.hint(position)))
    return tuple(merged)


@op("Loop")
def loop(node: Node) -> tuple[Value, ...]:
    """A loop; unrolled where the trips differ in more than the values that go from one to the next."""
    body, label = node.attributes["body"], node.proto.name or node.name
    limit = node.integer(0, "the number of iterations") if node.has(0) else None
    going = bool(node.array(1, "the condition").reshape(-1)[0]) if node.has(1) else True
    carried = list(node.inputs[2:])

    def trip(parts: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[list[Value], list[Value]]:
        again = node.b.constant(np.asarray(True), f"{label}.going")
        flag, *results = _run(node, body, [parts[0], again, *states], label)
        known = node.b.constants.get(flag.name) if isinstance(flag, Tensor) else None
        if node.has(1) if known is None else not known.reshape(-1)[0]:
            raise Unsupported("a loop whose condition is known only at run time")
        if trips <= _MOST_COUNTED:  # only now: the limit may be far above what a condition that is computed allows
            node.b.constants[numbers.name] = np.arange(trips, dtype=np.int64)
        return results[: len(carried)], results[len(carried) :]

    if limit is not None:
        trips = max(0, limit) if going else 0
        numbers = Tensor(node.b.unique(f"{label}.trip"), (trips,), "i64")
        try:
            states, rows = _looped(node, label, trips, [(numbers, False)], carried, trip, [])
        except CompileError:
            if trips == 0:
                raise
        else:
            if trips > _MOST_COUNTED:
                raise Unsupported(f"a loop of {trips} iterations", help=f"at most {_MOST_COUNTED}, or a condition")
            return (*states, *rows)
    return _unrolled_loop(node, limit, going)


def _unrolled_loop(node: Node, limit: int | None, going: bool) -> tuple[Value, ...]:
    """The number of iterations follows from constants."""
    body, label = node.attributes["body"], node.proto.name or node.name
    carried = list(node.inputs[2:])
    scans: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    trip = 0
    while going and (limit is None or trip < limit):
        if trip >= _MOST_TRIPS:
            raise Unsupported(f"a loop of more than {_MOST_TRIPS} iterations that are not all alike")
        count = node.b.constant(np.asarray(trip, np.int64), f"{label}.trip")
        state = node.b.constant(np.asarray(going), f"{label}.going")
        results = _run(node, body, [count, state, *carried], f"{label}.{trip}")
        flag = results[0]
        if not isinstance(flag, Tensor) or flag.name not in node.b.constants:
            if node.has(1) or not node.has(0):
                raise Unsupported("a loop whose condition is known only at run time")
        else:
            going = bool(node.b.constants[flag.name].reshape(-1)[0])
        carried = results[1 : 1 + len(carried)]
        _collect(scans, results[1 + len(carried) :])
        trip += 1
    return (*carried, *(_stacked(node, items, 0) for items in scans))


@op("Scan")
def scan(node: Node) -> tuple[Value, ...]:
    """A loop over the scanned dimension; unrolled where the trips differ in more than values."""
    body, label = node.attributes["body"], node.proto.name or node.name
    count = node.get_int("num_scan_inputs")
    if not 1 <= count <= len(node.inputs):
        raise InvalidModel(f"num_scan_inputs is {count} for {len(node.inputs)} inputs")
    carried, scanned = list(node.inputs[: len(node.inputs) - count]), node.tensors()[len(node.inputs) - count :]
    axes = [
        normal_axis(a, x.rank, where=label)
        for a, x in zip(node.get_ints("scan_input_axes", [0] * count), scanned, strict=True)
    ]
    back = [bool(each) for each in node.get_ints("scan_input_directions", [0] * count)]
    extents = {x.shape[axis] for x, axis in zip(scanned, axes, strict=True)}
    extent = extents.pop()
    if extents or not isinstance(extent, int):
        raise InvalidModel("scan inputs of different lengths")
    outputs = len(body.output) - len(carried)
    out_axes = node.get_ints("scan_output_axes", [0] * outputs)
    out_back = [bool(each) for each in node.get_ints("scan_output_directions", [0] * outputs)]

    def trip(parts: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[list[Value], list[Value]]:
        results = _run(node, body, [*states, *parts], label)
        return results[: len(carried)], results[len(carried) :]

    first = [
        x if axis == 0 else transpose(x, _to_front(axis, x.rank), name=f"{label}.rows")
        for x, axis in zip(scanned, axes, strict=True)
    ]
    try:
        sliced = list(zip(first, back, strict=True))
        states, rows = _looped(node, label, extent, sliced, carried, trip, out_back)
        last: list[Value] = [*states]
    except CompileError:
        if not 0 < extent <= _MOST_TRIPS:
            raise
        last, rows = _unrolled_scan(node, extent, sliced, carried, out_back)
    found: list[Value] = []
    for position, (whole, axis) in enumerate(zip(rows, out_axes, strict=True), len(last)):
        place = normal_axis(axis, whole.rank, where=label)
        order = [*range(1, place + 1), 0, *range(place + 1, whole.rank)]
        found.append(whole if place == 0 else transpose(whole, order, name=node.hint(position)))
    return (*last, *found)


def _to_front(axis: int, rank: int) -> list[int]:
    return [axis, *(dim for dim in range(rank) if dim != axis)]


def _unrolled_scan(
    node: Node, extent: int, sliced: Sequence[tuple[Tensor, bool]], carried: list[Value], back: Sequence[bool]
) -> tuple[list[Value], list[Tensor]]:
    body, label = node.attributes["body"], node.proto.name or node.name
    scans: list[list[Tensor]] = [[] for _ in back]
    for trip in range(extent):
        parts: list[Value] = []
        for x, backwards in sliced:
            part = shape.narrow(x, 0, extent - 1 - trip if backwards else trip, 1, name=f"{label}.part")
            parts.append(shape.squeeze(part, [0], name=f"{label}.part"))
        results = _run(node, body, [*carried, *parts], f"{label}.{trip}")
        carried = results[: len(carried)]
        _collect(scans, results[len(carried) :])
    rows = [_stacked(node, items[::-1] if each else items, 0) for items, each in zip(scans, back, strict=True)]
    return carried, rows


_Trip = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[list[Value], list[Value]]]


def _looped(
    node: Node,
    label: str,
    trips: int,
    sliced: Sequence[tuple[Tensor, bool]],
    carried: Sequence[Value],
    trip: _Trip,
    back: Sequence[bool],
) -> tuple[list[Tensor], list[Tensor]]:
    """A loop, or its results where they follow from constants: states at last, and rows (`back`: which backwards).

    Raises CompileError where the trips cannot be one graph.
    """
    b = node.b
    initial = _tensors(carried)

    def body(
        parts: Sequence[Tensor], states: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[tuple[Tensor, bool]]]:
        following, rows = trip(parts, states)
        return _tensors(following), list(zip(_tensors(rows), back or [False] * len(rows), strict=True))

    states, rows = b.loop(label, trips, sliced, initial, body)
    appended = b.loops[-1]
    if _points(appended) <= _FOLDED_POINTS and all(tensor.name in b.constants for tensor in appended.inputs()):
        constants = {tensor.name: b.constants[tensor.name] for tensor in appended.inputs()}
        results = (*states, *rows)
        graph = Graph((), results, (), constants, label, (appended.taking(constants),))
        b.constants.update(zip((tensor.name for tensor in results), evaluate(graph, []), strict=True))
        b.loops.pop()
    return states, rows


def _points(loop: Loop) -> int:
    """Points that all trips of a loop compute, with those of the loops in it and one for each trip."""
    nodes = sum(prod(static_shape(tuple(axis.extent for axis in node.loops))) for node in loop.body.nodes)
    return loop.trips * (1 + nodes + sum(map(_points, loop.body.loops)))


def _tensors(values: Sequence[Value]) -> list[Tensor]:
    found = [value for value in values if isinstance(value, Tensor)]
    if len(found) < len(values):
        raise Unsupported("iterations that give sequences")
    return found


def _collect(scans: list[list[Tensor]], results: list[Value]) -> None:
    for items, value in zip(scans, results, strict=True):
        if not isinstance(value, Tensor):
            raise Unsupported("iterations that give sequences")
        items.append(value)


def _stacked(node: Node, items: list[Tensor], axis: int) -> Tensor:
    if not items:
        raise Unsupported("a loop without iterations that collects results")
    return shape.stack(items, axis=axis, name=f"{node.name}.scan")
