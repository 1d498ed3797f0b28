"""What several reports count in the emulator, and the worked cases, are computed once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.machine.description import Gpu
from tilewright.reproduce.matmul import ablation, worked_cases
from tilewright.reproduce.matmul.switches import Settings


@pytest.fixture(scope="package", autouse=True)
def _counted_once() -> Iterator[None]:
    """Counts of a kernel are those of its settings; levels of one ladder are levels of another."""
    known: dict[str, dict[str, float]] = {}
    cases: dict[str, worked_cases.Stages] = {}
    counts, worked = ablation.counts, worked_cases.worked

    def counted(chosen: Settings, slices: int, machine: Gpu) -> dict[str, float]:
        key = repr((chosen, slices, machine.name))
        if key not in known:
            known[key] = counts(chosen, slices, machine)
        return dict(known[key])

    def worked_once(case: worked_cases.Case) -> worked_cases.Stages:
        if case.name not in cases:
            cases[case.name] = worked(case)
        return cases[case.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "counts", counted)
        patch.setattr(worked_cases, "worked", worked_once)
        yield
