"""The analysis against RTL simulation: the published errors of the formula of the thesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.machine.registry import resolve
from tilewright.reproduce.tileflow.rtl import fused
from tilewright.tiles.analysis import analyse
from tilewright.tiles.machines import resources

# Spec 1, section 6.3: M, N, K, L, rows of a block, how many runs, their mean cycles.
GROUPS = [
    (512, 64, 64, 512, 16, 10, 537_662), (512, 64, 64, 512, 32, 10, 275_972), (256, 64, 64, 256, 16, 15, 137_088),
    (256, 64, 64, 256, 32, 15, 72_219), (256, 64, 64, 256, 64, 15, 43_643), (256, 80, 80, 256, 16, 4, 171_322),
    (256, 80, 80, 256, 32, 4, 89_478), (256, 80, 80, 256, 64, 4, 52_958), (512, 48, 48, 256, 16, 10, 205_659),
    (512, 48, 48, 256, 32, 10, 107_768), (512, 48, 48, 256, 64, 10, 64_359), (768, 48, 48, 384, 16, 7, 456_652),
    (768, 48, 48, 384, 32, 7, 234_734), (1024, 48, 48, 512, 16, 5, 807_924), (1024, 48, 48, 512, 32, 5, 414_136),
]  # fmt: skip


@pytest.mark.parametrize(("shares_port", "wanted"), [(False, 0.0480), (True, 0.0235)])
def test_spec1_g32_group_means_by_phases(shares_port: bool, wanted: float) -> None:
    machine = resources(resolve("tileflow-rtl"))
    dram = replace(machine.levels[0], shares_port=shares_port)
    machine = replace(machine, levels=(dram, *machine.levels[1:]))
    off = []
    for m, n, k, l, block, count, measured in GROUPS:
        row = {"M1": m, "N1": l, "K1": k, "micro_M1": block, "micro_N1": l, "micro_K1": 16}
        file = fused({**row, "M2": m, "N2": n, "K2": l, "micro_M2": block, "micro_N2": n, "micro_K2": 16})
        off += [abs(analyse(file.tree, file.problem, machine).cycles / measured - 1)] * count
    assert np.mean(off) == pytest.approx(wanted, abs=5e-5)
