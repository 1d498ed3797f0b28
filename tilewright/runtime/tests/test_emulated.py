"""Launches of a module on NumPy arrays: arena, constants, several kernels, and what is found wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.codegen.host_program import Buffer, Kernel, Launch
from tilewright.codegen.nvptx.pipeline import PtxCode
from tilewright.codegen.nvptx.target import Target
from tilewright.errors import InvalidArgument
from tilewright.runtime.cuda.tests.made import ADD
from tilewright.runtime.emulated import run_kernel, run_module

IN, OUT, CONSTANT, ARENA = (
    Buffer(s, i, 128) for s, i in (("input", 0), ("output", 0), ("constant", 128), ("arena", 256))
)
CODE = PtxCode(
    ptx=ADD, target=Target("sm_80"), kernels=(Kernel("sum", "add", (1, 1, 1), (32, 1, 1), 0),),
    launches=tuple(Launch("sum", "sum", 1, 32, 384, given) for given in ((IN, CONSTANT, ARENA), (ARENA, IN, OUT))),
    arena_bytes=384, constants_bytes=256,
)  # fmt: skip


def test_launches_run_in_order_through_the_arena() -> None:
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    constants = np.arange(64, dtype=np.float32)
    done = run_module(CODE, [x], [out], constants)
    assert not done.diagnostics
    assert (out == 2 * x + constants[32:]).all()
    assert [name for name, _ in done.counts] == ["sum", "sum"]


@pytest.mark.emulator_only
def test_reading_the_arena_before_anything_is_in_it_is_found() -> None:
    code = replace(CODE, launches=CODE.launches[1:])
    done = run_module(code, [np.zeros(32, np.float32)], [np.zeros(32, np.float32)], np.zeros(64, np.float32))
    assert done.diagnostics


@pytest.mark.emulator_only
def test_leaving_a_buffer_is_found() -> None:
    small = [np.zeros(31, np.float32), np.zeros(32, np.float32), np.zeros(32, np.float32)]
    assert run_kernel(CODE, "sum", small).diagnostics
    assert not run_kernel(CODE, "sum", [np.zeros(32, np.float32)] * 2 + small[2:]).diagnostics


def test_sizes_are_checked() -> None:
    constants, right = np.zeros(64, np.float32), np.zeros(32, np.float32)
    with pytest.raises(InvalidArgument, match="124 bytes"):
        run_module(CODE, [np.zeros(31, np.float32)], [right], constants)
    with pytest.raises(InvalidArgument, match="128 bytes"):
        run_module(CODE, [right], [right], constants[:32])
    with pytest.raises(InvalidArgument, match="gaps"):
        run_module(CODE, [np.zeros((64, 1), np.float32)[::2]], [right], constants)
