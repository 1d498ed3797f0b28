"""Results as values: JSON and back, ratios, and the page made from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.ceilings import Ceilings
from bench.report import markdown
from bench.results import Conditions, Result, Run, share
from bench.runner import error_of
from bench.summary import Times


def timed(peer: str, seconds: float, case: str = "gemm") -> Result:
    times = Times(seconds, seconds * 0.9, seconds * 1.2, seconds * 0.8, samples=30)
    result = Result(case, "family", 2, peer, "ok", times=times, compile_seconds=0.5, error=1e-7)
    return replace(result, busy_threads=["0", "1"], turn_seconds=[seconds] * 3)


def example() -> Run:
    ceilings = Ceilings(2, 100.0, None, 400.0, 5.0, 80.0, 40.0, 20.0, 10.0, 8.0, 1000, 10_000)
    environment = {"date": "today", "processor": "P", "cores": [0, 1], "kernel": "6", "python": "3.11"}
    conditions = [
        Conditions("gemm", 2, "f32", 10**9, 0, 10**6, "f32", 0.0009, [0.001, 0.001, 0.001], 0.0, 0.0),
        Conditions("norm", 2, "copy", 10, 0, 8 * 10**6, "copy", 0.001, [0.001, 0.002, 0.0015], 0.0, foreign_load=0.7),
    ]
    results = [
        timed("tilewright", 0.002),
        timed("torch", 0.004),
        timed("openvino", 0.001),
        Result("gemm", "family", 2, "onnxruntime", "skipped", "not installed"),
        timed("tilewright", 0.002, "norm"),
        Result("norm", "family", 2, "torch", "wrong", "differs by 1", error=1.0),
    ]
    return Run(environment, {"torch": "torch 2"}, {2: ceilings}, conditions, results)


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    example().save(path)
    assert Run.load(path) == example()


def test_other_versions_of_the_form_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"version": 99}')
    with pytest.raises(ValueError, match="version 99"):
        Run.load(path)


def test_ratio_is_to_the_fastest_other_peer() -> None:
    assert example().ratio("gemm", 2) == 0.5
    assert example().ratio("norm", 2) is None  # nobody else was right
    assert example().ratio("gemm", 1) is None
    assert example().ratios("gemm", 2) == {"torch": 2.0, "openvino": 0.5}


def test_share_of_the_ceiling_is_taken_turn_by_turn() -> None:
    """A ceiling and a peer that slow down together keep their ratio, which medians of each alone would lose."""
    conditions = replace(example().conditions[1], turn_bounds=[1.0, 2.0, 4.0])
    result = replace(timed("torch", 1.0, "norm"), turn_seconds=[2.0, 4.0, 4.0])
    assert share(result, conditions) == 0.5
    assert share(result, replace(conditions, turn_bounds=[])) is None  # no ceilings were measured
    assert share(Result("norm", "family", 2, "torch", "skipped"), conditions) is None


def test_page_has_times_ceilings_and_remarks() -> None:
    page = markdown(example())
    assert "| gemm | 2 | 1 ms f32 | 2 ms (1.8 ms-2.4 ms), 500 Gop/s, 50% |" in page
    assert "| skipped | 0.50 |" in page.replace("| 1 ms (900 µs-1.2 ms), 1 Top/s, 100% ", "")
    assert "4 GB/s" in page
    assert "| norm | 2 | 1.5 ms copy | 2 ms (1.8 ms-2.4 ms), 4 GB/s, 75% |" in page
    assert "- norm (2): the least time by its ceiling, copy, was between 1 ms and 2 ms in its turns" in page
    assert "- gemm (2): its ceiling" not in page
    assert "| family | 2 | 0.50 | 0.50 | 0 of 1 | 2.00 | 0.50 | – |" in page
    assert "- onnxruntime: skipped: not installed: gemm (2)" in page
    assert "- other processes took up to 0.70 cores while it was timed: norm (2)" in page
    assert "waiting peers" not in page
    assert "pinned" not in page


def test_another_form_of_result_is_shown_beside_the_time() -> None:
    run = example()
    run.results[1] = replace(run.results[1], variant="requantised to u8")
    assert "25%, *requantised to u8* |" in markdown(run)


def test_numbers_just_under_a_unit_are_written_in_it() -> None:
    run = example()
    run.conditions[0] = replace(run.conditions[0], turn_bounds=[0.9996e-3] * 3)
    run.results[0] = timed("tilewright", 0.9994e-6)
    page = markdown(run)
    assert "| gemm | 2 | 1 ms f32 | 999 ns (" in page


def test_unpinned_and_crowded_threads_are_remarked() -> None:
    run = example()
    run.results[0].busy_threads[:] = ["0-1", "0-1"]
    page = markdown(run)
    assert "- tilewright: not all threads are pinned: gemm (2)" in page
    assert "- tilewright: two threads share a core: gemm (2)" in page


def test_error_is_relative_to_the_largest_value() -> None:
    exact = np.array([0.0, 100.0])
    assert error_of(np.array([1.0, 100.0], np.float32), exact) == 0.01
    assert error_of(np.array([np.nan, 100.0], np.float32), exact) == float("inf")
    assert error_of(np.array([[0.0, 100.0]], np.float32), exact) == float("inf")
    assert error_of(np.zeros(2, np.float32), np.zeros(2)) == 0.0
