"""The host program of a module: its kernels, the order in which they are launched, and the memory that they are given.

Code generation makes it for every target, a manifest stores it, and drivers run it. Nothing here imports the compiler:
loading a module reads these classes only.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from tilewright.dataclass import dataclass
from tilewright.fields import Readable, count, flag, items, optional, record, required, several, size, string, whole

OF_PARTS: Final = ".parts"  # ends the name of a launch whose partial sums the launch of that name adds up
BUFFER_ALIGN: Final = 256  # bytes: alignment of inputs, outputs, and the starts of arena and constants

total: Final = whole(0, 90)  # what is only printed, such as floating-point operations


@dataclass(frozen=True)
class Buffer(Readable):
    """Memory of one kernel argument.

    Space "input" or "output": array number `index`, from byte `offset`. Space "constant" or "arena": `index` is the
    first byte, and `offset` is 0.
    """

    space: str = required(string)
    index: int = required(size)
    bytes: int = required(size)
    offset: int = optional(size, 0)

    @property
    def align(self) -> int:
        """Bytes that the address is a multiple of: a power of two, at most `BUFFER_ALIGN`."""
        start = self.offset if self.space in ("input", "output") else self.index
        return min(BUFFER_ALIGN, start & -start) if start else BUFFER_ALIGN

    def part(self, start: int, size: int) -> Buffer:
        """`size` bytes of this buffer from its byte `start`."""
        if self.space in ("input", "output"):
            return Buffer(self.space, self.index, size, self.offset + start)
        return Buffer(self.space, self.index + start, size)

    def __str__(self) -> str:
        place = f"{self.space} {self.index}" if self.space in ("input", "output") else f"{self.space}+{self.index}"
        place += f"+{self.offset}" if self.offset else ""
        return f"{place} ({self.bytes} bytes)"


@dataclass(frozen=True)
class TensorMap(Readable):
    """A tensor map: the tensor in argument number `argument`, and the tensor-map box of one copy.

    `extents` and `box` are elements and `strides` bytes, outermost first; the last stride is the bytes of an element.
    `element` is the engine's name of the element type. Rows of the box are swizzled by `swizzle` bytes in shared
    memory. Elements outside of the tensor are filled with zeros. A map takes 128 bytes behind the arguments.
    """

    argument: int = required(size)
    element: str = required(string)
    extents: tuple[int, ...] = required(several(size, 1))
    strides: tuple[int, ...] = required(several(size, 1))
    box: tuple[int, ...] = required(several(size, 1))
    swizzle: int = required(size)

    def check(self) -> None:
        if not len(self.extents) == len(self.strides) == len(self.box):
            raise ValueError("has extents, strides and box of different lengths")


@dataclass(frozen=True)
class Kernel(Readable):
    """How a kernel of a GPU is launched: `name` in the tile program, `entry` in the code, `tensor_maps` behind its
    arguments. A block uses `shared_bytes` of dynamic shared memory. A launch asks for `spare_shared_bytes` more, so
    that fewer blocks fit on a multiprocessor. A kernel that `waits` may start while the kernels before it run: it waits
    for them itself before it touches global memory.
    """

    name: str = required(string)
    entry: str = required(string)
    grid: tuple[int, int, int] = required(items(count, count, count))
    block: tuple[int, int, int] = required(items(count, count, count))
    shared_bytes: int = required(size)
    tensor_maps: tuple[TensorMap, ...] = optional(several(record(TensorMap)), ())
    waits: bool = optional(flag, False)
    spare_shared_bytes: int = optional(size, 0)

    @property
    def launched_shared_bytes(self) -> int:
        """Bytes of dynamic shared memory that a launch on a device asks for."""
        return self.shared_bytes + self.spare_shared_bytes


@dataclass(frozen=True)
class Launch(Readable):
    """One kernel launch of a call: `programs` programs that do `flops` operations and move `bytes` bytes.

    `operands` are the arguments of a kernel of a GPU; the machine code of a CPU computes its own. In a loop on a CPU a
    launch runs `trips` times: `flops`, `bytes` and `cycles` are those of all trips, `programs` those of one. `cycles`
    are predicted for one core of a CPU with all data near, or for the whole of a GPU (0: there is no model; that of the
    kernels of split sums is with the first); `constant_bytes` of `bytes` are constants, and `instruction` is the record
    that a product runs on.
    """

    name: str = required(string)
    kernel: str = required(string)
    programs: int = required(size)
    flops: int = optional(total, 0)
    bytes: int = optional(total, 0)
    operands: tuple[Buffer, ...] = optional(several(record(Buffer)), ())
    trips: int = optional(size, 1)
    cycles: int = optional(total, 0)
    constant_bytes: int = optional(total, 0)
    instruction: str = optional(string, "")


@dataclass(frozen=True, kw_only=True)
class HostProgram(Readable):
    """What a caller of generated code provides and runs: bytes of memory, and the launches in their order.

    The caller writes zeros to the first `zeroed_bytes` of an arena before the first call that is given this arena.
    Between calls nothing else writes there. `scratch_bytes` are those of one thread of a CPU, and `kernels` those of a
    GPU.
    """

    constants_bytes: int = required(size)
    arena_bytes: int = required(size)
    zeroed_bytes: int = optional(size, 0)
    scratch_bytes: int = optional(size, 0)
    launches: tuple[Launch, ...] = required(several(record(Launch)))
    kernels: tuple[Kernel, ...] = optional(several(record(Kernel)), ())

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name in the tile program."""
        return next(kernel for kernel in self.kernels if kernel.name == name)

    def parts(self) -> dict[str, Any]:
        """The fields of the host program by name, without those that a subclass adds."""
        return {field.name: getattr(self, field.name) for field in fields(HostProgram)}
