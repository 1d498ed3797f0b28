"""Ceilings: which one bounds what, and that the loops run and scale with their work."""

from __future__ import annotations

import pytest

from bench.ceilings import Ceilings, Loops, bound_seconds, cache_bytes
from bench.processes import own_cores

MACHINE = Ceilings(
    threads=2, f32=100.0, bf16=None, int8=400.0,
    l1_read=80.0, l2_read=40.0, l3_read=20.0, dram_read=10.0, copy=8.0, l2_bytes=1000, l3_bytes=10_000,
)  # fmt: skip


def test_products_are_bound_by_arithmetic_or_by_the_level_that_holds_them() -> None:
    assert bound_seconds("f32", 10_000, 100, MACHINE) == 100.0
    assert bound_seconds("f32", 0, 2000, MACHINE) == 50.0  # fits both L2 caches
    assert bound_seconds("f32", 0, 10_000, MACHINE) == 500.0
    assert bound_seconds("f32", 0, 10_001, MACHINE) == pytest.approx(1000.1)
    assert bound_seconds("int8", 4000, 0, MACHINE) == 10.0


def test_copies_are_bound_by_copies_and_calls_by_nothing() -> None:
    assert bound_seconds("copy", 10**9, 80, MACHINE) == 10.0
    assert bound_seconds("none", 1, 1, MACHINE) is None
    assert bound_seconds("bf16", 1, 1, MACHINE) is None  # a machine without the instruction


def test_loops_measure_plausible_rates() -> None:
    loops = Loops()
    core = own_cores()[:1]
    peak = loops.peak("f32", core)
    assert 1e9 < peak < 1e12
    small, large = loops.read(cache_bytes()[0] // 2, core), loops.copy(32 << 20, core)
    assert 1e9 < large < small  # a copy of main memory is slower than reading the first cache
