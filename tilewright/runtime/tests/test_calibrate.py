"""Calibration: plausible numbers, one measurement per machine, and a file that is a machine like any other."""

from __future__ import annotations

import ctypes
import itertools
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from tilewright.codegen.cpu.target import Target
from tilewright.instruction.model import hierarchy
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.machine import Cpu, host, resolve
from tilewright.machine.description import Cache
from tilewright.machine.registry import names
from tilewright.options import Options
from tilewright.runtime import calibrate, loops
from tilewright.runtime import calibration_file as files
from tilewright.runtime.calibrate import BusyMachine, calibrated
from tilewright.runtime.calibration_file import calibration_file, host_with_rates, identity, to_yaml


@pytest.fixture(scope="module")
def measured() -> Cpu:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "AGREE", 1.0)  # tests run beside others
        return calibrate.measure(host())


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path)


def test_measurements_are_plausible(measured: Cpu) -> None:
    assert measured.clock_hz is not None
    assert 2e8 < measured.clock_hz < 1e10
    cycles = measured.issue_cycles
    assert cycles is not None
    assert any(name.startswith("fma") and name.endswith("f32") for name in cycles)
    assert all(0.1 < value < 100 for value in cycles.values())
    rates = [cache.bytes_per_cycle for cache in measured.caches]
    assert all(rate is not None and rate > 0.01 for rate in rates)
    assert rates == sorted(rates, reverse=True)
    dram = measured.dram
    assert dram.bytes_per_second_per_core is not None
    assert dram.bytes_per_second >= dram.bytes_per_second_per_core > 1e8
    for rate in (dram.copy_bytes_per_second, dram.nontemporal_copy_bytes_per_second):
        assert rate is not None
        assert rate > 1e8


def test_what_descriptions_assume_is_measured(measured: Cpu) -> None:
    assert measured.issue_cycles is not None
    assert measured.latency_cycles is not None
    assert set(measured.latency_cycles) == set(measured.issue_cycles)
    fused = [name for name in measured.issue_cycles if name.startswith("fma")]
    assert all(measured.latency_cycles[name] > 1.5 * measured.issue_cycles[name] for name in fused)
    assert measured.broadcasts_per_cycle is not None
    assert 0.2 < measured.broadcasts_per_cycle < 8
    assert measured.store_bytes_per_cycle is not None
    assert 2 < measured.store_bytes_per_cycle < 512
    machine = hierarchy(measured)
    assert machine.latency_cycles == measured.latency_cycles
    assert machine.broadcast_cycles == 1 / measured.broadcasts_per_cycle
    assert machine.levels[0].out_bytes_per_cycle == measured.store_bytes_per_cycle


@pytest.mark.parametrize(
    ("fma_units", "alone", "beside", "per_cycle"),
    [
        (2, 2.0, 1.9, 2.0),  # multiply-adds alone set the time
        (2, 2.0, 1.2, 1.2),
        (1, 1.0, 0.8, 0.8),  # Zen 1, where both take a part of three units
        (1, 0.7, 0.75, 0.7),  # beside multiply-adds it is no faster
        (2, 1.0, 0.95, 1.0),  # loads alone set the time
    ],
)
def test_broadcasts_are_as_fast_as_beside_multiply_adds(
    fma_units: int, alone: float, beside: float, per_cycle: float
) -> None:  # fmt: skip
    rates = {"broadcast": alone * 64, "multiplied": beside * 64}
    assert calibrate._broadcasts_per_cycle(fma_units, rates) == pytest.approx(per_cycle)


def test_multiplied_loops_multiply_add() -> None:
    """An element of each line of a trip, each times the vector that the source begins with, added up."""
    machine = host()
    text = loops.memory_loop("multiplied", "multiplied", machine.vector_bits) + loops.METADATA
    code = loops.compiled(text, ["multiplied"], machine.llvm.cpu, machine.llvm.features)
    run = loops.function(code, "multiplied", *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 2)
    lines = loops.lines_of_trip("multiplied")
    source, sink = loops.pages(128 * lines), loops.pages(128 * lines)
    source[:] = np.arange(32 * lines)
    run(source.ctypes.data, sink.ctypes.data, 128 * lines, 3)
    lanes = machine.vector_bits // 32
    terms = [float(17 * j + 16 * lines * trip) for trip in range(2) for j in range(lines)]
    np.testing.assert_allclose(sink[:lanes], 3 * sum(terms) * np.arange(lanes))


