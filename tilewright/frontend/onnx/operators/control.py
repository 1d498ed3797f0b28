"""Conditions and loops: chosen, merged or unrolled while importing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import InvalidModel, Unsupported
from tilewright.expr.core import Tensor
from tilewright.expr.ops import elementwise, shape
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.problems import DependsOnFailed, NeedsValue
from tilewright.frontend.onnx.registry import Value, op

_MOST_TRIPS = 1024  # unrolled iterations


def _run(node: Node, graph: Any, arguments: list[Value], label: str) -> list[Value]:
    """Import a subgraph on `arguments`; its problems stay in the list of the importer."""
    from tilewright.frontend.onnx.importer import Scope

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
        scalar = shape.reshape(node.b, flag, [], name=f"{node.name}.condition") if flag.rank else flag
        merged.append(elementwise.where(node.b, scalar, this, other, name=node.hint(position)))
    return tuple(merged)


@op("Loop")
def loop(node: Node) -> tuple[Value, ...]:
    """Unrolled: the number of iterations must follow from constants."""
    body = node.attributes["body"]
    label = node.proto.name or node.name
    limit = node.integer(0, "the number of iterations") if node.has(0) else _MOST_TRIPS + 1
    going = bool(node.array(1, "the condition").reshape(-1)[0]) if node.has(1) else True
    carried = list(node.inputs[2:])
    scans: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    trip = 0
    while going and trip < limit:
        if trip >= _MOST_TRIPS:
            raise Unsupported(f"a loop of more than {_MOST_TRIPS} iterations")
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
    """Unrolled over the extent of the scanned dimension."""
    body = node.attributes["body"]
    label = node.proto.name or node.name
    count = node.get_int("num_scan_inputs")
    if not 1 <= count <= len(node.inputs):
        raise InvalidModel(f"num_scan_inputs is {count} for {len(node.inputs)} inputs")
    carried, scanned = list(node.inputs[: len(node.inputs) - count]), node.tensors()[len(node.inputs) - count :]
    axes = node.get_ints("scan_input_axes", [0] * count)
    backwards = node.get_ints("scan_input_directions", [0] * count)
    extents = {x.shape[axis] for x, axis in zip(scanned, axes, strict=True)}
    extent = extents.pop()
    if extents or not isinstance(extent, int):
        raise InvalidModel("scan inputs of different lengths")
    if extent > _MOST_TRIPS:
        raise Unsupported(f"a scan of more than {_MOST_TRIPS} iterations")
    outputs = len(body.output) - len(carried)
    scans: list[list[Tensor]] = [[] for _ in range(outputs)]
    for trip in range(extent):
        parts: list[Value] = []
        for x, axis, back in zip(scanned, axes, backwards, strict=True):
            part = shape.narrow(node.b, x, axis, extent - 1 - trip if back else trip, 1, name=f"{label}.part")
            parts.append(shape.squeeze(node.b, part, [axis], name=f"{label}.part"))
        results = _run(node, body, [*carried, *parts], f"{label}.{trip}")
        carried = results[: len(carried)]
        _collect(scans, results[len(carried) :])
    out_axes = node.get_ints("scan_output_axes", [0] * outputs)
    reverse = node.get_ints("scan_output_directions", [0] * outputs)
    stacked = [
        _stacked(node, items[::-1] if back else items, axis)
        for items, axis, back in zip(scans, out_axes, reverse, strict=True)
    ]
    return (*carried, *stacked)


def _collect(scans: list[list[Tensor]], results: list[Value]) -> None:
    for items, value in zip(scans, results, strict=True):
        if not isinstance(value, Tensor):
            raise Unsupported("iterations that give sequences")
        items.append(value)


def _stacked(node: Node, items: list[Tensor], axis: int) -> Tensor:
    if not items:
        raise Unsupported("a loop without iterations that collects results")
    return shape.stack(node.b, items, axis=axis, name=f"{node.name}.scan")
