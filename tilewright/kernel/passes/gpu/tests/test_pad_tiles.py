"""Tiles of any extents become tiles of powers of two, and compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.context import Context

from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import FuncOp, operations, shape
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.gpu.pad_tiles import PadTilesPass
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module, print_module
from tilewright.kernel.verify import verify

Array = np.ndarray[Any, Any]


def padded(text: str) -> str:
    module = parse_module(text)
    PadTilesPass().apply(Context(), module)
    verify(module)
    for kernel in module.body.ops:
        assert isinstance(kernel, FuncOp)
        for op in operations(kernel.body):
            assert all(not extent & (extent - 1) for result in op.results for extent in shape(result))
    return print_module(module)


def check(text: str, *arrays: Array) -> str:
    """The program as it is, with padded tiles, and on threads."""
    again = padded(text)
    found = []
    for number in range(3):
        module = parse_module(text if number != 1 else again)
        if number == 2:
            run_pipeline(module, "gpu", verify_each=True)
        held = [array.copy() for array in arrays]
        run_kernel(module, "k", held, races=number == 2)
        found.append(held)
    for one in found[1:]:
        for mine, wanted in zip(one, found[0], strict=True):
            np.testing.assert_allclose(mine.astype(np.float64), wanted.astype(np.float64), rtol=1e-5, atol=1e-6)
    return again


@pytest.mark.parametrize(("elements", "tile"), [(100, 100), (1000, 300), (7, 3)])
def test_element_work(elements: int, tile: int) -> None:
    x = np.linspace(-2, 2, elements, dtype=np.float32)
    assert "bounds" in check(programs.add(elements, tile), x, np.zeros_like(x))


@pytest.mark.parametrize(("rows", "columns"), [(3, 100), (5, 7), (8, 33)])
def test_softmax_sees_no_padding(rows: int, columns: int) -> None:
    x = np.random.default_rng(0).standard_normal(2 * rows * columns).astype(np.float32) - 5
    check(programs.softmax(2, rows, columns), x, np.zeros_like(x))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("sum", "f32"), ("max", "i8"), ("min", "f32"), ("prod", "i32"), ("max", "f64")]
)
def test_reductions_see_their_neutral_element(kind: str, dtype: str, axis: int) -> None:
    """All numbers have one sign, so that a zero would be seen."""
    of = {"i8": np.int8, "i32": np.int32, "f32": np.float32, "f64": np.float64}[dtype]
    sign = -1 if kind == "max" else 1
    x = (sign * np.random.default_rng(0).integers(1, 4, 6 * 13)).astype(of)
    check(programs.reduction(kind, 6, 13, axis, dtype), x, np.zeros_like(x))


@pytest.mark.parametrize(
    ("intrinsic", "dtype", "block"),
    [
        ("mma_m16n8k16_f16_f32", "f16", (24, 24, 24)),
        ("mma_m16n8k16_f16_f32", "f16", (48, 24, 48)),
        ("fma", "f32", (20, 12, 12)),
    ],
)
def test_products(intrinsic: str, dtype: str, block: tuple[int, int, int]) -> None:
    m, n, k = 2 * block[0], block[1], 2 * block[2]
    rng, of = np.random.default_rng(0), {"f16": np.float16, "f32": np.float32}[dtype]
    a, b = (rng.integers(-3, 4, size).astype(of) for size in (m * k, k * n))
    text = check(programs.matmul((m, n, k), block, intrinsic, dtype), a, b, np.zeros(m * n, np.float32))
    assert "tile.select" not in text  # loads leave zeros


def test_factors_that_are_computed_are_filled_with_zeros() -> None:
    text = programs.matmul((32, 16, 24), (32, 16, 24), "fma", "f32")
    text = text.replace('tile.dot "fma" %x, %y', 'math.exp %x : tensor<32x24xf32>\n    %d = tile.dot "fma" %e, %y')
    text = text.replace("%d = math.exp", "%e = math.exp")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(size).astype(np.float32) for size in (32 * 24, 24 * 16))
    assert check(text, a, b, np.zeros(32 * 16, np.float32)).count("tile.select") == 1


def test_loops_and_counts() -> None:
    check(programs.counted_sum(60, 20, 12), np.arange(1200, dtype=np.float32), np.zeros(20, np.float32))


RESHAPE = """\
tile.func @k(%x: memref<{size}xf32>, %y: memref<{size}xf32>) grid [1] {{
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides {strides} : memref<{size}xf32> -> tensor<{source}xf32>
  %b = tile.reshape %a : tensor<{source}xf32> -> tensor<{target}xf32>
  tile.store %b, %y[%o] strides {after} : tensor<{target}xf32>, memref<{size}xf32>
  tile.return
}}
"""


@pytest.mark.parametrize(
    ("source", "strides", "target", "after"),
    [
        ("12", "[1]", "3x4", "[4, 1]"),
        ("3x4", "[4, 1]", "12", "[1]"),
        ("3x4x5", "[20, 5, 1]", "12x5", "[5, 1]"),
        ("6x1", "[1, 0]", "6", "[1]"),
    ],
)
def test_reshapes_that_keep_the_padding(source: str, strides: str, target: str, after: str) -> None:
    size = int(np.prod([int(each) for each in source.split("x")]))
    x = np.arange(size, dtype=np.float32)
    check(RESHAPE.format(size=size, source=source, strides=strides, target=target, after=after), x, np.zeros_like(x))


def test_a_reshape_that_takes_padding_apart_is_refused() -> None:
    text = RESHAPE.format(size=12, source="4x3", strides="[3, 1]", target="12", after="[1]")
    with pytest.raises(InvalidProgram, match="a tile of 4x3 as 12 in a block") as raised:
        padded(text)
    assert "outermost" in str(raised.value)


def test_tiles_of_powers_of_two_stay() -> None:
    text = programs.softmax(2, 4, 64)
    assert padded(text) == print_module(parse_module(text))
