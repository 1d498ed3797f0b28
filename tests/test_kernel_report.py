"""The end of a test session says what the kernels of the session take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernel_report import KernelReport
from tilewright.codegen.nvptx import ptxas

ROOT = Path(__file__).parents[1]


def code(text: str, **shared_bytes: int) -> Any:
    kernels = [SimpleNamespace(entry=name, shared_bytes=size) for name, size in shared_bytes.items()]
    return SimpleNamespace(ptx=text, target=SimpleNamespace(cpu="sm_80"), kernels=kernels)


def report(test: str, text: str, *taken: ptxas.Resources, **shared_bytes: int) -> KernelReport:
    made = KernelReport()
    made.test = test
    made.generated(code(text, **shared_bytes))
    made.assembled(text, dict(zip(shared_bytes, taken, strict=False)))
    return made


def test_sessions_without_kernels_say_nothing() -> None:
    assert KernelReport().lines() == []


def test_spills_warnings_and_the_largest_are_named() -> None:
    small, large = ptxas.Resources(40, 0, 0, 0), ptxas.Resources(255, 84, 96, 0, ("(C7510) they wait",))
    assert report("test_a", "text", small, large, first=1024, second=512).lines() == [
        "2 kernels were compiled, ptxas saw 2",
        "at most 255 registers: second for sm_80 in test_a",
        "at most 1024 bytes of shared memory: first for sm_80 in test_a",
        "1 spill registers",
        "  84 bytes: second for sm_80 in test_a",
        "warned of: second for sm_80 in test_a: (C7510) they wait",
    ]


def test_kernels_that_no_assembler_saw_are_counted() -> None:
    assert report("test_a", "text", first=8).lines() == [
        "1 kernels were compiled, ptxas saw 0",
        "no kernel was shown to ptxas",
    ]


def test_workers_that_compile_the_same_count_it_once(tmp_path: Path) -> None:
    taken = ptxas.Resources(40, 0, 0, 0)
    whole = KernelReport()
    for each in (report("a", "text", k=8), report("b", "text", taken, k=8), report("c", "other", taken, k=8)):
        whole.merge(json.loads(json.dumps(each.rows)))
    assert whole.lines()[0] == "2 kernels were compiled, ptxas saw 2"
    whole.write(tmp_path / "kernels.json")
    rows = json.loads((tmp_path / "kernels.json").read_text())
    assert sorted(row["test"] for row in rows) == ["b", "c"]
    assert {row["registers"] for row in rows} == {40}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_session_lists_its_kernels(workers: int, tmp_path: Path) -> None:
    place, seen = tmp_path / "kernels.json", 2 if ptxas.find() else 0
    test = "tests/test_gpu_chain.py::test_element_work"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", str(workers), f"--kernels={place}"]
    chosen = [f"{test}[255-sm_80]", f"{test}[1000-sm_90a]"]
    done = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert f"2 kernels were compiled, ptxas saw {seen}" in done.stdout
    assert [row["arch"] for row in json.loads(place.read_text())] == ["sm_80", "sm_90a"]