@pytest.mark.parametrize("kind", ["read", "scattered", "broadcast"])
def test_reading_loops_combine_every_line(kind: loops.MemoryLoop) -> None:
    """LLVM drops loads that nothing depends on, and what is left is too fast."""
    machine = host()
    code = loops.compiled(
        loops.memory_loop(kind, kind, machine.vector_bits), [kind], machine.llvm.cpu, machine.llvm.features
    )
    run = loops.function(code, kind, *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 2)
    lines, step = 2 * loops.lines_of_trip(kind), loops.bytes_of_step(kind)
    source, sink = loops.pages(loops.SCATTERED_WITHIN).view(np.int32), loops.pages(4096).view(np.int32)
    for line in range(lines):
        spread = kind in loops.SPREAD
        element = line * step // 4 + (line % loops.lines_of_trip(kind) if spread else 0)
        source[element : element + (1 if spread else 16)] = 1 << line
    run(source.ctypes.data, sink.ctypes.data, lines * step, 3)
    width = machine.vector_bits // 32 if kind in loops.SPREAD else 16
    np.testing.assert_array_equal(sink[:width], (1 << lines) - 1)


def test_scattered_lines_return_to_the_same_pages() -> None:
    """What lies behind `SCATTERED_WITHIN` is not read: images have pages that their next rows find in a table."""
    machine = host()
    text = loops.memory_loop("scattered", "scattered", machine.vector_bits)
    code = loops.compiled(text, ["scattered"], machine.llvm.cpu, machine.llvm.features)
    run = loops.function(code, "scattered", *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 2)
    source, sink = loops.pages(2 * loops.SCATTERED_WITHIN).view(np.int32), loops.pages(4096).view(np.int32)
    source[loops.SCATTERED_WITHIN // 4 :] = 1
    beyond = 2 * loops.SCATTERED_WITHIN // loops.SCATTERED_BYTES
    beyond -= beyond % loops.lines_of_trip("scattered")
    run(source.ctypes.data, sink.ctypes.data, beyond * loops.SCATTERED_BYTES, 1)
    assert not sink[:16].any()


def test_pages_have_no_carry_in_their_addresses() -> None:
    assert all(loops.pages(bytes_).ctypes.data % loops.PAGES_ALIGNED == 0 for bytes_ in (4096, 1 << 16, 1 << 22))


KIB = 1024
CACHES = tuple(
    Cache(name=name, bytes=size * KIB, line_bytes=64, shared_by=1)
    for name, size in (("L1", 32), ("L2", 512), ("L3", 32768))
)


@pytest.mark.parametrize(
    ("rates", "held"),
    [((20.0, 21.0, 22.0), None), ((6.0, 21.0, 22.0), 8192 * KIB), ((4.0, 5.0, 6.0), 4096 * KIB)],
)  # fmt: skip
def test_a_part_of_the_last_cache_is_held(rates: tuple[float, ...], held: int | None) -> None:
    """A virtual machine has a part of a cache that it shares: of 32 MiB, 16, 8 and so on are read."""
    names = calibrate._held_names(CACHES)
    assert list(names) == [16384 * KIB, 8192 * KIB]
    measured = dict(zip(names.values(), rates, strict=False)) | {"L3": 22, "memory, one core": 12e9, "clock": 3e9}
    assert calibrate._held_bytes(CACHES, measured) == held


def test_a_cache_is_read_at_a_size_between_the_inner_one_and_itself() -> None:
    assert calibrate._bytes_read(CACHES) == [16 * KIB, 128 * KIB, 4096 * KIB]


def test_steps_of_one_chain_take_longer_than_the_loop_around_them(measured: Cpu) -> None:
    """A sum of whole numbers takes a cycle: LLVM adds up neither several steps nor the trips of the loop."""
    assert measured.latency_cycles is not None
    assert all(0.6 < cycles < 20 for cycles in measured.latency_cycles.values())


@pytest.mark.parametrize("record", calibrate.measurable(host()), ids=lambda record: record.name)
def test_a_trip_of_several_chains_multiplies_in_each(record: Intrinsic) -> None:
    """Products that are the same in all trips leave the loop, and the rate is that of additions."""
    machine, module = host(), ir.Module("chains")
    target = Target(machine.llvm.triple, machine.llvm.cpu, tuple(sorted(machine.features)), machine.vector_bits)
    chains = calibrate._chains(machine)
    calibrate._chain_loop(module, target, record, "run", chains)
    loops.compiled(str(module), ["run"], machine.llvm.cpu, machine.llvm.features)
    target_machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=machine.llvm.cpu, features=machine.llvm.features, opt=2
    )
    text = target_machine.emit_assembly(llvm.parse_assembly(str(module), context=llvm.create_context()))
    loop = text[text.index("BB0_1:") :]
    assert len(re.findall(r"^\s+(?:v?[pf]?(?:mul|madd|mla|dp)|[su]dot)", loop, re.MULTILINE)) >= chains, loop


