"""The text form: round trips, exact constants, and errors that say where."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr, ModuleOp, StringAttr, bf16, f16, f32, f64

from tests.covering import tries
from tests.random_kernels import random_kernel
from tilewright.errors import InvalidProgram
from tilewright.kernel import printing
from tilewright.kernel.dialect import FuncOp, LoadOp, ReturnOp, StoreOp
from tilewright.kernel.elements import dtype_of
from tilewright.kernel.text import parse_module, print_module

VALID = """\
tile.func @scale(%x: memref<64xf32>, %y: memref<64xf32>) grid [4, 2] cost {flops = 64 : i64} {
  %p = tile.program_id 0
  %c8 = arith.constant 8 : index
  %o = arith.muli %p, %c8 : index
  %v = tile.load %x[%o] bounds(%c8) strides [1] : memref<64xf32> -> tensor<8xf32>
  tile.store %v, %y[%o] strides [1] nontemporal : tensor<8xf32>, memref<64xf32>
  tile.return
}
tile.main arena 0 constants 0 {
  %x = tile.buffer "input" 0 : memref<64xf32>
  %y = tile.buffer "output" 0 : memref<64xf32>
  tile.launch @scale(%x, %y) : memref<64xf32>, memref<64xf32>
}
"""


def constant_text(literal: str, type_: str) -> str:
    text = f"tile.func @k() grid [1] {{\n  %c = arith.constant {literal} : {type_}\n  tile.return\n}}"
    return print_module(parse_module(text)).splitlines()[2].strip()


def test_kernels_read_like_this() -> None:
    printed = print_module(parse_module(VALID))
    assert printed == "builtin.module {\n" + "".join(f"  {line}\n" for line in VALID.splitlines()) + "}\n"


@settings(max_examples=tries(5, full=25), deadline=None)
@given(st.integers(0, 2**32))
def test_round_trip_is_exact(seed: int) -> None:
    text = print_module(random_kernel(seed, size=15).module)
    assert print_module(parse_module(text)) == text


@pytest.mark.parametrize("seed", range(3))
def test_formats_print_what_xdsl_prints_by_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With attributes that no format names, on operations of ours and of xDSL."""
    module = random_kernel(seed, size=15).module
    for op in module.walk():
        if isinstance(op, LoadOp | StoreOp | arith.ConstantOp):
            op.attributes["noted"] = StringAttr("here")
    text = print_module(module)
    monkeypatch.setattr(printing, "direct_format", lambda kind: None)
    assert print_module(module) == text
    assert 'noted = "here"' in text
    assert re.search(r"strides \[\d", text)


@pytest.mark.parametrize("type_", [f16, bf16, f32, f64])
@given(st.floats(width=16) | st.floats())
def test_float_constants_are_exact(type_: AnyFloat, value: float) -> None:
    with np.errstate(over="ignore"):
        attribute = FloatAttr(float(dtype_of(type_).type(value)), type_)
    kernel = FuncOp("k", [], [1])
    kernel.body.block.add_ops([arith.ConstantOp(attribute), ReturnOp()])
    module = parse_module(print_module(ModuleOp([kernel])))
    read = next(op for op in module.walk() if isinstance(op, arith.ConstantOp)).value
    assert isinstance(read, FloatAttr)
    assert np.float64(read.value.data).tobytes() == np.float64(attribute.value.data).tobytes() or np.isnan(value)


def test_hexadecimal_elements_are_bits() -> None:
    # The parser of xDSL 0.74 reads these as numbers, 4.28e9 for -inf.
    assert constant_text("dense<0xFF800000>", "tensor<3xf32>").endswith("dense<0xff800000> : tensor<3xf32>")
    assert "0x7c00, 1.000000e+00" in constant_text("dense<[0x7C00, 1.0]>", "tensor<2xf16>")
    assert "dense<16>" in constant_text("dense<0x10>", "tensor<3xi8>")


def test_zeros_of_both_signs_are_kept() -> None:
    # Equal as numbers, so the short form of a splat would merge them.
    printed = constant_text("dense<[0.0, -0.0]>", "tensor<2xf32>")
    assert printed == '%c = arith.constant dense<"0x0000000000000080"> : tensor<2xf32>'
    assert constant_text('dense<"0x0000000000000080">', "tensor<2xf32>") == printed


