"""Nests on the blocks of a GPU: the tile of a block, who of its threads holds what, and the model that chooses both.

A tile has a dimension for some of the outer and inner loops. Where all inner loops lie in it whole, a row is read once
and stays in registers for all passes; else every pass walks the inner loops in chunks, and sums a chunk at a time into
as many registers. Neighbouring threads hold neighbours in the memory that most bytes come from or go to.

Candidates differ in warps, in how many of a block's threads share a row, and in elements per thread. The time of one is
the largest of three: bytes over bandwidth; blocks that wait for memory (what is under way on a multiprocessor must
cover latency times bandwidth); instructions over their rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import ceil, gcd, inf, prod

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Refusal
from tilewright.errors import InvalidMachine
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import COSTLY, Apply, Axis, Read, walk
from tilewright.expr.dtypes import INDEX
from tilewright.layouts.bits import log2, power_from
from tilewright.layouts.blocked import Blocked
from tilewright.machine.description import Gpu
from tilewright.operator.nest import Nest
from tilewright.operator.online import online_of
from tilewright.tiles.loops import SpatialLoop

# Counted in machine code (ptxas 13.0 for sm_90a, of kernels with 8 elements of f32 per thread).
INSTRUCTIONS = {  # without slow paths
    "exp": 8, "sigmoid": 10, "tanh": 13, "normal_cdf": 18, "erf": 20, "log": 29, "div": 10, "sqrt": 10,
}  # fmt: skip
COSTLY_INSTRUCTIONS = 20  # of functions that were not counted: between the above
THREAD_INSTRUCTIONS = 30  # of a thread whatever its elements: its number, addresses, what a row is divided by
SHUFFLE_INSTRUCTIONS = 2  # of one step of a butterfly for one result: the shuffle, the sum
EXCHANGE_INSTRUCTIONS = 10  # of a reduction over warps: its addresses, a store, two barriers, a load, a condition
SPARE_REGISTERS = 24  # of a thread: addresses, bounds, what a function keeps
TOGETHER = 24  # registers of a thread that loads under way wait for: what the assembler leaves so of softmax and norms
MOST_ACCESSES = 8  # of a thread in a map, however narrow: what it computes comes between more of them
MOST_LIVE = 6  # of a thread's tiles: what has been used makes room

# Assumed, orders of magnitude that no GPU has measured: cycles that a block waits, and parts of times.
SHUFFLE_CYCLES = 30  # of one step of a butterfly: the latency of a shuffle and of an addition
BARRIER_CYCLES = 150  # of a reduction over warps: two barriers, and what passes through shared memory
ISSUE_CYCLES = 2  # from one instruction of a warp to the next, where others do not wait for it
ALONE = 0.1  # of the time that memory is idle for, where one block is on a multiprocessor and computes by turns
UNHIDDEN = 0.05  # of the times behind the longest one that adds to it: overlap is never whole
TAIL = 0.5  # of a block's life in which the last blocks leave multiprocessors idle: on average half
NEAR = 0.5  # of what accesses to parts of lines move twice that takes its time, though a cache has it
PARTIAL = {64: 1.1, 32: 1.25}  # bytes moved for a byte of runs shorter than a line, so long at least; below, sectors

# Chosen: what is tried, and what counts.
UNROLLED = 32  # most trips that are written out, so that their loads are under way at once
ELEMENTS = (1, 2, 4, 8, 16, 32, 64)  # of a thread
SLACK_REGISTERS = 4  # below the limit of a thread: at the limit an assembler may spill
HEAVY = 8  # an access that moves less than this part of the heaviest one has no say


@dataclass(frozen=True)
class NestBlocks:
    """How a nest runs on blocks (level 2): points of the loops that are dimensions of a tile, outer ones first.

    Extents are powers of two; what a tile has beyond the end of a loop is masked. `threads` says which thread holds
    which element (None for a tile of one element). Loops in `unrolled` are written out.
    """

    tile: Mapping[str, int] = field(default_factory=dict)
    threads: Blocked | None = None
    warps: int = 1
    unrolled: tuple[str, ...] = ()

    def grid(self, nest: Nest) -> list[SpatialLoop]:
        """The outer loops, a tile per block."""
        sizes = [(axis, self.tile.get(axis.name, 1)) for axis in nest.outer]
        return [SpatialLoop(axis, size, -(-axis.size // size), size) for axis, size in sizes]

    def chunks(self, nest: Nest) -> list[tuple[Axis, int, int]]:
        """Every inner loop with its points in a tile, and how many chunks it is cut in."""
        sizes = [(axis, self.tile.get(axis.name, 1)) for axis in nest.inner]
        return [(axis, size, -(-axis.size // size)) for axis, size in sizes]

    def holds_rows(self, nest: Nest) -> bool:
        """Whether all inner loops lie in the tile, so that one reading serves all passes."""
        return all(count == 1 for _, _, count in self.chunks(nest))

    @property
    def shares(self) -> list[tuple[int, int, int]]:
        """For each dimension: rounds of all threads along it, threads, and neighbours that a thread has in a round.

        Rounds and neighbours are registers of one thread.
        """
        found = []
        for dim, extent in enumerate(self.tile.values()):
            assert self.threads is not None, "a tile of more than an element has its threads"
            size = min(extent, self.threads.size_per_thread[dim])
            across = min(extent // size, self.threads.threads_per_warp[dim] * self.threads.warps[dim])
            found.append((extent // size // across, across, size))
        return found

    @property
    def layout(self) -> str:
        """The layout of the tile, as text."""
        return "" if self.threads is None else str(self.threads.to_linear(tuple(self.tile.values())))


@dataclass(frozen=True)
class _Access:
    """One access of a nest: its address, the bytes of an element, how many elements all blocks touch."""

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
class _Time:
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


def schedule_nest_blocks(nest: Nest, machine: Gpu, subject: str) -> tuple[NestBlocks, Decision]:
    """The tile of a block with the shortest predicted time."""
    model = _Model(nest, machine)
    ranked = _ranked(model)
    refused: dict[str, Refusal] = {}  # by every rule the best one, as far as it is better than what is chosen
    for _, _, candidate, found in ranked:
        if found.refused is None:
            break
        rule, values = found.refused
        refused.setdefault(rule, Refusal(_text(candidate, nest), rule, values))
    ranked = [each for each in ranked if each[3].refused is None]
    if not ranked:
        raise _nothing_fits(machine, subject, refused.values())
    seconds, _, chosen, time = ranked[0]
    second = next((each for each in ranked[1:] if each[2].tile != chosen.tile), None)
    cycles = seconds * machine.clock_hz
    reason = (
        f"{cycles:.0f} predicted cycles, fewest of {len(ranked)}: {time.blocks} blocks, {time.resident} at once on "
        f"each of {machine.multiprocessors} multiprocessors, {time.under_way / 1024:.0f} KiB under way there where "
        f"latency asks for {model.wanted / 1024:.0f}, {time.registers} registers"
    )
    decision = Decision(
        f"tile of {subject}",
        _text(chosen, nest),
        reason,
        _text(second[2], nest) if second else "",
        f"{second[0] * machine.clock_hz:.0f} cycles" if second else "",
        tuple(refused.values()),
        Cost(cycles=cycles),
        Cost(cycles=second[0] * machine.clock_hz) if second else None,
    )
    return chosen, decision


def predicted(nest: Nest, machine: Gpu) -> float:
    """Seconds of a nest with the tile that is best for it; infinite where none fits."""
    return next((seconds for seconds, _, _, time in _ranked(_Model(nest, machine)) if time.refused is None), inf)


def _nothing_fits(machine: Gpu, subject: str, refused: Iterable[Refusal]) -> InvalidMachine:
    reasons = "; ".join(f"{each.rule}: {each.values}" for each in refused)
    fact = f"no tile of {subject} fits a block: {reasons}"
    return InvalidMachine(fact, where=machine.name, help="a machine with more registers per thread or shared memory")


def _ranked(model: _Model) -> list[tuple[float, int, NestBlocks, _Time]]:
    """All candidates with their times, the shortest first; those that a rule forbids among them."""
    ranked = []
    for number, candidate in enumerate({repr(each): each for each in _Candidates(model).all()}.values()):
        found = model.time(candidate)
        ranked.append((found.seconds, number, candidate, found))
    return sorted(ranked, key=lambda each: each[:2])


def _text(schedule: NestBlocks, nest: Nest) -> str:
    box = " x ".join(f"{points} of {name}" for name, points in schedule.tile.items()) or "1 point"
    warps = f"{schedule.warps} warp{'s' if schedule.warps > 1 else ''}"
    threads = "" if schedule.threads is None else f" ({schedule.threads})"
    passes = ", rows in registers" if schedule.holds_rows(nest) and any(n.accum for n in nest.nodes) else ""
    unrolled = f", {' and '.join(schedule.unrolled)} unrolled" if schedule.unrolled else ""
    return f"{box} on {warps}{threads}{passes}{unrolled}"


# Candidates -----------------------------------------------------------------------------------------------------------


class _Candidates:
    """Tiles that are worth a prediction."""

    def __init__(self, model: _Model) -> None:
        self.nest, self.machine = model.nest, model.machine
        self.lanes = model.machine.warp_sizes[0]
        self.heavy = model.heavy()
        self.fast = self._fast()
        self.order = self._by_stride()
        self.vector = self._vector()
        self.most = self.vector * min(MOST_ACCESSES, model.together(self.vector))
        self.crossed = self._crossed()

    def all(self) -> Iterator[NestBlocks]:
        """Tiles with the fast loop inside or outside, and the tile of one element where there is no loop."""
        if self.fast is None:
            yield NestBlocks(unrolled=self._unrolled({}))
            return
        for warps in (1, 2, 4, 8, 16, 32):
            if warps * self.lanes > self.machine.max_threads_per_block:
                continue
            for each in ELEMENTS:
                if each >= self.vector and (self.nest.inner or each <= self.most):
                    yield from self._of(warps, each)

    def _of(self, warps: int, each: int) -> Iterator[NestBlocks]:
        """The tiles that give every thread of so many warps so many elements."""
        points = warps * self.lanes * each
        small = prod(power_from(axis.size) for axis in self.order) < self.lanes * self.vector  # threads are left over
        if self.fast not in self.nest.inner:
            box = self._box(self.order_of(self.nest.outer), points)
            if prod(box.values()) == points or small:
                yield from self._made(box, warps)
        if not self.nest.inner:
            return
        inner = self.order_of(self.nest.inner)
        outer = self.order_of(self.nest.outer)
        share = 2
        while share <= points:  # of the tile, along inner loops
            box = {**self._box(inner, share), **self._box(outer, points // share)}
            if prod(box.values()) == points or small:
                yield from self._made(box, warps)
            share *= 2

    def order_of(self, axes: Sequence[Axis]) -> list[Axis]:
        return [axis for axis in self.order if axis in axes]

    def _box(self, axes: Sequence[Axis], points: int) -> dict[str, int]:
        """Points along each loop: the fastest first; a loop that stores along another one in memory gets its share."""
        if not axes:
            return {}
        box = dict.fromkeys((axis.name for axis in axes), 1)
        crossing = self.crossed if self.crossed in axes and axes[0] == self.fast else None
        if crossing is not None:
            assert self.crossed is not None
            others = prod(power_from(axis.size) for axis in axes if axis != crossing)
            side = max(1 << log2(points) // 2, points // others)
            box[crossing.name] = min(power_from(crossing.size), side)
            points //= box[crossing.name]
        for axis in axes:
            if axis != crossing:
                box[axis.name] = min(power_from(axis.size), points)
                points //= box[axis.name]
        return {name: extent for name, extent in box.items() if extent > 1}

    def _made(self, box: Mapping[str, int], warps: int) -> Iterator[NestBlocks]:
        """A tile with its threads: lanes along the fast loop first, warps along outer loops first."""
        names = [axis.name for axis in (*self.nest.outer, *self.nest.inner) if axis.name in box]
        if not names:
            return
        extents = [box[name] for name in names]
        order = [names.index(axis.name) for axis in self.order if axis.name in box]
        sizes, lanes, dealt = ([1] * len(names) for _ in range(3))
        assert self.fast is not None
        if self.fast.name in box:
            sizes[order[0]] = min(self.vector, extents[order[0]])
        left = self.lanes
        for dim in order:
            lanes[dim] = min(left, max(1, extents[dim] // sizes[dim]))
            left //= lanes[dim]
        lanes[order[-1]] *= left
        left = warps
        inside = [axis.name for axis in self.nest.inner]
        for dim in sorted(order, key=lambda dim: names[dim] in inside):
            dealt[dim] = min(left, max(1, extents[dim] // (sizes[dim] * lanes[dim])))
            left //= dealt[dim]
        if left > 1:
            return  # warps that would all do the same
        threads = Blocked(tuple(sizes), tuple(lanes), tuple(dealt), tuple(order))
        yield NestBlocks(dict(zip(names, extents, strict=True)), threads, warps, self._unrolled(box))

    def _unrolled(self, box: Mapping[str, int]) -> tuple[str, ...]:
        """Inner loops beside the tile that are short: the last ones, as long as few trips are written out."""
        found: list[str] = []
        trips = 1
        for axis in reversed([axis for axis in self.nest.inner if axis.name not in box]):
            trips *= axis.size
            if trips > UNROLLED:
                break
            found.insert(0, axis.name)
        return tuple(found)

    # What memory wants

    def _fast(self) -> Axis | None:
        """The loop along which most bytes follow each other, runs shorter than a line counting less."""
        loops = (*self.nest.inner, *self.nest.outer)
        score = dict.fromkeys(loops, 0.0)
        for access in self.heavy:
            line = max(1, self.machine.caches[0].line_bytes // access.element)
            for axis in loops:
                if access.form.coefficient(axis) == 1:
                    score[axis] += access.bytes * min(1.0, axis.size / line)
        return max(loops, key=lambda axis: (score[axis], axis in self.nest.outer, axis.size), default=None)

    def _by_stride(self) -> list[Axis]:
        """All loops, those first that take small steps in the heaviest access along the fast loop."""
        along = [a for a in self.heavy if self.fast is not None and a.form.coefficient(self.fast) == 1] or self.heavy
        leading = max(along, key=lambda access: access.bytes, default=None)

        def stride(axis: Axis) -> int:
            step = abs(leading.form.coefficient(axis)) if leading is not None else 0
            return 0 if axis == self.fast else step or 1 << 62

        return sorted((*self.nest.inner[::-1], *self.nest.outer[::-1]), key=stride)

    def _vector(self) -> int:
        """Elements of the widest access along the fast loop that all heavy accesses can make."""
        if self.fast is None:
            return 1
        along = [access for access in self.heavy if access.form.coefficient(self.fast) == 1]
        widest = self.machine.load_bits // 8 // max((access.element for access in along), default=16)
        found = max(1, min(widest, power_from(self.fast.size)))
        for access in along:
            steps = [step for axis, step in access.form.terms.items() if axis != self.fast]
            found = gcd(found, access.form.constant, *steps)
        return found

    def _crossed(self) -> Axis | None:
        """Another loop of the same kind along which a heavy access steps from neighbour to neighbour."""
        for axes in (self.nest.outer, self.nest.inner):
            for access in self.heavy:
                step = 0 if self.fast is None else access.form.coefficient(self.fast)
                for axis in axes:
                    if self.fast in axes and axis != self.fast and access.form.coefficient(axis) == 1 and step > 1:
                        return axis
        return None


# Model ----------------------------------------------------------------------------------------------------------------


class _Model:
    """The predicted time of a tile on a machine."""

    def __init__(self, nest: Nest, machine: Gpu) -> None:
        self.nest, self.machine = nest, machine
        self.accesses = _accesses(nest)
        self.bandwidth = machine.dram.bytes_per_second
        self.latency = machine.dram.latency_seconds
        self.wanted = self.latency * self.bandwidth / machine.multiprocessors  # bytes under way on each
        self.sums = sum(1 for node in nest.nodes if node.accum is not None)
        # Passes over the inner loops where a row does not stay: every sum, and every value that is stored.
        joined = 1 if online_of(nest) is not None else 0
        self.passes = max(1, self.sums - joined + sum(nest.covers_inner(n) and n.index is not None for n in nest.nodes))
        # Those of every element; what is computed once per row is next to nothing.
        elements = [each for each in nest.nodes if not nest.inner or each.accum is not None or nest.covers_inner(each)]
        self.operations = sum(node.accum is not None for node in elements) + sum(
            self._instructions(each)
            for node in elements
            for each in walk(node.body)
            if isinstance(each, Apply) and each.dtype != INDEX
        )

    def time(self, schedule: NestBlocks) -> _Time:
        """The time of a candidate, and the rule that forbids it, if one does."""
        nest, machine = self.nest, self.machine
        threads = schedule.warps * machine.warp_sizes[0]
        each = self._each(schedule)
        registers = self._registers(schedule, each)
        most = min(machine.max_registers_per_thread, machine.registers_per_multiprocessor // threads // 8 * 8)
        exchanged, refused = self._exchanged(schedule), None
        if registers + SLACK_REGISTERS > most:
            refused = ("registers of a thread", f"{registers} and {SLACK_REGISTERS} to spare of {most}")
        elif exchanged > machine.shared_bytes_per_block_default:
            refused = ("memory of a block", f"{exchanged} of {machine.shared_bytes_per_block_default} bytes")
        blocks = prod(loop.programs for loop in schedule.grid(nest))
        limits = [
            machine.max_threads_per_multiprocessor // threads,
            machine.registers_per_multiprocessor // (min(registers, most) * threads),
            machine.max_blocks_per_multiprocessor,
        ]
        if exchanged:
            limits.append(machine.shared_bytes_per_multiprocessor // exchanged)
        resident = max(1, min(*limits, -(-blocks // machine.multiprocessors)))
        held = schedule.holds_rows(nest)
        times = 1 if held else self.passes
        unrolled = prod(axis.size for axis in nest.inner if axis.name in schedule.unrolled)
        trips = prod(count for _, _, count in schedule.chunks(nest))
        vector = 1 if schedule.threads is None else prod(schedule.threads.size_per_thread)
        loads = max(1, each // vector) * max(1, sum(not access.writes for access in self.heavy()))
        # What was read before is near: only elements that are new make a thread wait for memory.
        new = max(
            (access.elements / max(1, access.points) for access in self.heavy() if not access.writes), default=1.0
        )
        waits = ceil(trips * loads * new / min(self.together(vector), loads * unrolled))
        reads = sum(self._moved(a, schedule) * (times if a.inside else 1) for a in self.accesses if not a.writes)
        writes = sum(self._moved(a, schedule) for a in self.accesses if a.writes)
        under_way = resident * reads / blocks / waits / times
        accesses = sum(self._access_instructions(access, schedule, each) for access in self.accesses)
        instructions = (each * unrolled * self.operations + accesses) * trips // unrolled * times
        combining = self._combining(schedule)
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
        return _Time(seconds, blocks, resident, under_way, registers, refused)

    def together(self, elements: int) -> int:
        """How many loads of so many elements an assembler leaves under way at once."""
        size = max((access.element for access in self.heavy() if not access.writes), default=4)
        return max(1, TOGETHER // max(1, elements * size // 4))

    def _each(self, schedule: NestBlocks) -> int:
        """Elements of a thread; what is beyond the end of a loop in all blocks is left out of its code."""
        axes = {axis.name: axis.size for axis in (*self.nest.outer, *self.nest.inner)}
        found = 1
        for (name, points), (rounds, across, size) in zip(schedule.tile.items(), schedule.shares, strict=True):
            if axes[name] < points:
                rounds = min(rounds, -(-axes[name] // (across * size)))
            found *= rounds * size
        return found

    def _access_instructions(self, access: _Access, schedule: NestBlocks, each: int) -> int:
        """Of a thread, in all trips that are written out: one for neighbours, none for elements that it has already.

        What may lie beyond the end of a loop is read under a condition of its own, and again.
        """
        unrolled = [axis for axis in self.nest.inner if axis.name in schedule.unrolled]
        if not access.form.terms:
            return each * prod(axis.size for axis in unrolled) if access.points > 1 else 1
        axes = {axis.name: axis for axis in (*self.nest.outer, *self.nest.inner)}
        places, width, apart = np.zeros(1, np.int64), 1, 1
        for name, (rounds, across, size) in zip(schedule.tile, schedule.shares, strict=True):
            step = access.form.coefficient(axes[name])
            rounds = min(rounds, -(-axes[name].size // (across * size)))
            if step == 1:
                width = max(width, size)
            if step and axes[name].size % schedule.tile[name] and not access.writes:
                apart *= rounds * size
                continue
            own = np.add.outer(np.arange(rounds) * across * size, np.arange(size))
            places = np.unique(np.add.outer(places, step * own))
        for axis in unrolled:
            places = np.unique(np.add.outer(places, access.form.coefficient(axis) * np.arange(axis.size)))
        count = len(places) * apart
        return -(-count // width) + (count if access.element < 4 else 0)  # narrow ones are converted

    def _instructions(self, operation: Apply) -> int:
        """Of one element; what is divided by a value of its row is multiplied by the reciprocal of that."""
        name = operation.function
        if name == "div" and isinstance(operation.args[1], Read) and not operation.args[1].indices:
            return 1
        return INSTRUCTIONS.get(name, COSTLY_INSTRUCTIONS if name in COSTLY else 1)

    def _registers(self, schedule: NestBlocks, each: int) -> int:
        """Registers of a thread: what it has loaded, what it sums, and what it computes with."""
        nest = self.nest
        reads = sum(not access.writes for access in self.heavy())
        live = min(MOST_LIVE, max(1, reads))
        sums = 0
        if not schedule.holds_rows(nest):
            live += online_of(nest) is not None  # values and their exponentials
            sums = self.sums * self._results(schedule)
        wide = max((access.element for access in self.accesses), default=4) > 4
        unrolled = min(self.together(each), prod(axis.size for axis in nest.inner if axis.name in schedule.unrolled))
        return SPARE_REGISTERS + (each * (live + unrolled - 1) + sums) * (2 if wide else 1)

    def _results(self, schedule: NestBlocks) -> int:
        """Results of sums that a thread has a part of."""
        outer = [axis.name for axis in self.nest.outer]
        shares = zip(schedule.tile, schedule.shares, strict=True)
        return prod(rounds * size for name, (rounds, _, size) in shares if name in outer)

    def heavy(self) -> list[_Access]:
        """The accesses that have a say: those that move many bytes."""
        heaviest = max((access.bytes for access in self.accesses), default=0)
        return [access for access in self.accesses if HEAVY * access.bytes >= heaviest]

    def _exchanged(self, schedule: NestBlocks) -> int:
        """Bytes of shared memory through which accesses along another loop pass."""
        fast = self._first(schedule)
        crossing = [a for a in self.accesses if fast is not None and a.form.coefficient(fast) > 1
                    and any(a.form.coefficient(x) == 1 for x in self._dims(schedule))]  # fmt: skip
        return max((prod(schedule.tile.values()) * a.element for a in crossing), default=0)

    def _dims(self, schedule: NestBlocks) -> list[Axis]:
        loops = (*self.nest.outer, *self.nest.inner)
        return [axis for axis in loops if axis.name in schedule.tile]

    def _first(self, schedule: NestBlocks) -> Axis | None:
        dims = self._dims(schedule)
        return dims[schedule.threads.order[0]] if schedule.threads is not None else None

    def _moved(self, access: _Access, schedule: NestBlocks) -> float:
        """Bytes that an access moves: more than it asks for where runs in a tile are shorter than lines."""
        run, following = access.element, 1
        loops = sorted((*self.nest.outer, *self.nest.inner), key=lambda axis: schedule.tile.get(axis.name, 1))
        steps = {abs(access.form.coefficient(axis)): axis for axis in loops}  # of loops with one step the longest
        while (axis := steps.get(following)) is not None:
            points = schedule.tile.get(axis.name, 1)
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

    def _combining(self, schedule: NestBlocks) -> _Combining:
        """What it takes threads to combine their sums."""
        if schedule.threads is None:
            return _Combining(0, 0)
        inside = [axis.name for axis in self.nest.inner]
        dims = [number for number, name in enumerate(schedule.tile) if name in inside]
        lanes = prod(schedule.threads.threads_per_warp[dim] for dim in dims)
        warps = prod(schedule.threads.warps[dim] for dim in dims)
        own = self._results(schedule)
        steps = log2(lanes)
        cycles = (SHUFFLE_CYCLES + 4 * own) * steps
        instructions = SHUFFLE_INSTRUCTIONS * own * steps
        if warps > 1:
            cycles += BARRIER_CYCLES + own * warps * schedule.warps
            instructions += EXCHANGE_INSTRUCTIONS + 2 * own * warps
        return _Combining(self.sums * cycles, self.sums * instructions)


def _accesses(nest: Nest) -> list[_Access]:
    """What a nest reads and writes, each address once."""
    loops = (*nest.outer, *nest.inner)
    found: dict[tuple[str, object, bool], _Access] = {}
    for node in nest.nodes:
        reads = [(read.tensor, read.indices[0], False) for read in walk(node.body)
                 if isinstance(read, Read) and read.indices]  # fmt: skip
        writes = [(node.tensor, node.index, True)] if node.index is not None else []
        for tensor, index, is_store in (*reads, *writes):
            form = affine(index)
            walked = [axis for axis in loops if (form or Affine()).coefficient(axis)] if form is not None else loops
            points = prod(axis.size for axis in walked)
            elements = points if is_store else min(points, int(tensor.shape[0]))  # type: ignore[arg-type]
            inside = any(axis in nest.inner for axis in walked)
            size = dtypes.size_bytes(tensor.dtype)
            known = _Access(form or Affine(), size, elements, points, is_store, inside)
            found.setdefault((tensor.name, index, is_store), known)
    return list(found.values())
