"""The onnx package's node tests through generated code: a sample, or all with `--full`.

Run as a script (``python -m tilewright.compiler.tests.test_compile_onnx_nodes [machine]``), it prints the table of all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("onnx")

from tests.covering import FULL
from tilewright.compiler.compile import compile_graph
from tilewright.expr.graph import Graph
from tilewright.frontend.onnx.tests.conformance import Arrays, Summary, run
from tilewright.options import Options


@dataclass
class Compiled:
    """Compiles graphs; `fallbacks` counts those with results that no kernel of theirs writes."""

    machine: str = "host"
    threads: int = 1
    device: str | None = None
    fallbacks: int = 0

    def __call__(self, graph: Graph) -> Callable[[Arrays], Arrays]:
        module = compile_graph(graph, self.machine, self.threads, replace(Options(), cache=False), self.device)
        written = {op for launch in module.manifest.launches for op in [launch.kernel] if launch.programs}
        if not written and any(spec.bytes for spec in module.manifest.outputs):
            self.fallbacks += 1

        def call(arrays: Arrays) -> Arrays:
            found = module(*arrays)
            return found if isinstance(found, tuple) else [found]

        return call


def test_node_tests_through_generated_code() -> None:
    """Of 1884 tests, over 1500 pass; the others use strings, sequences, 8-bit floats and the like."""
    executor = Compiled(threads=2)
    summary = run(executor, every=1 if FULL else 60)
    assert not summary.failures(), summary.table()
    assert summary.count("passed") >= 0.8 * len(summary.results), summary.table()
    assert executor.fallbacks == 0


def test_a_group_that_renames_loops_of_extent_1_keeps_its_products() -> None:
    summary = run(Compiled(), contains="simple_rnn_reverse")
    assert summary.count("passed") == len(summary.results) >= 1, summary.table()


def _table(machine: str) -> str:
    executor = Compiled(machine)
    summary: Summary = run(executor)
    return f"{summary.table()}\nfallbacks: {executor.fallbacks}\n"


if __name__ == "__main__":
    sys.stdout.write(_table(sys.argv[1] if len(sys.argv) > 1 else "host"))
