"""Claims E5 and E6: the report on points made up, and one real layer without looking at its times."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilewright.instruction.model import Hierarchy, hierarchy
from tilewright.instruction.products import ProductKey
from tilewright.instruction.search import Candidate
from tilewright.machine import Cpu, host
from tilewright.operator.product_point import ProductPoint
from tilewright.reproduce.amos import ranking
from tilewright.reproduce.amos.operators import Configuration
from tilewright.reproduce.amos.ranking import Layer, Point, Report, draw, measure


def layer(predicted: list[float]) -> Layer:
    """Points that take 1, 2, 3, … seconds, less in no repetition."""
    points = [Point(f"p{i}", (i + 1.0, i + 1.01, i + 1.02), seconds) for i, seconds in enumerate(predicted)]
    return Layer("C0", 1000, tuple(points))


def test_a_good_model_meets_the_claims() -> None:
    found = Report("somewhere", (layer([1, 2, 3, 4, 5]), layer([1, 3, 2, 5, 4])))
    assert [claim.verdict for claim in found.claims] == ["met", "met", "differs"]  # recall 0.75 of the two
    assert [claim.shown_bar for claim in found.claims] == [">= 80.0 %", ">= 75.0 %", ">= 80.0 %"]
    assert found.layers[1].compat == 0.84
    assert found.layers[1].strict == 0.8
    assert found.layers[1].loss == 0.0
    assert found.layers[0].error == 0.0
    assert Report("somewhere", found.layers[:1]).claims[2].verdict == "met"


def test_a_bad_model_does_not() -> None:
    found = Report("somewhere", (layer([5, 4, 3, 2, 1]),))
    assert [claim.verdict for claim in found.claims] == ["differs"] * 3
    assert found.layers[0].loss == 4.0


def test_the_report_is_json_and_a_table() -> None:
    found = Report("somewhere", (layer([1, 2, 3, 4, 5]),))
    stored = json.loads(json.dumps(found.to_json()))
    assert stored["layers"][0]["points"][4]["timings"][0] == 5.0
    (table,) = found.tables
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert "somewhere" in table.title, "accuracies are those of one processor"


def test_a_layer_is_compiled_timed_and_predicted() -> None:
    sizes = {"batch": 1, "c": 8, "size": 9, "k": 24, "kernel": 3, "stride": 2, "pad": 1}
    found = measure("small", Configuration("C2D", sizes), hierarchy(host(), cores=1), points=2)
    assert len({point.text for point in found.points}) == 2 < found.space
    for point in found.points:
        assert len(point.timings) > 1
        assert min(point.timings) > 0
        assert np.isfinite(point.predicted)


def test_points_come_from_all_mappings_and_each_once() -> None:
    key = ProductKey("fma", "b", (("i",), ("k",), ("c",)))
    points = [ProductPoint((rows,), 1, ("k", "i")) for rows in range(40)]
    among = [Candidate(key, points[:10], lambda point: 1.0), Candidate(key, points[10:], lambda point: 2.0)]
    drawn = draw(among, 20)
    assert len({point.rows for _, point in drawn}) == 20
    assert all(point in candidate.points for candidate, point in drawn)
    assert {candidate.predict(point) for candidate, point in drawn} == {1.0, 2.0}
    assert sorted(point.rows for _, point in draw(among, 100)) == [point.rows for point in points]


@pytest.mark.skipif(host().architecture != "x86_64", reason="levels of x86-64")
def test_the_host_limited_to_a_level_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    targets: list[Cpu] = []

    def note(name: str, configuration: Configuration, machine: Hierarchy, points: int, target: Cpu) -> Layer:
        targets.append(target)
        return layer([1.0])

    monkeypatch.setattr(ranking, "measure", note)
    monkeypatch.setattr(ranking, "calibrated", lambda machine: machine)
    found = ranking.report(1, ("C0",), "x86-64-v2")
    assert found.machine == f"{host().llvm.cpu} limited to x86-64-v2, one thread"
    assert [target.vector_bits for target in targets] == [128]
