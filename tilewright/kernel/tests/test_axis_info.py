"""Facts of tiles along their dimensions: the worked cases, and every claim about random programs by counting."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import SSAValue

from tests.covering import some
from tests.random_kernels import random_kernel
from tilewright.kernel.axis_info import ANYTHING, AxisAnalysis, AxisInfo
from tilewright.kernel.dialect import FuncOp, element, shape
from tilewright.kernel.interpreter import _Known, _Program
from tilewright.kernel.text import parse_module
from tilewright.kernel.views import View

Array = np.ndarray[Any, Any]


class Watched(dict[SSAValue, Array]):
    """The values of a program, each compared with what is said of it."""

    def __init__(self, facts: AxisAnalysis) -> None:
        self.facts, self.told = facts, 0

    def __setitem__(self, value: SSAValue, array: Array) -> None:
        super().__setitem__(value, array)
        info = self.facts.known.get(value)
        if info is not None and isinstance(element(value), IntegerType | IndexType):
            self.told += max(info.contiguity) > 1 or max(info.divisibility) > 1
            hold(value, array, info)

    def update(self, pairs: Iterable[tuple[SSAValue, Array]]) -> None:  # type: ignore[override]
        for value, array in pairs:
            self[value] = array


def hold(value: SSAValue, array: Array, info: AxisInfo) -> None:
    """Count: every group of every line along every dimension."""
    extents, place = shape(value) or (1,), f"{value.owner}: {info}"
    bare = element(value)
    modulus = 1 << (bare.width.data if isinstance(bare, IntegerType) else 64)
    numbers = array.astype(object).reshape(extents) % modulus if array.dtype != bool else array.reshape(extents) * 1
    assert len(info.contiguity) == len(info.divisibility) == len(info.constancy) == len(extents), place
    if info.constant is not None:
        assert (numbers == info.constant % modulus).all(), place
    if info.most is not None:
        assert (numbers <= info.most).all(), place
    for dim, extent in enumerate(extents):
        lines = np.moveaxis(numbers, dim, -1).reshape(-1, extent)
        at = np.arange(extent)
        run = at % info.contiguity[dim]
        assert ((lines - lines[:, at - run] - run) % modulus == 0).all(), f"contiguity {dim} of {place}"
        divisor = min(info.divisibility[dim], modulus)
        assert (lines[:, run == 0] % divisor == 0).all(), f"divisibility {dim} of {place}"
        assert (lines == lines[:, at - at % info.constancy[dim]]).all(), f"constancy {dim} of {place}"


def run(kernel: FuncOp, arrays: Iterable[Array]) -> int:
    """Run a program at every point of the grid; how many values were told something of."""
    views, told = [View(array, None) for array in arrays], 0
    facts, known = AxisAnalysis(kernel), _Known()
    for number in range(kernel.programs):
        program = _Program(kernel, [int(x) for x in np.unravel_index(number, kernel.extents)], number, 0, known)
        program.values = watched = Watched(facts)
        program.views.update(zip(kernel.body.block.args, views, strict=True))
        with np.errstate(all="ignore"):  # as a launch has it
            program.run(kernel.body.block)
        told += watched.told
    return told


def facts(lines: str, name: str = "y") -> AxisInfo:
    """Of value %name of a program that reads a whole number %d and counts 0 to 127 in %i."""
    module = parse_module(f"""builtin.module {{
      tile.func @k(%v: memref<64xi64>) grid [7] {{
        %zero = arith.constant 0 : index
        %d = tile.load %v[%zero] strides [] : memref<64xi64> -> i64
        %i = tile.iota 0 : tensor<128xi64>
        {lines}
        tile.return
      }}
    }}""")
    (kernel,) = module.body.ops
    assert isinstance(kernel, FuncOp)
    rng = np.random.default_rng(1)
    for start in (0, 1, -5, 48):
        array = rng.integers(-100, 100, 64)
        array[0] = start
        run(kernel, [array])
    analysis = AxisAnalysis(kernel)
    return next(info for value, info in analysis.known.items() if value.name_hint == name)


def splat(number: int, name: str = "c") -> str:
    return f"%{name} = arith.constant dense<{number}> : tensor<128xi64>\n"


def test_golden_35_a_count_times_8_plus_a_number_that_16_divides() -> None:
    eight = splat(8) + "%t = arith.muli %i, %c : tensor<128xi64>\n"
    aligned = """%n = arith.constant 16 : i64
    %a = arith.muli %d, %n : i64
    %s = tile.broadcast %a : i64 -> tensor<128xi64>
    """
    info = facts(eight + aligned + "%y = arith.addi %t, %s : tensor<128xi64>")
    assert (info.contiguity, info.divisibility, info.constancy) == ((1,), (8,), (1,))
    assert facts(aligned + "%y = arith.addi %i, %s : tensor<128xi64>").divisibility == (16,)


def test_golden_36_a_quotient_repeats() -> None:
    info = facts(splat(16) + "%y = arith.divsi %i, %c : tensor<128xi64>")
    assert (info.contiguity, info.constancy) == ((1,), (16,))


def test_golden_37_a_remainder_counts_up_again() -> None:
    info = facts(splat(32) + "%y = arith.remsi %i, %c : tensor<128xi64>")
    assert (info.contiguity, info.divisibility, info.constancy) == ((32,), (32,), (1,))


OF_NUMBERS = "%s = tile.broadcast %d : i64 -> tensor<128xi64>\n%x = arith.addi %i, %s : tensor<128xi64>\n"


OF_SIXTEENS = (
    splat(16)
    + """%n = arith.constant 16 : i64
    %a = arith.muli %d, %n : i64
    %s = tile.broadcast %a : i64 -> tensor<128xi64>
    %x = arith.addi %i, %s : tensor<128xi64>
    """
)
OF_BYTES = """%c = arith.constant dense<16> : tensor<128xi8>
    %more = arith.constant dense<64> : tensor<128xi8>
    %b = tile.cast %i : tensor<128xi64> -> tensor<128xi8>
    %x = arith.addi %b, %more : tensor<128xi8>
    """
CHOSEN = (
    splat(4)
    + splat(64, "d64")
    + """%far = arith.subi %i, %d64 : tensor<128xi64>
    %f = tile.compare "{}" %i, %c : tensor<128xi64> -> tensor<128xi1>
    %y = tile.select %f, %i, %far : tensor<128xi1>, tensor<128xi64>"""
)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("%y = arith.addi %i, %i : tensor<128xi64>", ((1,), (1,), (1,))),
        (splat(1) + "%y = arith.muli %i, %c : tensor<128xi64>", ((128,), (ANYTHING,), (1,))),
        (splat(4) + "%y = arith.shli %i, %c : tensor<128xi64>", ((1,), (16,), (1,))),
        (splat(64) + "%y = arith.subi %i, %c : tensor<128xi64>", ((128,), (64,), (1,))),
        (splat(64) + "%y = arith.subi %c, %i : tensor<128xi64>", ((1,), (1,), (1,))),
        (splat(7) + "%y = arith.andi %i, %c : tensor<128xi64>", ((8,), (8,), (1,))),
        (splat(3) + "%y = arith.shrsi %i, %c : tensor<128xi64>", ((1,), (1,), (8,))),
        (splat(24) + "%y = arith.divsi %i, %c : tensor<128xi64>", ((1,), (1,), (8,))),
        ("%y = tile.cast %i : tensor<128xi64> -> tensor<128xi8>", ((128,), (ANYTHING,), (1,))),
        (splat(4) + "%y = tile.compare \"lt\" %i, %c : tensor<128xi64> -> tensor<128xi1>", ((1,), (1,), (4,))),
        (splat(4) + "%y = tile.compare \"le\" %i, %c : tensor<128xi64> -> tensor<128xi1>", ((1,), (1,), (1,))),
        (splat(4) + "%y = tile.compare \"le\" %c, %i : tensor<128xi64> -> tensor<128xi1>", ((1,), (1,), (4,))),
        (splat(4) + "%y = tile.compare \"eq\" %i, %c : tensor<128xi64> -> tensor<128xi1>", ((1,), (1,), (1,))),
        (CHOSEN.format("lt"), ((4,), (4,), (1,))),  # from where one side begins
        (CHOSEN.format("le"), ((1,), (1,), (1,))),
        # Towards zero, -1 / 16 is 0 as 1 / 16 is: of what may be negative nothing is known, but of floors.
        (OF_NUMBERS + splat(1) + "%y = arith.divsi %x, %c : tensor<128xi64>", ((128,), (1,), (1,))),
        (OF_NUMBERS + splat(16) + "%y = arith.divsi %x, %c : tensor<128xi64>", ((1,), (1,), (1,))),
        (OF_SIXTEENS + "%y = arith.divsi %x, %c : tensor<128xi64>", ((1,), (1,), (1,))),
        (OF_SIXTEENS + "%y = arith.floordivsi %x, %c : tensor<128xi64>", ((1,), (1,), (16,))),
        (OF_SIXTEENS + "%y = arith.divui %x, %c : tensor<128xi64>", ((1,), (1,), (16,))),
        (OF_SIXTEENS + "%y = arith.remsi %x, %c : tensor<128xi64>", ((1,), (1,), (1,))),
        (OF_SIXTEENS + "%y = arith.remui %x, %c : tensor<128xi64>", ((16,), (16,), (1,))),
        # 64 to 191 are no bytes: the upper half of them is negative.
        (OF_BYTES + "%y = arith.divsi %x, %c : tensor<128xi8>", ((1,), (1,), (1,))),
        (OF_BYTES + "%y = arith.floordivsi %x, %c : tensor<128xi8>", ((1,), (1,), (16,))),
        ("%y = tile.reshape %i : tensor<128xi64> -> tensor<1x128xi64>", ((1, 128), (1, ANYTHING), (1, 1))),
        ("%y = tile.reshape %i : tensor<128xi64> -> tensor<8x16xi64>", ((1, 16), (1, 16), (1, 1))),
        ("%y = tile.load %v[%zero] strides [0] : memref<64xi64> -> tensor<8xi64>", ((1,), (1,), (8,))),
        ("%y = arith.addi %i, %i {contiguity = array<i64: 1>, divisibility = array<i64: 2>} : tensor<128xi64>",
         ((1,), (2,), (1,))),
    ],
)  # fmt: skip
def test_rules(lines: str, wanted: tuple[tuple[int, ...], ...]) -> None:
    info = facts(lines)
    assert (info.contiguity, info.divisibility, info.constancy) == wanted


def test_rows_and_columns() -> None:
    info = facts("""%m = tile.iota 0 : tensor<16x1xi64>
        %k = tile.iota 1 : tensor<1x32xi64>
        %w = arith.constant dense<64> : tensor<16x1xi64>
        %r = arith.muli %m, %w : tensor<16x1xi64>
        %a = tile.broadcast %r : tensor<16x1xi64> -> tensor<16x32xi64>
        %b = tile.broadcast %k : tensor<1x32xi64> -> tensor<16x32xi64>
        %y = arith.addi %a, %b : tensor<16x32xi64>""")
    assert (info.contiguity, info.divisibility, info.constancy) == ((1, 32), (1, 64), (1, 1))


def test_what_goes_round_a_loop_keeps_what_every_trip_keeps() -> None:
    step = """%low = arith.constant 0 : index
        %high = arith.constant 4 : index
        %one = arith.constant 1 : index
        {c}
        %y = scf.for %t = %low to %high step %one iter_args(%p = %i) -> (tensor<128xi64>) {{
          %q = arith.{op} %p, %c : tensor<128xi64>
          scf.yield %q : tensor<128xi64>
        }}"""
    ahead = facts(step.format(c=splat(32), op="addi"))
    assert (ahead.contiguity, ahead.divisibility) == ((128,), (32,))
    assert facts(step.format(c=splat(3), op="muli")).contiguity == (1,)


SHAPES = ((64,), (8, 16), (4, 1, 8), (48,))
BINARY = (
    arith.AddiOp, arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.DivSIOp, arith.DivUIOp, arith.FloorDivSIOp,
    arith.RemSIOp, arith.RemUIOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.ShLIOp, arith.ShRSIOp, arith.ShRUIOp,
    arith.MinSIOp, arith.MaxSIOp,
)  # fmt: skip


def random_addresses(rng: random.Random) -> str:
    """A program of counts, constants, numbers from memory and what is computed from them, in one integer type."""
    extents, width = rng.choice(SHAPES), rng.choice(("i8", "i16", "i32", "i64", "i64"))
    tile = f"tensor<{'x'.join(map(str, extents))}x{{}}>".format
    lines: list[str] = []
    values: list[tuple[str, str]] = []
    flags: list[str] = []

    def add(text: str, type_: str) -> str:
        lines.append(f"%n{len(lines)} = {text}")
        values.append((f"%n{len(lines) - 1}", type_))
        return values[-1][0]

    lines.append("%zero = arith.constant 0 : index")
    for axis in range(len(extents)):
        count = add(f"tile.iota {axis} : {tile('i64')}", "i64")
        add(f"tile.cast {count} : {tile('i64')} -> {tile(width)}", width)
    for number in rng.sample((0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, -1, -4), 5):
        add(f"arith.constant dense<{number}> : {tile(width)}", width)
    for place in range(2):
        lines.append(f"%at{place} = arith.constant {place} : index")
        loaded = add(f"tile.load %v[%at{place}] strides [] : memref<64xi64> -> i64", "")
        cast = add(f"tile.cast {loaded} : i64 -> {width}", "")
        factor = add(f"arith.constant {rng.choice((1, 4, 16))} : {width}", "")
        scaled = add(f"arith.muli {cast}, {factor} : {width}", "")
        add(f"tile.broadcast {scaled} : {width} -> {tile(width)}", width)
    for _ in range(25):
        a, b = (rng.choice([name for name, type_ in values if type_ == width]) for _ in range(2))
        kind = rng.random()
        if kind < 0.7:
            add(f"{rng.choice(BINARY).name} {a}, {b} : {tile(width)}", width)
        elif kind < 0.8:
            sign = rng.choice(("", "unsigned "))
            predicate = rng.choice(("eq", "ne", "lt", "le", "gt", "ge"))
            text = f'tile.compare "{predicate}" {a}, {b} {sign}: {tile(width)} -> {tile("i1")}'
            flags.append(add(text, "i1"))
        elif kind < 0.92 and flags:
            add(f"tile.select {rng.choice(flags)}, {a}, {b} : {tile('i1')}, {tile(width)}", width)
        else:
            other = rng.choice(("i8", "i32", "i64"))
            sign = rng.choice(("", "unsigned "))
            cast = add(f"tile.cast {a} {sign}: {tile(width)} -> {tile(other)}", other)
            add(f"tile.cast {cast} {sign}: {tile(other)} -> {tile(width)}", width)
    text = "\n".join(lines)
    return f"builtin.module {{ tile.func @k(%v: memref<64xi64>) grid [1] {{ {text}\n tile.return }} }}"


@pytest.mark.parametrize("seed", some(range(15), 6))
def test_every_claim_about_random_addresses_holds(seed: int) -> None:
    rng = random.Random(seed)
    told = 0
    for _ in range(5):
        (kernel,) = parse_module(random_addresses(rng)).body.ops
        assert isinstance(kernel, FuncOp)
        for limit in (10, 1 << 40):
            told += run(kernel, [np.array([rng.randint(-limit, limit) for _ in range(64)])])
    assert told > 50  # or nothing was tried


@pytest.mark.parametrize("seed", some(range(20), 8))
def test_every_claim_about_random_programs_holds(seed: int) -> None:
    made = random_kernel(seed, functions=False)
    kernel = next(op for op in made.module.body.ops if isinstance(op, FuncOp))
    run(kernel, [array.view(array.dtype) for array in (*made.inputs, *made.outputs())])
