"""Scan, Loop and recurrent layers beside onnxruntime, compiled: odd sizes, both directions, one trip and none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tilewright.errors import Unsupported  # noqa: E402
from tilewright.expr import Graph  # noqa: E402
from tilewright.expr.evaluate import evaluate  # noqa: E402
from tilewright.frontend.onnx import import_model  # noqa: E402
from tilewright.frontend.onnx.operators import control  # noqa: E402

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(0)


def value(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def rand(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32) * 0.5


def model(nodes: Any, inputs: Any, outputs: Any, initializers: Any = ()) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return made


def agrees(proto: Any, **feeds: Any) -> Graph:
    """The imported graph, whose results are those of onnxruntime."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    graph = import_model(proto)
    assert [tensor.name for tensor in graph.outputs] == [output.name for output in proto.graph.output]
    for found, wanted in zip(evaluate(graph, feeds), session.run(None, feeds), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    return graph


@pytest.mark.covering(1)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(1, 1, 1), (2, 7, 17), (13, 1, 17), (13, 7, 1)])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str, steps: int, batch: int, hidden: int, direction: str) -> None:
    rows, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * hidden, 1 + (direction == "bidirectional")
    names = ["x", "w", "r", "b", "lengths", "h0", *(["c0", "p"] if kind == "LSTM" else [])]
    weights = {
        "w": rand(ways, rows, 5), "r": rand(ways, rows, hidden), "b": rand(ways, 2 * rows),
        "h0": rand(ways, batch, hidden), "c0": rand(ways, batch, hidden), "p": rand(ways, 3 * hidden),
        "lengths": np.resize(np.int32([steps, 1]), batch),
    }  # fmt: skip
    outputs = [value("y", [steps, ways, batch, hidden]), value("h", [ways, batch, hidden])]
    outputs += [value("c", [ways, batch, hidden])] if kind == "LSTM" else []
    node = helper.make_node(kind, names, [o.name for o in outputs], hidden_size=hidden, direction=direction)
    initializers = [constant(name, array) for name, array in weights.items() if name in names]
    graph = agrees(model([node], [value("x", [steps, batch, 5])], outputs, initializers), x=rand(steps, batch, 5))
    assert [loop.trips for loop in graph.loops] == [steps] * ways


