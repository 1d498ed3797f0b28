"""Launches of a module on NumPy arrays: arena, constants, several kernels, and what is found wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.runtime.emulated import run_kernel, run_module


@dataclass(frozen=True)
class Buffer:
    space: str
    index: int
    bytes: int


@dataclass(frozen=True)
class Launch:
    kernel: str
    arguments: tuple[Buffer, ...]


@dataclass(frozen=True)
class Kernel:
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    tensor_maps: tuple[()] = ()


@dataclass(frozen=True)
class Code:
    ptx: str
    kernels: dict[str, Kernel]
    launches: tuple[Launch, ...]
    arena_bytes: int
    constants_bytes: int

    def kernel(self, name: str) -> Kernel:
        return self.kernels[name]


PTX = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c)
{
  .reg .b64 %rd<8>;
  .reg .b32 %r<8>;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd1, %r1, 4;
  ld.param.u64 %rd2, [a];
  ld.param.u64 %rd3, [b];
  ld.param.u64 %rd4, [c];
  add.s64 %rd5, %rd2, %rd1;
  add.s64 %rd6, %rd3, %rd1;
  add.s64 %rd7, %rd4, %rd1;
  ld.global.u32 %r2, [%rd5];
  ld.global.u32 %r3, [%rd6];
  add.s32 %r4, %r2, %r3;
  st.global.u32 [%rd7], %r4;
  ret;
}
"""
IN, OUT, CONSTANT, ARENA = (
    Buffer(s, i, 128) for s, i in (("input", 0), ("output", 0), ("constant", 128), ("arena", 256))
)
CODE = Code(
    PTX, {"sum": Kernel("add", (1, 1, 1), (32, 1, 1), 0)},
    (Launch("sum", (IN, CONSTANT, ARENA)), Launch("sum", (ARENA, IN, OUT))), 384, 256,
)  # fmt: skip


def test_launches_run_in_order_through_the_arena() -> None:
    x, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    constants = np.arange(64, dtype=np.int32)
    done = run_module(CODE, [x], [out], constants)
    assert not done.findings
    assert (out == 2 * x + constants[32:]).all()
    assert [name for name, _ in done.counts] == ["sum", "sum"]


def test_reading_the_arena_before_anything_is_in_it_is_found() -> None:
    code = replace(CODE, launches=CODE.launches[1:])
    done = run_module(code, [np.zeros(32, np.int32)], [np.zeros(32, np.int32)], np.zeros(64, np.int32))
    assert done.findings


def test_leaving_a_buffer_is_found() -> None:
    small = [np.zeros(31, np.int32), np.zeros(32, np.int32), np.zeros(32, np.int32)]
    assert run_kernel(CODE, "sum", small).findings
    assert not run_kernel(CODE, "sum", [np.zeros(32, np.int32)] * 2 + small[2:]).findings


def test_sizes_are_checked() -> None:
    constants, right = np.zeros(64, np.int32), np.zeros(32, np.int32)
    with pytest.raises(InvalidArgument, match="124 bytes"):
        run_module(CODE, [np.zeros(31, np.int32)], [right], constants)
    with pytest.raises(InvalidArgument, match="128 bytes"):
        run_module(CODE, [right], [right], constants[:32])
    with pytest.raises(InvalidArgument, match="gaps"):
        run_module(CODE, [np.zeros((64, 1), np.int32)[::2]], [right], constants)
