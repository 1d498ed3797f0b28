import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tests.random_graphs import graphs, random_graph
from tilewright.errors import CompileError, InvalidFile
from tilewright.expr import Axis, Compute, Const, Dim, Graph, Read, Tensor, apply
from tilewright.expr.core import Expr
from tilewright.expr.rewrite import transform
from tilewright.expr.serialize import compute_digest, content_digest, dumps, from_json, loads, to_json


def same(a: Graph, b: Graph) -> bool:
    structure = (a.inputs, a.outputs, a.nodes, a.name) == (b.inputs, b.outputs, b.nodes, b.name)
    return structure and a.constants.keys() == b.constants.keys()


@settings(max_examples=tries(15, full=60), deadline=None)
@given(graphs())
def test_graphs_survive(graph: Graph) -> None:
    found = loads(dumps(graph), graph.constants)
    assert same(found, graph)
    assert dumps(found) == dumps(graph)
    assert content_digest(found) == content_digest(graph)


def special() -> Graph:
    """Named dimensions, special numbers, casts, rank 0, an output that is a constant, sources."""
    n = Dim("N", 2, 512, 2)
    x, w, i = Tensor("x", (n,), "f32"), Tensor("w", (), "f16"), Axis("i", n)
    body: Expr = x[i] * w[()].cast("f32")
    for value in (float("nan"), float("inf"), float("-inf"), -0.0, 0.1, 1e300):
        body = body + Const(value, "f32")
    node = Compute(Tensor("y", (), "f32"), (), body, (i,), "prod", source="layer/3")
    flag = Compute(Tensor("z", (), "bool"), (), apply("or", Const(True, "bool"), apply("isnan", node.output[()])))
    return Graph((x,), (node.output, w, flag.output), (node, flag), {"w": np.float16(2.5).reshape(())}, "special")


def test_special_values_survive() -> None:
    graph = special()
    found = loads(dumps(graph), graph.constants)
    assert same(found, graph)
    assert found.nodes[0].source == "layer/3"


def test_constants_are_structure_only() -> None:
    graph = special()
    assert to_json(graph)["constants"] == [["w", "f16", []]]
    with pytest.raises(InvalidFile, match="values of w: f16"):
        loads(dumps(graph))
    with pytest.raises(InvalidFile, match="is given as float64"):
        loads(dumps(graph), {"w": np.ones(())})


def renamed(graph: Graph, suffix: str) -> Graph:
    """Other names for everything, other sources, constants in another order."""

    def tensor(old: Tensor) -> Tensor:
        return Tensor(old.name + suffix, tuple(map(extent, old.shape)), old.dtype)

    def extent(old: Any) -> Any:
        return replace(old, name=old.name + suffix) if isinstance(old, Dim) else old

    def axis(old: Axis) -> Axis:
        return Axis(old.name + suffix, extent(old.extent))

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Axis):
            return axis(node)
        return Read(tensor(node.tensor), node.indices) if isinstance(node, Read) else None

    def compute(old: Compute) -> Compute:
        axes, reduced = (tuple(map(axis, group)) for group in (old.axes, old.reduce))
        return Compute(tensor(old.output), axes, transform(old.body, rule), reduced, old.accum, "elsewhere" + suffix)

    constants = {name + suffix: array for name, array in reversed(list(graph.constants.items()))}
    inputs, outputs = (tuple(map(tensor, group)) for group in (graph.inputs, graph.outputs))
    return Graph(inputs, outputs, tuple(map(compute, graph.nodes)), constants, graph.name + suffix)


@settings(max_examples=tries(10, full=30), deadline=None)
@given(graphs())
def test_digests_do_not_depend_on_names(graph: Graph) -> None:
    other = renamed(graph, "_b")
    assert content_digest(other) == content_digest(graph)
    assert [compute_digest(node) for node in other.nodes] == [compute_digest(node) for node in graph.nodes]


def test_digests_do_not_depend_on_names_of_dimensions() -> None:
    assert content_digest(renamed(special(), "_b")) == content_digest(special())


def test_digests_are_stable_between_versions_and_runs() -> None:
    i = Axis("i", 4)
    node = Compute(Tensor("y", (4,), "f32"), (i,), Tensor("x", (4,), "f32")[i] * 2.0)
    assert compute_digest(node) == DOUBLE


