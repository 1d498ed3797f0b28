"""The model against simulations and walks: figures that the artifact's rows give, each computed another way here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.reproduce.pictures import Scatter
from tilewright.reproduce.tests import reports
from tilewright.reproduce.tileflow.accuracy import Report
from tilewright.reproduce.tileflow.rtl import errors


@pytest.fixture(scope="module")
def report() -> Report:
    return reports.tileflow_accuracy()


def test_step_by_step_latency_agrees_with_rtl(report: Report) -> None:
    """The paper reports 5.4 % for fused products."""
    single, fused = errors(report.single), errors(report.stepwise)
    assert single.mean <= 0.01
    assert fused.mean <= 0.02
    assert min(single.r_squared, fused.r_squared) > 0.999
    assert all(case.bits_equal for case in report.stepwise)


def test_the_published_errors_are_met_but_for_energy_and_the_baseline(report: Report) -> None:
    verdicts = {claim.subject.partition(",")[0]: claim.verdict for claim in report.claims if claim.name == "spec1-E15"}
    assert verdicts == {
        "cycles by phases (Eq. 3.22)": "met", "cycles step by step": "met",
        "cycles by graphs of single products": "differs", "energy": "differs",
    }  # fmt: skip
    formula = next(claim for claim in report.claims if "formula" in claim.subject)
    assert (formula.ours, formula.verdict) == ("576 of 576", "met")


def test_energy_is_that_of_the_bits_that_the_simulation_counted(report: Report) -> None:
    """Of the first row of spec 1, section 6.3, by hand: 2 162 688 words of memory, 7 110 656 of the registers."""
    (case,) = [each for each in report.phases if each.row == report.phases[0].row]
    words = (34_078_720 + 524_288) / 16, (76_021_760 + 37_748_736) / 16
    macs = 2 * 512 * 512 * 64
    real = words[0] * 213.8392 + words[1] * (13.8392 + 249.643 / 256) + macs * (1 + 4 * 249.643 / 256)
    one = replace(report, phases=[case])
    assert one.energy_error == pytest.approx(abs(float(case.analysis.energy) / (1.21 * real) - 1))


def test_the_baseline_adds_up_both_products_alone(report: Report) -> None:
    """Output-stationary products are bound by memory: 4.5 % by spec 1, section 6.3."""
    assert report.graph_based == pytest.approx(0.045, abs=0.01)


def test_tables_and_json_have_the_same_errors(report: Report) -> None:
    stored = report.to_json()
    shown = [float(row[3].rstrip("%")) / 100 for row in report.tables[0].rows]
    np.testing.assert_allclose(shown, [each["mean"] for each in stored["errors"].values()], atol=5e-5)
    assert stored["rows"] == {"gemm": 576, "fused": 65}


def test_a_picture_has_every_row_beside_its_simulation(report: Report) -> None:
    (picture,) = report.pictures
    assert isinstance(picture, Scatter)
    assert [len(points) for points in picture.panels.values()] == [576, 65, 65]
    case = report.stepwise[3]
    assert picture.panels["two fused products, step by step"][3] == (case.row["rtl_cycles"], case.analysis.cycles)


def test_the_commands_draw_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "accuracy.svg"
    done = CliRunner().invoke(app, ["reproduce", "tileflow-accuracy", "--plot", str(path)], prog_name="tilewright")
    assert done.exit_code == 1  # energy differs
    assert "</svg>" in path.read_text()
