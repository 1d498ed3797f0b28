"""The emulator as a device: its memory is NumPy's, its launches run at once, what it finds wrong is a fault.

Every argument of a launch is a buffer of its own in the emulator, so that a kernel that leaves it is found out, even
where its neighbour in the arena is memory too; bytes that nothing has written yet are marked as such.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.codegen.host_program import Kernel
from tilewright.dataclass import dataclass
from tilewright.runtime.cuda.driver import Argument, DriverFault, Slot
from tilewright.runtime.emulated import mapped

if TYPE_CHECKING:
    from tilewright import emulator

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_FIRST_ADDRESS = 1 << 40  # no address of the host
_ALIGN = 256
_SHOWN = 8  # diagnostics in a message


@dataclass
class _Allocation:
    start: int
    bytes: Bytes
    fresh: np.ndarray[Any, np.dtype[np.bool_]]  # what nothing has written yet


@dataclass(frozen=True)
class _Prepared:
    module: emulator.Module
    kernel: Kernel
    arguments: tuple[Argument, ...]


@dataclass
class _Capture:
    launches: list[tuple[_Prepared, tuple[int, ...]]] = field(default_factory=list)


class EmulatedDriver:
    """A device without a GPU; streams run in the order of the calls."""

    name = "emulator"
    emulated = True
    cache_bytes = 1 << 12

    def __init__(self) -> None:
        self._memory: dict[int, _Allocation] = {}
        self._starts: list[int] = []
        self._next = _FIRST_ADDRESS
        self._streams = itertools.count(1)
        self._captures: dict[int, _Capture] = {}

    @property
    def allocated_bytes(self) -> int:
        return sum(each.bytes.size for each in self._memory.values())

    def visiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def allocate(self, size: int) -> int:
        start = self._next
        self._next += -(-max(size, 1) // _ALIGN) * _ALIGN + _ALIGN  # a gap, so that no address is in two
        self._memory[start] = _Allocation(start, np.zeros(size, np.uint8), np.ones(size, np.bool_))
        self._starts.append(start)
        return start

    def free(self, address: int) -> None:
        if self._memory.pop(address, None) is None:
            raise DriverFault("illegal-address", f"{address:#x} was not allocated")
        self._starts.remove(address)

    def upload(self, address: int, host: int, size: int, stream: int) -> None:
        values, fresh = self._view(address, size)
        ctypes.memmove(values.ctypes.data, host, size)
        fresh[:] = False

    def download(self, host: int, address: int, size: int, stream: int) -> None:
        ctypes.memmove(host, self._view(address, size)[0].ctypes.data, size)

    def forget(self, address: int, size: int) -> None:
        self._view(address, size)[1][:] = True

    def fill(self, address: int, size: int, stream: int) -> None:
        values, fresh = self._view(address, size)
        values[:], fresh[:] = 0, False

    def zero(self, address: int, size: int) -> None:
        self.fill(address, size, 0)

    def load(self, code: bytes) -> emulator.Module:
        from tilewright import emulator

        try:
            return emulator.parse(code.decode())
        except (emulator.InvalidPtx, UnicodeDecodeError) as error:
            raise DriverFault("invalid-code", str(error)) from error

    def unload(self, library: emulator.Module) -> None:
        pass  # nothing but Python's memory

    def prepare(self, library: emulator.Module, kernel: Kernel, arguments: Sequence[Argument]) -> _Prepared:
        if kernel.entry not in library.entries:
            raise DriverFault("not-found", f"the code has no kernel {kernel.entry}")
        return _Prepared(library, kernel, tuple(arguments))

    def resources(self, library: emulator.Module, kernel: Kernel) -> None:
        return None

    def launch(self, prepared: _Prepared, stream: int) -> None:
        addresses = tuple(_slot(argument).word.value for argument in prepared.arguments)
        if stream in self._captures:
            self._captures[stream].launches.append((prepared, addresses))
        else:
            self._run(prepared, addresses)

    def new_stream(self) -> int:
        return next(self._streams)

    def drop_stream(self, stream: int) -> None:
        pass  # a number

    def synchronize(self, stream: int) -> None:
        self._check_recorded(stream)  # else launches have ended when they return

    def capturing(self, stream: int) -> bool:
        return stream in self._captures

    def begin_capture(self) -> int:
        stream = self.new_stream()
        self._captures[stream] = _Capture()
        return stream

    def end_capture(self, stream: int) -> _Capture:
        return self._captures.pop(stream)

    def launch_graph(self, graph: _Capture, stream: int) -> None:
        self._check_recorded(stream)
        for prepared, addresses in graph.launches:
            self._run(prepared, addresses)

    def drop_graph(self, graph: _Capture) -> None:
        graph.launches.clear()

    def new_event(self) -> list[float]:
        return [0.0]

    def record(self, event: list[float], stream: int) -> None:
        event[0] = time.perf_counter()

    def seconds(self, start: list[float], end: list[float]) -> float:
        return end[0] - start[0]

    def _check_recorded(self, stream: int) -> None:
        if stream in self._captures:
            raise DriverFault("stream-capture", "the stream is being recorded")

    def _run(self, prepared: _Prepared, addresses: Sequence[int]) -> None:
        from tilewright import emulator

        kernel, views = prepared.kernel, []
        given: list[Any] = []
        known: dict[tuple[int, int], Bytes] = {}  # the emulator sees by identity that two arguments are one buffer
        for argument, address in zip(prepared.arguments, addresses, strict=True):
            size = _slot(argument).bytes
            values, fresh = self._view(address, size)
            values = known.setdefault((address, size), values)
            views.append(fresh)
            if isinstance(argument, Slot):
                given.append(emulator.Uninitialised(values) if size and fresh.all() else values)
            else:
                given.append(mapped(values, argument.map))
        made = emulator.run(prepared.module, kernel.entry, kernel.grid, kernel.block, given, kernel.shared_bytes)
        for fresh in views:
            fresh[:] = False
        if made.diagnostics:
            raise DriverFault("diagnostics", "\n".join(map(str, made.diagnostics[:_SHOWN])))

    def _view(self, address: int, size: int) -> tuple[Bytes, np.ndarray[Any, np.dtype[np.bool_]]]:
        if not size:
            return np.zeros(0, np.uint8), np.ones(0, np.bool_)
        number = bisect_right(self._starts, address) - 1
        if number >= 0:
            found = self._memory[self._starts[number]]
            start = address - found.start
            if start + size <= found.bytes.size:
                return found.bytes[start : start + size], found.fresh[start : start + size]
        raise DriverFault("illegal-address", f"{size} bytes at {address:#x}")


def _slot(argument: Argument) -> Slot:
    return argument if isinstance(argument, Slot) else argument.slot
