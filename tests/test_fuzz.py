"""A little of `tests.fuzz` on every run, and that it finds what it looks for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from tests import fuzz, fuzz_blocks
from tests.covering import some
from tilewright.errors import InvalidModel

IN_A_CHILD = ("program", "target")  # LLVM compiles what is damaged, and may end its process
ELSEWHERE = ("blocks", *IN_A_CHILD)


def require_no_finding(kind: str, seeds: Sequence[int]) -> None:
    """Try cases in a process of their own. Fails with those that are findings, or that ended the process."""
    counts, findings = fuzz.try_batch(kind, seeds)
    assert not findings, "\n".join(f"python -m tests.fuzz --kind {kind} --case {case}: {why}" for case, why in findings)
    assert sum(counts.values()) == len(seeds)


@pytest.mark.parametrize("kind", IN_A_CHILD)
def test_a_few_cases_for_llvm(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    require_no_finding(kind, some(range(8), 4))


@pytest.mark.parametrize("kind", IN_A_CHILD)
def test_a_case_that_ends_its_process_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the one of pytest, which could name no case."""
    dying = f"""
        import os
        from tests import fuzz
        fuzz.KINDS["{kind}"] = lambda rng: os.abort() if rng.random() == fuzz.Random("{kind} 5").random() else None
        fuzz.run_batch("{kind}", [4, 5, 6])
    """
    monkeypatch.setattr(fuzz, "command_of", lambda kind, seeds: [sys.executable, "-c", dedent(dying)])
    with pytest.raises(AssertionError, match=f"--kind {kind} --case 5: the process ended with -6"):
        require_no_finding(kind, [4, 5, 6])


@pytest.mark.parametrize("kind", [kind for kind in fuzz.KINDS if kind not in ELSEWHERE])
def test_a_few_cases_of_each_kind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    if kind in ("model", "command"):
        pytest.importorskip("onnx")
    found = [fuzz.outcome(kind, seed) for seed in some(range(8), 2 if kind in ("model", "command") else 4)]
    assert {result for result, _ in found} <= {"ok", "refused", "memory"}, found


def test_a_batch_runs_in_a_process_of_its_own() -> None:
    counts, findings = fuzz.try_batch("file", range(4))
    assert findings == []
    assert sum(counts.values()) == 4


@pytest.mark.parametrize("batch", some(range(8), 3))
def test_tile_programs_of_blocks(batch: int) -> None:
    """The first of 25 down to machine code."""
    for case in some(range(25 * batch, 25 * batch + 25), 10):
        rng = fuzz.Random(f"small {case}")
        try:
            fuzz_blocks.try_blocks(rng, size=4, code=case % 25 == 0)
        except AssertionError as error:
            raise AssertionError(f"case {case}: {error}") from error


@pytest.mark.parametrize(
    ("error", "expected"),
    [(InvalidModel("x"), "refused"), (MemoryError(), "memory"), (KeyError("x"), "finding"), (None, "ok")],
)
def test_outcomes(error: Exception | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def case(rng: Any) -> None:
        if error:
            raise error

    monkeypatch.setitem(fuzz.KINDS, "call", case)
    assert fuzz.outcome("call", 0)[0] == expected


def test_a_crash_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = [sys.executable, "-c", "print('{\"begin\": 5}', flush=True); import os; os.abort()"]
    monkeypatch.setattr(fuzz, "command_of", lambda kind, seeds: crash)
    counts, findings = fuzz.try_batch("call", [4, 5])
    assert counts["finding"] == 1
    assert findings[0][0] == 5


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        manifest = fuzz.compile_graph(fuzz.sample_graph(0), options=fuzz.OPTIONS).manifest

        def __call__(self, *arrays: Any) -> Any:
            return np.ones((5, 3), np.float32)

    monkeypatch.setattr(fuzz, "compile_graph", lambda *_, **__: Module())
    with pytest.raises(fuzz.WrongResult):
        fuzz.run_and_compare(fuzz.sample_graph(0), fuzz.Random(0))
