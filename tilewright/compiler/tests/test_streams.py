"""Products of few rows read constants from beyond L2 in streams: a step takes a point of each part of the sum."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.machine import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.notation import print_tree


def product(rows: int, depth: int, columns: int, dtype: str = "f32") -> Graph:
    """Small integers, whose sums are exact in any order."""
    b = GraphBuilder()
    weights = np.random.default_rng(0).integers(-3, 4, (depth, columns)).astype(numpy_dtype(dtype))
    return b.finish([linalg.matmul(b.input("x", (rows, depth), dtype), b.constant(weights, "w"), name="y")])


def tree(graph: Graph, machine: str = "znver3") -> str:
    plan = make_plan(graph, resolve_cpu(machine), 1, Options(cache=False))
    return print_tree(next(each.scheduled.tree for each in plan.kernels if each.instruction))


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "steps"),
    [
        (1, 1024, 1000, "k.1:256, k.0:1"),
        (2, 1028, 1001, "k.1:257, k.0:1"),
        (1, 1022, 1000, "k.1:511, k.0:1"),  # in two: 1022 is no multiple of 4
        (1, 1021, 1000, ""),
        (1, 256, 256, ""),  # L2 holds the constants
        (1, 64, 20000, ""),  # parts of less than two pages
        (2, 4096, 1000, "k.1:2048, k.0:1"),  # of four parts, a set of L1 would have eight lines
        (64, 1024, 1000, ""),  # multiply-adds take longer than the constants
    ],
)
def test_panels_are_read_in_streams_where_products_wait_for_them(
    rows: int, depth: int, columns: int, steps: str
) -> None:  # fmt: skip
    text = tree(product(rows, depth, columns))
    assert ("k.0" in text) == bool(steps), text
    assert steps in text


def test_the_plan_says_why_there_are_streams() -> None:
    plan = make_plan(product(1, 1024, 1000), resolve_cpu("znver3"), 1, Options(cache=False))
    (decision,) = (each for each in plan.decisions if each.subject == "streams of y")
    assert decision.chosen == "4 streams along k, a step takes a point of each"
    arriving, multiplying = (int(number) for number in re.findall(r"(\d+)(?: cycles|$)", decision.reason))
    assert arriving > multiplying > 0


def test_pairs_are_read_from_their_first_to_their_last() -> None:
    assert "k.0" not in tree(product(1, 1024, 4096, "bf16"), "znver5")


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 1024, 1000), (2, 1028, 1001), (3, 1022, 777), (1, 2044, 517)]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_products_in_streams_are_right(rows: int, depth: int, columns: int, threads: int) -> None:
    """As compiled, and from the tree in a plan."""
    graph = product(rows, depth, columns)
    x = np.random.default_rng(1).integers(-3, 4, (rows, depth)).astype(np.float32)
    expected = x @ graph.constants["w"]
    plan = make_plan(graph, resolve_cpu("host"), threads, Options(cache=False))
    trees = json.loads(json.dumps(plan.trees()))
    for options in (Options(cache=False), Options(cache=False, trees=trees)):
        np.testing.assert_array_equal(compile_graph(graph, threads=threads, options=options)(x), expected)
    again = make_plan(graph, resolve_cpu("host"), threads, Options(cache=False, trees=trees))
    assert again.trees() == plan.trees()
