"""The manifest beside an object: its inputs and outputs, the memory it needs, what it launches, where it can run.

`compiler` writes it, and `Manifest.from_json` reads and checks it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from tilewright.codegen.host_program import Buffer, HostProgram, Kernel, Launch
from tilewright.dataclass import dataclass
from tilewright.expr.dtypes import DTYPES, size_bytes
from tilewright.fields import (
    Contradiction,
    Fault,
    Place,
    Readable,
    choice,
    optional,
    record,
    required,
    several,
    size,
    string,
)

_MOST_BYTES: Final = 1 << 47  # what the addresses of a process reach
_MOST_DIMENSIONS: Final = 64  # of an array of NumPy

CODES = {"object": "code.o", "ptx": "code.ptx"}  # kinds of code, and the member of an artifact that holds it


@dataclass(frozen=True)
class TensorSpec(Readable):
    """Name, element type and shape of one input or output."""

    name: str = required(string)
    dtype: str = required(choice(*DTYPES))
    shape: tuple[int, ...] = required(several(size))

    if TYPE_CHECKING:

        @property
        def bytes(self) -> int: ...

    def __post_init__(self) -> None:
        """`bytes` is no field, which would be stored, and no cached_property, whose lock a fork may find locked."""
        object.__setattr__(self, "bytes", math.prod(self.shape) * size_bytes(self.dtype))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def check(self) -> None:
        if len(self.shape) > _MOST_DIMENSIONS:
            raise Contradiction("shape", f"has {len(self.shape)} dimensions", f"at most {_MOST_DIMENSIONS}")
        if math.prod(max(1, extent) for extent in self.shape) * size_bytes(self.dtype) > _MOST_BYTES:
            raise Contradiction("shape", f"is {self.shape}, which is larger than any memory")


def _feature(value: Any, place: Place, faults: list[Fault]) -> Any:
    """The name of a feature, with or without the plus sign that LLVM puts before it."""
    name = string(value, place, faults)
    return name if name is None else name.removeprefix("+")


@dataclass(frozen=True, kw_only=True)
class Manifest(HostProgram):
    """The host program of a module with its interface and the machine that it is for.

    `docs/developers/design.md` lists the fields under "Object code".
    """

    name: str = required(string)
    inputs: tuple[TensorSpec, ...] = required(several(record(TensorSpec)))
    outputs: tuple[TensorSpec, ...] = required(several(record(TensorSpec)))
    features: tuple[str, ...] = required(several(_feature))  # names as LLVM has them, "avx512f"
    triple: str = required(string)
    code: str = optional(choice(*CODES), "object")
    machine: str = optional(string, "")  # the name of its description

    def check(self) -> None:
        """Zeros are in the arena. Every launch of a GPU has a kernel, and operands inside the memory of the module."""
        if self.zeroed_bytes > self.arena_bytes:
            raise Contradiction("zeroed_bytes", f"is {self.zeroed_bytes}, of an arena of {self.arena_bytes}")
        if self.code == "object":
            return
        kernels = {kernel.name: kernel for kernel in self.kernels}
        for number, launch in enumerate(self.launches):
            place = ("launches", number)
            if launch.kernel not in kernels:
                raise Contradiction(place, f"is of {launch.kernel!r}: there is no kernel {launch.kernel!r}")
            self._check_operands(launch, kernels[launch.kernel], place)

    def _check_operands(self, launch: Launch, kernel: Kernel, place: Place) -> None:
        if any(each.argument >= len(launch.operands) for each in kernel.tensor_maps):
            fact = f"has {len(launch.operands)} operands, and kernel {kernel.name!r} maps one behind the last"
            raise Contradiction(place, fact)
        for operand in launch.operands:
            if not self._holds(operand):
                raise Contradiction(place, f"has the operand {operand}, which is not in the module")

    def _holds(self, operand: Buffer) -> bool:
        """Whether an operand is in the memory of the module: an array of the interface, or one of its rows."""
        flat = {"constant": self.constants_bytes, "arena": self.arena_bytes}
        if operand.space in flat:
            return operand.index + operand.bytes <= flat[operand.space]
        arrays = {"input": self.inputs, "output": self.outputs}.get(operand.space, ())
        if operand.index >= len(arrays):
            return False
        whole = arrays[operand.index].bytes
        is_row = not operand.bytes or whole % operand.bytes == 0
        return is_row and operand.offset + operand.bytes <= whole
