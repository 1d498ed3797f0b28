"""Modules made by hand, and a device that notes what is asked of it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.codegen.host_program import Buffer, Kernel, Launch
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.cuda import arrays
from tilewright.runtime.cuda.emulated import EmulatedDriver
from tilewright.runtime.manifest import Manifest, TensorSpec

ELEMENTS = 32
BYTES = 4 * ELEMENTS
ADD = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 p0, .param .u64 p1, .param .u64 p2)
{
  .reg .f32 %f<4>;
  .reg .b64 %rd<5>;
  .reg .b32 %r<2>;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd1, %r1, 4;
  ld.param.u64 %rd2, [p0];
  ld.param.u64 %rd3, [p1];
  ld.param.u64 %rd4, [p2];
  add.s64 %rd2, %rd2, %rd1;
  add.s64 %rd3, %rd3, %rd1;
  add.s64 %rd4, %rd4, %rd1;
  ld.global.f32 %f1, [%rd2];
  ld.global.f32 %f2, [%rd3];
  add.f32 %f3, %f1, %f2;
  st.global.f32 [%rd4], %f3;
  ret;
}
"""
KERNEL = Kernel("add", "add", (1, 1, 1), (ELEMENTS, 1, 1), 0)
X, OUT = Buffer("input", 0, BYTES), Buffer("output", 0, BYTES)
OFFSET = Buffer("constant", 0, BYTES)


def place(number: int, size: int = BYTES) -> Buffer:
    """Buffer number `number` of the arena."""
    return Buffer("arena", 256 * number, size)


# y = x + c, three more times + c: the arena is used in turns.
CHAIN = (
    (X, OFFSET, place(0)), (place(0), OFFSET, place(1)), (place(1), OFFSET, place(0)), (place(0), OFFSET, OUT),
)  # fmt: skip


def artifact(
    steps: Sequence[tuple[Buffer, ...]] = CHAIN, code: str = ADD, kernel: Kernel = KERNEL, name: str = "chain"
) -> Artifact:
    constants = np.full(ELEMENTS, 0.5, np.float32).view(np.uint8)
    launches = tuple(Launch(f"step {n}", kernel.name, 1, 32, 384, step) for n, step in enumerate(steps))
    tensor = ("f32", (ELEMENTS,))
    manifest = Manifest(
        name=name, inputs=(TensorSpec("x", *tensor),), outputs=(TensorSpec("y", *tensor),), arena_bytes=512,
        constants_bytes=constants.size, launches=launches, kernels=(kernel,), features=(), triple="a GPU", code="ptx",
        machine="sm_80",
    )  # fmt: skip
    plan = '{"decisions": [{"subject": "add", "chosen": "one block", "reason": "it is a test"}]}'
    return Artifact(manifest, code.encode(), constants, "tile text", "{}", plan)


class Recorder(EmulatedDriver):
    """The emulator, with a list of the names of calls."""

    WATCHED = (
        "allocate", "free", "upload", "download", "load", "unload", "prepare", "launch", "begin_capture",
        "end_capture", "launch_graph", "drop_graph", "synchronize", "fill", "record",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in Recorder.WATCHED:
            return value

        def noted(*arguments: Any) -> Any:
            self.calls.append(name)
            return value(*arguments)

        return noted

    def taken(self) -> list[str]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


class OnDevice:
    """An array in the memory of a device, as a library other than torch and CuPy would show it."""

    def __init__(self, driver: EmulatedDriver, values: np.ndarray[Any, Any], ordinal: int = 0) -> None:
        self.driver, self.values, self.ordinal = driver, values, ordinal
        self.address = driver.allocate(values.nbytes)
        contiguous = np.ascontiguousarray(values)
        driver.upload(self.address, contiguous.ctypes.data, values.nbytes, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.ordinal)

    def __dlpack__(self, stream: int | None = None) -> Any:
        assert stream != 0, "the standard has no stream 0"
        capsule = self.values.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(arrays._Tensor)).contents
        tensor.data, tensor.device_type, tensor.device_id = self.address, 2, self.ordinal
        return capsule

    def read(self) -> np.ndarray[Any, Any]:
        found = np.empty(self.values.shape, self.values.dtype)
        self.driver.download(found.ctypes.data, self.address, found.nbytes, 0)
        return found
