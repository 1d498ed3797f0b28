"""Rows of a register tile that crowd sets of L1."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Axis, Read, Tensor
from tilewright.machine import resolve_cpu
from tilewright.operator.row_lines import crowded, lines_in_one_set, waiting_cycles
from tilewright.tiles.product import Operand, Product, flat_product

MACHINE = resolve_cpu("znver3")
L1 = MACHINE.caches[0]
I, J, K = Axis("i", 96), Axis("j", 160), Axis("k", 2048)


def operand(row: int) -> Operand:
    """Elements of 4 bytes, rows `row` elements apart."""
    return Operand(Tensor("A", (I.size * row,), "f32"), I * row + K)


def product(row: int) -> Product:
    b, c, total = Tensor("B", (K.size * J.size,), "f32"), Tensor("C", (I.size * J.size,), "f32"), Tensor("t", (), "f32")
    loops = (), (I,), J, (K,)
    return flat_product(
        *loops, operand(row), Operand(b, K * J.size + J), total, Read(total, ()), c, I * J.size + J, lanes=8
    )


@pytest.mark.parametrize(
    ("row", "lines"), [(1024, 6), (2048, 6), (2048 + 512, 3), (2048 + 256, 2), (2048 + 16, 1), (2000, 1), (4, 1)]
)
def test_rows_share_a_set_where_their_distance_is_a_multiple_of_its_ways(row: int, lines: int) -> None:
    """A way of 4096 bytes: 1024 elements."""
    assert lines_in_one_set(operand(row), (I,), (6,), L1) == lines


def test_rows_crowd_more_than_a_third_of_the_ways() -> None:
    assert [rows for rows in range(1, 7) if crowded(operand(2048), (I,), (rows,), L1)] == [3, 4, 5, 6]


def test_an_address_that_is_not_affine_crowds_nothing() -> None:
    panels = Operand(Tensor("A", (I.size * 2048,), "f32"), I // 6 * 12288 + K * 6 + I % 6)
    assert not crowded(panels, (I,), (6,), L1)


def test_each_tile_of_columns_but_the_first_waits_for_the_rows() -> None:
    """96 rows of 8192 bytes are more than L2 has, and come from L3 for each of 10 tiles of 16 columns."""
    size = 96 * 2048 * 4
    cycles = waiting_cycles(product(2048), {"i": 6, "j": 16}, {}, size, MACHINE)
    assert cycles == 9 * size / MACHINE.caches[2].bytes_per_cycle


@pytest.mark.parametrize(
    ("row", "rows", "blocks"),
    [(2064, 6, 1), (2048, 2, 1), (2048, 6, 2)],
    ids=["rows apart", "few rows", "a program whose rows fit L2"],
)
def test_nothing_waits(row: int, rows: int, blocks: int) -> None:
    size = 96 * row * 4
    assert not waiting_cycles(product(row), {"i": rows, "j": 16}, {"i": blocks}, size, MACHINE)
