"""Five hundred random ONNX graphs, and that what is planted is found."""

from __future__ import annotations

import numpy as np
import pytest

from tests import random_onnx
from tests.onnx_recipes import LEFT_OUT, RECIPES
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.frontend.onnx.registry import load_all

pytest.importorskip("onnxruntime")

CASES, PARTS = 500, 5


@pytest.mark.parametrize("part", range(PARTS))
def test_random_graphs(part: int) -> None:
    some = range(CASES)[part::PARTS]
    tally = random_onnx.run(some)
    assert not tally.findings, random_onnx.report(tally)
    assert sum(tally.nodes.values()) > 2 * len(some) > 50
    assert not [what for what in tally.skipped if what.startswith("importer")], random_onnx.report(tally)


def test_every_operator_is_drawn_or_left_out_with_a_reason() -> None:
    left_out = {name for names in LEFT_OUT.values() for name in names}
    assert {name for domain, name in load_all() if not domain} == set(RECIPES) | left_out
    assert not set(RECIPES) & left_out


@pytest.mark.parametrize("relative", [0.0, 1e-3])
def test_one_wrong_element_is_found(relative: float) -> None:
    """A result that is off in its last element is reported with the seed and the text of its graph."""

    def run(graph: Graph, feeds: random_onnx.Results) -> random_onnx.Results:
        found = dict(zip([t.name for t in graph.outputs], evaluate(graph, feeds), strict=True))
        name = next(n for n, a in found.items() if a.dtype == np.float32 and a.size and np.isfinite(a).all())
        changed = found[name].copy()
        flat = changed.reshape(-1)
        flat[-1] = flat[-1] * np.float32(1 + relative) if relative and flat[-1] else flat[-1] + np.float32(0.125)
        found[name] = changed
        return found

    tally = random_onnx.Tally()
    random_onnx.examine([random_onnx.random_case(seed, f"g{seed}_") for seed in (3, 4, 5, 6)], tally, run)
    assert any(finding.startswith("seed ") and "=> (" in finding for finding in tally.findings)
