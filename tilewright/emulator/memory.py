"""Memories: flat bytes that many threads read and write at once; global and local memory with their checks."""

from __future__ import annotations

import numpy as np

from tilewright.emulator.constants import Constants
from tilewright.emulator.lanes import Lanes
from tilewright.emulator.scalars import CONTAINERS, Array

# Where the windows of the generic address space start.
GLOBAL_BASE = 0x7F00_0000_0000
SHARED_BASE = 0x7E00_0000_0000
LOCAL_BASE = 0x7D00_0000_0000
WINDOW = 1 << 40
_GAP = 1 << 16  # bytes that no buffer owns between two buffers
_ALIGNMENT = 256


class Bytes:
    """Flat memory seen as 1-, 2-, 4- and 8-byte words; its length is a multiple of 16."""

    def __init__(self, length: int) -> None:
        self.data = np.zeros(-(-max(length, 16) // 16) * 16, np.uint8)
        self._views = {bytes_: self.data.view(CONTAINERS[8 * bytes_]) for bytes_ in (1, 2, 4, 8)}

    def load(self, offsets: Array, width: int, count: int) -> Array:
        """Words of `width` bytes at aligned offsets: (n,), or (n, count) for a vector."""
        view, index = self._views[width], offsets // width
        return view[index] if count == 1 else view[index[:, None] + np.arange(count)]

    def store(self, offsets: Array, width: int, values: Array) -> None:
        view, index = self._views[width], offsets // width
        if values.ndim == 1:
            view[index] = values
        else:
            view[index[:, None] + np.arange(values.shape[1])] = values

    def word(self, offset: int, width: int) -> int:
        return int(self._views[width][offset // width])


class GlobalMemory:
    """Buffers of the launch, constants, module variables and parameters, with room between them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.constant: list[bool] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._top = _GAP
        self._contents: list[tuple[int, Array]] = []
        self._fresh: list[tuple[int, int]] = []
        self.undefined: Array | None = None  # bytes that nothing wrote, where a buffer starts so
        self.constants: Constants | None = None  # where the kernel loads as if memory were constant

    def add(
        self, name: str, contents: Array, *, constant: bool = False, align: int = _ALIGNMENT, undefined: bool = False
    ) -> int:
        """Give a buffer its place; returns its generic address."""
        start = -(-self._top // align) * align
        self.names.append(name)
        self.constant.append(constant)
        self._starts.append(start)
        self._ends.append(start + len(contents))
        self._contents.append((start, contents))
        self._top = start + len(contents) + _GAP
        if undefined:
            self._fresh.append((start, start + len(contents)))
        return GLOBAL_BASE + start

    def address(self, number: int) -> int:
        return GLOBAL_BASE + self._starts[number]

    def close(self) -> None:
        """Make the memory, now that all buffers are known."""
        self.bytes = Bytes(self._top)
        for start, contents in self._contents:
            self.bytes.data[start : start + len(contents)] = contents
        self.starts, self.ends = np.array(self._starts, np.int64), np.array(self._ends, np.int64)
        self.read_only = np.array(self.constant, np.bool_)
        if self._fresh:
            self.undefined = np.zeros(len(self.bytes.data), np.bool_)
            for start, end in self._fresh:
                self.undefined[start:end] = True

    def contents(self, number: int) -> Array:
        return self.bytes.data[self._starts[number] : self._ends[number]]

    def _valid(self, lanes: Lanes, addresses: Array, size: int, verb: str) -> tuple[Array, Array | None]:
        """Offsets of the addresses, and which accesses are fine (None: all)."""
        offsets = addresses.astype(np.int64) - GLOBAL_BASE
        if not len(self.starts):
            return offsets, self._outside(lanes, offsets, size, verb, np.zeros(len(offsets), np.bool_))
        low, high = int(offsets.min()), int(offsets.max()) + size
        number = int(np.searchsorted(self.starts, low, "right")) - 1
        if number >= 0 and high <= self.ends[number]:
            good = None
            owner: Array | int = number
        else:
            owner = np.searchsorted(self.starts, offsets, "right") - 1
            inside = (owner >= 0) & (offsets + size <= self.ends[owner]) & (offsets >= self.starts[owner])
            good = None if inside.all() else self._outside(lanes, offsets, size, verb, inside)
        if size > 1 and (offsets % size).any():
            aligned = offsets % size == 0
            first = np.flatnonzero(~aligned)
            address = int(offsets[first[0]]) + GLOBAL_BASE
            lanes.report(
                "misaligned", f"{verb} {size} bytes at {self.describe(int(offsets[first[0]]))}", first,
                address=address, space="global",
            )  # fmt: skip
            good = aligned if good is None else good & aligned
        if verb != "reads" and self.read_only[owner].any():
            wrong = np.broadcast_to(self.read_only[owner], offsets.shape) & (True if good is None else good)
            if wrong.any():
                first = np.flatnonzero(wrong)
                lanes.report("read-only", f"{verb} {self.describe(int(offsets[first[0]]))}", first, space="global")
                good = ~wrong if good is None else good & ~wrong
        if lanes.state.dependent is not None:
            self._report_early(lanes, lanes.state.dependent.early(lanes) & ~self.read_only[owner], offsets, verb)
        return offsets, good

    def check_waited(self, lanes: Lanes, addresses: Array, verb: str) -> None:
        """A diagnostic where threads start what touches global memory later, and have not waited for other kernels."""
        if lanes.state.dependent is not None:
            offsets = addresses.astype(np.int64) - GLOBAL_BASE
            self._report_early(lanes, lanes.state.dependent.early(lanes), offsets, verb)

    def _report_early(self, lanes: Lanes, early: Array, offsets: Array, verb: str) -> None:
        if early.any():
            wrong = np.flatnonzero(early)
            offset = int(offsets[wrong[0]])
            message = f"{verb} {self.describe(offset)}, before griddepcontrol.wait"
            lanes.report("too-early", message, wrong, address=offset + GLOBAL_BASE, space="global")

    def _outside(self, lanes: Lanes, offsets: Array, size: int, verb: str, inside: Array) -> Array:
        wrong = np.flatnonzero(~inside)
        offset = int(offsets[wrong[0]])
        lanes.report(
            "out-of-bounds", f"{verb} {size} bytes at {self.describe(offset)}", wrong, address=offset + GLOBAL_BASE,
            space="global",
        )  # fmt: skip
        return inside

    def describe(self, offset: int) -> str:
        """An offset in words: the buffer it is in, or the nearest one before."""
        if offset + GLOBAL_BASE < _GAP:
            return f"address {offset + GLOBAL_BASE:#x}, near null"
        number = int(np.searchsorted(self.starts, offset, "right")) - 1
        if number < 0 or offset > self.ends[number] + WINDOW // 2:
            return f"address {offset + GLOBAL_BASE:#x}, in no buffer"
        inside, length = offset - int(self.starts[number]), int(self.ends[number] - self.starts[number])
        return f"byte {inside} of {self.names[number]}, which has {length}"

    def load(
        self, lanes: Lanes, addresses: Array, width: int, count: int, *, constant: bool = False
    ) -> tuple[Array, Array | None]:
        """Values, and which lanes read bytes that nothing wrote (None: none); `constant`: by ``ld.global.nc``."""
        size = width * count
        offsets, good = self._valid(lanes, addresses, size, "reads")
        self._count(lanes, "load", offsets, size)
        if good is not None:
            offsets = np.where(good, offsets, 0)
        if constant and self.constants is not None:
            chosen = offsets if good is None else offsets[good]
            self._report_changed(lanes, chosen, good, self.constants.load(chosen, size), "loads {} by .nc, which this "
                                 "launch has written")  # fmt: skip
        values = self.bytes.load(offsets, width, count)
        if good is not None:
            values[~good] = 0
        unwritten = None
        if self.undefined is not None:
            unwritten = np.asarray(self.undefined[offsets[:, None] + np.arange(size)].any(axis=1))
            if unwritten.any():
                wrong = np.flatnonzero(unwritten)
                lanes.report(
                    "uninitialised", f"reads {self.describe(int(offsets[wrong[0]]))}, which nothing wrote", wrong,
                    address=int(offsets[wrong[0]]) + GLOBAL_BASE, space="global",
                )  # fmt: skip
        return values, unwritten

    def store(self, lanes: Lanes, addresses: Array, width: int, values: Array) -> None:
        size = width * (1 if values.ndim == 1 else values.shape[1])
        offsets, good = self._valid(lanes, addresses, size, "writes")
        self._count(lanes, "store", offsets, size)
        if good is not None:
            offsets, values = offsets[good], values[good]
        self._note_write(lanes, offsets, size, good)
        self.bytes.store(offsets, width, values)
        if self.undefined is not None:
            self.undefined[offsets[:, None] + np.arange(size)] = False

    def atomic(self, lanes: Lanes, addresses: Array, width: int) -> tuple[Array, Array]:
        """Checked offsets for an atomic operation, and the lanes that take part."""
        offsets, good = self._valid(lanes, addresses, width, "changes")
        self._count(lanes, "atomic", offsets, width)
        chosen = np.arange(len(offsets)) if good is None else np.flatnonzero(good)
        self._note_write(lanes, offsets[chosen], width, good)
        return offsets[chosen], chosen

    def _note_write(self, lanes: Lanes, offsets: Array, size: int, good: Array | None) -> None:
        if self.constants is not None:
            self._report_changed(lanes, offsets, good, self.constants.write(offsets, size), "writes {}, which this "
                                 "launch has loaded by .nc")  # fmt: skip

    def _report_changed(self, lanes: Lanes, offsets: Array, good: Array | None, both: Array | None, text: str) -> None:
        """A diagnostic for the accesses (of lanes that are `good`) to what is loaded as constant and written."""
        if both is None:
            return
        wrong = np.flatnonzero(both)
        offset = int(offsets[wrong[0]])
        numbers = wrong if good is None else np.flatnonzero(good)[wrong]
        lanes.report("not-constant", text.format(self.describe(offset)), numbers, address=offset + GLOBAL_BASE,
                     space="global")  # fmt: skip

    def _count(self, lanes: Lanes, kind: str, offsets: Array, size: int) -> None:
        warps = lanes.state.warp_of[lanes.index]
        lanes.state.counts.global_access(lanes.step.place.line, kind, warps, offsets, size)


class LocalMemory:
    """Memory of each thread: `length` bytes, and which of them were written.

    It is like registers: what nothing wrote may be read, and matters where it is used.
    """

    def __init__(self, threads: int, length: int) -> None:
        self.length = -(-length // 16) * 16
        self.bytes = Bytes(threads * self.length)
        self.written = np.zeros(len(self.bytes.data), np.bool_)

    def _offsets(self, lanes: Lanes, addresses: Array, size: int, verb: str) -> tuple[Array, Array]:
        at = addresses.astype(np.int64)
        good = (at >= 0) & (at + size <= self.length)
        if not good.all():
            wrong = np.flatnonzero(~good)
            address = int(at[wrong[0]])
            lanes.report(
                "out-of-bounds", f"{verb} {size} bytes at byte {address} of local memory, which has {self.length}",
                wrong, address=address, space="local",
            )  # fmt: skip
        aligned = at % size == 0
        if not aligned.all():
            wrong = np.flatnonzero(~aligned)
            lanes.report("misaligned", f"{verb} {size} bytes at byte {int(at[wrong[0]])} of local memory", wrong,
                         address=int(at[wrong[0]]), space="local")  # fmt: skip
        good &= aligned
        return np.where(good, at, 0) + lanes.positions() * self.length, good

    def load(self, lanes: Lanes, addresses: Array, width: int, count: int) -> tuple[Array, Array | None]:
        """Values, and one bit for each byte of a word that nothing wrote: (n, count)."""
        size = width * count
        offsets, _ = self._offsets(lanes, addresses, size, "reads")
        values = self.bytes.load(offsets, width, count)
        lanes.state.counts.bytes["local_load"] += size * lanes.count
        written = self.written[offsets[:, None] + np.arange(size)]
        if written.all():
            return values, None
        return values, np.packbits(~written.reshape(-1, count, width), axis=2, bitorder="little")[:, :, 0]

    def store(self, lanes: Lanes, addresses: Array, width: int, values: Array, undefined: Array | None) -> None:
        size = width * (1 if values.ndim == 1 else values.shape[1])
        offsets, good = self._offsets(lanes, addresses, size, "writes")
        lanes.state.counts.bytes["local_store"] += size * lanes.count
        fresh: Array | bool = True
        if undefined is not None:
            bits = np.unpackbits(undefined.reshape(len(offsets), -1, 1), axis=2, count=width, bitorder="little")
            fresh = (bits == 0).reshape(len(offsets), size)[good]
        self.bytes.store(offsets[good], width, values[good])
        self.written[(offsets[:, None] + np.arange(size))[good]] = fresh
