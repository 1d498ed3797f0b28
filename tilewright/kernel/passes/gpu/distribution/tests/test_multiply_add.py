"""Layouts of tiles for multiply-adds: what a thread has of a product, and what its lanes read together."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tilewright.kernel.passes.gpu.distribution.multiply_add import NEIGHBOURS, multiply_add_layouts, rows_of

TILES = [((128, 128, 16), (4, 2)), ((128, 128, 8), (2, 2)), ((64, 64, 16), (2, 2)), ((16, 256, 8), (1, 4))]
SMALL = [((4, 4, 8), (1, 1)), ((4, 4, 8), (2, 2)), ((1, 64, 8), (1, 2)), ((128, 2, 1), (4, 1))]


@pytest.mark.parametrize(("extents", "warps"), [*TILES, *SMALL])
@pytest.mark.parametrize("lanes", [32, 64])
def test_threads_have_the_factors_of_their_sums(
    extents: tuple[int, int, int], warps: tuple[int, int], lanes: int
) -> None:
    layouts = multiply_add_layouts(extents, warps, lanes)
    a, b, c = (layout.coordinates() for layout in layouts)
    assert all(layout.is_surjective for layout in layouts)
    for warp in range(warps[0] * warps[1]):
        for lane in range(lanes):
            assert set(a[0][warp, lane]) == set(c[0][warp, lane])
            assert set(b[1][warp, lane]) == set(c[1][warp, lane])
    for registers, steps in rows_of(layouts):
        for register in registers:
            assert len({c[0][0, 0, register] for register in registers}) == 1
            assert [a[1][0, 0, of_a] for of_a, _ in steps] == list(range(extents[2]))
        for of_a, of_b in steps:
            assert [c[1][0, 0, register] for register in registers] == [b[1][0, 0, each] for each in of_b]
            assert a[0][0, 0, of_a] == c[0][0, 0, registers[0]]
    assert sorted(r for registers, _ in rows_of(layouts) for r in registers) == list(
        range(layouts[2].in_size("register"))
    )


@pytest.mark.parametrize(
    ("warps", "rows", "columns"), [((4, 2), 8, 8), ((2, 4), 8, 8), ((2, 2), 8, 16), ((8, 1), 8, 8)]
)
def test_the_tile_of_a_thread_is_as_square_as_warps_allow(warps: tuple[int, int], rows: int, columns: int) -> None:
    a, b, _ = multiply_add_layouts((128, 128, 1), warps, 32)
    assert (a.in_size("register"), b.in_size("register")) == (rows, columns)


@pytest.mark.parametrize(("extents", "warps"), TILES)
def test_vectors_lie_along_rows_and_columns_and_pairs_of_lanes_share_them(
    extents: tuple[int, int, int], warps: tuple[int, int]
) -> None:
    a, b, _ = multiply_add_layouts(extents, warps, 32)
    vector = [(1 << bit) for bit in range(NEIGHBOURS.bit_length() - 1)]
    assert [row for row, _ in a.of("register")[:2]] == vector == [column for _, column in b.of("register")[:2]]
    assert a.of("lane")[0] == (0, 0) == b.of("lane")[1]


def test_neighbouring_products_share_a_factor() -> None:
    """So that each reads two registers beyond the one it shares."""
    layouts = multiply_add_layouts((128, 128, 1), (4, 2), 32)
    order = [(of_a, of_b) for own, ((of_a, row),) in rows_of(layouts) for of_b in row]
    assert len(order) == 64
    assert all(first[0] == second[0] or first[1] == second[1] for first, second in pairwise(order))