#: Changes only together with serialize.VERSION.
DOUBLE = "26d169c35376f2c16235433a14317a2ffb69669d1316bb18ccb68ce524510350"


def test_digests_see_every_part() -> None:
    i, j, k = Axis("i", 4), Axis("j", 4), Axis("k", 3)
    x, y, w = Tensor("x", (4, 4), "f32"), Tensor("y", (4, 4), "f32"), Tensor("w", (4, 4), "f32")
    out = Tensor("o", (4, 4), "f32")

    def graph(body: Expr, ones: float = 1.0, inputs: tuple[Tensor, ...] = (x, y), **options: Any) -> Graph:
        node = Compute(options.get("out", out), (i, j), body, options.get("reduce", ()), options.get("accum"))
        return Graph(inputs, options.get("outputs", (node.output,)), (node,), {"w": np.full((4, 4), ones, np.float32)})

    body = x[i, j] - w[i, j]
    n = Dim("N", 1, 8)
    named, other = Tensor("x", (n, 4), "f32"), Tensor("x", (Dim("N", 1, 9), 4), "f32")
    variants = [
        graph(body), graph(body, 2.0), graph(w[i, j] - x[i, j]), graph(x[j, i] - w[i, j]),
        graph(y[i, j] - w[i, j]), graph(body, outputs=(out, out)), graph(body, outputs=(x,)),
        graph(body.cast("f16").cast("f32")),
        graph(body, reduce=(k,), accum="sum"), graph(body, reduce=(k,), accum="max"), graph(body + 0.0),
        graph(body + -0.0),
        graph(body, reduce=(Axis("k", 5),), accum="sum"), graph(body.cast("f16"), out=Tensor("o", (4, 4), "f16")),
        Graph((named,), (named,), ()), Graph((other,), (other,), ()), Graph((x,), (x,), ()),
    ]  # fmt: skip
    assert len({content_digest(variant) for variant in variants}) == len(variants)


def corrupt(data: Any, draw: Any) -> Any:
    """Replace, delete or add something somewhere in nested lists and dicts."""
    junk = draw(
        st.sampled_from((None, -1, 1 << 70, 0.5, "", "x0", "f32", "axis", [], {}, [["axis"]], True, "nan", "add"))
    )
    if isinstance(data, list) and data and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(data) - 1))
        return [*data[:place], corrupt(data[place], draw), *data[place + 1 :]]
    if isinstance(data, dict) and data and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(data)))
        return {**data, key: corrupt(data[key], draw)}
    if isinstance(data, list) and draw(st.booleans()):
        return data[:-1] if draw(st.booleans()) else [*data, junk]
    return junk


@settings(max_examples=tries(80, full=400), deadline=None)
@given(st.integers(0, 50), st.data())
def test_damaged_files_give_a_graph_or_a_compile_error(seed: int, data: st.DataObject) -> None:
    graph = random_graph(seed, nodes=3, points=64) if seed else special()
    damaged = corrupt(json.loads(dumps(graph)), data.draw)
    with suppress(CompileError):
        from_json(damaged, graph.constants)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '{"format": "tilewright-graph", "version": 1}', "[" * 100_000, "\x00"]
)
def test_not_a_graph(text: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        loads(text, where="graph.json")
    assert caught.value.where == "graph.json"


def test_errors_name_the_place_and_the_version() -> None:
    data = to_json(special())
    data["nodes"][1]["body"][1] = ["const", "bool", 3]
    with pytest.raises(InvalidFile, match=r"nodes\[1\]\.body: expected bool, found int"):
        from_json(data, special().constants)
    data["version"] = 99
    with pytest.raises(InvalidFile, match="version 1, not 'tilewright-graph' of 99"):
        from_json(data, special().constants)


def test_deep_expressions_are_refused_not_crashed() -> None:
    data = to_json(special())
    body: Any = ["axis", "i"]
    for _ in range(5000):
        body = ["neg", body]
    data["nodes"][0]["body"] = body
    with pytest.raises(InvalidFile, match="at most 400 levels"):
        from_json(data, special().constants)
