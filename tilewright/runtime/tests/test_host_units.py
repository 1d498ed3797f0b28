"""Units of a host whose processor no machine file names: those of a stored calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.compiler.compile import resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.linalg import matmul
from tilewright.machine import Cpu, host, resolve
from tilewright.options import Options
from tilewright.runtime import calibrate, host_units, loops
from tilewright.runtime.calibrate import calibrated
from tilewright.runtime.calibration_file import stored_rates
from tilewright.runtime.host_units import host_with_units


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path)


@pytest.fixture
def measured(options: Options, monkeypatch: pytest.MonkeyPatch) -> Cpu:
    """A stored calibration that found one multiply-add and one load of a whole vector per cycle."""
    found = replace(host(), name=calibrate.NAME, fma_units=1, loads_per_cycle=1, issue_cycles={"fma_4_f32_f32": 1.0})
    monkeypatch.setattr(calibrate, "measure", lambda machine: found)
    return calibrated(options)


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_units, "named_machine", lambda architecture, processor: None)


def product() -> Graph:
    b = GraphBuilder("g")
    x, w = b.input("x", (96, 200), "f32"), b.input("w", (200, 320), "f32")
    return b.finish([matmul(x, w, name="y")])


def test_a_host_without_a_file_has_measured_units(measured: Cpu, unnamed: None, options: Options) -> None:
    found = host_with_units(options)
    assert (found.fma_units, found.loads_per_cycle) == (1, 1)
    assert replace(found, fma_units=host().fma_units, loads_per_cycle=host().loads_per_cycle) == host()
    assert resolve_target("host", options) == found
    seen = make_plan(product(), found, 1, options).kernels[-1].cycles
    assert seen > make_plan(product(), replace(host(), fma_units=2, loads_per_cycle=2), 1, options).kernels[-1].cycles
    assert stored_rates(options) == measured, "the calibration is found by the host as it is described"


def test_a_host_without_a_file_or_measurement_is_the_generic_level(unnamed: None, options: Options) -> None:
    assert host_with_units(options) == resolve_target("host", options) == host()


def test_a_host_that_a_file_names_keeps_its_units(
    measured: Cpu, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_units, "named_machine", lambda architecture, processor: host())
    assert host_with_units(options) == host()


@pytest.mark.parametrize(("fma", "loads", "stores"), [(2.01, 1.97, 0.51), (0.995, 1.02, 0.5)])
def test_calibration_writes_units(fma: float, loads: float, stores: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is a core with units of half a vector, as Zen 4 is at 512 bits."""
    machine, clock_hz = resolve("x86-64-v4"), 4e9
    assert isinstance(machine, Cpu)
    rates = dict.fromkeys(("memory", "memory, one core", "copy", "stream"), 4e10) | {"clock": clock_hz}
    for record in calibrate.measurable(machine):
        rates |= {f"chain.{record.name}": fma, f"dependent.{record.name}": 0.25}
    levels = [*(level.name for level in machine.caches), *calibrate._held_names(machine.caches).values()]
    rates |= dict.fromkeys(levels, loads * 64)
    rates |= dict.fromkeys(loops.SPREAD, 2 * 64.0)
    rates |= {"scattered": 32.0, "write": stores * 64}
    monkeypatch.setattr(calibrate, "_best_rates", lambda machine: rates)
    found = calibrate.measure(machine)
    assert (found.fma_units, found.loads_per_cycle, found.stores_per_cycle) == (round(fma), round(loads), 1)
