"""The host that code is generated for: with measured units where no machine file names its processor."""

from __future__ import annotations

from dataclasses import replace

from tilewright.machine import Cpu, host
from tilewright.machine.detect import named_machine
from tilewright.options import Options
from tilewright.runtime.calibration_file import stored_rates


def host_with_units(options: Options | None = None) -> Cpu:
    """The host; units of a processor that no machine file names are those of an earlier calibration, if there is one.

    Nothing is measured. Multiply-adds, loads and stores per cycle are whole numbers, so that calibrating again gives
    the same code; other rates stay those of the generic level.
    """
    described = host()
    if named_machine(described.architecture, described.llvm.cpu) is not None:
        return described
    measured = stored_rates(options)
    if measured is None:
        return described
    return replace(
        described,
        fma_units=measured.fma_units,
        loads_per_cycle=measured.loads_per_cycle,
        stores_per_cycle=measured.stores_per_cycle,
    )
