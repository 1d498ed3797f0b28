"""Closed forms against the tables of spec 1, sections 3.7 to 3.11, and the bound against random instances."""

from __future__ import annotations

import random

import pytest

from tilewright.errors import InvalidArgument
from tilewright.graph.chain.closed_form import TwoProducts, balanced, conv_input_rows, distinct_tiles

# MC, alpha, T*, DV*, floor, DV_app, DV_app / DV*, bound, exact DV, (T_M, T_L)
TABLE = [
    (2**12, 1, 63.008, 545_325_052, 63, 553_648_128, 1.0153, 1.0466, 553_648_128, (57, 69)),
    (2**14, 1, 127.004, 270_540_800, 127, 285_212_672, 1.0542, 1.0699, 276_824_064, (108, 147)),
    (2**16, 1, 255.002, 134_743_040, 255, 150_994_944, 1.1206, 1.1284, 142_606_336, (187, 342)),
    (2**19, 1, 723.078, 47_518_714, 723, 50_331_648, 1.0592, 1.3544, 50_331_648, (683, 683)),
    (2**14, 16, 112.996, 304_078_911, 112, 318_767_104, 1.0483, 1.0641, 310_378_496, (98, 128)),
    (2**16, 16, 240.500, 142_868_224, 240, 150_994_944, 1.0569, 1.1216, 150_994_944, (187, 293)),
    (2**19, 16, 708.254, 48_513_293, 708, 50_331_648, 1.0375, 1.3472, 50_331_648, (683, 683)),
    (2**20, 16, 1008.125, 34_082_816, 1008, 50_331_648, 1.4767, 1.4932, 41_943_040, (683, 1024)),
    (2**22, 16, 2032.062, 16_908_800, 2032, 33_554_432, 1.9844, 1.9927, 25_165_824, (1024, 2048)),
]


def square(capacity: int, alpha: int) -> TwoProducts:
    return TwoProducts(2048, 2048, 2048, 2048, capacity, alpha)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_table_of_section_3_7(row: tuple[object, ...]) -> None:
    capacity, alpha, tile, volume, floor, rounded, ratio, bound, exact, tiles = row
    chain = square(capacity, alpha)  # type: ignore[arg-type]
    assert chain.tile == pytest.approx(tile, abs=6e-4)
    assert int(chain.volume + 0.5) == pytest.approx(volume, abs=1)
    assert chain.clamped() == (floor, floor)
    assert chain.moved(*chain.clamped()) == rounded
    assert chain.moved(*chain.clamped()) / chain.volume == pytest.approx(ratio, abs=6e-5)
    assert chain.bound() == pytest.approx(bound, abs=6e-5)
    assert chain.exact() == tiles
    assert chain.moved(*chain.exact()) == exact


def test_spec1_g08_closed_form() -> None:
    chain = square(2**19, 16)
    assert chain.tile == pytest.approx(708.254, abs=5e-4)
    assert chain.volume == pytest.approx(48_513_293, abs=0.5)
    assert chain.clamped() == (708, 708)
    assert chain.moved(708, 708) == 50_331_648
    assert chain.memory(708, 708) == 523_920
    assert chain.apart == 58_720_256


def test_spec1_g09_rounded_and_exact() -> None:
    chain = square(2**16, 1)
    assert chain.tile == pytest.approx(255.002, abs=5e-4)
    assert chain.moved(*chain.clamped()) == 150_994_944
    assert chain.moved(*chain.exact()) == 142_606_336


def test_spec1_g10_exact_against_closed() -> None:
    chain = square(2**20, 16)
    assert chain.exact() == (683, 1024)
    assert (chain.moved(683, 1024), chain.moved(*chain.clamped())) == (41_943_040, 50_331_648)


def test_spec1_g11_a_clamped_tile_gives_memory_to_the_other() -> None:
    chain = TwoProducts(M=128, N=1024, K=1024, L=4096, capacity=2**16, alpha=16)
    assert chain.clamped() == (128, 240)
    assert chain.moved(128, 240) == 13_107_200
    assert chain.resolved() == (128, 440)
    assert chain.moved(128, 440) == 11_010_048
    turned = TwoProducts(M=4096, N=1024, K=1024, L=128, capacity=2**16, alpha=16)
    assert turned.resolved() == (440, 128)


