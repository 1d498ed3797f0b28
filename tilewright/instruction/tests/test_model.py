"""The performance model: the golden example, every convention on its own, and its monotony."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.errors import InvalidArgument, InvalidMachine
from tilewright.expr.text import parse_compute
from tilewright.instruction.mapping import mapping_of
from tilewright.instruction.matching import match
from tilewright.instruction.model import (
    Access,
    Hierarchy,
    Level,
    Memory,
    Relayout,
    SplitLoop,
    combined,
    core_cycles,
    hierarchy,
    levels_of,
    mapping_seconds,
    nest_of,
    predict,
)
from tilewright.instruction.physical import PhysicalMapping, physical
from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Operand
from tilewright.intrinsics.registry import standard
from tilewright.machine import machine_from_json, resolve

TOY = Hierarchy(
    "toy", 1e9,
    (Memory("registers", 64 << 10, 32, 32), Memory("shared", 96 << 10, 64, 64, 4), Memory("device", inf, inf, inf, 80)),
)  # fmt: skip
GEMM = (  # block 128x128, k-step 32, 4 warps of 64x64, wmma 16x16x16, 32 k-steps
    Level((4, 4), bytes_in=4096),
    Level((), reductions=(2,), parallel=(2, 2), bytes_in=16384, bytes_out=65536, resident_bytes=16384),
    Level((), reductions=(32,)),
)
MULTIPLY = Intrinsic(
    "multiply", "toy", "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]", {"i1": 16, "i2": 16, "r1": 16},
    (Operand("Src1", "f16", ("i1", "r1")), Operand("Src2", "f16", ("r1", "i2")), Operand("Dst", "f32", ("i1", "i2"))),
    Cost(issue_cycles=64, units_per_core=4), "a test",
)  # fmt: skip


def with_rate(machine: Hierarchy, level: int, rate: float) -> Hierarchy:
    levels = list(machine.levels)
    levels[level] = replace(levels[level], in_bytes_per_cycle=rate)
    return replace(machine, levels=tuple(levels))


def test_small_copies_stay_in_the_last_cache() -> None:
    machine = hierarchy(resolve("znver5"), cores=1)
    small, large = machine.levels[-1].near_bytes, 2 * machine.levels[-1].near_bytes
    assert machine.copy_seconds(large) > 2.5 * machine.copy_seconds(small)
    assert machine.copy_seconds(large) == large / machine.device_bytes_per_second


def test_spec3_g27() -> None:
    assert predict(GEMM, 32, TOY).cycles == 32768
    assert predict(GEMM, 32, TOY, pipelined=True).cycles == 37120
    assert predict(GEMM, 32, with_rate(TOY, 1, 10)).cycles == pytest.approx(52428.8)


def test_spec3_g27_from_loops_and_accesses() -> None:
    loops = [
        SplitLoop("i", "S", (4, 2, 1), 16, frozenset({1})),
        SplitLoop("j", "S", (4, 2, 1), 16, frozenset({1})),
        SplitLoop("k", "R", (1, 2, 32), 16),
    ]
    accesses = [Access(({"i": 1}, {"k": 1}), 2), Access(({"k": 1}, {"j": 1}), 2), Access(({"i": 1}, {"j": 1}), 4, True)]
    levels = levels_of(loops, accesses)
    assert [level.bytes_in for level in levels[:2]] == [4096, 16384]
    assert levels[1].bytes_out == 65536
    assert predict(levels, 32, TOY).cycles == 32768
    assert predict(levels, 32, with_rate(TOY, 1, 10)).cycles == pytest.approx(52428.8)


def test_the_bottleneck_is_named() -> None:
    fast = predict(GEMM, 32, TOY)
    assert fast.bottleneck == ("registers", "compute")
    slow = predict(GEMM, 32, with_rate(TOY, 1, 10))
    assert slow.bottleneck == ("shared", "read")
    assert slow.to_json()["bound"] == {"level": "shared", "by": "read"}
    assert "bound by read at shared" in slow.explain()
    (registers, shared, device) = slow.timings
    assert (shared.compute_cycles, shared.read_cycles, shared.rounds) == (512, 128, 2)
    assert (device.compute_cycles, device.read_cycles, device.write_cycles) == (1024, 1638.4, 32)
    assert registers.rounds == 16


def test_times_hide_each_other_as_far_as_is_asked() -> None:
    assert combined((3, 4, 0), inf) == 4
    assert combined((3, 4, 0), 2) == pytest.approx(5)
    assert combined((3, 4, 0), 1) == pytest.approx(7)
    assert combined((0, 0, 0), 2) == 0
    assert combined((inf, 1, 1), 3) == inf
    assert (
        predict(GEMM, 32, TOY).cycles
        < predict(GEMM, 32, TOY, overlap=3).cycles
        < predict(GEMM, 32, TOY, overlap=1).cycles
    )


def test_parallel_loops_go_in_waves() -> None:
    levels = tuple(replace(memory, units=4) for memory in TOY.levels)
    machine = replace(TOY, levels=levels)
    nest = (Level(), Level(), Level(parallel=(2,)))
    assert predict(nest, 4, machine).cycles == 4
    assert predict((Level(), Level(), Level(parallel=(3, 3))), 4, machine).cycles == 12  # nine in waves of four


def test_too_much_for_a_memory_is_refused() -> None:
    found = predict((GEMM[0], replace(GEMM[1], resident_bytes=(96 << 10) + 1), GEMM[2]), 32, TOY)
    assert found.seconds == inf
    assert "shared holds 98304 bytes, the tile has 98305" in found.explain()
    assert not found.evaluation().valid


def test_relayouts_cost_where_they_happen() -> None:
    plain = predict(GEMM, 32, TOY)
    folded = predict(GEMM, 32, TOY, [Relayout("w", "folded", 1e9, 1e9)])
    assert folded == plain
    own = predict(GEMM, 32, TOY, [Relayout("x", "materialised", 3e9, 1e9)])
    assert own.relayout_seconds == pytest.approx(4e9 / (64 * 80 * 1e9))
    assert own.seconds == plain.seconds + own.relayout_seconds
    assert own.bottleneck == ("relayouts", "relayout")
    copied = replace(GEMM[1], copied_bytes=8 * 32 * 1024)  # 8 executions of level 0: 1024 more cycles each
    assert predict((GEMM[0], copied, GEMM[2]), 32, TOY).timings[1].read_cycles == 128 + 1024


def test_an_input_is_not_loaded_again_by_loops_that_do_not_touch_it() -> None:
    accesses = [Access(({"i": 1}, {"k": 1}), 4), Access(({"k": 1}, {"j": 1}), 4), Access(({"i": 1}, {"j": 1}), 4, True)]

    def outer(*order: str) -> float:
        counts = {"i": (1, 8), "j": (1, 8), "k": (1, 1)}
        unit = {"i": 2, "j": 2, "k": 16}
        loops = [SplitLoop(n, "R" if n == "k" else "S", counts[n], unit[n]) for n in order]
        return levels_of(loops, accesses)[0].bytes_in

    assert outer("i", "j", "k") == outer("j", "i", "k") == 2 * 16 * 4 / 8 + 16 * 2 * 4  # one of the two stays


def test_windows_are_intervals() -> None:
    image = Access(({"p": 2, "r": 1},), 4)
    assert image.bytes({"p": 4, "r": 3}) == 4 * (1 + 2 * 3 + 2)
    assert not image.touches("q")


def test_what_the_last_cache_does_not_hold_is_read_from_memory() -> None:
    memories = (
        Memory("registers", 1e4, 64, 64), Memory("L1", 1e5, 32, 32), Memory("L2+DRAM", inf, 2, 4, 2, near_bytes=1000),
    )  # fmt: skip
    machine = Hierarchy("toy", 1e9, memories)
    nest = (Level((1,)), Level((1,), bytes_in=640), Level((10,), resident_bytes=1000))
    assert predict(nest, 1, machine).cycles == 10 * 20
    beyond = (predict((*nest[:2], replace(nest[2], resident_bytes=size)), 1, machine) for size in (1001, 4000))
    near, far = 640 / 32, 640 / 2
    assert [each.cycles for each in beyond] == pytest.approx(
        [10 * (near * 1000 + far) / 1001, 10 * (near / 4 + far * 3 / 4)]
    )


def test_levels_of_loops_and_machine_must_agree() -> None:
    with pytest.raises(InvalidArgument, match="2 levels of loops for the 3 levels"):
        predict(GEMM[:2], 32, TOY)


def test_gpu_facts_of_spec3_4_2() -> None:
    """Bytes per cycle into shared memory, cycles of wmma 16x16x16 on a sub-core, global bytes per cycle."""
    expected = {
        "nvidia-v100-sxm2": (7.35, 32, 588),
        "nvidia-a100-sxm4-40gb": (10.2, 16, 1103),
        "nvidia-h200-sxm": (19.9, 8, 2623),
    }
    for name, (into_shared, cycles, whole) in expected.items():
        machine = hierarchy(resolve(name))
        assert machine.levels[1].in_bytes_per_cycle == pytest.approx(into_shared, abs=0.05)
        assert core_cycles(MULTIPLY, machine) * machine.units_per_core == cycles
        assert machine.device_bytes_per_second / machine.clock_hz == pytest.approx(whole, abs=0.5)
        assert (machine.levels[0].in_bytes_per_cycle, machine.levels[0].capacity_bytes) == (32, 64 << 10)
    assert hierarchy(resolve("nvidia-v100-sxm2")).levels[1].capacity_bytes == 96 << 10


def test_peaks_of_gpus_follow_from_their_facts() -> None:
    for name, tera in (("nvidia-v100-sxm2", 125), ("nvidia-a100-sxm4-40gb", 312), ("nvidia-h200-sxm", 989)):
        machine = hierarchy(resolve(name))
        macs = MULTIPLY.macs / core_cycles(MULTIPLY, machine) * machine.cores * machine.clock_hz
        assert 2e-12 * macs == pytest.approx(tera, rel=0.005)


def test_cpu_levels() -> None:
    machine = hierarchy(resolve("znver5"))
    assert [level.name for level in machine.levels] == ["registers", "L1", "L2", "L3+DRAM"]
    assert [level.in_bytes_per_cycle for level in machine.levels[:3]] == [128, 64, 24]
    assert machine.cores == 2
    assert hierarchy(resolve("znver5"), cores=1).device_bytes_per_second == pytest.approx(42e9)
    with pytest.raises(InvalidMachine, match="is of kind accelerator"):
        hierarchy(resolve("edge"))


def test_measured_cycles_come_before_stated_ones() -> None:
    facts = resolve("znver5").to_json() | {"issue_cycles": {"multiply": 3.5}}
    assert core_cycles(MULTIPLY, hierarchy(machine_from_json(facts))) == 3.5
    assert core_cycles(MULTIPLY, hierarchy(resolve("znver5"))) == 16


def test_a_record_takes_twice_as_long_where_a_core_has_one_multiply_add_a_cycle() -> None:
    """`tilewright map` priced mappings on such processors at half of the least possible time."""
    record = standard().find("fma_8_f32_f32")
    assert core_cycles(record, hierarchy(resolve("znver5"))) == record.cost.issue_cycles == 0.5
    assert core_cycles(record, hierarchy(resolve("znver1"))) == 1


def test_outer_products_cost_what_their_instruction_was_measured_at() -> None:
    facts = resolve("znver5").to_json() | {"issue_cycles": {"fma_16_f32_f32": 0.75}}
    record = standard().find("outer_6x4x1_fma_16_f32_f32")
    assert core_cycles(record, hierarchy(machine_from_json(facts))) == 24 * 0.75
    assert core_cycles(record, hierarchy(resolve("znver5"))) == record.cost.issue_cycles


def product(m: int, n: int, k: int) -> PhysicalMapping:
    sizes = {"i": m, "j": n, "k": k}
    dtypes = {"A": "f16", "B": "f16", "C": "f32"}
    node = parse_compute("C[i, j] += f32(A[i, k]) * f32(B[k, j])", sizes, dtypes)
    (found,) = match(node, standard().find("wmma_16x16x16_f16_f32"))
    return physical(mapping_of(found, [["i"], ["j"], ["k"]]))


def test_spec3_g27_from_a_mapping() -> None:
    counts = {"i1": (4, 2, 1), "i2": (4, 2, 1), "r1": (1, 2, 32)}
    nest = nest_of(product(128, 128, 1024), counts, {"i1": {1}, "i2": {1}})
    assert predict(nest, 32, TOY).cycles == 32768
    assert predict(nest, 32, with_rate(TOY, 1, 10)).cycles == pytest.approx(52428.8)


def test_outer_loops_and_windows_of_a_mapping() -> None:
    sizes = {"n": 4, "k": 16, "p": 8, "c": 16, "r": 3}
    node = parse_compute(
        "Y[n, k, p] += f32(X[n, c, p + r]) * f32(W[k, c, r])", sizes, {"X": "f16", "W": "f16", "Y": "f32"}
    )
    (found,) = match(node, standard().find("wmma_16x16x16_f16_f32"))
    whole = physical(mapping_of(found, [["n"], ["k"], ["c"]]))  # p and r stay outside and share a dimension
    counts = {"p": (1, 8), "r": (3, 1), "i1": (1, 1), "i2": (1, 1), "r1": (1, 1)}
    inner, outer = nest_of(whole, counts)
    assert (inner.reductions, outer.trips) == ((3,), (8,))
    assert inner.bytes_in == 2 * (3 * 16 * 16 + 3 * 16 * 16 / 8)  # rows for 3 windows; weights are loaded once
    assert outer.held_bytes == 2 * (10 * 256 + 3 * 256) + 4 * 8 * 256


@pytest.mark.parametrize(("counts", "message"), [
    ({"i1": (8, 1), "i2": (8, 1)}, "trips of r1"),
    ({"i1": (8, 1), "i2": (8, 1), "r1": (2, 1), "z": (1, 1)}, "trips of z"),
    ({"i1": (4, 1), "i2": (8, 1), "r1": (2, 1)}, "loop i1 has 8 trips, its levels 4"),
])  # fmt: skip
def test_tilings_must_cover_the_mapping(counts: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        nest_of(product(128, 128, 32), counts)


def test_mappings_are_ordered_by_calls_and_relayouts() -> None:
    machine = hierarchy(resolve("nvidia-a100-sxm4-40gb"))
    whole = product(16 * 108, 160, 160)
    bytes_ = 2 * (2 * 16 * 108 * 160 + 2 * 160 * 160 + 2 * 2 * 16 * 108 * 160)  # stored and original, the result in f32
    assert mapping_seconds(whole, machine) == pytest.approx(100 * 4 / 1.41e9 + bytes_ / 1555e9)
    assert mapping_seconds(whole, resolve("nvidia-a100-sxm4-40gb")) == mapping_seconds(whole, machine)
    assert mapping_seconds(product(16 * 108, 160, 170), machine) > mapping_seconds(whole, machine)


TRIPS = st.lists(st.integers(1, 5), max_size=3).map(tuple)
LEVEL = st.builds(
    Level, TRIPS, TRIPS, TRIPS, st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5), st.just(0.0)
)  # fmt: skip
RATE = st.floats(0.5, 100)


@settings(max_examples=tries(30, full=150), deadline=None)
@given(st.tuples(LEVEL, LEVEL, LEVEL), st.integers(0, 2), st.sampled_from(["trips", "parallel"]), st.booleans())
def test_more_trips_never_take_less_time(nest: tuple[Level, ...], place: int, kind: str, pipelined: bool) -> None:
    plain = [replace(level, copied_bytes=0.0) for level in nest]
    more = list(plain)
    more[place] = replace(more[place], **{kind: (*getattr(more[place], kind), 2)})
    before, after = (predict(levels, 3, TOY, pipelined=pipelined).cycles for levels in (plain, more))
    assert after >= before


@settings(max_examples=tries(30, full=150), deadline=None)
@given(st.tuples(LEVEL, LEVEL, LEVEL), st.integers(0, 2))
def test_more_reductions_never_take_less_time(nest: tuple[Level, ...], place: int) -> None:
    plain = [replace(level, copied_bytes=0.0) for level in nest]
    more = list(plain)
    more[place] = replace(more[place], reductions=(*more[place].reductions, 2))
    assert predict(more, 3, TOY).cycles >= predict(plain, 3, TOY).cycles * (1 - 1e-12)


@settings(max_examples=tries(30, full=150), deadline=None)
@given(st.tuples(LEVEL, LEVEL, LEVEL), st.integers(0, 1), RATE, RATE, st.booleans())
def test_a_faster_memory_never_takes_more_time(
    nest: tuple[Level, ...], place: int, one: float, other: float, pipelined: bool
) -> None:
    slow, fast = (with_rate(TOY, place, rate) for rate in sorted((one, other)))
    assert predict(nest, 3, fast, pipelined=pipelined).cycles <= predict(nest, 3, slow, pipelined=pipelined).cycles
