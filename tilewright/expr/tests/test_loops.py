"""Loops of graphs: what they mean, their two forms in files, and what is refused."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from tilewright.errors import CompileError, ExtentMismatch, InvalidExpression, InvalidFile
from tilewright.expr import Graph, GraphBuilder, serialize
from tilewright.expr.core import Axis, Compute, Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Carried, Loop, Sliced, Stacked
from tilewright.expr.infer import check_bounds
from tilewright.expr.live import live
from tilewright.expr.text import parse_graph, print_graph

NESTED = """\
graph main
input x: f32[5, 3, 4]
input h0: f32[4]
const w: f32[4]
scaled: f32[i:4] = h0[i] * 2.0
loop outer times 5
slice row of x backwards
state h of scaled
const w: f32[4]
loop inner times 3
slice part of row
state s of h
const w: f32[4]
s.next: f32[i:4] = s[i] * w[i] + part[i]
carry s to s.next as s.last
stack s.next as all
end
total: f32[i:4] += all[t, i] over t:3
carry h to s.last as h.last
stack total as totals
stack all as everything backwards
end
output h.last
output totals
output everything
"""


def nested() -> tuple[Graph, list[np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(0)
    w = rng.standard_normal(4).astype(np.float32)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((5, 3, 4), (4,))]
    return parse_graph(NESTED, {"w": w}), [*inputs, w]


def test_trips_follow_each_other() -> None:
    graph, (x, h0, w) = nested()
    h, totals, everything = h0.astype(np.float64) * 2, [], []
    for t in reversed(range(5)):
        rows = []
        for part in x[t]:
            h = h * w + part
            rows.append(h)
        totals.append(np.sum(rows, axis=0))
        everything.insert(0, rows)
    for found, wanted in zip(evaluate(graph, [x, h0], precise=True), (h, totals, everything), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert found.dtype == np.float32


def test_text_and_json_give_the_loop_back() -> None:
    graph, (_, _, w) = nested()
    check_bounds(graph)
    assert print_graph(graph) == NESTED
    again = serialize.loads(serialize.dumps(graph), {"w": w})
    assert print_graph(again) == NESTED
    assert serialize.content_digest(again) == serialize.content_digest(graph)
    assert list(graph.all_constants()) == ["w"]


@pytest.mark.parametrize(
    "change", [("times 5", "times 6"), (" backwards\nstate h", "\nstate h"), ("s[i] * w[i]", "s[i] + w[i]")]
)
def test_digest_knows_what_a_loop_does(change: tuple[str, str]) -> None:
    graph, (_, _, w) = nested()
    text = NESTED.replace(*change).replace("x: f32[5", "x: f32[6" if "6" in change[1] else "x: f32[5")
    assert serialize.content_digest(parse_graph(text, {"w": w})) != serialize.content_digest(graph)


def test_without_trips_a_state_is_the_initial_one() -> None:
    text = """\
        input h0: f32[3]
        input x: f32[0, 3]
        loop none times 0
        slice part of x
        state h of h0
        next: f32[i:3] = h[i] + part[i]
        carry h to next as last
        stack next as all
        end
        output last
        output all
    """
    last, rows = evaluate(parse_graph(dedent(text)), [np.float32([1, 2, 3]), np.zeros((0, 3), np.float32)])
    assert last.tolist() == [1, 2, 3]
    assert rows.shape == (0, 3)


def test_what_no_output_needs_leaves_the_loop() -> None:
    graph, (_, _, w) = nested()
    (loop,) = live(Graph(graph.inputs, graph.outputs[:1], graph.nodes, {"w": w}, loops=graph.loops)).loops
    assert [len(loop.stacked), len(loop.carried), len(loop.body.nodes)] == [0, 1, 0]
    (inner,) = loop.body.loops
    assert [len(inner.stacked), len(inner.carried)] == [0, 1]
    assert live(Graph(graph.inputs, graph.inputs[:1], graph.nodes, {"w": w}, loops=graph.loops)).loops == ()


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        ("everything backwards\nend", "everything backwards", "this loop has no end"),
        ("carry s to s.next as s.last\n", "", "state s is not carried"),
        ("carry h to s.last", "carry q to s.last", "q is no state of this loop"),
        ("slice part of row", "slice part of column", "tensor column is not known here"),
        ("stack total as totals", "stack total as all", "all is defined twice"),
        ("carry h to s.last", "carry h to all", "carried as h"),
        ("loop inner times 3", "loop inner times 4", "of 4 trips"),
        ("const w: f32[4]\nloop inner", "input v: f32[4]\nloop inner", "inside of a loop"),
        ("loop inner times 3", "loop outer times 3", "10:.*two loops are called outer"),
        ("graph main\n", "graph main\nend\n", "end outside of a loop"),
    ],
)
def test_errors_of_the_text_name_the_place(line: str, change: str, message: str) -> None:
    text = NESTED.replace(line, change)
    with pytest.raises(CompileError, match=message) as caught:
        parse_graph(text, {"w": np.ones(4, np.float32)})
    assert caught.value.where


def test_two_loops_of_one_name_are_refused() -> None:
    """What one of them computed before it ran took the place of what the other did."""
    graph, (_, _, w) = nested()
    data = serialize.to_json(graph)
    data["nodes"][1]["nodes"][0]["loop"] = "outer"
    with pytest.raises(InvalidExpression, match="graph main: two loops are called outer"):
        serialize.from_json(data, {"w": w})


def test_damaged_json_is_refused() -> None:
    graph, (_, _, w) = nested()
    data = serialize.to_json(graph)
    data["nodes"][1]["trips"] = -1
    with pytest.raises(InvalidFile, match=r"nodes\[1\].trips"):
        serialize.from_json(data, {"w": w})
    data["nodes"][1]["trips"] = 4
    with pytest.raises(ExtentMismatch, match="of 4 trips"):
        serialize.from_json(data, {"w": w})


def test_a_loop_that_needs_its_own_result_is_refused() -> None:
    h, after, last = (Tensor(name, (2,), "f32") for name in ("h", "after", "last"))
    i = Axis("i", 2)
    body = Graph((h,), (after,), (Compute(after, (i,), h[i]),))
    loop = Loop("own", 3, body, (), (Carried(h, last, after, last),))
    with pytest.raises(InvalidExpression, match="need each other's results"):
        Graph((), (last,), (), loops=(loop,))


def test_names_are_unique_in_a_graph_and_its_loops() -> None:
    x, part, whole = Tensor("x", (3, 2), "f32"), Tensor("p", (2,), "f32"), Tensor("y", (3, 2), "f32")
    i = Axis("i", 2)
    row = Tensor("x", (2,), "f32")
    body = Graph((part,), (row,), (Compute(row, (i,), part[i]),))
    loop = Loop("rows", 3, body, (Sliced(part, x),), (), (Stacked(row, whole),))
    with pytest.raises(InvalidExpression, match="x is defined twice"):
        Graph((x,), (whole,), (), loops=(loop,))


def test_a_body_that_fails_leaves_the_builder_as_it_was() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 2), "f32")
    i = Axis("i", 2)

    def body(parts: Any, _: Any) -> Any:
        b.add(Compute(Tensor(b.unique("half"), (2,), "f32"), (i,), parts[0][i] * 0.5))
        raise InvalidExpression("half way")

    with pytest.raises(InvalidExpression, match="half way"):
        b.loop("rows", 3, [(x, False)], [], body)
    assert (b.nodes, b.loops) == ([], [])
