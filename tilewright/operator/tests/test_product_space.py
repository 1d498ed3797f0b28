"""The space of schedules of a product: every point once, all of them legal, drawn the same way on every run."""

from __future__ import annotations

from math import prod

from tilewright.expr.core import Axis, Read, Tensor
from tilewright.machine import resolve_cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_space import BLOCK_COUNTS, ProductSpace
from tilewright.operator.rules.cpu_product import scheduled_product
from tilewright.tiles.notation import print_tree
from tilewright.tiles.product import Operand, Product, flat_product

MACHINE = resolve_cpu("znver5")


def image_product(p: int = 5, q: int = 7, n: int = 48, k: int = 24) -> Product:
    """C[p, q, j] = sum A[p, q, k] * B[k, j]."""
    axes = (Axis("p", p), Axis("q", q), Axis("j", n), Axis("k", k))
    rows, columns, j, l = axes
    a, b, c = (Tensor(name, (size,), "f32") for name, size in (("A", p * q * k), ("B", k * n), ("C", p * q * n)))
    total = Tensor("sum", (), "f32")
    return flat_product(
        (), (rows, columns), j, (l,), Operand(a, (rows * q + columns) * k + l), Operand(b, l * n + j), total,
        Read(total, ()), c, (rows * q + columns) * n + j, intrinsic="fma",
        shapes=((6, 4), (4, 6), (14, 2), (28, 1)), lanes=16,
    )  # fmt: skip


def test_every_point_is_there_once_and_fits_the_registers() -> None:
    space = ProductSpace(image_product())
    assert len(set(space)) == len(space) == len(list(space))
    for point in space:
        sums = prod(point.rows) * point.vectors
        assert sums + point.vectors < MACHINE.vector_registers
        assert sorted(point.order) == ["j", "p", "q"]
        assert point.k_blocks in BLOCK_COUNTS
    assert {point.order for point in space} >= {("j", "p", "q"), ("q", "j", "p")}
    assert ProductPoint((2, 3), 3, ("j", "p", "q"), 4) in set(space)


def test_sums_are_cut_only_where_rows_run_inside_the_columns() -> None:
    for point in ProductSpace(image_product()):
        assert point.k_blocks == 1 or (point.order[0] == "j" and point.rows != (5, 7))
    assert all(point.k_blocks <= 2 for point in ProductSpace(image_product(k=3)))


def test_a_point_is_a_tree() -> None:
    work = image_product()
    point = ProductPoint((2, 3), 2, ("j", "q", "p"), 2)
    assert point.tile(work) == {"p": 2, "q": 3, "j": 32}
    assert point.k_block(work) == 12
    assert ProductPoint((2, 3), 2, ("j", "q", "p")).k_block(work) == 0
    assert ProductPoint((1, 1), 1, ("j", "p", "q")).tile(image_product(n=9)) == {"j": 9}
    assert print_tree(scheduled_product(work, point, {"q": 2}, MACHINE).tree) == (
        "@DRAM par q:2 { @L2 for j:2 { stage C in L2 "
        "{ @L2 for k:2, q:2, p:3 with prefetch_lines(64), prefetch_rows(64) "
        "{ @L1 for k:3 { op C as fma_6x32x4 } } } } }"
    )


def test_blocks_are_whole_steps_of_the_product() -> None:
    work = image_product(k=24)
    point = ProductPoint((2, 3), 2, ("j", "q", "p"), 8)
    assert point.k_block(work) == 4  # 3 points are no whole step


def test_the_same_seed_draws_the_same_points() -> None:
    space = ProductSpace(image_product())
    assert space.sample(20, seed=3) == space.sample(20, seed=3) != space.sample(20, seed=4)
    assert len(set(space.sample(20))) == 20
    assert len(ProductSpace(image_product(1, 1, 16, 2)).sample(10_000)) == len(ProductSpace(image_product(1, 1, 16, 2)))