def test_figures_of_a_busy_machine_are_refused(
    measured: Cpu, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "measure", lambda machine: measured)
    calibrated(options)
    monkeypatch.undo()
    before = calibration_file(options).read_text()
    times = (1e-6 * 1.2**number for number in itertools.count())
    monkeypatch.setattr(calibrate, "_best_seconds", lambda *_: next(times))
    with pytest.raises(BusyMachine, match=r"clock: .*\n  = help: measure again"):
        calibrated(options, force=True)
    assert calibration_file(options).read_text() == before


def test_a_disturbed_rate_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def seconds(slow: set[int]) -> Callable[..., float]:
        def best(*_: Any) -> float:
            calls.append(2e-6 if len(calls) in slow else 1e-6)
            return calls[-1]

        return best

    monkeypatch.setattr(calibrate, "_best_cycles", lambda *_: 1.0)
    monkeypatch.setattr(calibrate, "_best_seconds", seconds(set()))
    steady = calibrate.measure(host())
    expected = len(calls)
    calls.clear()
    monkeypatch.setattr(calibrate, "_best_seconds", seconds({0}))
    assert calibrate.measure(host()) == steady
    assert len(calls) == expected + 1


def test_what_is_not_measured_stays(measured: Cpu) -> None:
    assert measured.features == host().features
    assert measured.llvm == host().llvm
    assert [cache.bytes for cache in measured.caches] == [cache.bytes for cache in host().caches]
    assert measured.name != host().name


def test_every_instruction_with_a_loop_of_its_own_is_measured(measured: Cpu) -> None:
    records = calibrate.measurable(host())
    assert measured.issue_cycles is not None
    assert set(measured.issue_cycles) == {record.name for record in records}
    assert {"f32", "f64"} <= {record.destination.dtype for record in records}
    assert all(set(record.features) <= host().features and not record.realised_by for record in records)


def test_the_file_is_a_machine(measured: Cpu, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(measured))
    assert resolve(path) == measured


def test_the_model_takes_measured_cycles(measured: Cpu) -> None:
    machine = hierarchy(measured)
    assert machine.clock_hz == measured.clock_hz
    assert machine.core_cycles == measured.issue_cycles
    assert machine.levels[0].in_bytes_per_cycle == measured.caches[0].bytes_per_cycle


