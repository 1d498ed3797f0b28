"""Into how many blocks the sum of a product is cut on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.expr.core import Axis, Read, Tensor
from tilewright.machine import resolve_cpu
from tilewright.operator.rules.cpu_product import depth_blocks
from tilewright.tiles.product import Operand, Product, flat_product

MACHINE = resolve_cpu("znver3")
TILE = {"i": 6, "j": 16}


def product(rows: int, depth: int, *, row: int = 0, across: bool = False, dtype: str = "f32") -> Product:
    """C[i, j] = sum A[i, k] * B[k, j] with rows of `row` elements; with `across` A lies the other way."""
    i, j, k = Axis("i", rows), Axis("j", 160), Axis("k", depth)
    a = k * rows + i if across else i * (row or depth) + k
    first = Operand(Tensor("A", (rows * (row or depth),), dtype), a)
    second = Operand(Tensor("B", (depth * 160,), dtype), k * 160 + j)
    c, total = Tensor("C", (rows * 160,), "f32"), Tensor("t", (), "f32")
    return flat_product((), (i,), j, (k,), first, second, total, Read(total, ()), c, i * 160 + j, lanes=8)


def test_panel_and_rows_of_a_block_fit_l1() -> None:
    """A panel of 16 columns and 6 rows of 768 floats are 66 KiB: three blocks of 22 KiB in 32."""
    assert depth_blocks(product(128, 768), TILE, MACHINE) == 3
    assert depth_blocks(product(128, 250), TILE, MACHINE) == 1  # 22 KB
    assert depth_blocks(product(128, 500), TILE, MACHINE) == 1  # two blocks
    assert depth_blocks(product(25, 768), TILE, MACHINE) == 3  # five tiles of rows


@pytest.mark.parametrize(
    "work",
    [
        product(24, 768),
        product(128, 768, row=1024),
        product(128, 768, across=True),
        product(128, 768, dtype="bf16"),
    ],
    ids=["four tiles of rows", "rows that share a set", "each step in another line", "widened factors"],
)
def test_a_panel_that_is_not_kept_in_l1_is_whole(work: Product) -> None:
    assert depth_blocks(work, TILE, MACHINE) == 1


def test_rows_may_take_half_of_a_set() -> None:
    """4 of 8 ways of a set; a fifth row would leave too little for the panel."""
    work = product(128, 768, row=1024)
    assert depth_blocks(work, {"i": 4, "j": 24}, MACHINE) == 4  # of 84 KiB
    assert depth_blocks(work, {"i": 5, "j": 24}, MACHINE) == 1


def test_a_panel_is_whole_where_l2_is_fast() -> None:
    first, second, last = MACHINE.caches
    fast = replace(MACHINE, caches=(first, replace(second, bytes_per_cycle=64), last))
    assert depth_blocks(product(128, 768), TILE, fast) == 1
    assert depth_blocks(product(128, 768), {"i": 2, "j": 32}, fast) > 1  # of 4 cycles of multiply-adds it takes 2


def test_long_sums_have_the_blocks_that_l2_asks_for() -> None:
    assert depth_blocks(product(128, 4096, row=4096), TILE, MACHINE) == 6  # of half of L1 for 6 crowded rows
