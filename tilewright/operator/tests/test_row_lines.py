"""Rows of the broadcast operand that share few sets of a cache."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Axis, Read, Tensor
from tilewright.machine import resolve_cpu
from tilewright.operator.cycles import tiled_cycles
from tilewright.operator.row_lines import (
    crowded,
    line_cycles,
    lines_by_set,
    lines_in_one_set,
    slices_leave,
    waiting_cycles,
)
from tilewright.tiles.product import Operand, Product, flat_product

MACHINE = resolve_cpu("znver3")
L1, L2, L3 = MACHINE.caches
I, J, K = Axis("i", 96), Axis("j", 160), Axis("k", 2048)


def operand(row: int) -> Operand:
    """Elements of 4 bytes, rows `row` elements apart."""
    return Operand(Tensor("A", (I.size * row,), "f32"), I * row + K)


def product(row: int, batch: int = 1) -> Product:
    b, c, total = Tensor("B", (K.size * J.size,), "f32"), Tensor("C", (I.size * J.size,), "f32"), Tensor("t", (), "f32")
    loops = (Axis("n", batch),) if batch > 1 else (), (I,), J, (K,)
    return flat_product(
        *loops, operand(row), Operand(b, K * J.size + J), total, Read(total, ()), c, I * J.size + J, lanes=8
    )


@pytest.mark.parametrize(
    ("row", "lines"), [(1024, 6), (2048, 6), (2048 + 512, 3), (2048 + 256, 2), (2048 + 16, 1), (2000, 1), (4, 1)]
)
def test_rows_share_a_set_where_their_distance_is_a_multiple_of_a_way(row: int, lines: int) -> None:
    """A way of L1 has 4096 bytes: 1024 elements."""
    assert lines_in_one_set(operand(row), (I,), (6,), L1) == lines


def test_rows_of_two_loops() -> None:
    """Four rows, of which two are one line apart and two are one way apart."""
    h, w = Axis("h", 2), Axis("w", 2)
    a = Operand(Tensor("A", (4096,), "f32"), h * 1024 + w * 16)
    assert lines_in_one_set(a, (h, w), (2, 2), L1) == 2


def test_lines_of_slices_are_counted_once() -> None:
    """Rows of half a line; slices that lie behind each other fill all sets alike."""
    assert lines_in_one_set(operand(8), (I,), (16,), L1) == 1
    assert set(lines_by_set(operand(1024), (I,), (64,), L2, slice_bytes=4096)) == {4}  # 256 of 512 KiB in 8 ways


def test_rows_crowd_more_than_a_third_of_the_ways() -> None:
    assert [rows for rows in range(1, 7) if crowded(operand(2048), (I,), (rows,), L1)] == [3, 4, 5, 6]


def test_an_address_that_is_not_affine_crowds_nothing() -> None:
    panels = Operand(Tensor("A", (I.size * 2048,), "f32"), I // 6 * 12288 + K * 6 + I % 6)
    assert not crowded(panels, (I,), (6,), L1)


@pytest.mark.parametrize(
    ("row", "blocks", "k_block", "leave"),
    [
        (2048, 1, 684, True),  # 96 rows in 8 sets for a line of each
        (2048, 2, 684, True),  # 48 rows: 6 of 8 ways
        (2048, 3, 684, False),  # 36 rows: 4.5
        (3072, 1, 684, True),  # 16 sets
        (3072, 2, 684, False),
        (2064, 1, 684, False),  # all sets of L2, 4.6 lines in the mean, and 6 of L1
        (4096 + 16, 1, 684, False),  # 6 sets of L1, but few of L2
        (2048, 1, 0, False),  # whole rows lie behind each other
    ],
)
def test_slices_leave_caches_where_they_share_few_sets(row: int, blocks: int, k_block: int, leave: bool) -> None:
    work = product(row)
    assert slices_leave(work.a, work, {"i": 6, "j": 16}, {"i": blocks}, k_block, MACHINE) == leave


@pytest.mark.parametrize("batch", [1, 3])
def test_each_tile_of_columns_but_the_first_waits_for_the_rows(batch: int) -> None:
    """96 rows of 8192 bytes come from L3 for 9 of 10 tiles of 16 columns."""
    cycles = waiting_cycles(product(2048, batch), {"i": 6, "j": 16}, {}, MACHINE)
    assert cycles == batch * 9 * 96 * 2048 * 4 / L3.bytes_per_cycle


def channels_outside(width: int, depth: int = 256, height: int = 65) -> Product:
    """The product of a convolution of 1 x 1 on an image, channels outside."""
    h, w, c, k = Axis("h", height), Axis("w", width), Axis("c", depth), Axis("o", 256)
    sizes = {"X": depth * height * width, "F": depth * 256, "Y": 1 << 20}
    x, f, y = (Tensor(name, (size,), "f32") for name, size in sizes.items())
    a, b = Operand(x, c * height * width + h * width + w), Operand(f, c * 256 + k)
    total = Tensor("t", (), "f32")
    return flat_product(
        (), (h, w), k, (c,), a, b, total, Read(total, ()), y, h * width * 256 + w * 256 + k, lanes=8
    )  # fmt: skip


def test_rows_down_an_image_read_a_line_each_in_every_step() -> None:
    """6 rows of 260 bytes lie in 6 lines, which 256 steps read; 6 places beside each other in one."""
    work = channels_outside(65)
    assert line_cycles(work, (6, 1), 2, MACHINE) == 6 * 64 / L2.bytes_per_cycle
    assert line_cycles(work, (1, 6), 2, MACHINE) == 64 / L2.bytes_per_cycle


def test_lines_stay_in_l1_beside_a_small_panel() -> None:
    """Lines of 256 steps take 5 ways in the mean, a vector of the panel two, two vectors four."""
    work = channels_outside(65)
    assert line_cycles(work, (1, 6), 1, MACHINE) == 0.0
    assert line_cycles(channels_outside(65, 32), (6, 1), 2, MACHINE) == 0.0


def test_lines_that_share_few_sets_of_l2_come_from_further_out() -> None:
    """An image of 32 x 32 places, whose channels are one way of L1 apart: the rows of a program are in half of L2."""
    work = channels_outside(32, 128, height=32)
    assert line_cycles(work, (2, 3), 2, MACHINE) == 2 * 64 / L3.bytes_per_cycle
    assert line_cycles(channels_outside(33, 128, height=32), (2, 3), 2, MACHINE) <= 2 * 64 / L2.bytes_per_cycle


def test_lines_from_l2_come_beside_the_arithmetic() -> None:
    """A line from L2 takes 2 cycles, a step of 6 rows by 2 vectors 6; L1 keeps the lines of 32 steps."""
    near, kept = channels_outside(65), channels_outside(65, 32)
    assert line_cycles(kept, (1, 6), 2, MACHINE) == 0.0
    waiting = 256 / 32 * tiled_cycles(kept, (1, 6), 2, MACHINE)
    assert 1.1 * waiting < tiled_cycles(near, (1, 6), 2, MACHINE) < 1.4 * waiting


def test_sums_along_lines_cost_none() -> None:
    """In whatever order the sums are: a plan puts the one along lines inside."""
    assert line_cycles(product(2048), (6,), 2, MACHINE) == 0.0
    h, r = Axis("h", 96), Axis("r", 3)
    image = Operand(Tensor("A", (98 * 2048,), "f32"), (h + r) * 2048 + K)
    b, c, total = Tensor("B", (3 * 2048 * 160,), "f32"), Tensor("C", (96 * 160,), "f32"), Tensor("t", (), "f32")
    for depth in ((r, K), (K, r)):
        factor = Operand(b, r * 2048 * 160 + K * 160 + J)
        work = flat_product((), (h,), J, depth, image, factor, total, Read(total, ()), c, h * 160 + J, lanes=8)
        assert line_cycles(work, (6,), 2, MACHINE) == 0.0


def test_the_tile_walks_along_the_lines() -> None:
    """6 rows by 1 place had fewer cycles, by how 65 rows and 29 places divide, and took 2.4 times as long (Zen 3)."""
    along, down = (tiled_cycles(channels_outside(65), rows, 2, MACHINE) for rows in ((1, 6), (6, 1)))
    assert down > 1.5 * along
