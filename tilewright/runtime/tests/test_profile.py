"""Profiles as tables, and estimates of launches on a machine with given rates."""

from dataclasses import replace

import pytest

from tilewright.codegen.host_program import Launch
from tilewright.machine import resolve_cpu
from tilewright.machine.description import Cpu
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.profile import KernelTime, Profile, shortened
from tilewright.runtime.roofline import Roofline

FMA = "fma_16_f32_f32"
PRODUCT = Launch("conv+relu", "conv", 4, flops=64_000_000, bytes=1000, cycles=1_200_000, instruction=FMA)
COPY = Launch("copy", "copy", 4, bytes=8_000_000, cycles=10_000)
SORT = Launch("sort", "sort", 1, flops=1000, bytes=1000)


def measured() -> Cpu:
    """4 GHz, 32 multiply-adds of 2 FLOP a cycle, a last cache of 32 MiB at 32 bytes a cycle, memory at 40 GB/s."""
    machine = resolve_cpu("znver5")
    caches = tuple(
        replace(cache, bytes_per_cycle=rate, bytes_per_second=None)
        for cache, rate in zip(machine.caches, (128.0, 64.0, 32.0), strict=True)
    )
    dram = replace(machine.dram, bytes_per_second=4e10, bytes_per_second_per_core=4e10)
    return replace(machine, clock_hz=4e9, issue_cycles={FMA: 0.5}, latency_cycles={FMA: 4.0}, caches=caches, dram=dram)


def manifest(*launches: Launch, constants_bytes: int = 0) -> Manifest:
    spec = TensorSpec("x", "f32", (1 << 21,))
    return Manifest(
        name="m", inputs=(spec,), outputs=(), constants_bytes=constants_bytes, arena_bytes=0, launches=launches,
        features=(), triple="x86_64-unknown-linux-gnu",
    )  # fmt: skip


def test_a_product_is_bound_by_its_instruction() -> None:
    found = Roofline(measured(), manifest(PRODUCT), 1).estimate(PRODUCT)
    assert found is not None
    assert found.bound == "compute"
    assert found.seconds == pytest.approx(1.2e6 / 4e9, rel=0.01)
    assert found.least_seconds == pytest.approx(64e6 / (4e9 * 64)), "two instructions a cycle, 16 lanes, 2 operations"


def test_a_product_is_no_faster_than_its_instruction_was_measured() -> None:
    """Plans are made without measured rates: products of bytes were predicted at 0.42 of their time on a Zen 1."""
    slow = replace(measured(), issue_cycles={FMA: 2.0})
    found = Roofline(slow, manifest(PRODUCT), 1).estimate(PRODUCT)
    assert found is not None
    assert found.least_seconds == pytest.approx(2 * 64e6 / 32 / 4e9)
    assert found.least_seconds <= found.seconds < 1.01 * found.least_seconds


def test_bytes_come_from_the_level_that_holds_all_tensors() -> None:
    near = Roofline(measured(), manifest(COPY), 1).estimate(COPY)
    assert near is not None
    assert near.bound == "L3"
    assert near.least_seconds == pytest.approx(8e6 / (32 * 4e9))


def test_constants_come_from_memory_where_no_cache_holds_all_tensors() -> None:
    large = replace(COPY, constant_bytes=8_000_000)
    found = Roofline(measured(), manifest(large, constants_bytes=1 << 30), 1).estimate(large)
    assert found is not None
    assert found.bound == "memory"
    assert found.seconds >= 8e6 / 4e10


def test_threads_share_arithmetic() -> None:
    one, two = (Roofline(measured(), manifest(PRODUCT), threads).estimate(PRODUCT) for threads in (1, 2))
    assert one is not None
    assert two is not None
    assert two.seconds < 0.6 * one.seconds


def test_the_thread_with_the_most_programs_decides() -> None:
    uneven = replace(PRODUCT, programs=3)
    found, even = (Roofline(measured(), manifest(each), 2).estimate(each) for each in (uneven, PRODUCT))
    assert found is not None
    assert even is not None
    assert found.seconds == pytest.approx(even.seconds * 4 / 3, rel=0.01), "two of three programs, not one and a half"


def test_there_is_no_estimate_without_a_model_or_rates() -> None:
    assert Roofline(measured(), manifest(SORT), 1).estimate(SORT) is None
    times = Profile([KernelTime("sort", "sort", 1, 1000, 1000, 1e-3)], manifest(SORT), 1)
    (row,) = times.rows(measured())
    assert row.predicted_seconds is None
    times = Profile([KernelTime("conv+relu", "conv", 4, 64_000_000, 1000, 1e-3)], manifest(PRODUCT), 1)
    assert times.rows(resolve_cpu("znver5"))[0].predicted_seconds is None, "rates were assumed, not measured"


def test_launches_of_one_code_are_one_row_and_the_longest_comes_first() -> None:
    launches = (COPY, PRODUCT, replace(PRODUCT, name="conv_1+relu_1"))
    seconds = (1e-4, 4e-4, 5e-4)
    pairs = zip(launches, seconds, strict=True)
    times = [KernelTime(each.name, each.kernel, each.programs, each.flops, each.bytes, took) for each, took in pairs]
    profile = Profile(times, manifest(*launches), 1)
    first, second = profile.rows(measured())
    assert (first.name, first.count, first.seconds) == ("conv+relu", 2, pytest.approx(9e-4))
    assert first.share == pytest.approx(0.9)
    assert first.ceiling_share == pytest.approx(2 * 64e6 / (4e9 * 64) / 9e-4)
    assert second.bound == "L3"
    assert [time.name for time in profile] == ["copy", "conv+relu", "conv_1+relu_1"], "the order of a call"
    lines = profile.table(measured(), most=1).splitlines()
    assert lines[1].startswith("conv+relu")
    assert lines[2].startswith("1 others")
    assert max(map(len, lines)) <= 80


def test_long_names_lose_their_middle() -> None:
    assert shortened("conv2d_16+add+relu_15", 11) == "conv2…lu_15"
    assert shortened("y", 11) == "y"
