"""Claims: the verdict follows from figures and bar; every claim of every experiment has all fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from tilewright.reproduce.chimera import gpu
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import EXPERIMENTS, Report
from tilewright.reproduce.matmul import worked_cases
from tilewright.reproduce.tests import reports
from tilewright.reproduce.tests.test_stored import compared, ranked
from tilewright.reproduce.tileflow import search

SOME = Claim("E0", "some gain", "1.37x", 1.0, 1.2, ">=", "of another machine", unit="x", form=".2f")

REPORTS: dict[str, Callable[[], Report]] = {
    "amos-mappings": reports.amos_mappings,
    "amos-model": ranked,
    "amos-cpu": compared,
    "chimera-orders": reports.chimera_orders,
    "chimera-traffic": reports.chimera_traffic,
    "chimera-cpu": reports.chimera_cpu,
    "chimera-gpu": lambda: gpu.report(("G10",), device="emulator"),
    "mlir-matmul": reports.matmul_ablation,
    "tileflow-edge": reports.tileflow_edge,
    "tileflow-cloud": reports.tileflow_cloud,
    "tileflow-accuracy": reports.tileflow_accuracy,
    "tileflow-search": lambda: search.report(layers=("mlp-mixer-512",), trials=300),
    "worked-cases": worked_cases.report,
}
# What only a device or a program that is not here can decide, by the starts of names and subjects.
DEVICES = {
    "amos-cpu": ("spec3-E9 gain over", "spec3-E10 gain over", "spec3-E13 gain over"),
    "chimera-cpu": (
        "spec1-E1 batch GEMM chains: gain over",
        "spec1-E2 batch GEMM chains, softmax: gain over",
        "spec1-E3 conv",
        "spec1-E9 most gain over Ansor",
    ),
    "chimera-gpu": ("spec1-E4", "spec1-E6", "spec1-E7", "spec1-E9", "spec1-E13"),
    "mlir-matmul": ("ablation on the device", "products on the device"),
    "tileflow-accuracy": ("spec1-E14 cycles by Timeloop", "spec1-E14 energy by Timeloop"),
}


@pytest.mark.parametrize(
    ("ours", "comparison", "bar", "verdict"),
    [
        (7.0, "=", 7.0, "met"), (15.0, "=", 7.0, "differs"), (1.2, ">=", 1.2, "met"), (1.19, ">=", 1.2, "differs"),
        (1.3, "<=", 1.3, "met"), (1.31, "<=", 1.3, "differs"), (float("nan"), ">=", 0.0, "differs"),
        ("16 x 16", "=", "16 x 16", "met"), ("16 x 8", "=", "16 x 16", "differs"), (None, ">=", 1.2, "open"),
        (None, "=", "16 x 16", "open"), (1.0, "±", 1.2, "met"), (1.45, "±", 1.2, "met"), (0.94, "±", 1.2, "differs"),
        (1.46, "±", 1.2, "differs"), (float("nan"), "±", 1.2, "differs"), (None, "±", 1.2, "open"),
    ],
)  # fmt: skip
def test_the_verdict_follows(ours: float | str | None, comparison: str, bar: float | str, verdict: str) -> None:
    claim = replace(
        SOME, ours=ours, comparison=comparison, bar=bar, form="" if isinstance(bar, str) else "g",
        tolerance=0.2501 if comparison == "±" else 0.0,
    )  # type: ignore[arg-type]  # fmt: skip
    assert claim.verdict == verdict
    assert claim.to_json()["verdict"] == verdict


def test_a_verdict_cannot_be_stated() -> None:
    assert not {"verdict", "ok"} & {field.name for field in fields(Claim)}
    with pytest.raises(AttributeError):
        SOME.verdict = "met"  # type: ignore[misc]


@pytest.mark.parametrize(
    "lacking",
    [{"name": ""}, {"subject": " "}, {"published": ""}, {"reason": ""}, {"bar": "", "ours": ""}, {"ours": "1.2"},
     {"ours": "a", "bar": "b"}, {"tolerance": 0.1}, {"comparison": "±"}],
)  # fmt: skip
def test_a_claim_that_lacks_something_is_a_bug(lacking: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="bug"):
        replace(SOME, **lacking)  # type: ignore[arg-type]


def test_figures_are_shown_with_their_unit() -> None:
    assert (SOME.shown_ours, SOME.shown_bar) == ("1.00x", ">= 1.20x")
    near = replace(SOME, comparison="±", bar=6.65, tolerance=0.15 * 6.65)
    assert (near.shown_ours, near.shown_bar) == ("1.00x", "6.65x ± 1.00x")
    assert replace(SOME, ours=None).shown_ours == "-"
    assert replace(SOME, ours=1.1996).shown_ours == "1.1996x"  # not 1.20x, which the bar is


def test_every_experiment_is_here() -> None:
    assert list(REPORTS) == [each.name for each in EXPERIMENTS]


@pytest.mark.parametrize("name", REPORTS)
def test_every_claim_has_all_fields_and_none_misses_its_bar_and_is_met(name: str) -> None:
    claims = REPORTS[name]().claims
    assert claims
    for claim in claims:
        stored = claim.to_json()
        assert all(stored[field] for field in ("name", "subject", "published", "comparison", "reason", "verdict"))
        if claim.verdict == "met":
            worse: float | str = "?" if isinstance(claim.ours, str) else 1e9 if claim.comparison == "<=" else -1e9
            assert replace(claim, ours=worse).verdict == "differs"
        assert replace(claim, ours=None).verdict == "open"
    opened = [f"{claim.name} {claim.subject}" for claim in claims if claim.verdict == "open"]
    of_devices = DEVICES.get(name, ())
    assert all(each.startswith(of_devices) for each in opened)
    assert all(any(each.startswith(start) for each in opened) for start in of_devices)
