"""Chains timed on a GPU: predictions without one, times in the emulator, claims, stored results, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.reproduce.chimera import gpu
from tilewright.reproduce.chimera.contenders import APART, ONE, TORCH
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import find
from tilewright.runtime.cuda.devices import open_driver


def claim(report: gpu.Report, subject: str) -> Claim:
    return next(each for each in report.claims if each.subject == subject)


@pytest.fixture(scope="module")
def timed() -> gpu.Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gpu.SIZES, "G1", (1, 32, 32, 32, 32))  # which the emulator runs in a second
        patch.setattr(gpu, "opened", lambda _: (open_driver("emulator"), ""))
        for name, few in (("TURNS", 1), ("CALLS", 1), ("CALLS_OF_A_GRAPH", 2)):
            patch.setattr(gpu, name, few)
        return gpu.report(("G1",))


def test_without_a_device_there_are_predictions_and_open_claims() -> None:
    found = find("chimera-gpu").run(layers=["G2"], device="emulator", machine="sm_90a")
    assert isinstance(found, gpu.Report)
    assert [chain.timings for chain in found.chains] == [(), ()]
    assert all(chain.predicted is not None and chain.predicted > 0 for chain in found.chains)
    assert {each.verdict for each in found.claims} == {"open"}
    assert claim(found, "batch GEMM chains: gain over PyTorch").reason.startswith("no device")
    assert len(found.tables) == 2
    assert found.pictures == ()


def test_on_a_device_both_ways_are_timed_and_right(timed: gpu.Report) -> None:
    plain, around = timed.chains
    for chain in (plain, around):
        assert {ONE, APART} <= set(chain.by_name)
        assert all(each.seconds > 0 and each.cold_seconds > 0 for each in chain.timings)
    assert claim(timed, "batch GEMM chains: gain of one kernel over two").ours is not None
    assert claim(timed, "batch GEMM chains: gain over PyTorch").verdict == "open"
    assert claim(timed, "most gain over TensorRT").verdict == "open"
    assert len(timed.tables) == 4


def test_a_contender_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu.SIZES, "G1", (1, 32, 32, 32, 32))  # which the emulator runs in a second
    monkeypatch.setattr(gpu, "opened", lambda _: (open_driver("emulator"), ""))
    monkeypatch.setattr(gpu._Ours, "result", lambda self: np.zeros((1, 32, 32)))
    with pytest.raises(AssertionError, match=f"{ONE} computes another chain"):
        gpu.report(("G1",))


def test_stored_results_are_those_of_the_run(timed: gpu.Report, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(timed.to_json()))
    found = find("chimera-gpu").stored(path)
    assert found == timed
    assert (found.tables, found.claims) == (timed.tables, timed.claims)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"layers": ["G13"]}, "there is no chain 'G13'"), ({"machine": "znver5"}, "znver5 is no GPU")],
)
def test_what_there_is_not_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        find("chimera-gpu").run(**given)


def test_torch_is_named_where_it_was_not_timed(timed: gpu.Report) -> None:
    assert all(TORCH not in chain.by_name for chain in timed.chains)
