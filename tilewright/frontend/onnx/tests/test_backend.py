"""The onnx package's node tests through importer and evaluator: a sample, or all with TILEWRIGHT_FULL=1."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("onnx")

from tilewright.frontend.onnx.tests.conformance import Summary, run

FULL = bool(os.environ.get("TILEWRIGHT_FULL"))


@pytest.fixture(scope="module")
def summary() -> Summary:
    return run(every=1 if FULL else 10)


def test_no_node_test_fails(summary: Summary) -> None:
    assert not summary.failures(), summary.table()


def test_most_node_tests_pass(summary: Summary) -> None:
    """Of 1884 tests, 1577 pass; the others use strings, sequences, 8-bit floats and the like."""
    assert summary.count("passed") >= 0.8 * len(summary.results), summary.table()


def test_every_refusal_has_a_reason(summary: Summary) -> None:
    assert all(result.reason for result in summary.results if result.outcome == "unsupported")
