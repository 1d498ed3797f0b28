"""Shapes of micro-kernels against spec 1, section 4."""

from __future__ import annotations

import pytest

from tilewright.errors import InvalidArgument
from tilewright.instruction.register_tiles import (
    OuterProduct,
    fractal_block,
    fragment_intensity,
    outer_product,
)


def test_spec1_g20_outer_products() -> None:
    assert outer_product(32) == OuterProduct(6, 4, 2)
    assert outer_product(16) == OuterProduct(6, 2, 2)
    assert outer_product(32, hide_latency=False) == OuterProduct(5, 5, 1)
    assert outer_product(16, hide_latency=False) == OuterProduct(4, 3, 1)
    assert (outer_product(32).registers, outer_product(16).registers) == (30, 16)


def test_spec1_g21_intensity_over_64_steps() -> None:
    assert OuterProduct(6, 4, 2).intensity(64) == pytest.approx(2.2326, abs=5e-5)
    assert OuterProduct(6, 2, 2).intensity(64) == pytest.approx(1.4328, abs=5e-5)
    assert OuterProduct(6, 4, 2).intensity() == pytest.approx(2.4)


def test_spec1_g22_fragments_and_fractals() -> None:
    assert [fragment_intensity(side, side) for side in (1, 2, 4)] == [0.5, 1, 2]
    block = fractal_block(64 * 1024, 256 * 1024)
    assert (block.m1, block.n1, block.k1, block.intensity) == (16, 16, 8, 128)
    assert fractal_block(64 * 1024, 256 * 1024, double_buffer=True).k1 == 4


def test_what_holds_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="4 registers") as error:
        outer_product(4)
    assert error.value.help == "5 registers or more"
    assert outer_product(5).registers == 5
    with pytest.raises(InvalidArgument, match="hold no fractals"):
        fractal_block(511, 1024)
    assert fractal_block(512, 1024).k1 == 1