def test_spec1_g12_the_bound_holds() -> None:
    chain = square(2**19, 16)
    assert chain.bound() == pytest.approx(1.3472, abs=5e-5)
    assert chain.moved(*chain.clamped()) / chain.volume == pytest.approx(1.0375, abs=5e-5)
    roll, counted = random.Random(0), 0
    for _ in range(20_000):
        m, n, k, l = (roll.randint(8, 4096) for _ in range(4))
        alpha = roll.choice((1, 2, 8, 16))
        capacity = roll.randint(2 * alpha + 1, 2**22)
        chain = TwoProducts(m, n, k, l, capacity, alpha)
        if alpha <= chain.tile <= min(m, l):
            counted += 1
            assert chain.moved(*chain.clamped()) / chain.volume <= chain.bound() * (1 + 1e-12)
    assert counted > 5000


@pytest.mark.parametrize(
    ("capacity", "floor", "rounded", "exact", "kept", "volume"),
    [
        (2**13, 75, 917_504, 917_504, 49, 786_432),
        (2**14, 112, 655_360, 655_360, 106, 393_216),
        (2**15, 165, 524_288, 458_752, 220, 262_144),
        (2**16, 240, 393_216, 327_680, 448, 196_608),
        (2**17, 346, 262_144, 262_144, 512, 131_072),
    ],
)
def test_the_table_of_section_3_10(capacity: int, floor: int, rounded: int, exact: int, kept: int, volume: int) -> None:
    chain = TwoProducts(512, 64, 64, 512, capacity, 16)
    assert chain.clamped() == (floor, floor)
    assert chain.moved(floor, floor) == rounded
    assert chain.moved(*chain.exact()) == exact
    assert chain.kept_tile() == kept
    assert chain.kept_volume(kept) == volume


def test_spec1_g13_one_head_of_g1() -> None:
    chain = TwoProducts(512, 64, 64, 512, 2**14, 16)
    assert (chain.clamped()[0], chain.moved(112, 112)) == (112, 655_360)
    assert (chain.kept_tile(), chain.kept_volume(106)) == (106, 393_216)
    assert chain.compulsory == 131_072


def test_spec1_g14_keep_of_large_products() -> None:
    chain = square(2**19, 16)
    assert (chain.kept_tile(), chain.kept_volume(119)) == (119, 159_383_552)


def test_spec1_g16_two_levels() -> None:
    """Each level by itself; the slower one decides."""
    inner, outer = square(8192, 16), square(2**19, 16)
    assert inner.clamped() == (75, 75)
    assert inner.moved(75, 75) == 469_762_048
    costs = inner.moved(75, 75) / 64, outer.moved(*outer.clamped()) / 8
    assert costs == (7_340_032, 6_291_456)
    assert max(costs) == 7_340_032


@pytest.mark.parametrize(
    ("strides", "kernels", "rows"),
    [((2, 1), (3, 1), 17), ((4, 1), (3, 1), 31), ((1, 1), (1, 3), 10), ((1, 1), (3, 3), 12), ((2, 1), (3, 3), 21)],
)
def test_spec1_g17_input_rows(strides: tuple[int, int], kernels: tuple[int, int], rows: int) -> None:
    assert conv_input_rows(8, strides, kernels) == rows


@pytest.mark.parametrize(("tile", "volume"), [(64, 589_824), (128, 327_680), (256, 196_608)])
def test_spec1_g41_row_blocks(tile: int, volume: int) -> None:
    """FLAT-RGran: a block of rows and all of l."""
    assert TwoProducts(512, 64, 64, 512, 2**16, 16).kept_volume(tile) == volume


def test_tiles_are_one_for_each_number_of_steps() -> None:
    for extent in range(1, 80):
        tiles = distinct_tiles(extent)
        assert tiles == tuple(sorted({balanced(extent, tile) for tile in range(1, extent + 1)}))
        for multiple in (4, 16):
            wide = distinct_tiles(extent, multiple, multiple)
            assert all(tile % multiple == 0 or tile == extent for tile in wide)
            assert {-(-extent // tile) for tile in wide} == {
                -(-extent // tile) for tile in (*range(multiple, extent, multiple), extent)
            }


def test_too_little_memory_is_refused_with_what_is_needed() -> None:
    with pytest.raises(InvalidArgument, match="holds no tiles of 16") as error:
        TwoProducts(64, 64, 64, 64, 20, 16)
    assert "33 elements" in error.value.help
    with pytest.raises(InvalidArgument, match="holds no row") as error:
        TwoProducts(64, 64, 64, 64, 200, 16).kept_tile()
    assert str(64 + 64 + 16 + 64 * 16) in error.value.help
    TwoProducts(64, 64, 64, 64, 64 + 64 + 16 + 64 * 16, 16).kept_tile()
