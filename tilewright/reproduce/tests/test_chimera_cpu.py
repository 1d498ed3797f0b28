"""Chains timed on this CPU: contenders that compute the same, claims that follow from times, stored results, errors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.expr.graph import Graph
from tilewright.graph.chain.workloads import workload
from tilewright.machine import host
from tilewright.reproduce.chimera import contenders, cpu
from tilewright.reproduce.chimera.contenders import APART, ATTENTION, ONE, ONNX, TORCH
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import find
from tilewright.reproduce.pictures import Bars
from tilewright.reproduce.tests import reports

MICROSECONDS = {ONE: 100.0, APART: 120.0, TORCH: 150.0, ONNX: 130.0}


def chain(name: str, softmax: bool, fused: bool, **other: float) -> cpu.Chain:
    times = MICROSECONDS | other
    timings = tuple(cpu.Timing(name=each, seconds=1e-6 * us, cold_seconds=2e-6 * us) for each, us in times.items())
    return cpu.Chain(name=name, softmax=softmax, fused=fused, timings=timings, predicted=1.1)


@pytest.fixture
def report() -> cpu.Report:
    chains = (chain("G1", False, True), chain("G2", False, False), chain("G1", True, True))
    return cpu.Report(machine="somewhere", versions="torch 0", chains=chains)


def claim(report: cpu.Report, subject: str) -> Claim:
    return next(each for each in report.claims if each.subject == subject)


def test_a_run_has_every_contender_that_is_installed() -> None:
    found = reports.chimera_cpu()
    installed = {TORCH, ATTENTION} if importlib.util.find_spec("torch") else set()
    installed |= {ONNX} if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx") else set()
    plain, softmax = found.chains
    assert set(plain.by_name) == {ONE, APART} | installed - {ATTENTION}
    assert set(softmax.by_name) == {ONE, APART} | installed
    assert all(0 < each.seconds < 600 for chain in found.chains for each in chain.timings)  # on a busy machine too
    assert claim(found, "convolution chains: gain over Ansor").verdict == "open"


def test_without_libraries_their_claims_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders.importlib.util, "find_spec", lambda _: None)
    found = cpu.report(("G10",), turns=1)
    assert all(set(chain.by_name) == {ONE, APART} for chain in found.chains)
    alone = claim(found, "batch GEMM chains: gain over PyTorch")
    assert (alone.verdict, alone.reason) == ("open", "PyTorch is not installed")
    assert claim(found, "most gain over PyTorch").verdict == "open"
    assert claim(found, "batch GEMM chains: gain of one kernel over two").verdict != "open"


def test_a_contender_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph.of(workload("gemm-chain-G10", "f32"))
    monkeypatch.setattr(contenders, "_compiled", lambda *_: lambda: 0.0)
    with pytest.raises(AssertionError, match="a kernel each computes another chain"):
        contenders.contenders(graph, False, host(), fused=False)


def test_claims_are_of_the_choice_that_the_compiler_makes(report: cpu.Report) -> None:
    gain = (1.5 * 1.25) ** 0.5  # one kernel of the first chain, two of the second
    assert claim(report, "batch GEMM chains: gain over PyTorch").ours == pytest.approx(gain)
    assert claim(report, "batch GEMM chains: gain over PyTorch").verdict == "differs"
    assert claim(report, "batch GEMM chains, softmax: gain over PyTorch").ours == pytest.approx(1.5)
    assert claim(report, "batch GEMM chains: gain over onnxruntime").verdict == "met"
    assert claim(report, "batch GEMM chains: gain of one kernel over two").ours == pytest.approx(1.2)
    assert claim(report, "batch GEMM chains: least rate of the choice").ours == pytest.approx(1 / 1.2)
    assert claim(report, "batch GEMM chains, softmax: least rate of the choice").ours == pytest.approx(1.0)
    assert claim(report, "most gain over PyTorch").ours == pytest.approx(1.5)
    assert claim(report, "batch GEMM chains: gain over Relay").verdict == "open"


def test_tables_and_pictures_have_every_chain(report: cpu.Report) -> None:
    assert [len(table.rows) for table in report.tables] == [2, 2, 1, 1]
    assert report.tables[0].rows[0] == ("G1", ONE, "100", "120", "150", "130", "1.20x", "1.10x")
    assert report.tables[1].rows[1] == ("G2", APART, "200", "240", "300", "260", "1.20x", "1.10x")
    plain, softmax = report.pictures
    assert isinstance(plain, Bars)
    assert plain.series[TORCH] == pytest.approx((1.5, 1.25))
    assert softmax.title == "batch GEMM chains, softmax on somewhere"


def test_stored_results_are_those_of_the_run(report: cpu.Report, tmp_path: Path) -> None:
    path = tmp_path / "stored.json"
    path.write_text(json.dumps(report.to_json()))
    found = find("chimera-cpu").stored(path)
    assert found == report
    assert found.claims == report.claims


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["chains"].clear(),
        lambda value: value["chains"][0].update(name="C1"),
        lambda value: value["chains"][0]["timings"][0].update(seconds=-1),
        lambda value: value["chains"][0]["timings"].pop(0),
        lambda value: value["chains"][1]["timings"].pop(1),
    ],
)
def test_what_is_no_result_is_refused(change: Any, report: cpu.Report, tmp_path: Path) -> None:
    value = json.loads(json.dumps(report.to_json()))
    change(value)
    path = tmp_path / "stored.json"
    path.write_text(json.dumps(value))
    with pytest.raises(InvalidFile, match="no result of chimera-cpu"):
        find("chimera-cpu").stored(path)


def test_another_chain_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="there is no chain 'C1'") as caught:
        find("chimera-cpu").run(layers=["C1"])
    assert caught.value.help == "G1 to G12"
