"""What layouts refuse: where, with which values, and the nearest legal one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tilewright.errors import CompileError, InvalidArgument
from tilewright.layouts import (
    Blocked,
    DotOperand,
    LinearLayout,
    Mma,
    NvmmaShared,
    Padded,
    Shared,
    Wmma,
    coalesced_blocked,
    convert,
    default_blocked,
    global_access,
    linear,
    matrix_load,
    mma_warps,
    nvmma_for,
    padding_for,
    parse,
    row_degree,
    row_major_memory,
    shared_access,
    shared_for_pair,
    swizzle_for_dot,
    vector_width,
    warpgroup_n,
    widest_access,
)


@pytest.mark.parametrize(
    ("text", "message", "help"),
    [
        ("blocked<S=[3], T=[32], W=[4], O=[0]>", "S is [3]", "2 or 4"),
        ("blocked<S=[1,1], T=[32], W=[4], O=[0]>", "different numbers of dimensions", ""),
        ("blocked<S=[1,1], T=[32,1], W=[4,1], O=[1,1]>", "O=[1, 1]", "[1, 0]"),
        ("blocked<S=[1,1], T=[32,1], W=[4,1]>", "without O", "S, T, W, O"),
        ("blocked<S=[1], T=[32], W=[4], O=[0], X=1>", "has no X", "one of S, T, W, O"),
        ("blocked<S=1, T=[32], W=[4], O=[0]>", "S of #blocked is 1", "a list of numbers"),
        ("blocked<S=[1], S=[1], T=[32], W=[4], O=[0]>", "two values for S", "give one"),
        ("bloked<S=[1]>", "no layout 'bloked'", "did you mean blocked?"),
        ("#b", "no parameters and is no alias", "one of"),
        ("mma<v=4, W=[1,1]>", "version 4", "v=2"),
        ("mma<v=2, W=[1,1], instr=[32,8]>", "instructions of [32, 8]", "[16,8]"),
        ("mma<v=2, W=[4]>", "W has 1 dimensions", "2, and"),
        ("mma<v=3, W=[2,2], instr=[16,64,16]>", "2 warps along m", "a multiple of 4"),
        ("mma<v=3, W=[4,1], instr=[16,48,16]>", "instr is [16,48,16]", "32 or 64"),
        ("wmma<W=[1,1], instr=[16,8,16]>", "[16, 8, 16]", "[16, 16, 16]"),
        ("amd_wmma<v=5, W=[1,1]>", "version 5", "v=3"),
        ("mfma<W=[1,1], instr=[32,32], bits=64>", "64 bits", "[16,16]"),
        ("dot<idx=2, parent=#mma<v=2, W=[1,1]>, w=2>", "operand 2", "idx=0"),
        ("dot<idx=0, parent=#mma<v=2, W=[1,1]>, w=3>", "w is 3", "2 or 4"),
        ("dot<idx=1, parent=#mma<v=3, W=[4,1], instr=[16,64,16]>, w=2>", "lies in shared memory", "nvmma"),
        ("dot<idx=0, parent=#amd_wmma<v=3, W=[1,1]>, w=4>", "w=4", "w=16"),
        ("dot<idx=0, parent=4, w=4>", "parent of #dot is 4", "expected"),
        ("slice<dim=2, parent=#mma<v=2, W=[1,1]>>", "dim 2 of 2", "0 to 1"),
        ("shared<vec=8, perPhase=3, maxPhase=2, O=[1,0]>", "perPhase is 3", "2 or 4"),
        ("nvmma<swizzle=96, bits=16>", "96 bytes", "64 or 128"),
        ("nvmma<swizzle=64, bits=64>", "64 bits", "16 or 32"),
        ("padded<pad=-8, O=[1,0]>", "pad=-8", "0 or more"),
        ("linear<r=[(0,3)], l=[(0)]>", "1 and 2 dimensions", "one number"),
        ("linear<r=[(0,4)], shape=[2,4]>", "reaches outside of dim1", "0 to 3"),
        ("linear<r=[(1)], shape=[6]>", "6 elements", "4 or 8"),
        ("linear<r=4>", "bases of register", "a list of tuples"),
        ("shared<vec=8", "expected ','", ""),
        ("shared<vec=8> more", "without perPhase", ""),
        ("padded<pad=8, O=[0]> more", "the layout has ended", ""),
        ("padded<pad=, O=[0]>", "expected a value", "a number"),
        ("", "expected a layout at the end", ""),
    ],
)
def test_malformed_text(text: str, message: str, help: str) -> None:
    with pytest.raises(CompileError) as error:
        parse(text)
    assert message in error.value.message
    assert help in error.value.help
    assert error.value.where


def test_place_in_the_text() -> None:
    with pytest.raises(InvalidArgument) as error:
        parse("slice<dim=1, parent=#blokked<S=[1]>>")
    assert error.value.where.endswith("column 21")


BLOCKED = Blocked((1, 1), (8, 4), (1, 1), (1, 0))


@contextmanager
def refused(message: str, help: str = "") -> Iterator[None]:
    with pytest.raises(InvalidArgument) as error:
        yield
    assert message in error.value.message
    assert help in error.value.help


def test_tiles_that_do_not_fit() -> None:
    with refused("12x16, whose extents are not all powers of two", "16x16"):
        BLOCKED.to_linear((12, 16))
    with refused("2 dimensions for a tile of 16"):
        BLOCKED.to_linear((16,))
    with refused("a layout of (8, 4) for a tile of (4, 8)"):
        BLOCKED.to_linear((8, 4)).to_linear((4, 8))
    with refused("rows of 16 elements", "at least 64, or swizzle=32"):
        NvmmaShared(128, 16).offsets((8, 16))
    with refused("rows of 16 bytes", "at least 16 elements"):
        nvmma_for((8, 8), 16)
    with refused("no linear map", "#shared"):
        Padded(8, (1, 0)).to_linear((8, 8))
    with refused("rank 3"):
        Padded(8, (1, 0)).offsets((2, 8, 8))


def test_choices_from_values_that_do_not_fit() -> None:
    with refused("3 warps", "2 or 4"):
        mma_warps((64, 64), 3)
    with refused("2 warps", "4, 8 or 16"):
        mma_warps((64, 64), 2, version=3)
    with refused("12 columns", "16"):
        warpgroup_n(12)
    with refused("operand 2"):
        swizzle_for_dot(2, (16, 16), (1, 0), 16)


def test_algebra_that_does_not_fit() -> None:
    tile = BLOCKED.to_linear((8, 4))
    with refused("dim0 has 8 values, the second map takes 1"):
        tile.then(tile)
    with refused("no inverse of", "add bases"):
        linear((4,), register=[(1,)]).inverse()
    with refused("different tiles"):
        tile.invert_and_compose(BLOCKED.to_linear((8, 8)))
    with refused("reshape of 32 elements"):
        tile.reshape((4, 4))
    with refused("transpose of 2"):
        tile.transpose((0, 0))
    with refused("register 1 in a layout with 1"):
        tile.apply(register=1)
    with refused("no element"):
        tile.holders(8, 0)
    with refused("a layout of 31 bits", "at most 30"):
        linear((1,), register=[(0,)] * 31)
    with refused("occurs twice"):
        LinearLayout((("lane", ()), ("lane", ())), ())


def test_conversions_that_do_not_fit() -> None:
    with refused("from 1 to 2 warps", "give both 2 warps"):
        convert(BLOCKED, Blocked((1, 1), (8, 4), (2, 1), (1, 0)), (16, 16), 32)
    with refused("does not hold every element"):
        convert(linear((8, 4), register=[], lane=[(1, 0)] * 5, warp=[]), BLOCKED, (8, 4), 32)
    with refused("a conversion between", "load into registers first"):
        convert(Shared(1, 1, 1, (1, 0)), Padded(8, (1, 0)), (8, 8), 32)
    with refused("elements of 24 bits", "16 or 32"):
        convert(BLOCKED, BLOCKED, (8, 4), 24)
    with refused("no plan between registers"):
        convert(Shared(1, 1, 1, (1, 0)), BLOCKED, (8, 4), 32).run(BLOCKED.to_linear((8, 4)).table())
    with refused("no shared layout between"):
        shared_for_pair(BLOCKED.to_linear((8, 4)), BLOCKED.to_linear((8, 8)), 32)


def test_accesses_that_do_not_fit() -> None:
    tile = BLOCKED.to_linear((8, 4))
    with refused("accesses of 2 elements, where 1 are consecutive", "1 to 1"):
        shared_access(tile, Shared(1, 1, 1, (1, 0)), 32, vector=2)
    with refused("accesses of 4 bits", "2 elements"):
        shared_access(tile, Shared(1, 1, 1, (1, 0)), 4)
    with refused("elements of 12 bits", "8 or 16"):
        vector_width(tile, row_major_memory((8, 4)), 12)
    assert matrix_load(tile, row_major_memory((8, 4)), 64) is None


def test_opaque_fragments_convert_through_memory_only() -> None:
    fragment, same = Wmma((1, 1)), Mma(2, (1, 1)).to_linear((16, 16))
    assert fragment.to_linear((16, 16)) == same
    assert convert(fragment, same, (16, 16), 32).kind == "shared"
    assert convert(fragment, DotOperand(0, fragment, 2), (16, 16), 16).kind == "shared"
    assert convert(fragment, fragment, (16, 16), 32).kind == "none"


WIDTHS = [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (8, 8), (12, 4), (1 << 20, 8)]


@pytest.mark.parametrize(("alignment", "width"), WIDTHS)
def test_of_an_alignment_counts_its_power_of_two(alignment: int, width: int) -> None:
    rows = Blocked((1, 8), (16, 2), (1, 1), (1, 0)).to_linear((16, 16))
    assert vector_width(rows, row_major_memory((16, 16)), 16, alignment) == width


ROWS = Blocked((1, 8), (16, 2), (1, 1), (1, 0)).to_linear((16, 16))


@pytest.mark.parametrize(
    "call",
    [
        lambda: vector_width(ROWS, row_major_memory((16, 16)), 16, alignment=0),
        lambda: global_access(ROWS, 16, vector=16),
        lambda: global_access(ROWS, 16, vector=3),
        lambda: global_access(ROWS, 16, vector=0),
        lambda: global_access(ROWS, 16, strides=[17, 1], vector=2),
        lambda: global_access(ROWS, 16, strides=[1]),
        lambda: global_access(ROWS, 16, base_bytes=1),
        lambda: default_blocked((16, 16), (1, 1), (1, 1), 4),
        lambda: default_blocked((16, 16), (1,), (1, 0), 4),
        lambda: default_blocked((16, 16), (0, 1), (1, 0), 4),
        lambda: default_blocked((16, 16), (1, 1), (1, 0), 0),
        lambda: coalesced_blocked((16, 16), (1, 0), 4, 0),
        lambda: coalesced_blocked((16, 16), (1, 0), 3, 1),
        lambda: widest_access(4, 16, 0),
        lambda: widest_access(4, 0, 16),
        lambda: swizzle_for_dot(0, (16, 16), (2, 0), 16),
        lambda: swizzle_for_dot(0, (0, 0), (1, 0), 16),
        lambda: nvmma_for((64,), 16, transposed=True),
        lambda: padding_for(0, 16),
        lambda: padding_for(8, 0),
        lambda: row_degree(-8, 16),
        lambda: warpgroup_n(0),
        lambda: warpgroup_n(-8),
    ],
)
def test_numbers_that_mean_nothing_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        call()


@pytest.mark.parametrize("strides", [(-16, 1), (16, 1), (-64, 1), (0, 1)])
def test_rows_backwards_are_read_as_rows_forwards(strides: tuple[int, int]) -> None:
    access = global_access(ROWS, 16, strides=strides, vector=8)
    assert access.requests == 1


def test_a_dimension_without_neighbours_has_no_distance() -> None:
    one = Blocked((1, 4), (1, 32), (1, 1), (1, 0)).to_linear((1, 128))
    assert global_access(one, 32, strides=[1, 1], vector=4).requests == 1
