"""The state of the blocks that run together, and the threads that execute one instruction.

Registers are arrays over all threads of the chunk, blocks one after the other, each padded to whole warps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.clocks import Clocks
from tilewright.emulator.counts import Counts
from tilewright.emulator.diagnostics import Diagnostics
from tilewright.emulator.errors import Place
from tilewright.emulator.scalars import CONTAINERS, Array

if TYPE_CHECKING:
    from tilewright.emulator.async_copies import AsyncCopies
    from tilewright.emulator.barriers import Barriers
    from tilewright.emulator.dependent_launches import DependentLaunch
    from tilewright.emulator.mbarriers import Mbarriers
    from tilewright.emulator.memory import GlobalMemory, LocalMemory
    from tilewright.emulator.releases import Releases
    from tilewright.emulator.shared import SharedMemory
    from tilewright.emulator.thread_exits import ThreadExits
    from tilewright.emulator.warpgroups import Warpgroups

Index = slice | Array


@dataclass
class Launch:
    """What is the same for all blocks of a run."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int  # static and dynamic, of one block
    dynamic_bytes: int
    diagnostics: Diagnostics
    counts: Counts
    reserved_bytes: int = 0  # of shared memory, behind that of the block, for kernels that name it
    workspace: int = 0  # address of the memory of the whole grid, for kernels that name it
    stopped: bool = False  # by a trap: nothing runs any more

    @property
    def reserved_at(self) -> int:
        """Where the reserved part of shared memory starts."""
        return -(-self.shared_bytes // 128) * 128

    @property
    def all_shared_bytes(self) -> int:
        return self.reserved_at + self.reserved_bytes if self.reserved_bytes else self.shared_bytes


class State:
    """Registers, memories and bookkeeping of a chunk of blocks."""

    def __init__(self, launch: Launch, blocks: Array, widths: list[int]) -> None:
        self.launch = launch
        self.diagnostics = launch.diagnostics
        self.counts = launch.counts
        self.blocks = blocks  # linear numbers within the grid
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.threads = -(-threads // 32) * 32  # of one block, padded
        self.real_threads = threads
        self.size = self.threads * len(blocks)
        self.widths = widths
        self.registers: list[Array] = [_NONE] * len(widths)
        for slot, width in enumerate(widths):
            self.registers[slot] = np.zeros(self.size, CONTAINERS[width])
        everywhere = np.arange(self.size)
        self.block_of = everywhere // self.threads  # number within the chunk
        self.thread_of = everywhere % self.threads
        self.warp_of = everywhere // 32  # through the chunk
        self.lane_of = everywhere % 32
        self.alive = self.thread_of < threads
        # Of registers that are not defined for all threads: one bit per undefined byte.
        self.undefined: dict[int, Array] = dict.fromkeys(range(len(widths)), np.full(self.size, 0xFF, np.uint8))
        self.clocks = Clocks(len(blocks), self.threads, int(np.prod(launch.cluster)))
        # Registers that pending asynchronous products will write ("result") or still read ("source"), by thread.
        self.in_flight: dict[int, dict[str, Array]] = {}
        self.written_at: dict[int, Array] = {}  # of registers of such products, by thread
        self.fenced_at = np.zeros(self.size, np.int64)  # last fence.proxy.async of each thread
        self.memory: GlobalMemory
        self.shared: SharedMemory
        self.local: LocalMemory
        self.barriers: Barriers
        self.copies: AsyncCopies
        self.mbarriers: Mbarriers
        self.warpgroups: Warpgroups
        self.exits: ThreadExits
        self.dependent: DependentLaunch | None = None  # where the kernel waits itself for those before it
        self.releases: Releases | None = None  # where the kernel has fences, releases or acquires
        self.extra: dict[str, Any] = {}

    def place_of(self, position: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Block and thread indices of a thread of the chunk."""
        grid, block = self.launch.grid, self.launch.block
        number, thread = int(self.blocks[position // self.threads]), position % self.threads
        return (
            (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])),
            (thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])),
        )


_NONE = np.zeros(0, np.uint32)


@dataclass(slots=True)
class Lanes:
    """The threads that execute an instruction: `index` selects them (sorted), `count` says how many they are."""

    state: State
    index: Index
    count: int
    step: Step

    def positions(self) -> Array:
        """Their numbers within the chunk, as an array."""
        if isinstance(self.index, slice):
            return np.arange(self.index.start, self.index.stop)
        return self.index

    def only(self, mask: Array) -> Lanes:
        """Those where `mask` holds (one entry per thread of these)."""
        chosen = np.flatnonzero(mask)
        if isinstance(self.index, slice):
            return Lanes(self.state, as_index(chosen + self.index.start), len(chosen), self.step)
        return Lanes(self.state, self.index[chosen], len(chosen), self.step)

    def all_of_chunk(self) -> bool:
        return self.count == self.state.size

    def report(
        self, kind: str, message: str | Callable[[int], str], where: Array | int = 0, *, address: int | None = None,
        space: str = "",
    ) -> None:  # fmt: skip
        """A diagnostic at this instruction; `where` are the numbers (among these lanes) of the threads that show it."""
        numbers = np.atleast_1d(np.asarray(where))
        first = int(numbers[0])
        block, thread = self.state.place_of(int(self.positions()[first]))
        text = message if isinstance(message, str) else message(first)
        self.state.diagnostics.add(
            kind, self.step.place, text, block=block, thread=thread, address=address, space=space, times=len(numbers)
        )

    # Values that nothing defined

    def undefined(self, slots: tuple[int, ...]) -> Array | None:
        """Which of these threads hold an undefined value in any of the registers; None if none does."""
        known, found = self.state.undefined, None
        for slot in slots:
            if slot in known:
                mask = known[slot][self.index] != 0
                found = mask if found is None else found | mask
        return found if found is not None and found.any() else None

    def define(self, slots: tuple[int, ...], undefined: Array | bool | None = None) -> None:
        """Note that registers were written; `undefined` marks threads whose new value is not defined."""
        known = self.state.undefined
        nothing = undefined is None or (isinstance(undefined, bool) and not undefined)
        for slot in slots:
            if nothing:
                if slot not in known:
                    continue
                if self.all_of_chunk():
                    del known[slot]
                    continue
            value = 0 if nothing else np.asarray(undefined).astype(np.uint8) * np.uint8(0xFF)
            self._set_bytes(slot, value)

    def undefined_bytes(self, slot: int) -> Array:
        """One bit per byte of the register that nothing defined."""
        known = self.state.undefined
        return known[slot][self.index] if slot in known else np.zeros(self.count, np.uint8)

    def define_bytes(self, slot: int, undefined: Array) -> None:
        if undefined.any() or slot in self.state.undefined:
            self._set_bytes(slot, undefined)

    def _set_bytes(self, slot: int, value: Array | int) -> None:
        known = self.state.undefined
        mask = known[slot].copy() if slot in known else np.zeros(self.state.size, np.uint8)
        mask[self.index] = value
        if mask[self.state.alive].any():
            known[slot] = mask
        else:
            known.pop(slot, None)

    def require(self, slots: tuple[int, ...], what: str) -> None:
        """Report registers that nothing defined where their value matters."""
        if not self.state.undefined or self.state.undefined.keys().isdisjoint(slots):
            return
        mask = self.undefined(slots)
        if mask is not None:
            self.report("undefined-value", f"{what} depends on a register that was never written", np.flatnonzero(mask))


Run = Callable[[Lanes], None]


@dataclass(slots=True)
class Step:
    """One instruction, ready to run.

    `run` executes it for all lanes whose guard holds. `reads` and `writes` are register numbers; unless `own_taint` is
    set, results count as undefined where a register read was. `control` takes the place of `run` for instructions that
    move threads or let them wait: given the scheduler and the number of the instruction it returns the next one for all
    lanes, or None if it took care of them. `meeting` says which lanes of a warp have to come together first: a mask for
    each thread, or -1 for whole warps.
    """

    place: Place
    name: str
    group: str
    run: Run | None = None
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    guard: int | None = None
    negated: bool = False
    own_taint: bool = False
    control: Callable[[Lanes, Any, int], int | None] | None = None
    meeting: Callable[[Lanes], Array | int] | None = None
    joined: frozenset[int] = field(default_factory=frozenset)
    uses_products: bool = False  # knows itself how to treat registers of pending products
    warps: int = 1  # neighbouring warps that have to come together
    guarded: tuple[int, ...] = ()  # registers that need a fence between other writes and this instruction
    taint: Callable[[Lanes], None] | None = None  # how undefined bytes spread, where it is not from any to all


def as_index(positions: Array) -> Index:
    """Sorted positions as a slice where they are consecutive."""
    if len(positions) and int(positions[-1]) - int(positions[0]) == len(positions) - 1:
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions
