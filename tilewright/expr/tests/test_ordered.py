"""Ordered accumulations: text and JSON both ways, what is refused, and the evaluator against their definitions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.errors import CompileError
from tilewright.expr.core import Axis, Compute, Tensor, scatter_body
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.graph import Graph
from tilewright.expr.ordered import Ordered, PrefixScan, Scatter, Sort
from tilewright.expr.serialize import compute_digest, from_json, to_json
from tilewright.expr.text import parse_compute, parse_graph, print_compute, print_graph

LINES = [
    "y: f32[i:3, j:5] += x[i, k] over k:5 scanned j",
    "y: f32[i:3, j:5] max= x[i, k] * 2.0 over k:5 scanned j exclusive reverse",
    "y: i64[i:3, j:2] = x[i, k] over k:5 sorted j",
    "y: i64[i:3, j:5] = x[i, k] over k:5 sorted j descending",
    "y: f32[i:9, j:5] = scatter(0.0, x[k, j], 8 - k) over k:3 scattered i",
    "y: f32[i:9, j:7] *= scatter(1.0, x[k, l], k, l) over k:3, l:5 scattered i, j",
]


def statement(line: str) -> Compute:
    return parse_compute(f"input x: f32[3, 5]\n{line}\n")


@pytest.mark.parametrize("line", LINES)
def test_text_and_json_keep_everything(line: str) -> None:
    node = statement(line)
    assert print_compute(node) == f"input x: f32[3, 5]\n{line}\n"
    graph = Graph(node.inputs(), (node.output,), (node,))
    assert parse_graph(print_graph(graph)) == graph
    assert from_json(json.loads(json.dumps(to_json(graph))), {}) == graph


def test_digests_tell_accumulations_apart() -> None:
    assert len({compute_digest(statement(line)) for line in LINES}) == len(LINES)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y: f32[i:3, j:4] += x[i, k] over k:5 scanned j", "a scan over 5 elements gives 4"),
        ("y: i64[i:3, j:6] = x[i, k] over k:5 sorted j", "6 of 5 sorted elements"),
        ("y: i64[i:3, j:5] = x[i, j] over k:5 sorted j", "uses a loop that Sort"),
        ("y: f32[i:3, j:5] = x[i, k] over k:5 scanned j", "scanned after ="),
        ("y: f32[i:3, j:5] += x[i, k] over k:5 scanned k", "k is no dimension of the result"),
        ("y: f32[i:3] = scatter(0.0, x[k, 0]) over k:3 scattered i", "scatter of 2 parts"),
        ("y: f32[i:3] = scatter(x[k, 0], 1.0, k) over k:3 scattered i", "initial values depend"),
        ("y: f32[i:3] = scatter(0.0, 1.0, k, k) over k:3 scattered i", "scatter into 1 dimensions"),
        ("y: f32[i:3] = x[k, 0] over k:3 scattered i", "goes with scattered"),
    ],
)
def test_what_does_not_fit_is_refused(line: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        statement(line)


@pytest.mark.parametrize(
    "accum",
    [["Sort", 1], ["Sort", "1", True], ["Other", 1], [], ["Scatter", [0, "1"], ""], ["PrefixScan", 7, "sum", 0, 0]],
)
def test_damaged_json_is_refused(accum: Any) -> None:
    node = statement(LINES[2])
    data = to_json(Graph(node.inputs(), (node.output,), (node,)))
    data["nodes"][0]["accum"] = accum
    with pytest.raises(CompileError):
        from_json(data, {})


NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, float("inf"), float("-inf"), float("nan")])


@settings(max_examples=tries(12, full=40), deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=9), st.booleans())
def test_sort_is_stable_with_nan_above_all(numbers: list[float], descending: bool) -> None:
    x = np.array(numbers, np.float32)
    keys = [(np.isnan(v), 0.0 if np.isnan(v) else float(v) + 0.0) for v in x]
    wanted = sorted(range(len(x)), key=keys.__getitem__, reverse=False)
    if descending:  # `reverse` of a stable sort keeps the order of equal ones
        wanted = sorted(range(len(x)), key=keys.__getitem__, reverse=True)
    r, j = Axis("r", len(x)), Axis("j", len(x))
    source = Tensor("x", (len(x),), "f32")
    node = Compute(Tensor("y", (len(x),), "i64"), (j,), source[r], (r,), Sort(0, descending))
    assert evaluate_compute(node, {"x": x}).tolist() == wanted


@settings(max_examples=tries(12, full=40), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["", "sum", "prod", "max", "min"]))
def test_scatter_takes_updates_in_order(seed: int, combine: str) -> None:
    rng = np.random.default_rng(seed)
    n, count = int(rng.integers(1, 6)), int(rng.integers(0, 9))
    x, u = rng.integers(-3, 4, (n, 2)), rng.integers(-3, 4, (count, 2))
    at = rng.integers(-2, n + 2, count)
    functions = {"": lambda a, b: b, "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    wanted = x.copy()
    for k in range(count):
        if 0 <= at[k] < n:
            wanted[at[k]] = functions[combine](wanted[at[k]], u[k])
    i, f, k = Axis("i", n), Axis("f", 2), Axis("k", count)
    tensors = [Tensor("x", (n, 2), "i64"), Tensor("u", (count, 2), "i64"), Tensor("at", (count,), "i64")]
    body = scatter_body(tensors[0][i, f], tensors[1][k, f], [tensors[2][k]])
    node = Compute(Tensor("y", (n, 2), "i64"), (i, f), body, (k,), Scatter((0,), combine))
    np.testing.assert_array_equal(evaluate_compute(node, {"x": x, "u": u, "at": at}), wanted)


@pytest.mark.parametrize("accum", [PrefixScan(0, "sum"), PrefixScan(0, "max", True, True)])
def test_scan_of_one_and_of_no_element(accum: Ordered) -> None:
    for n in (0, 1):
        r, j = Axis("r", n), Axis("j", n)
        node = Compute(Tensor("y", (n,), "f32"), (j,), Tensor("x", (n,), "f32")[r], (r,), accum)
        found = evaluate_compute(node, {"x": np.ones(n, np.float32)})
        assert found.tolist() == ([1.0] if accum == PrefixScan(0, "sum") else [float("-inf")]) * n
