"""The runner of `tests.models`: on one small network of torch.nn, and what it says of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from tests.models import report
from tests.models.__main__ import main
from tests.models.catalogue import ARCHITECTURES
from tests.models.definition import Architecture, Built
from tests.models.measure import errors, measure
from tests.models.outcome import Outcome, newest
from tests.models.runner import Limits, outcomes


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "outcomes.jsonl"
    assert main(["--only", "perceptron", "--store", str(path)]) == 0
    return path


def test_a_small_network_is_right_in_both_ways(stored: Path) -> None:
    environment, kept = report.read(stored)
    assert [(outcome.name, outcome.way, outcome.state) for outcome in kept] == [
        ("perceptron", "onnx", "right"),
        ("perceptron", "compile", "right"),
    ]
    assert environment["versions"]["torch"]
    for outcome in kept:
        assert outcome.error is not None
        assert 0 < outcome.error < 1e-5
        assert outcome.cpu_seconds
        assert outcome.ratio
    assert kept[0].slowest


def test_what_is_right_is_not_run_again(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "perceptron", "--store", str(stored), "--again"]) == 0
    assert "perceptron" not in capsys.readouterr().out


def test_the_table_has_both_ways_in_a_row(stored: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    assert main(["--store", str(stored), "--table", str(table)]) == 0
    (row,) = [line for line in table.read_text().splitlines() if line.startswith("| perceptron")]
    assert row.count("right") == 2


def _polygamma() -> Built:
    import torch

    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.polygamma(1, x) + torch.special.zeta(x + 2, x)

    return Odd(), (torch.rand(3) + 1,)


def _raises() -> Built:
    raise ValueError("no such size\nmore")


def _ends() -> Built:
    import os

    os._exit(3)


def _entry(name: str, build: object, package: str = "torch") -> Architecture:
    assert callable(build)
    return Architecture(name, "test", package, build)


def test_a_fallback_to_eager_mode_is_a_failure_with_all_reasons() -> None:
    outcome = measure(_entry("odd", _polygamma), "compile")
    assert (outcome.state, outcome.stage) == ("failed", "compile")
    assert "polygamma" in outcome.reason
    assert "zeta" in outcome.reason


def test_what_does_not_build_and_what_ends_its_process_is_told() -> None:
    entries = [_entry("raises", _raises), _entry("ends", _ends), _entry("absent", _raises, "no_such_package")]
    found = list(outcomes([(entry, "onnx") for entry in entries], Limits()))
    assert [(outcome.state, outcome.stage, outcome.reason) for outcome in found] == [
        ("failed", "build", "ValueError: no such size"),
        ("failed", "limit", "the process ended with exit status 3"),
        ("skipped", "", "no_such_package is not installed"),
    ]


def test_errors_are_relative_to_the_largest_element_and_infinite_for_other_shapes() -> None:
    exact = np.array([1.0, -4.0, np.inf])
    assert errors([exact + np.array([0, 0.5, 0])], [exact]) == 0.125
    assert errors([exact[:2]], [exact]) == float("inf")
    assert errors([np.array([1.0, np.nan, np.inf])], [exact]) == float("inf")
    assert errors([np.array([1.0, -4.0, 7.0])], [exact]) == float("inf")
    assert errors([np.array([], np.float32)], [np.array([])]) == 0


def test_the_newest_outcome_counts() -> None:
    first, other = Outcome("a", "f", "onnx", "failed"), Outcome("b", "f", "onnx", "right")
    assert newest([first, other, replace(first, state="right")]) == [replace(first, state="right"), other]


def test_what_torch_does_not_export_is_counted_apart() -> None:
    right = Outcome("a", "f", "onnx", "right", seconds=1.0, peer_seconds=2.0)
    unseen = Outcome("b", "f", "onnx", "failed", "export", "TypeError: no")
    wrong = Outcome("c", "f", "onnx", "wrong", error=0.5, cpu_seconds=9.0)
    (said,) = report.summary([right, unseen, wrong])
    assert said == (
        "onnx: 1 of 2 right, 1 more that torch does not export; median ratio 2.00; 1 compile in more than 8 s"
    )


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--through", "mlir"], ["--again"]])
def test_bad_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_there_are_enough_architectures() -> None:
    assert len(ARCHITECTURES) >= 90
    assert all(entry.tolerance <= 1e-3 for entry in ARCHITECTURES.values())
