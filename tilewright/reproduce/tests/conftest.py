"""What several reports count in the emulator is counted once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tilewright.machine.description import Gpu
from tilewright.reproduce.matmul import ablation
from tilewright.reproduce.matmul.switches import Settings


@pytest.fixture(scope="package", autouse=True)
def _counted_once() -> Iterator[None]:
    """Counts of a kernel are those of its settings; levels of one ladder are levels of another."""
    known: dict[Any, dict[str, float]] = {}
    counts = ablation.counts

    def counted(chosen: Settings, slices: int, machine: Gpu) -> dict[str, float]:
        key = repr((chosen, slices, machine.name))
        if key not in known:
            known[key] = counts(chosen, slices, machine)
        return dict(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation, "counts", counted)
        yield
