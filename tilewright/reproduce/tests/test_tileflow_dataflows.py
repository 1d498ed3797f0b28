"""The dataflows of attention on the Edge accelerator: figures beside the published ones, with the reasons."""

from __future__ import annotations

import pytest

from tilewright.errors import InvalidArgument
from tilewright.reproduce.experiment import find
from tilewright.reproduce.tileflow.dataflows import DRAM_REDUCTIONS, SPEEDUPS


def test_every_published_figure_has_ours_and_a_reason_from_the_analysis() -> None:
    report = find("tileflow-edge").run(layers=["mlp-mixer-512"], trials=30)
    (table,) = report.tables
    assert [row[0] for row in table.rows] == ["Layerwise", *SPEEDUPS]
    assert table.rows[0][2] == "1.00"
    assert len(report.claims) == 1 + len(SPEEDUPS) + len(DRAM_REDUCTIONS)
    for claim in report.claims:
        assert claim.verdict in ("met", "differs")
        assert "units" in claim.reason
    figures = report.to_json()["shapes"]["mlp-mixer-512"]
    assert figures["Layerwise"]["less_percent"] == 0
    assert all(figures[name]["dram_words"] < figures["Layerwise"]["dram_words"] for name in ("FLAT-RGran", "TileFlow"))


def test_another_network_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no network 'lenet'"):
        find("tileflow-edge").run(layers=["lenet"])
