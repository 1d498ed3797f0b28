"""Programs of a call: every one runs once, and their coordinates leave addresses simple."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest

from tilewright.codegen.cpu import pipeline
from tilewright.codegen.cpu.tests.execute import run_program
from tilewright.compiler.compile import compile_graph
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import conv
from tilewright.kernel.text import parse_module
from tilewright.options import Options


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("extents", [(1,), (5,), (1, 7), (3, 1, 4), (2, 3, 5, 1), (4, 3, 2, 5)])
def test_every_program_of_the_grid_runs(extents: tuple[int, ...], threads: int) -> None:
    """Each copies the element at its coordinates; threads begin at different programs."""
    size = prod(extents)
    lines = ["%p = arith.constant 0 : index"]
    for axis in range(len(extents)):
        lines += [
            f"%c{axis} = tile.program_id {axis}",
            f"%s{axis} = arith.constant {prod(extents[:axis])} : index",
            f"%o{axis} = arith.muli %c{axis}, %s{axis} : index",
            f"%p{axis} = arith.addi {f'%p{axis - 1}' if axis else '%p'}, %o{axis} : index",
        ]
    place = f"%p{len(extents) - 1}"
    view = f"memref<{size}xi32>"
    body = "\n".join(f"    {line}" for line in lines)
    module = parse_module(
        f"""builtin.module {{
  tile.func @kernel(%from: {view}, %to: {view}) grid [{", ".join(map(str, extents))}] {{
{body}
    %x = tile.load %from[{place}] strides [] : {view} -> i32
    tile.store %x, %to[{place}] strides [] : i32, {view}
    tile.return
  }}
  tile.main arena 0 constants 0 {{
    %0 = tile.buffer "input" 0 : {view}
    %1 = tile.buffer "output" 0 : {view}
    tile.launch @kernel(%0, %1) : {view}, {view}
  }}
}}"""
    )
    given = np.arange(1, size + 1, dtype=np.int32)
    (copied,) = run_program(module, [given], threads=threads)
    np.testing.assert_array_equal(copied, given)


def test_addresses_of_a_product_stay_in_registers() -> None:
    """LLVM kept an address of its own, on the stack, for every element that the product broadcasts."""
    b = GraphBuilder("image")
    weights = b.constant(np.ones((64, 192, 3, 3), np.float32), "w")
    graph = b.finish([conv.conv(b.input("x", (1, 192, 65, 65), "f32"), weights, pads=(1, 1, 1, 1))])
    made = compile_graph(graph, machine="x86-64-v4", threads=1, options=Options(cache=False)).artifact.program
    assert re.search(r"tile.func @conv\(.*\) grid \[7\]", made), "rows of the image are programs"
    loops = _loops(pipeline.assembly(parse_module(made)))
    products = [loop for loop in loops if sum("vfmadd" in instruction for instruction in loop) > 9]
    assert products
    for loop in products:
        assert not [instruction for instruction in loop if "(%rsp)" in instruction]


def _loops(assembly: str) -> list[list[str]]:
    """The instructions of each loop that is one basic block."""
    blocks = re.split(r"^(\.L\w+):.*$", assembly, flags=re.MULTILINE)
    found = []
    for label, text in zip(blocks[1::2], blocks[2::2], strict=True):
        lines = text.splitlines()
        ends = [number for number, line in enumerate(lines) if re.match(rf"\tj\w+\t{re.escape(label)}$", line)]
        if ends:
            found.append(lines[: ends[-1]])
    return found
