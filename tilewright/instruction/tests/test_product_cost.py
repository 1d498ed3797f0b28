"""Predicted cost of a CPU product: by hand for small cases, in the right order for what is known to be slow."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from tilewright.expr.core import Axis, Const, Expr, Read, Tensor
from tilewright.instruction import product_cost
from tilewright.instruction.model import Hierarchy, combined, hierarchy
from tilewright.instruction.product_cost import (
    OVERLAP_BYTES,
    OVERLAP_PORTS,
    TILE_CYCLES,
    WINDOW_INSTRUCTIONS,
    ProductCost,
)
from tilewright.intrinsics.registry import standard
from tilewright.machine import resolve
from tilewright.operator.product_point import ProductPoint
from tilewright.tiles.product import Operand, Product, flat_product

RECORD = standard().find("fma_16_f32_f32")
ZNVER5 = hierarchy(resolve("znver5"), cores=1)


def gemm(m: int, n: int, k: int) -> Product:
    """C[i, j] = sum A[i, k] * B[k, j], all row-major."""
    i, j, l = Axis("i", m), Axis("j", n), Axis("k", k)
    a, b, c = (Tensor(name, (size,), "f32") for name, size in (("A", m * k), ("B", k * n), ("C", m * n)))
    total = Tensor("sum", (), "f32")
    return flat_product(
        (), (i,), j, (l,), Operand(a, i * k + l), Operand(b, l * n + j), total, Read(total, ()), c, i * n + j,
        intrinsic="fma",
        shapes=((6, 4),), lanes=16,
    )  # fmt: skip


def tiled(rows: int, width: int, *, order: tuple[str, ...] = ("j", "i"), k_blocks: int = 1) -> ProductPoint:
    return ProductPoint((rows,), width // 16, order, k_blocks)


def seconds(work: Product, point: ProductPoint, machine: Hierarchy = ZNVER5) -> float:
    return ProductCost(work, RECORD, machine).predict(point).seconds


def test_one_tile_takes_its_steps() -> None:
    found = ProductCost(gemm(6, 64, 100), RECORD, ZNVER5).predict(tiled(6, 64))
    underway = 1 + WINDOW_INSTRUCTIONS / (100 * (24 + 6 + 4))
    latency = RECORD.cost.latency_cycles / underway
    # Multiply-adds beside ten loads, and the sums' latency.
    step = combined((24 * RECORD.cost.issue_cycles, (6 + 4) / 2, latency), OVERLAP_PORTS)
    whole = combined((100 * step, 24), OVERLAP_BYTES) + TILE_CYCLES
    assert found.timings[0].compute_cycles == pytest.approx(whole / 100)
    assert found.bottleneck == ("registers", "compute")


def test_loops_are_tried_in_caches_of_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel that exceeds a cache by little does not cost as if all of it came from the next one."""
    work, point = gemm(240, 256, 150), tiled(6, 64, order=("i", "j"))
    mean, each = seconds(work, point), []
    for holds in product_cost.HOLDS:
        monkeypatch.setattr(product_cost, "HOLDS", (holds,))
        each.append(seconds(work, point))
    assert min(each) < mean < max(each)
    assert mean == pytest.approx(fmean(each))


def test_large_products_come_near_the_peak() -> None:
    size = 512
    peak = 2 * 16 * 2 * ZNVER5.clock_hz
    reached = 2 * size**3 / seconds(gemm(size, size, size), tiled(6, 64))
    assert 0.85 * peak < reached < peak


@pytest.mark.parametrize(("rows", "width"), [(1, 64), (6, 16), (2, 32), (24, 16)])
def test_smaller_tiles_take_longer(rows: int, width: int) -> None:
    work = gemm(240, 256, 256)
    assert seconds(work, tiled(rows, width)) > seconds(work, tiled(6, 64))


def test_ragged_tiles_take_what_they_need() -> None:
    whole, ragged = seconds(gemm(240, 256, 256), tiled(6, 64)), seconds(gemm(241, 256, 256), tiled(6, 64))
    assert whole < ragged < whole * 242 / 240 * 1.01