def test_names_that_end_in_numbers_stay_distinct() -> None:
    text = "tile.func @k() grid [1] {\n  %a_1_2 = arith.constant 1 : i8\n  %a = arith.constant 2 : i8\n"
    text += "  %a_1 = arith.constant 3 : i8\n  %b = arith.subi %a_1_2, %a_1 : i8\n  tile.return\n}"
    printed = print_module(parse_module(text))
    assert print_module(parse_module(printed)) == printed
    assert "%b = arith.subi %a, %a_2 : i8" in printed


def test_locations_are_printed_on_request_and_read_back() -> None:
    module = parse_module('tile.func @k() grid [1] {\n  %a = arith.constant 1 : i8 loc("net.py":3:4)\n  tile.return\n}')
    with_locations = print_module(module, locations=True)
    assert 'loc("net.py":3:4)' in with_locations
    assert print_module(parse_module(with_locations), locations=True) == with_locations
    assert "loc(" not in print_module(module)


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        (("bounds(%c8)", "bounds(%c8, %c8)"), "5:3", "tile.load: 2 bounds for a tile of 1 dimensions"),
        (("bounds(%c8)", "bounds(%nine)"), "5:32", "value %nine is used but not defined"),
        (("grid [4, 2]", "grid 4"), "1:63", "'[' expected"),
        (("tile.load", "tile.lode"), "5:3", "tile.lode is not an operation of tile programs"),
        (("tile.load", "func.call"), "5:3", "func.call is not an operation of tile programs"),
        (("cost {flops = 64 : i64}", "cost 3"), "1:75", "cost is a dictionary"),
        (("launch @scale", "launch @scales"), "12:3", "launches @scales, which is not a kernel of this module"),
        (
            ("%o = arith.muli %p, %c8", "%o = arith.muli %v, %c8"),
            "5:3",
            "but used with type index",
        ),
        (("%y: memref<64xf32>)", "%y: memref<64xf32>"), "1:57", "')' expected"),
    ],
)
def test_errors_say_where(change: tuple[str, str], place: str, message: str) -> None:
    assert change[0] in VALID
    with pytest.raises(InvalidProgram) as caught:
        parse_module(VALID.replace(change[0], change[1], 1), "net.tile")
    assert caught.value.where == f"net.tile:{place}", caught.value
    assert message in caught.value.message
    assert caught.value.help


@pytest.mark.parametrize("text", ["", "// nothing", "%", "tile.func", "\x00", "builtin.module {", "}" * 3, "é", '"'])
def test_nonsense_is_an_error(text: str) -> None:
    with pytest.raises(InvalidProgram):
        parse_module(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('tile.func @k() grid [1] attributes {a = "' + "x" * 4000 + "} { tile.return }", "closing string literal"),
        ("tile.func @k() grid [1] attributes {a = 1 : i4294967296} { tile.return }", "at most 64 bits"),
        ("tile.func @k() grid [1] { %c = arith.constant dense<1> : tensor<9999x999xi8> tile.return }", "at most 1048"),
    ],
)  # fmt: skip
def test_what_would_take_forever_is_an_error(text: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        parse_module(text)


def test_deep_nesting_is_an_error() -> None:
    with pytest.raises(InvalidProgram):
        parse_module("tile.func @k() grid [1] attributes {a = " + "[" * 5000 + "]" * 5000 + "} { tile.return }")


@settings(max_examples=tries(60, full=150), deadline=None)
@given(st.integers(0, 2**32))
def test_damaged_text_never_crashes(seed: int) -> None:
    rng = random.Random(seed)
    text = VALID if rng.random() < 0.5 else print_module(random_kernel(seed % 16, size=8).module)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text))
        match rng.randrange(4):
            case 0:
                text = text[:start] + text[start + rng.randint(1, 8) :]
            case 1:
                text = text[:start] + rng.choice('%@:<>(){}[],=-"#!^0x9 \n') + text[start:]
            case 2:
                other = rng.randrange(len(text))
                text = text[:start] + text[other : other + 12] + text[start + 12 :]
            case _:
                words = ["tensor<4xf32>", "memref<0xi1>", "index", "-1", "1e999", "dense<>", "4294967296", "i1", "%c8"]
                text = text[:start] + rng.choice(words) + text[start:]
    try:
        module = parse_module(text)
    except InvalidProgram:
        return
    printed = print_module(module)
    assert print_module(parse_module(printed)) == printed
