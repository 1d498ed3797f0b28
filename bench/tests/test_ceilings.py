"""Ceilings: which one bounds what, and that the loops run and scale with their work."""

from __future__ import annotations

import pytest

from bench.ceilings import READS, Bound, Ceilings, Gauge, Loops, bound, cache_bytes
from bench.problem import Facts
from bench.processes import own_cores

MACHINE = Ceilings(
    threads=2, f32=100.0, bf16=None, int8=400.0, exponentials=5.0,
    l1_read=80.0, l2_read=40.0, l3_read=20.0, dram_read=10.0, copy=8.0, l2_bytes=1000, l3_bytes=10_000,
)  # fmt: skip


def facts(flops: int, bytes_: int, exponentials: int = 0) -> Facts:
    return Facts(flops, exponentials, bytes_, tolerance=1e-4, output_names=("y",))


def test_products_are_bound_by_arithmetic_or_by_the_level_that_holds_them() -> None:
    assert bound("f32", facts(10_000, 100), MACHINE) == Bound("f32", 10_000, 100.0)
    assert bound("f32", facts(0, 2000), MACHINE) == Bound("l2_read", 2000, 50.0)  # fits both L2 caches
    assert bound("f32", facts(0, 10_000), MACHINE) == Bound("l3_read", 10_000, 500.0)
    assert bound("f32", facts(0, 10_001), MACHINE) == Bound("dram_read", 10_001, pytest.approx(1000.1))
    assert bound("int8", facts(4000, 0), MACHINE) == Bound("int8", 4000, 10.0)


def test_the_exponentials_of_a_softmax_take_their_time_beside_the_products() -> None:
    least = bound("f32", facts(10_000, 100, exponentials=50), MACHINE)
    assert least == Bound("f32", 10_000 + 50 * 20, 100.0 + 10.0)


def test_copies_are_bound_by_copies_and_calls_by_nothing() -> None:
    assert bound("copy", facts(10**9, 80), MACHINE) == Bound("copy", 80, 10.0)
    assert bound("none", facts(1, 1), MACHINE) is None
    assert bound("bf16", facts(1, 1), MACHINE) is None  # a machine without the instruction


def test_loops_measure_plausible_rates() -> None:
    loops = Loops()
    core = own_cores()[:1]
    best = {name: max(Gauge(loops, name, core).rates(3)) for name in ("f32", "exponentials", "l1_read", "copy")}
    assert 1e9 < best["f32"] < 1e12
    assert best["f32"] / 500 < best["exponentials"] < best["f32"] / 10  # of 11 to 50 instructions each
    assert 1e9 < best["copy"] < best["l1_read"]  # a copy of main memory is slower than reading the first cache


def test_buffers_of_main_memory_exceed_the_last_cache_whatever_the_threads() -> None:
    l3 = cache_bytes()[2]
    for threads in (1, 2, 3):
        assert threads * READS["dram_read"](threads) > 2 * l3
        assert 2 * threads * READS["copy"](threads) > 2 * l3  # a copy has two buffers