def test_a_chain_of_one_sum_is_bound_by_latency() -> None:
    one = ProductCost(gemm(1, 16, 4096), RECORD, ZNVER5).predict(tiled(1, 16))
    assert one.cycles > 0.9 * 4096 * RECORD.cost.latency_cycles
    assert seconds(gemm(1, 16, 16), tiled(1, 16)) * ZNVER5.clock_hz < 16 * RECORD.cost.latency_cycles + TILE_CYCLES


def test_blocks_of_k_pay_where_panels_outgrow_the_cache_only() -> None:
    small, large = gemm(240, 256, 256), gemm(600, 128, 16384)
    assert seconds(small, tiled(6, 64, k_blocks=32)) > seconds(small, tiled(6, 64))
    assert seconds(large, tiled(2, 64, k_blocks=32)) < seconds(large, tiled(2, 64))


def test_rows_outside_read_panels_again_and_again() -> None:
    work = gemm(1200, 2048, 2048)
    assert seconds(work, tiled(6, 16, order=("j", "i"))) < seconds(work, tiled(6, 16, order=("i", "j")))


def test_two_cores_take_half_where_there_is_work_for_both() -> None:
    work = gemm(240, 512, 512)
    one, two = (distributed(work, 2, cores) for cores in (1, 2))
    assert two == pytest.approx(one / 2, rel=0.05)
    assert distributed(work, 3, cores=2) > 1.25 * two  # the third block waits for a core


def distributed(work: Product, blocks: int, cores: int) -> float:
    """Seconds with the rows in so many blocks."""
    machine = hierarchy(resolve("znver5"), cores=cores)
    return ProductCost(work, RECORD, machine).predict(tiled(6, 64), {"i": blocks}).seconds


def test_measured_broadcasts_and_latencies_count() -> None:
    tall, chain = gemm(240, 256, 256), gemm(1, 16, 4096)
    slow = replace(ZNVER5, broadcast_cycles=4.0, latency_cycles={RECORD.name: 20.0})
    fast = replace(ZNVER5, broadcast_cycles=0.25, latency_cycles={RECORD.name: 1.0})
    assert seconds(tall, tiled(6, 64), slow) > 1.2 * seconds(tall, tiled(6, 64), fast)
    assert seconds(chain, tiled(1, 16), slow) > 4 * seconds(chain, tiled(1, 16), fast)


def test_measured_cycles_count() -> None:
    slow = replace(ZNVER5, core_cycles={RECORD.name: 1.0})
    work = gemm(240, 256, 256)
    assert seconds(work, tiled(6, 64), slow) == pytest.approx(2 * seconds(work, tiled(6, 64)), rel=0.1)


def test_it_is_a_cost_and_explains_itself() -> None:
    cost = ProductCost(gemm(60, 64, 64), RECORD, ZNVER5)
    evaluation = cost(tiled(6, 64))
    assert evaluation.valid
    assert evaluation.value == cost.predict(tiled(6, 64)).seconds
    assert "bound by compute" in cost.predict(tiled(6, 64)).explain()


def test_windows_of_an_image_overlap() -> None:
    """A 3 x 3 convolution of 16 channels on rows of 30 pixels: what a tile reads is counted once."""
    from tilewright.instruction.product_cost import _access

    y, x, r, s, c = (Axis(name, extent) for name, extent in (("y", 28), ("x", 28), ("r", 3), ("s", 3), ("c", 16)))
    index: Expr = (y + r) * 480 + (x + s) * 16 + c
    access = _access("f32", index)
    whole = {"y": 28, "x": 28, "r": 3, "s": 3, "c": 16}
    assert access.bytes(whole) == 4 * 30 * 30 * 16
    assert access.bytes({**whole, "y": 1, "x": 7}) == 4 * 3 * 9 * 16
    assert _access("f32", y * 0 + Const(3, "i64")).bytes(whole) == 4
