"""Loops through caches: what runs where, what moves how often."""

from __future__ import annotations

from math import inf

from tilewright.instruction.caches import Step, Strided, levels_in_caches
from tilewright.instruction.model import Access, Hierarchy, Memory, predict
from tilewright.machine.description import SCATTERED

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


def test_a_loop_that_does_not_fit_is_split() -> None:
    _, l1, l2, rest = levels_in_caches(NEST, UNITS, ACCESSES, machine(PANEL - 1, ROWS - 1))
    assert (l1.reductions, l1.trips) == ((32,), ())
    assert (l2.reductions, l2.trips) == ((2,), (16,))
    assert rest.trips == (8, 2)


def test_a_ragged_tile_touches_less() -> None:
    _, l1, *_ = levels_in_caches((Step("k", "R", 64),), {**UNITS, "i": 3.5}, ACCESSES, machine(inf, inf))
    assert l1.held_bytes == 4 * (3.5 * 64 + 64 * 16 + 3.5 * 16)


IMAGE = Strided(({"c": 784, "y": 56, "x": 2},), 4)  # channels of 28 x 28, read with stride 2


def test_caches_hold_whole_lines() -> None:
    assert IMAGE.bytes({"c": 128, "y": 1, "x": 1}) == 4 * 128
    assert IMAGE.lines({"c": 128, "y": 1, "x": 1}) == (64 * 128, 64)
    assert IMAGE.lines({"c": 1, "y": 1, "x": 8}) == (4 + 7 * 8 + 60, 4 + 7 * 8 + 60)
    rows = Strided(({"k": 1, "y": 3584},), 4)
    assert rows.lines({"k": 64, "y": 3}) == (3 * 256, 256)  # whole lines begin with one


def test_windows_share_what_they_read() -> None:
    window = Strided(({"y": 30, "r": 30, "x": 1, "s": 1},), 4)
    assert window.bytes({"y": 1, "r": 3, "x": 7, "s": 3}) == 4 * 3 * 9
    assert window.bytes({"y": 28, "r": 3, "x": 28, "s": 3}) == 4 * 30 * 30
    assert window.bytes({"y": 1, "r": 1, "x": 2, "s": 1}) == 4 * 2


def test_scattered_lines_take_longer() -> None:
    near = Strided(({"c": 1, "y": 784},), 4)
    nest, units = (Step("y", "S", 4), Step("c", "R", 128)), {"c": 1, "y": 1, "x": 1}
    _, one, *_ = levels_in_caches(nest, units, (near,), machine(4 * 128, inf))
    _, other, *_ = levels_in_caches(nest, units, (IMAGE,), machine(64 * 128, inf))
    assert one.bytes_in == 4 * 128
    assert other.bytes_in == SCATTERED * 64 * 128


def test_the_next_trip_finds_the_rest_of_a_line() -> None:
    """All rows of a column of an image fit L1, its neighbours do not: 8 columns of stride 2 lie in one line."""
    nest, units = (Step("x", "S", 8), Step("c", "R", 128)), {"c": 1, "y": 1, "x": 1}
    _, l1, l2, _ = levels_in_caches(nest, units, (IMAGE,), machine(64 * 128, inf))
    assert l1.trips == ()
    assert l2.trips == (8,)
    assert l1.bytes_in == SCATTERED * IMAGE.lines({"c": 128, "y": 1, "x": 8})[0] / 8


def test_sums_that_are_read_back_move_again_and_are_held_once() -> None:
    written = Strided(({"j": 1, "i": 64},), 4, output=True)
    again = Strided(({"j": 1, "i": 64},), 4, again=True)
    nest = (Step("i", "S", 32), Step("k", "R", 16))
    once, twice = (levels_in_caches(nest, UNITS, each, machine(4096, inf)) for each in ((written,), (written, again)))
    assert [level.held_bytes for level in once] == [level.held_bytes for level in twice]
    assert once[1].bytes_in == 0 < twice[1].bytes_in == twice[1].bytes_out


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
