"""The measurement of compile times: what it wraps is there, and phases add up."""

from __future__ import annotations

import importlib
from functools import reduce
from pathlib import Path

import pytest

from bench.compile_time import __main__ as runner
from bench.compile_time.worker import PHASES


@pytest.mark.parametrize("phase", PHASES)
def test_the_functions_of_a_phase_exist(phase: str) -> None:
    for module, attribute in PHASES[phase]:
        assert callable(reduce(getattr, attribute.split("."), importlib.import_module(module)))


def test_llvm_is_what_emission_leaves_of_generation() -> None:
    run = {
        "cpu": 10.0,
        "wall": 11.0,
        "phases": {"plan": 2.0, "emit": 3.0, "generate": 7.0},
        "kernels": 4,
        "launches": 9,
    }
    shown = runner.row("net", Path("here"), run).split()
    assert shown[:4] == ["net", "here", "10.00", "11.00"]
    phases = dict(zip(runner.PHASES, map(float, shown[4:]), strict=False))
    assert (phases["emit"], phases["llvm"], phases["other"]) == (3.0, 4.0, 1.0)
    assert shown[-4:] == ["4", "of", "9", "launches"]
