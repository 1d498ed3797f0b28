"""Programs of a call: every one runs once."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from tilewright.codegen.cpu.tests.execute import run_program
from tilewright.kernel.text import parse_module


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
