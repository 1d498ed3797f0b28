"""Bounds of index values."""

from __future__ import annotations

import pytest
from xdsl.dialects import scf

from tilewright.kernel.dialect import operations
from tilewright.kernel.passes.hopper.linear_form import largest, least, linear_form
from tilewright.kernel.text import parse_module

PROGRAM = """\
tile.func @k(%v: memref<64xi64>) grid [5] {{
  %p = tile.program_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c9 = arith.constant 9 : index
  %n = arith.constant -3 : index
  %o = tile.load %v[%c0] strides [] : memref<64xi64> -> i64
  %u = arith.index_cast %o : i64 to index
  %x = arith.addi %p, %c4 : index
  %y = arith.muli %p, %c9 : index
  {operation} : index
  scf.for %i = %c0 to %z step %c1 {{
    scf.yield
  }}
  tile.return
}}
"""
CASES = {
    "%z = arith.addi %x, %y": (4, 44),
    "%z = arith.muli %x, %c9": (36, 72),
    "%z = arith.minsi %x, %c9": (4, 8),
    "%z = arith.minsi %x, %u": (None, None),
    "%z = arith.maxsi %u, %c1": (1, None),
    "%z = arith.maxsi %u, %u": (None, None),
    "%z = arith.subi %c4, %p": (0, None),
    "%z = arith.subi %c9, %u": (None, None),
    "%z = arith.divui %y, %c4": (0, 9),
    "%z = arith.remui %y, %c4": (0, 3),
    "%z = arith.remui %u, %c4": (0, 3),
    "%z = arith.divui %u, %c4": (None, None),
    "%z = arith.addi %x, %n": (None, 5),
}


@pytest.mark.parametrize("operation", CASES)
def test_bounds(operation: str) -> None:
    module = parse_module(PROGRAM.format(operation=operation))
    (kernel,) = module.body.ops
    (loop,) = (op for op in operations(kernel.regions[0]) if isinstance(op, scf.ForOp))
    assert (least(loop.ub), largest(linear_form(loop.ub))) == CASES[operation]
