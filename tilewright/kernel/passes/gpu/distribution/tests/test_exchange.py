"""Conversions within a warp by shuffles: any two layouts of which a warp holds the same, every width of elements."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from tests.covering import tries
from tilewright.kernel.dialect import operations
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribute import DistributePass
from tilewright.kernel.passes.gpu.distribution.exchange import exchange, price
from tilewright.kernel.simt import BarrierOp, ShuffleOp
from tilewright.kernel.text import parse_module
from tilewright.layouts import Blocked, Mma
from tilewright.layouts.bits import Span
from tilewright.layouts.linear import LinearLayout

TYPES = {"i8": np.int8, "f16": np.float16, "f32": np.float32, "i32": np.int32, "f64": np.float64, "i64": np.int64}


def columns(random: Random, bits: int, count: int) -> list[int]:
    """`count` independent vectors of `bits` bits."""
    span, found = Span(), list[int]()
    while len(found) < count:
        vector = random.randrange(1, 1 << bits)
        if span.add(vector):
            found.append(vector)
    return found


def pair(random: Random, bits: int, lanes: int, warps: int) -> tuple[LinearLayout, LinearLayout]:
    """Two layouts of a tile of which every warp holds the same ``1 << bits`` elements, some in several lanes."""
    basis = columns(random, bits + warps, bits + warps)
    of_warps, own = basis[:warps], basis[warps:]

    def layout() -> LinearLayout:
        mixed = []
        for mask in columns(random, bits, bits):
            total = 0
            for bit, vector in enumerate(own):
                total ^= vector if mask >> bit & 1 else 0
            mixed.append(total)
        distributed = random.randrange(max(0, bits - 4), min(bits, lanes) + 1)
        of_lanes = mixed[:distributed] + [0] * (lanes - distributed)
        random.shuffle(of_lanes)
        places = (("register", mixed[distributed:]), ("lane", of_lanes), ("warp", of_warps))
        return LinearLayout(
            tuple((name, tuple((value,) for value in vectors)) for name, vectors in places),
            (("dim0", 1 << (bits + warps)),),
        )

    return layout(), layout()


def converted(source: LinearLayout, target: LinearLayout, type_: str, lanes: int = 32) -> ModuleOp:
    """A kernel of one block that stores a tile in another layout than it loads it."""
    count, warps = 1 << source.out_bits, source.in_size("warp")
    before, after = (f'tensor<{count}x{type_}, "{layout}">' for layout in (source, target))
    module = parse_module(f"""
    builtin.module {{
      tile.func @k(%a: memref<{count}x{type_}>, %c: memref<{count}x{type_}>) grid [1] {{
        %o = arith.constant 0 : index
        %x = tile.load %a[%o] strides [1] : memref<{count}x{type_}> -> {before}
        %y = tile.convert %x : {before} -> {after}
        tile.store %y, %c[%o] strides [1] : {after}, memref<{count}x{type_}>
        tile.return
      }}
    }}""")
    DistributePass(warps, lanes).apply(Context(), module)
    module.verify()
    return module


def kinds(module: ModuleOp) -> set[type]:
    return {type(op) for kernel in module.body.ops for op in operations(kernel.regions[0])}


@settings(max_examples=tries(12, full=100), deadline=None)
@given(
    seed=st.integers(0, 10**9), bits=st.integers(0, 9), warps=st.integers(0, 2),
    type_=st.sampled_from(list(TYPES)), wave=st.sampled_from([5, 6]),
)  # fmt: skip
def test_any_two_layouts_of_a_warp(seed: int, bits: int, warps: int, type_: str, wave: int) -> None:
    source, target = pair(Random(seed), min(bits, wave + 4), wave, warps)
    module = converted(source, target, type_, 1 << wave)
    planned = exchange(source, target, np.dtype(TYPES[type_]).itemsize)
    if planned is not None and source != target:
        assert BarrierOp not in kinds(module)
    values = np.arange(1 << source.out_bits).astype(TYPES[type_])
    result = np.zeros_like(values)
    run_kernel(module, "k", [values, result], races=True)
    np.testing.assert_array_equal(result, values)


def test_results_of_products_are_exchanged_within_the_warp() -> None:
    """The conversion of spec 6, 13, case 33: results of one 16x8 instruction to one element per lane and row."""
    source = Mma(2, (1, 1)).to_linear((16, 8)).reshape((128,))
    target = Blocked((1, 1), (4, 8), (1, 1), (1, 0)).to_linear((16, 8)).reshape((128,))
    plan = exchange(source, target, 4)
    assert plan is not None
    assert plan.rounds.rounds == 4
    module = converted(source, target, "f32")
    assert ShuffleOp in kinds(module)
    assert BarrierOp not in kinds(module)


def test_halves_that_stay_neighbours_travel_together() -> None:
    source = LinearLayout((("register", ((1,), (2,))), ("lane", ((4,), (8,), (16,), (32,), (64,))), ("warp", ())),
                          (("dim0", 128),))  # fmt: skip
    target = LinearLayout((("register", ((1,), (4,))), ("lane", ((2,), (8,), (16,), (32,), (64,))), ("warp", ())),
                          (("dim0", 128),))  # fmt: skip
    halves, words = exchange(source, target, 2), exchange(source, target, 4)
    assert halves is not None
    assert words is not None
    assert (halves.low, halves.rounds.rounds) == (1, 2)
    assert (words.low, words.rounds.rounds) == (0, 4)
    assert halves.price(2) < words.price(4)


@pytest.mark.parametrize("moved", ["warp", "register"])
def test_what_needs_no_shuffle_or_cannot_have_one(moved: str) -> None:
    bits = [(1 << bit,) for bit in range(8)]
    source = LinearLayout((("register", tuple(bits[:2])), ("lane", tuple(bits[2:7])), ("warp", (bits[7],))),
                          (("dim0", 256),))  # fmt: skip
    if moved == "warp":
        other = LinearLayout((("register", (bits[0], bits[7])), ("lane", tuple(bits[2:7])), ("warp", (bits[1],))),
                             (("dim0", 256),))  # fmt: skip
        assert exchange(source, other, 4) is None
        assert price(source, other, 4) > 16
    else:
        other = LinearLayout((("register", (bits[1], bits[0])), ("lane", tuple(bits[2:7])), ("warp", (bits[7],))),
                             (("dim0", 256),))  # fmt: skip
        assert price(source, other, 4) == 0
