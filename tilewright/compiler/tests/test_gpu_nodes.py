"""The onnx package's node tests through PTX and the emulator: one per operator, or all with

    python -m tilewright.compiler.tests.test_gpu_nodes [--machine NAME] [--every N] [--contains TEXT]

which prints how many passed, failed and are "unsupported", that is refused by the importer, each with its reason. What
the importer takes, a GPU has to run: with results that are right, and without diagnostics of the emulator.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.covering import some
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.tests.test_compile_onnx_nodes import Compiled
from tilewright.errors import CompileError, Unsupported
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, norm, reduce
from tilewright.frontend.onnx.tests.conformance import Arrays, Result, Summary, cases, run, run_case
from tilewright.options import Options

PARTS = 4  # of the operators, so that several processes share them
OLDER = 18  # one in so many operators also runs on each older machine


@dataclass
class OnGpu:
    """Compiles graphs for a GPU; `refused` are the reasons why it does not compile what was imported."""

    machine: str
    refused: list[str] = field(default_factory=list)

    def __call__(self, graph: Graph) -> Callable[[Arrays], Arrays]:
        try:
            return Compiled(self.machine, device="emulator")(graph)
        except Unsupported as error:
            self.refused.append(str(error))
            raise


@cache
def by_operator() -> dict[str, list[Any]]:
    """The node tests whose models have nodes of one operator alone."""
    found: dict[str, list[Any]] = {}
    for case in cases():
        operators = {node.op_type for node in case.model.graph.node}
        if len(operators) == 1:
            found.setdefault(operators.pop(), []).append(case)
    return found


def one_of_each(operators: list[str], executor: OnGpu) -> list[Result]:
    """The result of the first test of every operator that the importer takes."""
    results = []
    for operator in operators:
        for case in by_operator()[operator]:
            result = run_case(case, executor)
            if result.outcome != "unsupported" or executor.refused:
                results.append(result)
                break
    return results


@pytest.mark.parametrize("part", some(range(PARTS), 1))
def test_every_operator(part: int) -> None:
    executor = OnGpu("sm_90a")
    summary = Summary(one_of_each(list(by_operator())[part::PARTS], executor))
    assert summary.count("passed") == len(summary.results), summary.table()
    assert not executor.refused
    assert len(summary.results) >= 35


@pytest.mark.parametrize("machine", ["sm_75", "sm_80"])
def test_operators_on_older_machines(machine: str) -> None:
    executor = OnGpu(machine)
    summary = Summary(one_of_each(list(by_operator())[int(machine[3:]) % OLDER :: OLDER], executor))
    assert summary.count("passed") == len(summary.results) >= 7, summary.table()


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_window_over_one_channel(dtype: str) -> None:
    """Two loops of a load have stride 1: pieces of several elements do not all begin at multiples of their size."""
    b = GraphBuilder("window")
    y = conv.conv(b.input("x", (1, 1, 12, 10), dtype), b.input("w", (2, 1, 3, 3), dtype))
    graph = b.finish([y])
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(-3, 4, shape).astype(np.float16 if dtype == "f16" else np.float32)
        for shape in ((1, 1, 12, 10), (2, 1, 3, 3))
    ]
    module = compile_graph(graph, "sm_90a", 1, Options(cache=False), "emulator")
    np.testing.assert_array_equal(module(*arrays), evaluate(graph, arrays)[0])


@pytest.mark.parametrize("extents", [(2, 0, 3), (0, 5), (3, 0)])
def test_loops_without_points(extents: tuple[int, ...]) -> None:
    """Where there is nothing to sum, sums are known; where there is nothing to store, there is no kernel."""
    b = GraphBuilder("empty")
    x = b.input("x", extents, "f32")
    y = [reduce.reduce_sum(x, [1]), reduce.reduce_max(x, [0]), norm.softmax(x), reduce.reduce_prod(x, [-1])]
    graph = b.finish(y)
    arrays = [np.zeros(extents, np.float32)]
    results = compile_graph(graph, "sm_90a", 1, Options(cache=False), "emulator")(*arrays)
    for found, wanted in zip(results, evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(found, wanted)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="The onnx package's node tests on a GPU that the emulator plays.")
    parser.add_argument("--machine", default="sm_90a")
    parser.add_argument("--every", type=int, default=1, help="run one test in N (default: 1)")
    parser.add_argument("--contains", default="", help="only tests with this in their name")
    given = parser.parse_args(arguments)
    executor = OnGpu(given.machine)
    try:
        summary = run(executor, every=given.every, contains=given.contains)
    except CompileError as error:
        parser.error(str(error))
    sys.stdout.write(f"{summary.table()}\nrefused after import: {len(executor.refused)}\n")
    return int(bool(summary.failures() or executor.refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
