"""`make demo`, with few repetitions and the quicker of its networks."""

from __future__ import annotations

from pathlib import Path

import pytest

for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

from examples import demo  # noqa: E402


def test_demo_is_right_and_shows_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "TURNS", 2)
    monkeypatch.setattr(demo, "NETWORKS", {"bert-layer": "BERT-base layer"})
    assert demo.main() == 0
    shown = capsys.readouterr().out
    assert "onnxruntime" in shown
    assert "ms" in shown


def test_a_wrong_result_is_shown_and_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(name: str, title: str, folder: Path, threads: int) -> demo.Row:
        return demo.Row(title, 1.0, 0.001, 0.001, error=float("nan"))

    monkeypatch.setattr(demo, "measure", measure)
    assert demo.main() == 1
    assert "WRONG" in capsys.readouterr().out


def test_medians_of_calls_in_turn() -> None:
    order: list[str] = []
    demo.medians(lambda: order.append("a"), lambda: order.append("b"))
    assert order[:4] == ["a", "b", "a", "b"]
    assert len(order) == 2 * (demo.TURNS + 3)
