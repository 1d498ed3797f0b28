"""Golden tests of spec 1, section 4: shapes of micro-kernels, G20 to G22."""

from __future__ import annotations

import pytest

from tilewright.intrinsics.composite import MicroKernel, cube_intensity, cube_tile, family, optimum
from tilewright.intrinsics.portable import multiply_add
from tilewright.intrinsics.registry import standard


def test_spec1_g20_outer_products() -> None:
    """Of 16 registers two shapes have the same intensity; the one that is preferred here takes fewer registers."""
    assert optimum(32) == MicroKernel(6, 4, 2)
    assert optimum(32).registers == 30
    tied = MicroKernel(6, 2, 2)
    assert tied.registers == 16
    assert tied.intensity() == optimum(16).intensity() == 1.5
    assert MicroKernel(5, 5, 1).registers == 31  # what the printed problem would take
    assert MicroKernel(5, 5, 1).intensity() > optimum(32).intensity()


def test_the_optimum_is_the_first_of_the_records() -> None:
    base = multiply_add(8, "f32", "f32", "f32")
    assert family(base, 32)[0].grid[:2] == optimum(32).shape
    assert {(3, 3), (6, 2)} <= {each.grid[:2] for each in family(base, 16)}


def test_one_scalar_leaves_space_for_more_sums() -> None:
    base = multiply_add(8, "f32", "f32", "f32")
    records = {each.grid[:2]: each for each in family(base, 16, scalars=1)}
    assert records[4, 3].limits.registers == 16
    assert (4, 3) not in {each.grid[:2] for each in family(base, 16)}


@pytest.mark.parametrize(
    ("name", "offered"),
    [("fma_8_f32_f32", True), ("fma_4_f64_f64", True), ("widen_8_bf16_f32", False), ("fma_16_f32_f32", False)],
)
def test_products_of_one_type_hold_one_scalar_in_16_registers(name: str, offered: bool) -> None:
    """Converted factors want a register of their own."""
    shapes = {each.grid[:2] for each in standard().made_of(name)}
    assert shapes
    assert ((4, 3) in shapes) == offered


def test_spec1_g21_intensity_over_64_steps() -> None:
    assert MicroKernel(6, 4, 2).intensity(64) == pytest.approx(2.2326, abs=5e-5)
    assert MicroKernel(6, 2, 2).intensity(64) == pytest.approx(1.4328, abs=5e-5)
    assert MicroKernel(6, 4, 2).intensity() == pytest.approx(2.4)


def test_spec1_g22_fragments_and_fractals() -> None:
    assert [MicroKernel(side, side, 1).intensity() for side in (1, 2, 4)] == [0.5, 1, 2]
    m1, n1, k1 = cube_tile(64 * 1024, 64 * 1024, 256 * 1024, square=True)
    assert (m1, n1, k1, cube_intensity(m1, n1)) == (16, 16, 8, 128)
    assert cube_tile(32 * 1024, 32 * 1024, 256 * 1024, square=True)[2] == 4  # two buffers for each operand
