"""The kernels of the calibration assemble, do what is counted, and constants follow from their times."""

from __future__ import annotations

import numpy as np
import pytest

from bench.gpu import calibrate, probes
from bench.gpu.probes import Probe
from tilewright import emulator
from tilewright.codegen.nvptx import ptxas

PROBES = {
    "empty": probes.empty(1, 32, 1024), "clock": probes.clock(1, 32), "chase": probes.chase(8, 8),
    "copy": probes.copy_to_shared(8), "reading": probes.reading(1 << 12, 2, 2, 32),
    "multiply-adds": probes.multiply_adds(2, 1, 32),
    **{name: probes.chain(name, 2, 64) for name in probes.CHAINS},
    **{name: probes.products_of_warps(unit, 8, 1, 2) for name, unit in probes.MATRIX_UNITS.items()},
    **{name: probes.products_of_warpgroups(name, 1, 1) for name in probes.WARPGROUP_KINDS},
}  # fmt: skip


@pytest.mark.parametrize("name", PROBES)
def test_probes_assemble(name: str) -> None:
    ptxas.check(PROBES[name].text(), "sm_90a")


@pytest.mark.parametrize("name", ["copy", "reading", *probes.CHAINS, *probes.MATRIX_UNITS])
def test_probes_run(name: str) -> None:
    probe, memory, out = PROBES[name], np.zeros(1 << 12, np.uint64), np.zeros(64, np.uint64)
    result = emulator.run(
        emulator.parse(probe.text()), "k", (probe.grid, 1, 1), (probe.block, 1, 1), [memory, out], probe.shared
    )
    assert not [each for each in result.diagnostics if each.kind not in ("race", "uninitialised")], result.diagnostics


class MadeUp:
    """A device on which everything takes a second, or a thousand cycles."""

    multiprocessors, memory = 2, 1 << 30

    def __init__(self) -> None:
        self.seen: list[Probe] = []
        self.driver = self

    def seconds(self, probe: Probe, launches: int = 1, rounds: int = 7) -> list[float]:
        self.seen.append(probe)
        return [1.0, 2.0, 4.0]

    def cycles(self, probe: Probe) -> int:
        return 1000

    def numbers(self, count: int) -> list[int]:
        return [2_000_000_000, 1_000_000_000]

    def copy_seconds(self) -> float:
        return 0.5

    def write(self, words: object) -> None: ...
    def fill(self, *where: int) -> None: ...


def test_constants_are_counts_over_times() -> None:
    device = MadeUp()
    found = {each.name: each for each in calibrate.measure(device)}  # type: ignore[arg-type]
    assert found["clock_hz"].value == 2e9
    assert found["launch_seconds"].value == pytest.approx(2.0 / 400)
    assert (found["launch_seconds"].low, found["launch_seconds"].high) == pytest.approx((1 / 400, 4 / 400))
    assert found["copy_bytes_per_second"].value == calibrate.MEMORY_BYTES * 2
    products = 2048 * 2048 * probes.SUMS * 8 * 2  # multiply-adds, trips, sums, warps, blocks
    assert found["mma_f16_f32"].value == pytest.approx(products / 2.0 / 2e9)
    assert found["barrier"].value == pytest.approx(1000 / 2048 / 4)
    assert set(probes.MATRIX_UNITS) | set(probes.WARPGROUP_KINDS) <= set(found)
