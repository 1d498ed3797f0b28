"""What the runtime asks of a device: a GPU through its driver, or the emulator.

Everything else here is written against `Driver`, so that all of it is tested without a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tilewright.codegen.host_program import Kernel, TensorMap
from tilewright.dataclass import dataclass


class DriverFault(Exception):
    """A call that the device refused, or a fault of a kernel; `code` is its name in the driver's own words."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code


class Slot:
    """A pointer to `bytes` of memory that launches take as an argument.

    Launches may share a slot: each reads the address when it is enqueued, so that a call with other arrays writes a
    few words, however many launches it has.
    """

    __slots__ = ("bytes", "name", "word")

    def __init__(self, name: str, size: int, address: int = 0) -> None:
        self.name = name
        self.bytes = size
        self.word = ctypes.c_uint64(address)

    def __str__(self) -> str:
        return f"{self.name} ({self.bytes} bytes at {self.word.value:#x})"


@dataclass(frozen=True)
class MappedSlot:
    """An argument of the engine that copies tensors: the memory at a slot, seen as `map` says."""

    slot: Slot
    map: TensorMap

    def __str__(self) -> str:
        return f"boxes {self.map.box} of {self.slot}"


Argument = Slot | MappedSlot


@dataclass(frozen=True)
class Resources:
    """What a kernel takes, as the device says: registers and local memory of a thread, where spilled registers and its
    stack are, and shared memory of a block beside that of the launch.
    """

    registers: int
    local_bytes: int
    shared_bytes: int


class Driver(Protocol):
    """A device. Addresses and streams are whole numbers; stream 0 is the default stream.

    Every method raises DriverFault where the device refuses; a kernel that fails may be noticed by any later call.
    """

    name: str
    emulated: bool
    cache_bytes: int  # of the last level, which measurements flush

    def visiting(self) -> AbstractContextManager[None]:
        """Whichever device the caller is on, it is on that one behind the context too: a call here may change it."""

    def allocate(self, size: int) -> int: ...
    def free(self, address: int) -> None:
        """Give memory back, after everything that is enqueued and may use it."""

    def upload(self, address: int, host: int, size: int, stream: int) -> None: ...
    def download(self, host: int, address: int, size: int, stream: int) -> None: ...
    def fill(self, address: int, size: int, stream: int) -> None: ...
    def zero(self, address: int, size: int) -> None:
        """Write zeros now, whatever the caller records meanwhile."""

    def forget(self, address: int, size: int) -> None:
        """What lies there is not needed any more: a device that looks for such mistakes reports who reads it."""

    def load(self, code: bytes) -> Any: ...
    def unload(self, library: Any) -> None: ...
    def prepare(self, library: Any, kernel: Kernel, arguments: Sequence[Argument]) -> Any:
        """A launch, ready to be enqueued any number of times."""

    def resources(self, library: Any, kernel: Kernel) -> Resources | None:
        """None where nothing limits them."""

    def launch(self, prepared: Any, stream: int) -> None: ...

    def new_stream(self) -> int: ...
    def drop_stream(self, stream: int) -> None:
        """Give a stream back; what is enqueued there still runs."""

    def synchronize(self, stream: int) -> None: ...
    def capturing(self, stream: int) -> bool:
        """Whether the caller records what is enqueued on the stream."""

    def begin_capture(self) -> int:
        """A stream on which launches are recorded instead of run."""

    def end_capture(self, stream: int) -> Any:
        """What was recorded: a graph."""

    def launch_graph(self, graph: Any, stream: int) -> None: ...
    def drop_graph(self, graph: Any) -> None: ...

    def new_event(self) -> Any: ...
    def record(self, event: Any, stream: int) -> None: ...
    def seconds(self, start: Any, end: Any) -> float:
        """The time between two events that have passed."""
