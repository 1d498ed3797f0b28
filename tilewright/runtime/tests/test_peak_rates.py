"""The least times of launches, worked out by hand from descriptions of machines."""

from __future__ import annotations

import pytest

from tilewright.codegen.host_program import Launch
from tilewright.machine import resolve
from tilewright.machine.description import Cpu, Gpu
from tilewright.runtime.peak_rates import PeakRates, machine_of


def rates(name: str, threads: int = 1) -> PeakRates:
    machine = resolve(name)
    assert isinstance(machine, Cpu | Gpu)
    return PeakRates(machine, threads)


def launch(flops: int, bytes_: int, instruction: str = "") -> Launch:
    return Launch("y", "y", 0, flops, bytes_, instruction=instruction)


@pytest.mark.parametrize(
    ("instruction", "macs"),
    [("", 64), ("of a user", 64), ("mma_m16n8k16_f16_f32", 1024), ("mma_m16n8k32_s8_s32", 2048)],
)
def test_operations_of_a_gpu(instruction: str, macs: int) -> None:
    """sm_80 has 108 multiprocessors at 1.41 GHz, whose multiply-adds a cycle differ by the instruction."""
    expected = 7e12 / (2 * macs * 108 * 1.41e9)
    assert rates("sm_80").seconds(launch(7 * 10**12, 1, instruction)) == pytest.approx(expected)


def test_bytes_of_a_gpu() -> None:
    assert rates("sm_80").seconds(launch(1, 1_555_000_000_000)) == pytest.approx(1.0)


@pytest.mark.parametrize("threads", [1, 2, 10**6])
def test_operations_of_a_cpu(threads: int) -> None:
    """Vectors of 8 lanes in f32, on as many cores as there are threads, or as there are."""
    machine = rates("x86-64-v3").machine
    assert isinstance(machine, Cpu)
    rate = 2 * machine.fma_units * 8 * min(threads, machine.cores) * machine.nominal_clock_hz
    assert rates("x86-64-v3", threads).seconds(launch(10**12, 1)) == pytest.approx(1e12 / rate)


@pytest.mark.parametrize(("machine", "cycles"), [("x86-64-v3", 0.5), ("znver1", 1.0)])
def test_operations_of_an_instruction_of_a_cpu(machine: str, cycles: float) -> None:
    """Records say cycles for two multiply-adds a cycle, of which a Zen 1 has one."""
    described = rates(machine).machine
    expected = 7e9 / (2 * 8 / cycles * described.nominal_clock_hz)
    assert rates(machine).seconds(launch(7 * 10**9, 1, "fma_8_f32_f32")) == pytest.approx(expected)


def test_a_machine_that_is_not_listed_is_one_of_its_kind() -> None:
    gpu = machine_of("mine", "nvptx64-nvidia-cuda")
    assert isinstance(gpu, Gpu)
    assert gpu.llvm.triple == "nvptx64-nvidia-cuda"
    assert machine_of("mine", "riscv64-unknown-linux-gnu") is None
    assert machine_of("sm_80", "") == resolve("sm_80")