def scan(steps: int, axes: tuple[int, int] = (0, 0), backwards: tuple[int, int] = (0, 0)) -> Any:
    """A recurrence with a captured weight; `axes` and `backwards` of its input and output."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["p"]), helper.make_node("Add", ["p", "part"], ["q"]),
            helper.make_node("Tanh", ["q"], ["after"]), helper.make_node("Mul", ["after", "part"], ["row"]),
        ],
        "body", [value("s", [3, 4]), value("part", [3, 4])], [value("after", [3, 4]), value("row", [3, 4])],
    )  # fmt: skip
    shapes = [[*[3, 4][:axis], steps, *[3, 4][axis:]] for axis in axes]
    node = helper.make_node(
        "Scan", ["s0", "x"], ["s", "y"], body=body, num_scan_inputs=1, scan_input_axes=[axes[0]],
        scan_output_axes=[axes[1]], scan_input_directions=[backwards[0]], scan_output_directions=[backwards[1]],
    )  # fmt: skip
    inputs = [value("s0", [3, 4]), value("x", shapes[0])]
    return model([node], inputs, [value("s", [3, 4]), value("y", shapes[1])], [constant("w", rand(4, 4))])


@pytest.mark.covering(1)
@pytest.mark.parametrize("steps", [1, 2, 13])
@pytest.mark.parametrize(("axes", "backwards"), [((0, 0), (0, 0)), ((1, 2), (1, 0)), ((2, 1), (0, 1))])
def test_scan(steps: int, axes: tuple[int, int], backwards: tuple[int, int]) -> None:
    shape = [3, 4]
    shape.insert(axes[0], steps)
    graph = agrees(scan(steps, axes, backwards), s0=rand(3, 4), x=rand(*shape))
    assert [loop.trips for loop in graph.loops] == [steps]


def counting(trips: int, condition: bool, last: int | None = None) -> Any:
    """Sums its input, and collects it times the number of the trip; with `last` it goes on while that is larger."""
    nodes = [
        helper.make_node("Identity", ["going"], ["on"]) if last is None else
        helper.make_node("Less", ["i", "last"], ["on"]),
        helper.make_node("Add", ["state", "x"], ["next"]), helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["next", "f"], ["row"]),
    ]  # fmt: skip
    body = helper.make_graph(
        nodes, "body", [value("i", [], INT64), value("going", [], BOOL), value("state", [2])],
        [value("on", [], BOOL), value("next", [2]), value("row", [2])],
    )  # fmt: skip
    initializers = [constant("trips", np.int64(trips)), constant("yes", True), constant("last", np.int64(last or 0))]
    node = helper.make_node("Loop", ["trips", "yes" if condition else "", "x"], ["y", "rows"], body=body)
    return model([node], [value("x", [2])], [value("y", [2]), value("rows", [None, 2])], initializers)


@pytest.mark.parametrize("condition", [False, True])
@pytest.mark.parametrize("trips", [0, 1, 2, 13])
def test_loop(trips: int, condition: bool) -> None:
    graph = agrees(counting(trips, condition), x=rand(2))
    assert [loop.trips for loop in graph.loops] == [trips]


def test_loop_whose_condition_follows_from_the_trip_is_unrolled() -> None:
    graph = agrees(counting(13, True, last=3), x=rand(2))
    assert graph.loops == ()


@pytest.mark.parametrize("limit", [2**31 - 1, 10**12, 2**63 - 1])
def test_limits_of_loops_that_a_condition_ends_take_no_memory(limit: int) -> None:
    """The numbers of all trips were made before the condition was looked at: terabytes."""
    assert agrees(counting(limit, True, last=3), x=rand(2)).loops == ()


@pytest.mark.parametrize("limit", [2**31 - 1, 2**63 - 1])
def test_loops_of_too_many_trips_are_refused(limit: int) -> None:
    with pytest.raises(Unsupported, match=f"a loop of {limit} iterations"):
        import_model(counting(limit, True))


def test_loops_in_loops_over_constants_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points of loops inside were not counted: however many trips, they were run while importing."""
    monkeypatch.setattr(control, "_FOLDED_POINTS", 100)
    going = helper.make_node("Identity", ["going"], ["on"])
    inner = helper.make_graph(
        [helper.make_node("Identity", ["going.in"], ["on.in"]), helper.make_node("Mul", ["s", "s"], ["s.next"])],
        "inner", [value("j", [], INT64), value("going.in", [], BOOL), value("s", [2])],
        [value("on.in", [], BOOL), value("s.next", [2])],
    )  # fmt: skip
    outer = helper.make_graph(
        [going, helper.make_node("Loop", ["many", "", "h"], ["h.next"], body=inner)],
        "outer", [value("i", [], INT64), value("going", [], BOOL), value("h", [2])],
        [value("on", [], BOOL), value("h.next", [2])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["few", "", "h0"], ["y"], body=outer)
    initializers = [constant("few", np.int64(3)), constant("many", np.int64(17)), constant("h0", np.float32([1, 0.5]))]
    graph = agrees(model([node], [], [value("y", [2])], initializers))
    assert [loop.trips for loop in graph.loops] == [3]


def test_loop_over_constants_is_a_constant() -> None:
    """Shapes that a loop computes stay known."""
    proto = counting(5, True)
    del proto.graph.input[:]
    proto.graph.initializer.append(constant("x", np.float32([1, 2])))
    graph = agrees(proto)
    assert graph.loops == ()
    assert all(tensor.name in graph.constants for node in graph.nodes for tensor in node.inputs())


def test_loop_whose_state_grows_is_unrolled() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["on"]), helper.make_node("Concat", ["s", "x"], ["next"], axis=0)],
        "body", [value("i", [], INT64), value("going", [], BOOL), value("s", [None])],
        [value("on", [], BOOL), value("next", [None])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    proto = model([node], [value("x", [2])], [value("y", [8])], [constant("trips", np.int64(3))])
    assert agrees(proto, x=rand(2)).loops == ()


def test_loop_whose_end_is_known_at_run_time_is_refused() -> None:
    proto = counting(13, True, last=3)
    proto.graph.initializer.pop()
    proto.graph.input.append(value("last", [], INT64))
    with pytest.raises(Unsupported, match="condition is known only at run time"):
        import_model(proto)


def test_scan_in_a_scan() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["s", "part"], ["s.next"]), helper.make_node("Mul", ["s.next", "outside"], ["row"])],
        "inner", [value("s", [4]), value("part", [4])], [value("s.next", [4]), value("row", [4])],
    )  # fmt: skip
    outer = helper.make_graph(
        [helper.make_node("Scan", ["h", "rows"], ["h.next", "all"], body=inner, num_scan_inputs=1)],
        "outer", [value("h", [4]), value("rows", [3, 4])], [value("h.next", [4]), value("all", [3, 4])],
    )  # fmt: skip
    node = helper.make_node("Scan", ["h0", "x"], ["h.last", "y"], body=outer, num_scan_inputs=1)
    inputs = [value("h0", [4]), value("x", [5, 3, 4]), value("outside", [4])]
    graph = agrees(
        model([node], inputs, [value("h.last", [4]), value("y", [5, 3, 4])]),
        h0=rand(4), x=rand(5, 3, 4), outside=rand(4),
    )  # fmt: skip
    assert [loop.trips for loop in graph.loops[0].body.loops] == [3]
