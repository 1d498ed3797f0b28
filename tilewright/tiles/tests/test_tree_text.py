"""The trees of scheduled kernels are read back from text and JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.random_graphs import random_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.expr.text import parse_graph
from tilewright.machine.registry import resolve
from tilewright.operator.tests.test_tree import GRAPHS
from tilewright.tiles.kernel import Kernel, joined
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.tree import from_json, kernels, to_json

MACHINES = ("x86-64-v2", "x86-64-v4", "sm_80", "sm_90a", "gfx1201")


def check(kernel: Kernel) -> None:
    tree = kernel.tree
    assert parse_tree(print_tree(tree), kernels(tree)) == tree
    assert from_json(json.loads(json.dumps(to_json(tree)))) == tree


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", GRAPHS)
def test_trees_are_read_back(name: str, machine: str) -> None:
    constants = {"W": np.ones((20, 5, 3, 3), np.float32)} if "const W" in GRAPHS[name] else {}
    for kernel in make_plan(parse_graph(GRAPHS[name], constants), resolve(machine), 3).kernels:
        check(kernel.scheduled)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(10))
def test_trees_of_random_graphs_are_read_back(seed: int, machine: str) -> None:
    for kernel in make_plan(random_graph(seed), resolve(machine), 2).kernels:
        check(kernel.scheduled)


@pytest.mark.parametrize("rows", [64, 4096])
def test_trees_of_rows_from_main_memory_are_read_back(rows: int) -> None:
    """Softmax and norms of large tensors have pipelines, sums in one pass, prefetches and streaming stores."""
    text = GRAPHS["layer norm"].replace("24", str(rows)).replace("48", "8192")
    hints = set()
    for kernel in make_plan(parse_graph(text), resolve("znver5"), 2).kernels:
        check(kernel.scheduled)
        text = print_tree(kernel.scheduled.tree)
        hints |= {word for word in ("prefetch", "stream") if word in text}
        assert bool(joined(kernel.scheduled)) == (rows == 4096)
    assert hints == ({"prefetch", "stream"} if rows == 4096 else set())