def test_one_measurement_serves_all_later_runs(
    measured: Cpu, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def measure(machine: Cpu) -> Cpu:
        calls.append(machine)
        return measured

    monkeypatch.setattr(calibrate, "measure", measure)
    assert calibrated(options) == calibrated(options) == measured
    assert len(calls) == 1
    assert resolve(calibration_file(options)) == measured
    assert calibrated(options, force=True) == measured
    assert len(calls) == 2
    calibration_file(options).write_text("name: [")  # damaged
    assert calibrated(options) == measured
    assert len(calls) == 3
    assert not list(options.cache_dir.rglob("*.tmp"))


def test_a_file_without_a_record_of_today_is_measured_again(
    measured: Cpu, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycles = dict(measured.issue_cycles or {})
    cycles.popitem()
    monkeypatch.setattr(calibrate, "measure", lambda machine: replace(measured, issue_cycles=cycles))
    calibrated(options)
    monkeypatch.setattr(calibrate, "measure", lambda machine: measured)
    assert calibrated(options) == measured
    assert resolve(calibration_file(options)) == measured


def test_the_host_has_rates_once_they_were_measured(
    measured: Cpu, options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calibrate, "measure", None)
    assert host_with_rates(options) == host(), "nothing is measured for it"
    monkeypatch.setattr(calibrate, "measure", lambda machine: measured)
    with caplog.at_level("INFO"):
        calibrated(options)
    assert caplog.text.count("are measured, once, and kept in") == 1
    monkeypatch.setattr(calibrate, "measure", None)
    assert host_with_rates(options) == measured


def test_a_directory_that_cannot_be_written_is_no_error(
    measured: Cpu, options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calibrate, "measure", lambda machine: measured)
    blocked = options.cache_dir / "file"
    blocked.write_text("")
    assert calibrated(replace(options, cache_dir=blocked)) == measured
    assert "cannot be stored" in caplog.text


@pytest.mark.parametrize("damage", ["writable", "link"])
def test_a_file_that_others_can_write_to_is_not_used(
    damage: str, measured: Cpu, options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calibrate, "measure", lambda machine: measured)
    calibrated(options)
    path = calibration_file(options)
    assert host_with_rates(options) == measured
    if damage == "writable":
        path.chmod(0o666)
    else:
        path.rename(path.parent.parent / "elsewhere.yaml")
        path.symlink_to("../elsewhere.yaml")
    before = path.lstat()
    assert host_with_rates(options) == host()
    assert host_with_rates(options) == host()
    assert caplog.text.count("is not used") == 1
    assert calibrated(options, force=True) == measured
    assert path.lstat() == before


def test_the_identity_is_that_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    own = calibration_file()
    assert own == calibration_file()
    identity.cache_clear()
    monkeypatch.setattr(files, "_processor", lambda: "another")
    assert calibration_file() != own
    identity.cache_clear()


def test_a_host_of_every_file_has_a_calibration_of_its_own() -> None:
    """A machine file that states cycles of intrinsics, as that of the first Zen does, ended in a `TypeError`."""
    machines = [machine for machine in map(resolve, names()) if isinstance(machine, Cpu)]
    assert any(machine.issue_cycles for machine in machines)
    assert len({calibration_file(machine=machine) for machine in machines}) == len(machines)


def test_a_process_with_fewer_cores_has_a_calibration_of_its_own(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates of all cores that were measured on one of them predicted products on both at a third of their speed."""
    found = set()
    for cores in ((0, 1), (1,), (0,)):
        monkeypatch.setattr(files, "affinity", lambda cores=cores: cores)
        found.add(calibration_file(options))
    assert len(found) == 2


def test_a_slow_or_disturbed_run_does_not_count() -> None:
    disturbances = iter([0.005, 0.0])

    def work(count: int) -> None:
        time.sleep(count * 1e-4 + next(disturbances, 0.0))

    best = loops.best_seconds([work], [0], run_seconds=0.002, within=0.1)
    assert 1e-4 <= best < 2e-3


def test_runs_take_turns() -> None:
    """What slows a core down for a while slows all of them: cycles are a time by another one."""
    order, speeds = [], iter([2.0] * 20 + [1.0] * 20)

    def work(name: str, seconds: float) -> Callable[[int], float]:
        def run(count: int) -> float:
            order.append(name)
            return count * seconds * next(speeds, 1.0)

        return run

    assert loops._best([work("clock", 1.0), work("chain", 4.0)], 0.5, 0.001) == [1.0, 4.0]
    assert order[:6] == ["clock", "chain"] * 3


def test_a_measurement_ends_when_its_time_is_over() -> None:
    start = time.perf_counter()
    loops.best_seconds([lambda count: time.sleep(0.01)], [0], run_seconds=0.01, within=0.05)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("rounds", "rate"),
    [
        ([4.0, 3.9], 4.0),
        ([4.0, 3.7], None),
        ([4.0, 3.7, 3.6], None),
        ([4.28, 4.0, 3.98, 3.95], 4.0),  # one round was faster than the others can be
        ([4.28, 4.0, 3.9, 3.7, 3.7, 3.7], None),  # rates of a busy machine
        ([4.0], None),
    ],
)
def test_a_rate_is_one_that_rounds_agree_on(rounds: list[float], rate: float | None) -> None:
    assert calibrate.confirmed(rounds) == rate
