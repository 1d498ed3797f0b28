"""Run generated GPU code on the CPU: the launches of a module on NumPy arrays, through the emulator.

Every argument is a buffer of its own in the emulator, so that a kernel that leaves it is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.codegen.host_program import Buffer, Kernel, TensorMap
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument

if TYPE_CHECKING:
    from tilewright import emulator
    from tilewright.codegen.nvptx.pipeline import PtxCode

Array = np.ndarray[Any, Any]


@dataclass
class Emulated:
    """What was found, launch by launch, and what each launch counted (`emulator.counts`)."""

    diagnostics: list[Any] = field(default_factory=list)
    counts: list[tuple[str, Any]] = field(default_factory=list)


def run_module(
    code: PtxCode,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    constants: Array | None = None,
    limit: int | None = None,
) -> Emulated:
    """Run every launch in order; `outputs` are written in place, `constants` are the bytes that launches read.

    With `limit`, a launch of which warps execute more instructions is a diagnostic. Raises InvalidArgument where an
    array has not the size that a launch wants.
    """
    from tilewright import emulator

    constants = np.zeros(0, np.uint8) if constants is None else constants.reshape(-1).view(np.uint8)
    memories = _Memories(inputs, outputs, constants, np.zeros(code.arena_bytes, np.uint8), code.zeroed_bytes)
    if len(constants) != code.constants_bytes:
        raise InvalidArgument(f"{len(constants)} bytes", where="constants", help=f"{code.constants_bytes} bytes")
    module, done = emulator.parse(code.ptx), Emulated()
    run = emulator.run if limit is None else partial(emulator.run, limit=limit)
    for launch in code.launches:
        kernel = code.kernel(launch.kernel)
        arguments = with_maps(kernel, [memories.argument(buffer) for buffer in launch.operands])
        made = run(module, kernel.entry, kernel.grid, kernel.block, arguments, kernel.shared_bytes)
        memories.written(launch.operands)
        done.diagnostics += made.diagnostics
        done.counts.append((launch.kernel, made.counts))
    return done


def run_kernel(code: PtxCode, name: str, arguments: Sequence[Any]) -> Emulated:
    """Run one kernel on arrays in the order of its arguments; those that it writes are changed in place."""
    from tilewright import emulator

    kernel = code.kernel(name)
    module = emulator.parse(code.ptx)
    given = with_maps(kernel, arguments)
    made = emulator.run(module, kernel.entry, kernel.grid, kernel.block, given, kernel.shared_bytes)
    return Emulated(list(made.diagnostics), [(name, made.counts)])


def with_maps(kernel: Kernel, arguments: Sequence[Any]) -> list[Any]:
    """The parameters of a kernel: its arguments, then its tensor maps."""
    from tilewright import emulator

    found = list(arguments)
    for form in kernel.tensor_maps:
        memory = arguments[form.argument]
        found.append(mapped(memory.array if isinstance(memory, emulator.Uninitialised) else memory, form))
    return found


def mapped(array: Array, form: TensorMap) -> emulator.TensorMap:
    """A tensor map of the emulator, which has a type of its own: it imports nothing else of the package."""
    from tilewright import emulator

    return emulator.TensorMap(array, form.box, form.swizzle, form.element, form.extents, form.strides)


class _Memories:
    """The four memories of a module; which bytes of outputs and arena no launch has been given yet."""

    def __init__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], constants: Array, arena: Array, zeroed_bytes: int
    ) -> None:  # fmt: skip
        self.arrays = {"input": [_bytes(array) for array in inputs], "output": [_bytes(array) for array in outputs]}
        self.flat = {"constant": constants, "arena": arena}
        self.fresh = {("output", number): np.ones(array.nbytes, np.bool_) for number, array in enumerate(outputs)}
        self.fresh["arena", 0] = np.arange(len(arena)) >= zeroed_bytes

    def argument(self, buffer: Buffer) -> Any:
        from tilewright import emulator

        if buffer.space in self.arrays:
            array, start = self.arrays[buffer.space][buffer.index], buffer.offset
            if len(array) != buffer.bytes and (start + buffer.bytes > len(array) or len(array) % buffer.bytes):
                where = f"{buffer.space} {buffer.index}"
                raise InvalidArgument(f"{len(array)} bytes", where=where, help=f"the program has {buffer.bytes}")
        else:
            array, start = self.flat[buffer.space], buffer.index
        view = array[start : start + buffer.bytes]
        fresh = self._fresh(buffer)
        return emulator.Uninitialised(view) if fresh is not None and fresh.all() else view

    def written(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            fresh = self._fresh(buffer)
            if fresh is not None:
                fresh[:] = False

    def _fresh(self, buffer: Buffer) -> Array | None:
        if buffer.space == "output":
            return self.fresh["output", buffer.index][buffer.offset : buffer.offset + buffer.bytes]
        if buffer.space == "arena":
            return self.fresh["arena", 0][buffer.index : buffer.index + buffer.bytes]
        return None


def _bytes(array: Array) -> Array:
    if not array.flags.c_contiguous:
        raise InvalidArgument("the array has gaps", where="argument", help="numpy.ascontiguousarray makes one without")
    return array.reshape(-1).view(np.uint8)


__all__ = ["Emulated", "mapped", "run_kernel", "run_module", "with_maps"]
