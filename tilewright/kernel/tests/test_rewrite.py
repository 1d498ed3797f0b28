"""Rewriting keeps what a user needs to find a line again: locations and names."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import UnknownLoc

from tests.random_kernels import random_kernel
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module, print_module


def located(text: str) -> str:
    """The text with a location on every operation that fits on its line."""
    lines = text.splitlines()
    return "\n".join(
        f'{line} loc("net.py":{number}:1)' if re.match(r" {4,}[%\w]", line) and not line.endswith("{") else line
        for number, line in enumerate(lines, start=1)
    )


def test_new_operations_keep_the_location_of_the_old() -> None:
    known = total = 0
    for seed in range(12):
        text = print_module(random_kernel(seed, size=20).module)
        kernels = text[: text.index("  tile.main")] + "}"
        module = parse_module(located(kernels))
        run_pipeline(module)
        for op in module.walk():
            if not op.regions and op.name not in ("scf.yield", "tile.return"):
                total += 1
                known += type(op.location) is not UnknownLoc
    assert total > 200
    assert known >= 0.95 * total


def test_names_pass_to_what_replaces_a_value() -> None:
    module = parse_module("""
tile.func @k(%y: memref<64xi32>) grid [4] {
  %p = tile.program_id 0
  %a = arith.constant 3 : index
  %b = arith.constant 5 : index
  %first = arith.addi %p, %a : index
  %place = arith.addi %first, %b : index
  %v = arith.constant 1 : i32
  tile.store %v, %y[%place] strides [] : i32, memref<64xi32>
  tile.return
}""")
    run_pipeline(module, verify_each=True)
    assert "%place = arith.addi %p, %" in print_module(module)
    assert isinstance(module.body.block.first_op, FuncOp)
