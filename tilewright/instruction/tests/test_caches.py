"""Loops through caches: what runs where, what moves how often."""

from __future__ import annotations

from math import inf

from tilewright.instruction.caches import Step, levels_in_caches
from tilewright.instruction.model import Access, Hierarchy, Memory, predict

# A product C[i, j] += A[i, k] * B[k, j] in f32, a call computes 4 x 16 points of one k.
ACCESSES = (
    Access(({"i": 1}, {"k": 1}), 4), Access(({"k": 1}, {"j": 1}), 4), Access(({"i": 1}, {"j": 1}), 4, output=True),
)  # fmt: skip
UNITS = {"i": 4, "j": 16, "k": 1}
NEST = (Step("j", "S", 8), Step("i", "S", 32), Step("k", "R", 64))


def machine(l1: float, l2: float, cores: int = 1) -> Hierarchy:
    return Hierarchy(
        "toy", 1e9,
        (Memory("registers", 2048, 64, 64), Memory("L1", l1, 32, 32), Memory("L2", l2, 16, 16),
         Memory("L3+DRAM", inf, 8, 8, cores)),
    )  # fmt: skip


PANEL = 4 * (4 * 64 + 64 * 16 + 4 * 16)  # bytes of one tile over all k
ROWS = 4 * (128 * 64 + 64 * 16 + 128 * 16)  # of all rows of one panel of b


def test_a_level_takes_loops_while_they_fit() -> None:
    _, l1, l2, rest = levels_in_caches(NEST, UNITS, ACCESSES, machine(PANEL, ROWS))
    assert (l1.reductions, l1.trips) == ((64,), ())
    assert (l2.reductions, l2.trips) == ((), (32,))
    assert rest.trips == (8,)
    assert (l1.held_bytes, l2.held_bytes) == (PANEL, ROWS)
    _, l1, l2, rest = levels_in_caches(NEST, UNITS, ACCESSES, machine(PANEL - 1, ROWS - 1))
    assert (l1.reductions, l2.reductions, l2.trips, rest.trips) == ((), (64,), (), (8, 32))


def test_what_the_next_loops_do_not_touch_moves_once_for_all_of_them() -> None:
    registers, l1, l2, _ = levels_in_caches(NEST, UNITS, ACCESSES, machine(PANEL, ROWS))
    assert registers.bytes_in == 4 * (4 + 16)
    assert l1.bytes_in == 4 * (4 * 64 + 64 * 16 / 32)  # the panel of b stays for all rows
    assert l2.bytes_in == 4 * (128 * 64 / 8 + 64 * 16)  # all rows of a stay for all panels


def test_sums_leave_when_they_are_complete() -> None:
    hierarchy = machine(PANEL, ROWS)
    nest = levels_in_caches(NEST, UNITS, ACCESSES, hierarchy)
    writes = [timing.write_cycles for timing in predict(nest, 1, hierarchy).timings[1:]]
    assert writes[0] == 4 * 4 * 16 / 64 / 64  # of one tile, per step of k
    assert writes[1] == 4 * 4 * 16 / 32
    blocked = (Step("j", "S", 8), Step("k", "R", 4), Step("i", "S", 32), Step("k", "R", 16))
    nest = levels_in_caches(blocked, UNITS, ACCESSES, hierarchy)
    writes = [timing.write_cycles for timing in predict(nest, 1, hierarchy).timings[1:]]
    assert writes[0] == 4 * 4 * 16 / 64 / 16  # in four visits


def test_loops_that_cores_share_are_at_the_last_level() -> None:
    shared = levels_in_caches(NEST, UNITS, ACCESSES, machine(inf, inf, cores=2), parallel={0})
    assert shared[3].parallel == (8,)
    assert shared[1].trips == (32,)
    alone = levels_in_caches(NEST, UNITS, ACCESSES, machine(inf, inf))
    assert (alone[1].trips, alone[3].trips) == ((8, 32), ())
    two = machine(inf, inf, cores=2)
    assert predict(shared, 10, two).cycles * 2 == predict(alone, 10, machine(inf, inf)).cycles


def test_no_nest_is_refused_for_its_size() -> None:
    tiny = machine(1, 1)
    found = predict(levels_in_caches(NEST, UNITS, ACCESSES, tiny), 2, tiny)
    assert 2 * 8 * 32 * 64 < found.cycles < inf
