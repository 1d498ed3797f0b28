"""What a kernel may ask for: every attribute is checked where a program is read, and where a pass reads it."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import IntegerAttr, StringAttr

from tilewright.errors import InvalidProgram
from tilewright.kernel import attributes
from tilewright.kernel.programs import FuncOp
from tilewright.kernel.text import parse_module

LANES = "(0,2),(0,4),(0,8),(0,16),(0,32)"


@pytest.mark.parametrize(
    "given",
    [
        "warps = array<i64: 2, 4>", "stages = 1 : i64", "splits = 1 : i64", "registers = 1 : i64", "registers = 512",
        "cluster = 4 : i64", "blocks_per_multiprocessor = 32 : i64",
        f'layout = "#linear<r=[(0,1)], l=[{LANES}], w=[(1,0),(2,0)]>"',
    ],
)  # fmt: skip
def test_legal_attributes(given: str) -> None:
    parse_module(f"tile.func @k() grid [1] attributes {{{given}}} {{ tile.return }}")


@pytest.mark.parametrize(
    "given",
    [
        'warps = "many"', "warps = 4 : i64", "warps = array<i64: 2>", "warps = array<i64: 2, 2, 2>",
        "warps = array<i64: 0, 2>", "warps = array<i64: -2, 2>", "warps = array<i64: 3, 2>",
        "warps = array<i32: 2, 2>", 'stages = "x"', "stages = 0 : i64", "stages = -2 : i64", "stages = true",
        "stages = 2.0 : f64", 'splits = "x"', "splits = -1 : i64", "splits = 0 : i64", "layout = 3 : i64",
        'layout = "#linear<"', 'layout = "#blocked<S=[1,1], T=[4,8], W=[1,1], O=[1,0]>"', "registers = 0 : i64",
        "cluster = 3 : i64", "cluster = 8 : i64", "registers = 513 : i64", 'registers = "all"',
        "blocks_per_multiprocessor = 33 : i64",
    ],
)  # fmt: skip
def test_illegal_attributes_are_refused_with_what_is_legal(given: str) -> None:
    with pytest.raises(InvalidProgram, match="kernel k: ") as caught:
        parse_module(f"\n  tile.func @k() grid [1] attributes {{{given}}} {{ tile.return }}", "file")
    key = given.partition(" ")[0]
    assert caught.value.where == "file:2:3"
    assert f"kernel k: {key} = " in caught.value.message
    assert attributes.KNOWN[key].legal in caught.value.message


def test_an_unknown_attribute_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidProgram, match=r"kernel k: no attribute stage \(did you mean stages\? one of warps, "):
        parse_module("tile.func @k() grid [1] attributes {stage = 3 : i64} { tile.return }")


def test_passes_read_checked_attributes_of_kernels_that_nobody_verified() -> None:
    kernel = FuncOp("k", [], [1])
    readers = {
        "warps": attributes.warps_of, "stages": lambda each: attributes.stages_of(each, 3),
        "splits": lambda each: attributes.splits_of(each, 1), "cluster": lambda each: attributes.cluster_of(each, 1),
        "layout": attributes.asked_layout,
        "registers": attributes.registers_of, "blocks_per_multiprocessor": attributes.blocks_of,
        "most_blocks_per_multiprocessor": attributes.most_resident_of,
    }  # fmt: skip
    assert readers.keys() == attributes.KNOWN.keys()
    assert [read(kernel) for read in readers.values()] == [None, 3, 1, 1, None, None, None, None]
    for key, read in readers.items():
        for value in (IntegerAttr(0, 64), StringAttr("x")):
            kernel.attributes = {key: value}
            with pytest.raises(InvalidProgram, match=f"kernel k: {key} = "):
                read(kernel)
