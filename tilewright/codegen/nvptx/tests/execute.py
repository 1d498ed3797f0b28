"""Runs kernels in distributed form through the emulator, against the interpreter; shows each to `ptxas` if found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, ModuleOp, i64

from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import Target, target_for
from tilewright.kernel import dialect as tile
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.runtime import emulated

Array = np.ndarray[Any, Any]
MACHINES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a")


def target(machine: str) -> Target:
    """The target that a machine file names; processors without a file are for `ptxas` alone."""
    if machine.startswith(("sm_1", "sm_2")):
        return Target(machine)
    found = resolve(machine)
    assert isinstance(found, Gpu), "tests name GPUs"
    return target_for(found)


def compiled(program: ModuleOp | str, machine: str = "sm_80") -> PtxCode:
    """Code for a machine, which LLVM's verifier and the assembler have accepted."""
    copy = parse_module(program if isinstance(program, str) else print_module(program))
    copy.attributes[ATTRIBUTE] = target(machine).attribute()
    code = generate(copy)
    ptxas.check(code.ptx, code.target.cpu)
    return code


def resources(code: PtxCode) -> dict[str, ptxas.Resources]:
    """What the assembler says; skips a test where there is none."""
    import pytest

    found = ptxas.check(code.ptx, code.target.cpu)
    if found is None:
        pytest.skip("no ptxas here")
    return found


def kernel(body: str, views: str, grid: str = "1", threads: str = "32, 1, 1", warp: int = 32) -> str:
    """A module with one kernel @k."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"""builtin.module {{
  tile.func @k({views}) grid [{grid}] threads [{threads}] warp {warp} {{
{lines}
    tile.return
  }}
}}"""


def one_thread(program: ModuleOp) -> ModuleOp:
    """A program in tile form, every program of which is one thread."""
    for op in program.body.block.ops:
        if isinstance(op, tile.FuncOp):
            op.properties["threads"] = DenseArrayBase.from_list(i64, [1, 1, 1])
            op.properties["warp"] = IntegerAttr(1, 64)
    return program


def emulate(text: str, arrays: Sequence[Array], machine: str = "sm_80") -> PtxCode:
    """Run kernel @k on arrays, in place; nothing may be found wrong with it."""
    code = compiled(text, machine)
    done = emulated.run_kernel(code, "k", arrays)
    assert not done.diagnostics, done.diagnostics
    return code


def agree(text: str, arrays: Sequence[Array], machine: str = "sm_80") -> PtxCode:
    """Emulator and interpreter give the same bits (any NaN is a NaN); the arrays hold the result."""
    expected = [array.copy() for array in arrays]
    run_kernel(parse_module(text), "k", expected)
    code = emulate(text, arrays, machine)
    for number, (got, wanted) in enumerate(zip(arrays, expected, strict=True)):
        assert same(got, wanted).all(), f"argument {number}: {got} instead of {wanted}"
    return code


def same(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iub":
        return np.asarray(a == b)
    return np.asarray((a == b) | ((a != a) & (b != b)))
