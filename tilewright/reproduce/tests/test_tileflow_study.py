"""Dataflows on the Edge and Cloud accelerators: figures beside the published ones, with the reasons."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.errors import InvalidArgument
from tilewright.reproduce.experiment import find
from tilewright.reproduce.pictures import Bars
from tilewright.reproduce.tests.reports import tileflow_cloud, tileflow_edge
from tilewright.reproduce.tileflow import cloud, edge


def test_every_figure_of_edge_has_ours_and_a_reason_from_the_analysis() -> None:
    report = tileflow_edge()
    (table,) = report.tables
    assert {row[0] for row in table.rows} == {"Layerwise", *edge.SPEEDUPS}
    assert table.rows[0][:3:2] == ("Layerwise", "1.00")
    assert len(report.claims) == 1 + len(edge.SPEEDUPS) + len(edge.DRAM_REDUCTIONS) + 4 + 3
    speedups = [claim for claim in report.claims if claim.name == "spec1-E17"]
    for claim in speedups:
        assert "units" in claim.reason
        assert "words of DRAM a cycle" in claim.reason
    figures = report.to_json()["shapes"]["mlp-mixer-512"]
    assert figures["Layerwise"]["less_percent"] == 0
    assert all(figures[name]["dram_words"] < figures["Layerwise"]["dram_words"] for name in ("FLAT-RGran", "TileFlow"))
    fast = figures["FLAT-RGran"]
    assert fast["speedup"] == pytest.approx(figures["Layerwise"]["cycles"] / fast["cycles"])
    ratio = next(claim for claim in speedups if claim.subject.startswith("FLAT-RGran"))
    assert (ratio.ours, ratio.published, ratio.bar) == (pytest.approx(fast["speedup"]), "2.89x", 2.89)


@pytest.mark.parametrize("report", [tileflow_edge, tileflow_cloud])
def test_published_figures_and_ours_are_the_same_quantity(report: Callable[[], edge.Report | cloud.Report]) -> None:
    """Beside a published ratio of 6.65x stood 5 %, by which ours was off."""
    for claim in report().claims:
        if isinstance(claim.ours, str):
            continue
        assert claim.published == f"{claim.bar:g}{claim.unit}"
        assert claim.shown_ours.endswith(claim.unit)
        assert "off by" not in claim.subject
        tolerance = 5 if claim.unit == " %" else 0.15 * float(claim.bar)
        assert (claim.verdict == "met") == (abs(float(claim.ours) - float(claim.bar)) <= tolerance)


def test_a_published_ratio_is_told_in_utilisation() -> None:
    """The same operations in less cycles are a larger part of what the units can."""
    study = tileflow_edge().study
    shape, name = "mlp-mixer-512", "FLAT-HGran"
    ours = study.utilisation(shape, name)
    assert f" would be {100 * ours:.0f} % of what the matrix units can" in study.why(name, study.speedup(name))


def test_products_and_other_operators_have_units_of_their_own_on_the_published_machine_only() -> None:
    own, shared = tileflow_edge(), find("tileflow-edge").run(layers=["mlp-mixer-512"], trials=30, machine="edge")
    names = {each.units.name for each in own.study.analysis("mlp-mixer-512", "TileFlow").classes}
    assert names == {"matrix units", "vector units"}
    assert "units of their own" in own.study.why("TileFlow")
    assert "All operators run on the same units" in shared.study.why("TileFlow")


def test_published_savings_are_told_in_the_cycles_that_dram_takes() -> None:
    """Half of the words of the baseline at its 30 words a cycle."""
    study = tileflow_edge().study
    words, cycles = (value("mlp-mixer-512", "Layerwise") for value in (study.dram_words, study.cycles))
    assert f"{words / 60:,.0f} cycles, {cycles / (words / 60):.2f} times as fast" in study.bandwidth(50)


def test_cloud_has_attention_and_both_machines_of_convolutions() -> None:
    report = tileflow_cloud()
    assert [table.title for table in report.tables] == [
        "attention of mlp-mixer-512 on cloud", "convolutions C7 on edge", "convolutions C7 on cloud",
    ]  # fmt: skip
    names = [claim.name for claim in report.claims]
    assert {name: names.count(name) for name in names} == {
        "spec1-E21": 5 + 5, "spec1-E22": 5, "spec1-E23": 4, "spec1-E24": 2 + 6,
    }  # fmt: skip
    contradictions = [claim for claim in report.claims if "contradict" in claim.reason]
    assert {claim.name for claim in contradictions} == {"spec1-E21", "spec1-E24"}


def test_fused_convolutions_are_no_longer_an_order_behind() -> None:
    """Blocks of the first convolution once lay in the registers of a unit, and Layerwise was 20 times as fast."""
    report = cloud.report(layers=["C1"], trials=3200)
    assert report.attention is None
    on_edge, _ = report.convolutions
    assert min(on_edge.speedup(name) for name in on_edge.fused) > 1 / 3


@pytest.mark.parametrize("name", ["tileflow-edge", "tileflow-cloud"])
def test_another_shape_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="no shape 'lenet'"):
        find(name).run(layers=["lenet"])


def test_pictures_have_published_figures_beside_ours() -> None:
    faster, less = tileflow_edge().pictures
    assert isinstance(faster, Bars)
    assert isinstance(less, Bars)
    study = tileflow_edge().study
    assert faster.groups == less.groups == study.fused
    assert faster.series["published"] == tuple(edge.SPEEDUPS[name] for name in study.fused)
    assert faster.series["mlp-mixer-512"] == tuple(study.speedup(name) for name in study.fused)
    assert less.series["published"] == tuple(edge.DRAM_REDUCTIONS[name] for name in study.fused)
    assert less.series["mlp-mixer-512"][0] == study.less(study.fused[0], study.dram_words)
    found = tileflow_cloud().pictures
    assert [list(each.series) for each in found if isinstance(each, Bars)] == [
        ["published", "mlp-mixer-512"], ["published", "mlp-mixer-512"], ["C7"], ["C7"], ["C7"], ["C7"],
    ]  # fmt: skip
    assert [each.title.partition(":")[0] for each in found[::2]] == [
        "attention on cloud", "convolutions on edge", "convolutions on cloud",
    ]  # fmt: skip
