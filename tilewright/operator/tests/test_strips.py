"""Copies into panels go on in strips of a few lines."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.expr import GraphBuilder
from tilewright.expr.core import Axis, Compute, Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.machine import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.notation import print_tree


def copy(columns: int, rows: int, width: int) -> Graph:
    """Y[p, r, c] = X[r, p * width + c]: a panel of `width` columns after the other."""
    b = GraphBuilder()
    x = b.input("X", (rows, columns), "f32")
    p, r, c = Axis("p", columns // width), Axis("r", rows), Axis("c", width)
    b.add(Compute(Tensor("Y", (p.size, rows, width), "f32"), (p, r, c), x[r, p * width + c]))
    return b.finish([b.nodes[-1].output])


def tree_of(graph: Graph, threads: int = 1) -> str:
    (kernel,) = make_plan(graph, resolve_cpu("x86-64-v3"), threads).kernels
    return print_tree(kernel.scheduled.tree)


def test_strips_of_four_lines_follow_the_rows_that_are_read() -> None:
    tree = tree_of(copy(1024, 200, 16))
    assert tree.startswith("@L2 for r:50, p:64, c:1 { @REG unroll r:4")


def test_threads_have_rows_of_their_own() -> None:
    assert tree_of(copy(1024, 2000, 16), threads=2).startswith("@DRAM par r:")


@pytest.mark.parametrize(
    "graph",
    [copy(1024, 200, 256), copy(1024, 1, 16)],
    ids=["long lines", "one row"],
)
def test_other_copies_walk_as_they_write(graph: Graph) -> None:
    assert "unroll r" not in tree_of(graph)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("columns", "rows", "width"), [(48, 7, 16), (34, 17, 17), (72, 97, 24), (16, 3, 8), (33, 2, 1)]
)
def test_every_element_gets_to_its_place(columns: int, rows: int, width: int, threads: int) -> None:
    graph = copy(columns, rows, width)
    x = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    found = compile_graph(graph, "host", threads, Options(cache=False))(x)
    (wanted,) = evaluate(graph, [x])
    np.testing.assert_array_equal(found, wanted)
