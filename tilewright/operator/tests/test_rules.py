"""How products are distributed to threads."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import ceil, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.expr.core import Axis, Expr, Read, Tensor
from tilewright.expr.rewrite import transform
from tilewright.machine import resolve_cpu
from tilewright.operator.cycles import ISSUE_WIDTH, cycles_from_memory, tiled_cycles
from tilewright.operator.rules.cpu_product import EVEN, choose_point
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Operand, Product, flat_product

MACHINE = resolve_cpu("znver5")


def matrices(m: int, n: int, k: int, added: Expr | None = None) -> Product:
    """C[i, j] = sum A[i, k] * B[k, j], to which the epilogue may add something."""
    i, j, l = Axis("i", m), Axis("j", n), Axis("k", k)
    a, b, c = (Tensor(name, (size,), "f32") for name, size in (("A", m * k), ("B", k * n), ("C", m * n)))
    total = Tensor("sum", (), "f32")
    epilogue = Read(total, ()) if added is None else Read(total, ()) + added
    return flat_product(
        (), (i,), j, (l,), Operand(a, i * k + l), Operand(b, l * n + j), total, epilogue, c, i * n + j,
        intrinsic="fma",
        shapes=((6, 4), (4, 6), (8, 3), (14, 2), (28, 1)), lanes=16,
    )  # fmt: skip


def tile_of(m: int, n: int, k: int, threads: int) -> dict[str, int]:
    """The register tile."""
    work = matrices(m, n, k)
    return choose_point(work, MACHINE, threads, m * k * 4, "C")[0].tile(work)


def programs(m: int, n: int, k: int, threads: int) -> list[int]:
    """Points of each program, in the order of the grid."""
    work = matrices(m, n, k)
    point, blocks, _ = choose_point(work, MACHINE, threads, m * k * 4, "C")
    tile = point.tile(work)
    loops = [SpatialLoop(axis, tile.get(axis.name, 1), blocks.get(axis.name, 1)) for axis in work.spatial]
    return [prod(points) for points in product(*(loop.points for loop in loops))]


@given(
    extent=st.integers(1, 500), quantum=st.integers(1, 70), blocks=st.integers(1, 40),
)  # fmt: skip
def test_points_of_programs_are_the_loop(extent: int, quantum: int, blocks: int) -> None:
    loop = SpatialLoop(Axis("i", extent), quantum, blocks)
    assert sum(loop.points) == extent
    assert len(loop.points) == loop.programs
    assert min(loop.points) > 0


def test_narrow_factors_without_an_instruction_cost_more_than_wide_ones() -> None:
    """A step of 6 x 2 registers has 12 multiply-adds; 6 elements and 2 vectors are loaded, and widened."""

    def narrow(a: str, total: str, group: int = 1) -> float:
        work = matrices(96, 96, 64)
        product, *others = work.statements
        factors = {name: Tensor(name, (96 * 64,), a) for name in "AB"}
        body = transform(
            product.body, lambda e: replace(e, tensor=factors[e.tensor.name]) if isinstance(e, Read) else None
        )
        sums = Tensor(product.name, (), total)
        others = [replace(each, body=Read(sums, ())) for each in others]
        product = replace(product, body=body, tensor=replace(product.tensor, dtype=total))
        mapping = replace(work.mapping, group=group)
        return tiled_cycles(replace(work, statements=(product, *others), mapping=mapping), (6,), 2, MACHINE)

    wide, half, whole = narrow("f32", "f32"), narrow("bf16", "f32"), narrow("u8", "i32")
    tiles, steps = 96 / 6 * 96 / 32, 64
    assert half - wide == pytest.approx(tiles * steps * ((12 + 6 * 4 + 2 * 2) / ISSUE_WIDTH - 6), rel=0.05)
    assert whole - wide == pytest.approx(tiles * steps * ((24 + 6 * 3 + 2 * 2) / ISSUE_WIDTH - 6), rel=0.05)
    assert narrow("u8", "i32", 4) < wide / 3


def test_programs_have_rows_enough_for_a_panel_that_comes_from_beyond_l2() -> None:
    """A vector of a panel comes in 64 / 24 cycles, and is multiplied by a row in half a cycle."""
    rate = MACHINE.caches[2].bytes_per_cycle
    assert rate is not None
    least = ceil(64 / rate * 2 * 32)
    counts = [len(programs(rows, 1024, 4096, 1)) for rows in (least - 1, 2 * least - 1, 2 * least, 3 * least)]
    assert counts == [1, 1, 2, 3]


def test_programs_have_rows_that_take_half_of_l2_where_it_holds_all_of_b() -> None:
    """Rows of 16 KiB in half of 1 MiB, and b in the other half; the last tile of 14 rows may go beyond."""
    assert 32 <= max(programs(512, 32, 4096, 1)) / 32 < 32 + 14


def test_programs_leave_l2_for_rows_of_a_result_in_many_panels() -> None:
    """Rows of 128 bytes of a and 4096 of c in half of 1 MiB; with few panels, or b beyond the other half, a alone."""
    assert 124 - 28 < max(programs(4096, 1024, 32, 1)) / 1024 < 124 + 28
    assert max(programs(4096, 64, 32, 1)) / 64 == 4096
    assert max(programs(4096, 8192, 32, 1)) / 8192 == 4096


def test_what_an_epilogue_reads_of_each_row_takes_its_part_of_l2() -> None:
    """Twice the bytes of a row with a tensor that is added, and no more with one that all rows share."""
    i, j = Axis("i", 4096), Axis("j", 1024)

    def rows(added: Expr | None) -> int:
        work = matrices(4096, 1024, 32, added)
        point, blocks, _ = choose_point(work, MACHINE, 1, 4096 * 32 * 4, "C")
        return max(SpatialLoop(i, point.tile(work)["i"], blocks["i"]).points)

    assert rows(Tensor("R", (4096 * 1024,), "f32")[i * 1024 + j]) < 0.7 * rows(None)
    assert rows(Tensor("bias", (1024,), "f32")[j]) == rows(None)


def test_a_tile_that_leaves_a_thread_idle_gives_way_to_one_nearly_as_fast() -> None:
    """1024 columns are 11 tiles of 96 or 16 of 64: eleven cannot be halved."""
    assert tile_of(16, 1024, 1024, threads=1) == {"i": 4, "j": 96}
    assert tile_of(16, 1024, 1024, threads=2) == {"i": 6, "j": 64}
    sizes = programs(16, 1024, 1024, threads=2)
    assert sum(sizes[: len(sizes) // 2]) == sum(sizes) // 2


@given(m=st.integers(1, 300), n=st.integers(1, 3000), k=st.integers(1, 900), threads=st.integers(1, 5))
def test_the_second_tile_is_not_better(m: int, n: int, k: int, threads: int) -> None:
    decision = choose_point(matrices(m, n, k), MACHINE, threads, m * k * 4, "C")[2]
    if decision.runner_up:
        first, second = (float(re.search(r"(\d+) (?:predicted )?cycles", text)[1]) for text in  # type: ignore[index]
                         (decision.reason, decision.runner_up_reason))  # fmt: skip
        assert first <= second


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize(("m", "n"), [(128, 4096), (784, 512), (196, 1024), (4, 4096)])
def test_threads_are_about_evenly_busy(m: int, n: int, threads: int) -> None:
    sizes = programs(m, n, 512, threads)
    count = len(sizes)
    shares = [sum(sizes[count * t // threads : count * (t + 1) // threads]) for t in range(threads)]
    assert max(shares) <= sum(sizes) / threads / (EVEN - 0.15), "before any thread helps another"


def test_a_product_that_ends_before_another_thread_begins_is_one_program() -> None:
    """The gates of a recurrent layer of 64 units took longer on two threads than on one; those of 128 do not."""
    assert len(programs(1, 256, 64, threads=2)) == 1
    assert len(programs(1, 512, 128, threads=2)) > 1


def test_a_product_of_few_rows_takes_taller_tiles_where_b_comes_from_far() -> None:
    """Tiles of 8 rows read each panel twice, tiles of 4 rows four times: they hide less of the first time."""
    far, near = tile_of(16, 250, 2000, threads=1), tile_of(16, 250, 1000, threads=1)
    assert 2000 * 250 * 4 > MACHINE.caches[1].bytes > 1000 * 250 * 4
    assert near == {"i": 4, "j": 96}
    assert far["i"] > near["i"]


@pytest.mark.parametrize("rows", [(2,), (4,), (8,)])
def test_bytes_of_b_cost_at_most_what_nothing_hides(rows: tuple[int, ...]) -> None:
    work = matrices(16, 256, 2048)
    cycles = tiled_cycles(work, rows, 2, MACHINE)
    waiting = cycles_from_memory(work, rows, 2, MACHINE) - cycles
    moved = 256 * 2048 * 4 / 24  # L3: 24 bytes per cycle
    assert 0 < waiting <= moved
    if rows == (8,):  # rows 8192 bytes apart, all in one set of L1
        assert waiting == pytest.approx(moved)


def test_bytes_of_b_are_free_where_l2_holds_them_or_rows_are_many() -> None:
    for work in (matrices(16, 256, 512), matrices(64, 256, 2048)):
        assert cycles_from_memory(work, (4,), 2, MACHINE) == tiled_cycles(work, (4,), 2, MACHINE)
