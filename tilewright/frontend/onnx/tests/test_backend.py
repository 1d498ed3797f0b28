"""The onnx package's node tests through importer and evaluator: a sample, or all with `--full`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx.reference.ops.op_pool_common import pool

from tests.covering import FULL
from tilewright.expr import Graph
from tilewright.expr.affine import simplify
from tilewright.expr.infer import check_bounds
from tilewright.frontend.onnx.tests.conformance import Arrays, Summary, evaluator, pool_at_once, run


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


@pytest.mark.parametrize("kind", ["AVG", "MAX", "LPPOOL"])
def test_windows_at_once_are_those_of_the_package(kind: str) -> None:
    """What stands in for the reference of the onnx package while its tests are made."""
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 4, 7)).astype(np.float32)
    for kernel, strides in (((2, 2, 2), [1, 1, 1]), ((3, 1, 2), [2, 1, 3])):
        extents = [(size - k) // step + 1 for size, k, step in zip(x.shape[2:], kernel, strides, strict=True)]
        given = (x, x.shape, kernel, strides, extents, kind)
        found, wanted = pool_at_once(pool, *given, p=3), pool(*given, p=3)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    padded = {"pads_required": [0] * 6, "pads": [0] * 6, "dilations": [2, 1, 1], "count_include_pad": 1}
    given = (x, x.shape, (2, 2, 2), [1, 1, 1], [3, 3, 6], kind)
    np.testing.assert_array_equal(pool_at_once(pool, *given, p=2, **padded), pool(*given, p=2, **padded))
