"""Fewer conversions, the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from tilewright.kernel import simt
from tilewright.kernel.dialect import CastOp, ConvertOp, LoadOp, element, operations
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import run_pass, run_pipeline
from tilewright.kernel.text import parse_module

# A transposition that widens, numbers its rows and leaves out some columns.
TRANSPOSED = """
tile.func @k(%x: memref<1024xf16>, %y: memref<1024xf32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [1, 32] align 16 : memref<1024xf16> -> tensor<32x32xf16>
  %w = tile.cast %a : tensor<32x32xf16> -> tensor<32x32xf32>
  %i = tile.iota 0 : tensor<32x32xi64>
  %f = tile.cast %i : tensor<32x32xi64> -> tensor<32x32xf32>
  %s = arith.addf %w, %f : tensor<32x32xf32>
  %j = tile.iota 1 : tensor<32x32xi64>
  %n = arith.constant dense<30> : tensor<32x32xi64>
  %m = tile.compare "lt" %j, %n : tensor<32x32xi64> -> tensor<32x32xi1>
  tile.store %s, %y[%o] mask %m : tensor<32x32xi1> strides [32, 1] align 16 : tensor<32x32xf32>, memref<1024xf32>
  tile.return
}
"""


def assigned(text: str, remove: bool = True) -> ModuleOp:
    module = parse_module(text)
    for name in ("warp-products", "assign-layouts", *(("remove-conversions",) if remove else ())):
        run_pass(module, name)
    return module


def conversions(module: ModuleOp) -> list[ConvertOp]:
    return [op for op in operations(module.body) if isinstance(op, ConvertOp)]


def test_only_what_is_loaded_is_converted_and_while_it_is_narrow() -> None:
    (left,) = conversions(assigned(TRANSPOSED))
    assert isinstance(left.value.owner, LoadOp)
    assert isinstance(next(iter(left.result.uses)).operation, CastOp)
    assert [str(element(each.value)) for each in conversions(assigned(TRANSPOSED, remove=False))] != ["f16"]


@pytest.mark.parametrize("disable", [(), ("remove-conversions",)], ids=["on", "off"])
def test_numbers_are_those_of_whole_tiles(disable: tuple[str, ...]) -> None:
    x = np.arange(1024, dtype=np.float16)
    wanted: list[np.ndarray[Any, Any]] = [x, np.full(1024, 7, np.float32)]
    found: list[np.ndarray[Any, Any]] = [x, np.full(1024, 7, np.float32)]
    run_kernel(parse_module(TRANSPOSED), "k", wanted)
    module = parse_module(TRANSPOSED)
    run_pipeline(module, "gpu", disable, verify_each=True)
    run_kernel(module, "k", found, order="random", races=True)
    np.testing.assert_array_equal(found[1], wanted[1])
    buffers = [op for op in operations(module.body) if isinstance(op, simt.SharedOp)]
    assert len(buffers) == 1 or disable


@pytest.mark.parametrize(("block", "before"), [((32, 32), True), ((64, 64), False)])
def test_rows_of_a_loop_are_converted_before_it_where_registers_are_left(block: tuple[int, int], before: bool) -> None:
    module = assigned(programs.attention((1, 128, 64), block))
    (loop,) = (op for op in operations(module.body) if isinstance(op, scf.ForOp))
    (rows,) = (each for each in conversions(module) if each.value.name_hint == "qs")
    assert (rows.parent is loop.parent) == before
