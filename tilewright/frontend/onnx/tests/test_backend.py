"""The onnx package's node tests through importer and evaluator: a sample, or all with `--full`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("onnx")

from tests.covering import FULL
from tilewright.expr import Graph
from tilewright.expr.affine import simplify
from tilewright.expr.infer import check_bounds
from tilewright.frontend.onnx.tests.conformance import Arrays, Summary, evaluator, run


def checked(graph: Graph) -> Callable[[Arrays], Arrays]:
    """The evaluator, for graphs whose reads are all in bounds and whose bodies are simplified."""
    check_bounds(graph)
    assert all(simplify(node.body) == node.body for node in graph.nodes), "a body that is not simplified"
    return evaluator(graph)


@pytest.fixture(scope="module")
def summary() -> Summary:
    return run(checked, every=1 if FULL else 10)


def test_no_node_test_fails(summary: Summary) -> None:
    assert not summary.failures(), summary.table()


def test_most_node_tests_pass(summary: Summary) -> None:
    """Of 1884 tests, 1577 pass; the others use strings, sequences, 8-bit floats and the like."""
    assert summary.count("passed") >= 0.8 * len(summary.results), summary.table()


def test_every_refusal_has_a_reason(summary: Summary) -> None:
    assert all(result.reason for result in summary.results if result.outcome == "unsupported")
