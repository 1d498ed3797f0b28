"""Predicted time of a row reduction or a pointwise kernel on a GPU, by the tile of a block and its distribution.

The time is the largest of three: bytes over bandwidth; blocks that wait for memory (what is under way on a
multiprocessor must cover latency times bandwidth); instructions over their rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import ceil, prod
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import COSTLY, Apply, Axis, Expr, Read, walk
from tilewright.expr.dtypes import INDEX
from tilewright.layouts.bits import log2
from tilewright.layouts.blocked import Blocked
from tilewright.machine.description import Gpu
from tilewright.operator.statements import Statements, covering, inner_loops, outer_loops
from tilewright.tiles.loops import SpatialLoop

Array = np.ndarray[Any, Any]

# Counted in machine code (ptxas 13.0 for sm_90a, of kernels with 8 elements of f32 per thread).
INSTRUCTIONS = {  # without slow paths
    "exp": 8, "exp2": 1, "sigmoid": 10, "tanh": 13, "normal_cdf": 18, "erf": 20, "log": 29, "div": 10, "sqrt": 10,
}  # fmt: skip
COSTLY_INSTRUCTIONS = 20  # of functions that were not counted: between the above
THREAD_INSTRUCTIONS = 30  # of a thread whatever its elements: its number, addresses, what a row is divided by
SHUFFLE_INSTRUCTIONS = 2  # of one step of a butterfly for one result: the shuffle, the sum
EXCHANGE_INSTRUCTIONS = 10  # of a reduction over warps: its addresses, a store, two barriers, a load, a condition
MEAN_INSTRUCTIONS = 14  # of a running mean in a trip: elements so far, their reciprocal, the step of the mean
SPARE_REGISTERS = 24  # of a thread: addresses, bounds, what a function keeps
TOGETHER = 24  # registers of a thread that loads under way wait for: what the assembler leaves so of softmax and norms
MOST_LIVE = 6  # of a thread's tiles: what has been used makes room

# Measured on an H200 (`bench.gpu.calibrate`): 29 cycles.
SHUFFLE_CYCLES = 30  # of one step of a butterfly: the latency of a shuffle and of an addition

# Assumed, orders of magnitude: cycles that a block waits, and parts of times.
BARRIER_CYCLES = 150  # of a reduction over warps: two barriers, and what passes through shared memory
ISSUE_CYCLES = 2  # from one instruction of a warp to the next, where others do not wait for it
ALONE = 0.1  # of the time that memory is idle for, where one block is on a multiprocessor and computes by turns
UNHIDDEN = 0.05  # of the times behind the longest one that adds to it: overlap is never whole
TAIL = 0.5  # of a block's life in which the last blocks leave multiprocessors idle: on average half
NEAR = 0.5  # of what accesses to parts of lines move twice that takes its time, though a cache has it
PARTIAL = {64: 1.1, 32: 1.25}  # bytes moved for a byte of runs shorter than a line, so long at least; below, sectors

# Chosen: what counts.
SLACK_REGISTERS = 4  # below the limit of a thread: at the limit an assembler may spill
HEAVY = 8  # an access that moves less than this part of the heaviest one has no say


@dataclass(frozen=True)
class RowsTile:
    """A candidate: the tile of a block. `points` of the loops that are its dimensions, outer loops first.

    Extents are powers of two; what a tile has beyond the end of a loop is masked. `threads` says which thread holds
    which element (None for a tile of one element). Loops in `unrolled` are written out. Sums in `joined` are computed
    in the pass of the reduction that they follow.
    """

    points: Mapping[str, int] = field(default_factory=dict)
    threads: Blocked | None = None
    warps: int = 1
    unrolled: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()

    def grid(self, statements: Statements) -> list[SpatialLoop]:
        """The outer loops, a tile per block."""
        sizes = [(axis, self.points.get(axis.name, 1)) for axis in outer_loops(statements)]
        return [SpatialLoop(axis, size, -(-axis.size // size), size) for axis, size in sizes]

    def chunks(self, statements: Statements) -> list[tuple[Axis, int, int]]:
        """Every inner loop with its points in a tile, and how many chunks it is cut in."""
        sizes = [(axis, self.points.get(axis.name, 1)) for axis in inner_loops(statements)]
        return [(axis, size, -(-axis.size // size)) for axis, size in sizes]

    def holds_rows(self, statements: Statements) -> bool:
        """Whether all inner loops lie in the tile, so that one reading serves all passes."""
        return all(count == 1 for _, _, count in self.chunks(statements))

    @property
    def shares(self) -> list[tuple[int, int, int]]:
        """`Blocked.shares` of the tile."""
        return [] if self.threads is None else self.threads.shares(tuple(self.points.values()))


@dataclass(frozen=True)
class Access:
    """One access of a kernel: its address, the bytes of an element, how many elements all blocks touch."""

    form: Affine
    element: int
    elements: int
    points: int  # of loops at which it is made: elements, and those again
    writes: bool
    inside: bool  # along inner loops

    @property
    def bytes(self) -> int:
        return self.element * self.elements


@dataclass(frozen=True)
class Time:
    """What the model says of a candidate."""

    seconds: float
    blocks: int
    resident: int  # blocks on a multiprocessor
    under_way: float  # bytes on a multiprocessor
    registers: int
    refused: tuple[str, str] | None = None  # the rule that forbids it, and the values that break it


@dataclass(frozen=True)
class _Combining:
    """What the sums of a block take beside those of each thread: cycles of its life, instructions of every thread."""

    cycles: float
    instructions: float


class Model:
    """The predicted time of a tile on a machine."""

    def __init__(self, statements: Statements, machine: Gpu) -> None:
        self.statements, self.machine = statements, machine
        self.outer, self.inner, covers = outer_loops(statements), inner_loops(statements), covering(statements)
        self.accesses = _accesses(statements)
        self.bandwidth = machine.dram.bytes_per_second
        self.latency = machine.dram.latency_seconds
        self.wanted = self.latency * self.bandwidth / machine.multiprocessors  # bytes under way on each
        self.sums = sum(1 for each in statements if each.accum is not None)
        # Sums that can follow the first reduction that some follow, and what their running values take in a trip.
        found = [(each.name, each.follows) for each in statements if each.follows is not None]
        self.followers = {name: rule for name, rule in found if rule.reduction == found[0][1].reduction}
        accums = {each.name: each.accum for each in statements}
        self.running = sum(1 + self._operations(rule.factor) for rule in self.followers.values() if rule.factor)
        if any(accums[rule.reduction] == "sum" for rule in self.followers.values()):
            self.running += MEAN_INSTRUCTIONS
        # Passes over the inner loops where a row does not stay: every sum, and every value that is stored.
        self.stored = sum(each.address is not None for each in covers.values())
        # Those of every element; what is computed once per row is next to nothing.
        elements = [each for each in statements if not self.inner or each.accum is not None or each.name in covers]
        self.operations = sum(each.accum is not None for each in elements) + sum(
            self._operations(each.body) for each in elements
        )

    def time(self, tile: RowsTile) -> Time:
        """The time of a candidate, and the rule that forbids it, if one does."""
        machine = self.machine
        threads = tile.warps * machine.warp_sizes[0]
        each = self._each(tile)
        registers = self._registers(tile, each)
        most = min(machine.max_registers_per_thread, machine.registers_per_multiprocessor // threads // 8 * 8)
        exchanged, refused = self._exchanged(tile), None
        if registers + SLACK_REGISTERS > most:
            refused = ("registers of a thread", f"{registers} and {SLACK_REGISTERS} to spare of {most}")
        elif exchanged > machine.shared_bytes_per_block_default:
            refused = ("shared memory", f"{exchanged} of {machine.shared_bytes_per_block_default} bytes")
        blocks = prod(loop.programs for loop in tile.grid(self.statements))
        limits = [
            machine.max_threads_per_multiprocessor // threads,
            machine.registers_per_multiprocessor // (min(registers, most) * threads),
            machine.max_blocks_per_multiprocessor,
        ]
        if exchanged:
            limits.append(machine.shared_bytes_per_multiprocessor // exchanged)
        resident = max(1, min(*limits, -(-blocks // machine.multiprocessors)))
        held = tile.holds_rows(self.statements)
        times = 1 if held else max(1, self.sums - len(tile.joined) + self.stored)
        unrolled = prod(axis.size for axis in self.inner if axis.name in tile.unrolled)
        trips = prod(count for _, _, count in tile.chunks(self.statements))
        vector = 1 if tile.threads is None else prod(tile.threads.size_per_thread)
        loads = max(1, each // vector) * max(1, sum(not access.writes for access in self.heavy()))
        # What was read before is near: only elements that are new make a thread wait for memory.
        new = max(
            (access.elements / max(1, access.points) for access in self.heavy() if not access.writes), default=1.0
        )
        waits = ceil(trips * loads * new / min(self.together(vector), loads * unrolled))
        reads = sum(self._moved(a, tile) * (times if a.inside else 1) for a in self.accesses if not a.writes)
        writes = sum(self._moved(a, tile) for a in self.accesses if a.writes)
        under_way = resident * reads / blocks / waits / times
        accesses = sum(self._access_instructions(access, tile, each) for access in self.accesses)
        instructions = (each * unrolled * self.operations + accesses) * trips // unrolled * times
        instructions += self.running * self._results(tile) * trips if tile.joined else 0
        combining = self._combining(tile)
        # While a warp computes it waits for nothing: other blocks do.
        own = ISSUE_CYCLES * instructions
        cycles = machine.block_cycles + combining.cycles + own
        rate = machine.fma_per_cycle.get("f32", machine.subcores * machine.warp_sizes[0])
        work = threads * (instructions + THREAD_INSTRUCTIONS + combining.instructions) / rate
        alive = cycles / machine.clock_hz + waits * times * self.latency
        waves = blocks / (machine.multiprocessors * resident)
        waves = -(-blocks // (machine.multiprocessors * resident)) if waves < 4 else waves
        ports = min(blocks, machine.multiprocessors) * machine.l2_port_bytes_per_cycle
        l2 = min(ports, machine.l2_bytes_per_cycle) * machine.clock_hz
        stream = (reads + writes) / min(self.bandwidth, l2) * (1 + ALONE / resident)
        busy = -(-blocks // machine.multiprocessors) * work / machine.clock_hz
        dispatch = blocks * machine.dispatch_seconds
        longest = max(waves * alive, stream, busy, dispatch)
        # Accesses of parts of lines take their time even where caches hold the rest.
        excess = stream - sum(access.bytes for access in self.accesses) / self.bandwidth
        hidden = waves * alive + busy + dispatch
        seconds = longest + TAIL * alive + UNHIDDEN * hidden + NEAR * max(0.0, excess)
        return Time(seconds, blocks, resident, under_way, registers, refused)

    def together(self, elements: int) -> int:
        """How many loads of so many elements an assembler leaves under way at once."""
        size = max((access.element for access in self.heavy() if not access.writes), default=4)
        return max(1, TOGETHER // max(1, elements * size // 4))

    def _each(self, tile: RowsTile) -> int:
        """Elements of a thread; what is beyond the end of a loop in all blocks is left out of its code."""
        axes = {axis.name: axis.size for axis in (*self.outer, *self.inner)}
        found = 1
        for (name, points), (rounds, across, size) in zip(tile.points.items(), tile.shares, strict=True):
            if axes[name] < points:
                rounds = min(rounds, -(-axes[name] // (across * size)))
            found *= rounds * size
        return found

    def _access_instructions(self, access: Access, tile: RowsTile, each: int) -> int:
        """Of a thread, in all trips that are written out: one for neighbours, none for elements that it has already.

        What may lie beyond the end of a loop is read under a condition of its own, and again.
        """
        unrolled = [axis for axis in self.inner if axis.name in tile.unrolled]
        if not access.form.terms:
            return each * prod(axis.size for axis in unrolled) if access.points > 1 else 1
        axes = {axis.name: axis for axis in (*self.outer, *self.inner)}
        places, width, apart = np.zeros(1, np.int64), 1, 1
        for name, (rounds, across, size) in zip(tile.points, tile.shares, strict=True):
            step = access.form.coefficient(axes[name])
            rounds = min(rounds, -(-axes[name].size // (across * size)))
            if step == 1:
                width = max(width, size)
            if step and axes[name].size % tile.points[name] and not access.writes:
                apart *= rounds * size
                continue
            own = np.add.outer(np.arange(rounds) * across * size, np.arange(size))
            places = _different(np.add.outer(places, step * own))
        for axis in unrolled:
            places = _different(np.add.outer(places, access.form.coefficient(axis) * np.arange(axis.size)))
        count = len(places) * apart
        return -(-count // width) + (count if access.element < 4 else 0)  # narrow ones are converted

    def _operations(self, body: Expr) -> int:
        """Instructions of one element."""
        found = [each for each in walk(body) if isinstance(each, Apply) and each.dtype != INDEX]
        return sum(map(self._instructions, found))

    def _instructions(self, operation: Apply) -> int:
        """Of one element; what is divided by a value of its row is multiplied by the reciprocal of that."""
        name = operation.function
        if name == "div" and isinstance(operation.args[1], Read) and not operation.args[1].indices:
            return 1
        return INSTRUCTIONS.get(name, COSTLY_INSTRUCTIONS if name in COSTLY else 1)

    def _registers(self, tile: RowsTile, each: int) -> int:
        """Registers of a thread: what it has loaded, what it sums, and what it computes with."""
        reads = sum(not access.writes for access in self.heavy())
        live = min(MOST_LIVE, max(1, reads))
        sums = 0
        if not tile.holds_rows(self.statements):
            live += len(tile.joined)  # elements and what they add to the sum that follows
            sums = self.sums * self._results(tile)
        wide = max((access.element for access in self.accesses), default=4) > 4
        unrolled = min(self.together(each), prod(axis.size for axis in self.inner if axis.name in tile.unrolled))
        return SPARE_REGISTERS + (each * (live + unrolled - 1) + sums) * (2 if wide else 1)

    def _results(self, tile: RowsTile) -> int:
        """Results of sums that a thread has a part of."""
        outer = [axis.name for axis in self.outer]
        shares = zip(tile.points, tile.shares, strict=True)
        return prod(rounds * size for name, (rounds, _, size) in shares if name in outer)

    def heavy(self) -> list[Access]:
        """The accesses that have a say: those that move many bytes."""
        heaviest = max((access.bytes for access in self.accesses), default=0)
        return [access for access in self.accesses if HEAVY * access.bytes >= heaviest]

    def _exchanged(self, tile: RowsTile) -> int:
        """Bytes of shared memory through which accesses along another loop pass."""
        fast = self._first(tile)
        crossing = [a for a in self.accesses if fast is not None and a.form.coefficient(fast) > 1
                    and any(a.form.coefficient(x) == 1 for x in self._dims(tile))]  # fmt: skip
        return max((prod(tile.points.values()) * a.element for a in crossing), default=0)

    def _dims(self, tile: RowsTile) -> list[Axis]:
        loops = (*self.outer, *self.inner)
        return [axis for axis in loops if axis.name in tile.points]

    def _first(self, tile: RowsTile) -> Axis | None:
        dims = self._dims(tile)
        return dims[tile.threads.order[0]] if tile.threads is not None else None

    def _moved(self, access: Access, tile: RowsTile) -> float:
        """Bytes that an access moves: more than it asks for where runs in a tile are shorter than lines."""
        run, following = access.element, 1
        loops = sorted((*self.outer, *self.inner), key=lambda axis: tile.points.get(axis.name, 1))
        steps = {abs(access.form.coefficient(axis)): axis for axis in loops}  # of loops with one step the longest
        while (axis := steps.get(following)) is not None:
            points = tile.points.get(axis.name, 1)
            run *= min(points, axis.size)
            if points < axis.size:
                break
            following *= axis.size
            if axis.size == 1:
                break
        if following == 1 and run == access.element and 1 not in steps:
            return access.bytes  # one element here and there: nothing of a line is anyone else's
        if run >= min(self.machine.caches[0].line_bytes, access.bytes):
            return access.bytes
        shortest = min(PARTIAL)
        reached = max((length for length in PARTIAL if length <= run), default=shortest)
        return access.bytes * PARTIAL[reached] * max(1.0, shortest / run)

    def _combining(self, tile: RowsTile) -> _Combining:
        """What it takes threads to combine their sums."""
        if tile.threads is None:
            return _Combining(0, 0)
        inside = [axis.name for axis in self.inner]
        dims = [number for number, name in enumerate(tile.points) if name in inside]
        lanes = prod(tile.threads.threads_per_warp[dim] for dim in dims)
        warps = prod(tile.threads.warps[dim] for dim in dims)
        own = self._results(tile)
        steps = log2(lanes)
        cycles = (SHUFFLE_CYCLES + 4 * own) * steps
        instructions = SHUFFLE_INSTRUCTIONS * own * steps
        if warps > 1:
            cycles += BARRIER_CYCLES + own * warps * tile.warps
            instructions += EXCHANGE_INSTRUCTIONS + 2 * own * warps
        return _Combining(self.sums * cycles, self.sums * instructions)


def _accesses(statements: Statements) -> list[Access]:
    """What a kernel reads and writes, each address once."""
    inner = inner_loops(statements)
    loops = (*outer_loops(statements), *inner)
    found: dict[tuple[str, object, bool], Access] = {}
    for each in statements:
        reads = [(read.tensor, read.indices[0], False) for read in walk(each.body)
                 if isinstance(read, Read) and read.indices]  # fmt: skip
        writes = [(each.tensor, each.address, True)] if each.address is not None else []
        for tensor, index, is_store in (*reads, *writes):
            form = affine(index)
            walked = [axis for axis in loops if (form or Affine()).coefficient(axis)] if form is not None else loops
            points = prod(axis.size for axis in walked)
            elements = points if is_store else min(points, int(tensor.shape[0]))  # type: ignore[arg-type]
            inside = any(axis in inner for axis in walked)
            size = dtypes.size_bytes(tensor.dtype)
            known = Access(form or Affine(), size, elements, points, is_store, inside)
            found.setdefault((tensor.name, index, is_store), known)
    return list(found.values())


def _different(numbers: Array) -> Array:
    """The different ones: by a sort, which is faster than `np.unique` for as few as a thread has places."""
    ordered = np.sort(numbers, axis=None)
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]
