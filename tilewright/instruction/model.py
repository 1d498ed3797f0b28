"""The performance model: seconds of a mapping with a schedule, predicted level by level (spec 3, section 4).

Level 0 holds registers and issues intrinsics, the last level is the whole device. Level l executes once per filled
buffer of its memory. With n the trips of level l that run one after another::

    compute[l] = n * max(compute[l-1], read[l-1], write[l-1])          compute[0] = n * call_cycles
    read[l]  = bytes_in[l] / in_bytes_per_cycle[l]
    write[l] = bytes_out[l] / out_bytes_per_cycle[l], once per completed reduction of level l+1

A `Hierarchy` says what the machine is, a `Level` per memory what the schedule does; `nest_of` makes the latter from a
mapping and a tiling, `levels_of` from any loops and accesses. A prediction is data: the level that it is bound by, and
whether by compute, reading or writing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import inf, prod
from typing import Any, Literal

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument, InvalidMachine
from tilewright.instruction.physical import PhysicalMapping, Placement
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Intrinsic, LoopKind
from tilewright.intrinsics.registry import standard
from tilewright.machine import Cpu, Gpu, Machine
from tilewright.machine.description import SCATTERED
from tilewright.search.cost import Evaluation

Bound = Literal["compute", "read", "write", "relayout"]
#: How a relayout comes about: by a kernel of its own, while a tile is copied inward, or before anything runs.
Realisation = Literal["materialised", "in-copy", "folded"]

REGISTER_BYTES = 4  # of one lane of a GPU
DTYPE_OF_RATE = {"s8": "i8", "s4": "i4"}  # vendors' names of signed integers


# The machine ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """One level: what fits, how fast bytes come in and go out (per instance), and how many instances lie below one.

    `near_bytes` is for the last level: a working set beyond it comes in and goes out at this level's own rates, one
    within it at those of the level below.
    """

    name: str
    capacity_bytes: float
    in_bytes_per_cycle: float
    out_bytes_per_cycle: float
    units: int = 1
    near_bytes: float = inf


@dataclass(frozen=True)
class Hierarchy:
    """A machine as the model sees it, innermost level first.

    `core_cycles` has measured cycles between two calls of a record on one core, which also say what a record costs that
    is made of it; `macs_per_core_cycle` is what a core multiplies and adds per cycle, by input dtype. A record found in
    neither has the cost that it states itself, `recorded_factor` times, since CPUs differ in multiply-adds per cycle.
    `latency_cycles` has measured cycles between two dependent calls, and `broadcast_cycles` those of loading one
    element into all lanes; 0 where nothing says so. A line of a cache that no stream leads to takes `scattered` times
    as long as others.
    """

    name: str
    clock_hz: float
    levels: tuple[Memory, ...]
    core_cycles: Mapping[str, float] = field(default_factory=dict)
    macs_per_core_cycle: Mapping[str, float] = field(default_factory=dict)
    recorded_factor: float = 1.0
    latency_cycles: Mapping[str, float] = field(default_factory=dict)
    broadcast_cycles: float = 0.0
    scattered: float = SCATTERED

    @property
    def cores(self) -> int:
        """Instances below the last level: cores of a CPU, multiprocessors of a GPU."""
        return self.levels[-1].units

    @property
    def units_per_core(self) -> int:
        """What of one core executes intrinsics independently: 1 on a CPU, the sub-cores of a multiprocessor."""
        return prod(level.units for level in self.levels[:-1])

    @property
    def device_bytes_per_second(self) -> float:
        """Rate at which all cores together read what no cache holds."""
        far, near = self.levels[-1], self.levels[-2]
        rate = near.in_bytes_per_cycle if far.near_bytes == inf else far.in_bytes_per_cycle
        return rate * self.cores * self.clock_hz

    def copy_seconds(self, bytes_: float) -> float:
        """Seconds to read and write so many bytes, which are in the last cache where they fit."""
        far, near = self.levels[-1], self.levels[-2]
        if bytes_ <= far.near_bytes:
            return bytes_ / (near.in_bytes_per_cycle * self.cores * self.clock_hz)
        return bytes_ / self.device_bytes_per_second


def hierarchy(machine: Machine, cores: int | None = None) -> Hierarchy:
    """The levels of a CPU or GPU description, for programs on `cores` of its cores (default: all).

    CPU: registers, every cache but the last, the last cache with main memory. GPU: registers of a sub-core, shared
    memory of a multiprocessor, the device. Raises InvalidMachine for an accelerator.
    """
    if isinstance(machine, Cpu):
        return _cpu(machine, cores or machine.cores)
    if isinstance(machine, Gpu):
        return _gpu(machine, cores or machine.multiprocessors)
    raise InvalidMachine(f"{machine.name} is of kind {machine.kind}, which this model has no levels for",
                         help="a cpu or a gpu, or write the Hierarchy out")  # fmt: skip


def _cpu(machine: Cpu, cores: int) -> Hierarchy:
    clock_hz = machine.nominal_clock_hz
    vector_bytes = machine.vector_bits // 8
    *private, last = machine.caches
    rates = _cache_rates(machine, clock_hz)
    dram = machine.dram
    shared_rate = dram.bytes_per_second / cores
    far_in = min(dram.bytes_per_second_per_core or shared_rate, shared_rate) / clock_hz
    copied = dram.copy_bytes_per_second
    far_out = far_in if copied is None else _write_rate(copied / cores / clock_hz, far_in)
    stores = machine.store_bytes_per_cycle or float(machine.stores_per_cycle * vector_bytes)
    levels = [Memory("registers", machine.vector_registers * vector_bytes, rates[0], stores)]
    levels += [Memory(cache.name, cache.bytes, rate, rate) for cache, rate in zip(private, rates[1:], strict=True)]
    levels.append(
        Memory(
            f"{last.name}+DRAM", dram.capacity_bytes or inf, far_in, far_out, cores, last.kept_bytes * _shares(machine)
        )
    )
    broadcasts = machine.broadcasts_per_cycle or machine.loads_per_cycle
    return Hierarchy(
        machine.name, clock_hz, tuple(levels), dict(machine.issue_cycles or {}),
        recorded_factor=machine.recorded_factor,
        latency_cycles=dict(machine.latency_cycles or {}), broadcast_cycles=1 / broadcasts,
        scattered=machine.scattered_factor or SCATTERED,
    )  # fmt: skip


def _cache_rates(machine: Cpu, clock_hz: float) -> list[float]:
    """Bytes per cycle and core of every cache; one that states none has half of the rate inside of it."""
    rates: list[float] = []
    for cache in machine.caches:
        assumed = rates[-1] / 2 if rates else machine.loads_per_cycle * machine.vector_bits / 8
        rates.append(cache.bytes_per_cycle or (cache.bytes_per_second or 0.0) / clock_hz or assumed)
    return rates


def _shares(machine: Cpu) -> int:
    """Instances of the last cache in the machine."""
    return max(1, machine.cores // machine.caches[-1].shared_by)


def _write_rate(copied: float, read: float) -> float:
    """The rate of writing alone, from a copy (bytes read and written) and reading, which take turns at the memory."""
    seconds = 2 / copied - 1 / read
    return 1 / seconds if seconds > 0 else read


def _gpu(machine: Gpu, cores: int) -> Hierarchy:
    shared = machine.shared_bytes_per_cycle / machine.subcores
    device = machine.dram.bytes_per_second / machine.clock_hz / cores
    registers = machine.registers_per_multiprocessor * REGISTER_BYTES / machine.subcores
    capacity = machine.dram.capacity_bytes or inf
    levels = (
        Memory("registers", registers, shared, shared),
        Memory("shared", machine.shared_bytes_per_block, device, device, machine.subcores),
        Memory("device", capacity, inf, inf, cores),
    )
    macs = {DTYPE_OF_RATE.get(name, name): rate for name, rate in machine.fma_per_cycle.items()}
    return Hierarchy(machine.name, machine.clock_hz, levels, dict(machine.issue_cycles or {}), macs)


def core_cycles(record: Intrinsic, machine: Hierarchy) -> float:
    """Cycles between two independent calls of `record` on one core, all its units at work."""
    measured = machine.core_cycles.get(record.name)
    if measured is not None:
        return measured
    base_measured = machine.core_cycles.get(record.realised_by)
    if base_measured is not None and record.realised_by in standard():
        return base_measured * record.macs / standard().find(record.realised_by).macs
    macs = machine.macs_per_core_cycle.get(record.sources[0].dtype)
    if macs:
        return record.macs / macs
    return machine.recorded_factor * record.cost.issue_cycles / record.cost.units_per_core


def core_latency(record: Intrinsic, machine: Hierarchy) -> float:
    """Cycles from a call of `record` to one that needs its result; of a record made of another, those of the other."""
    found = machine.latency_cycles.get(record.name, machine.latency_cycles.get(record.realised_by))
    return record.cost.latency_cycles if found is None else found


# The schedule ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """What one execution of a level does.

    `trips` and `reductions` are loops that run one after another, spatial and summing; `parallel` loops are distributed
    to the units of the level as one. `bytes_in` and `bytes_out` enter and leave this level's memory, `copied_bytes` are
    written into it by a relayout that happens in the copy, `resident_bytes` must fit (None: what enters and leaves).
    """

    trips: tuple[int, ...] = ()
    reductions: tuple[int, ...] = ()
    parallel: tuple[int, ...] = ()
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    copied_bytes: float = 0.0
    resident_bytes: float | None = None

    @property
    def held_bytes(self) -> float:
        return self.bytes_in + self.bytes_out if self.resident_bytes is None else self.resident_bytes

    def rounds(self, units: int) -> int:
        """Executions of the level below, one after another: parallel loops go in waves of `units`."""
        return prod(self.trips) * prod(self.reductions) * -(-prod(self.parallel) // units)


@dataclass(frozen=True)
class Relayout:
    """A generated relayout of one operand and how it comes about."""

    name: str
    realisation: Realisation
    bytes_read: float
    bytes_written: float


@dataclass(frozen=True)
class Timing:
    """One level of a prediction: cycles of one execution below it, and of the bytes that this takes."""

    name: str
    rounds: int
    compute_cycles: float
    read_cycles: float
    write_cycles: float

    @property
    def bound(self) -> Bound:
        """What the rounds wait for."""
        most = max(self.compute_cycles, self.read_cycles, self.write_cycles)
        return "compute" if most == self.compute_cycles else "read" if most == self.read_cycles else "write"


@dataclass(frozen=True)
class Prediction:
    """Cycles of the nest, seconds with its relayouts, and what it is bound by; infinite and `refused` if it cannot be.

    `timings` has one entry per level, innermost first: level 0 waits for calls only.
    """

    cycles: float
    seconds: float
    relayout_seconds: float = 0.0
    timings: tuple[Timing, ...] = ()
    refused: str = ""

    @property
    def bottleneck(self) -> tuple[str, Bound]:
        """Level and kind of what takes the time: the outermost level whose bytes take longer than what is inside."""
        if self.relayout_seconds > self.seconds / 2:
            return "relayouts", "relayout"
        for outer, inner in zip(reversed(self.timings[1:]), reversed(self.timings[:-1]), strict=True):
            if outer.bound != "compute":
                return inner.name, outer.bound
        return (self.timings[0].name if self.timings else ""), "compute"

    def evaluation(self) -> Evaluation:
        """The answer of an `search.cost.Cost`."""
        return Evaluation.refused(self.refused) if self.refused else Evaluation(self.seconds)

    def explain(self) -> str:
        """One line per level: how often it runs what is below it, and what each time costs."""
        if self.refused:
            return f"refused: {self.refused}"
        level, kind = self.bottleneck
        lines = [f"{self.seconds:.3e} s, bound by {kind} at {level}"]
        lines += [
            f"  {timing.name}: {timing.rounds} x max(compute {timing.compute_cycles:.0f}, "
            f"read {timing.read_cycles:.0f}, write {timing.write_cycles:.0f}) cycles"
            for timing in reversed(self.timings)
        ]
        if self.relayout_seconds:
            lines.append(f"  relayouts: {self.relayout_seconds:.3e} s")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        level, kind = self.bottleneck
        return {
            "seconds": self.seconds,
            "cycles": self.cycles,
            "relayout_seconds": self.relayout_seconds,
            "bound": {"level": level, "by": kind},
            "levels": [
                {
                    "name": timing.name, "rounds": timing.rounds, "compute_cycles": timing.compute_cycles,
                    "read_cycles": timing.read_cycles, "write_cycles": timing.write_cycles, "bound": timing.bound,
                }
                for timing in self.timings
            ],
            "refused": self.refused,
        }  # fmt: skip


def predict(
    nest: Sequence[Level],
    call_cycles: float,
    machine: Hierarchy,
    relayouts: Iterable[Relayout] = (),
    *,
    pipelined: bool = False,
    overlap: float = inf,
) -> Prediction:
    """Time of a schedule: one `Level` per memory of `machine`, innermost first; `call_cycles` per call on one unit.

    `pipelined` is the variant in which the bytes of a round come in during the round before it:
    ``(n - 1) * max(read, compute) + read + compute``. `overlap` says how well the times of a round hide each other
    (`combined`); as published, all but the longest are hidden.
    """
    if len(nest) != len(machine.levels):
        raise InvalidArgument(
            f"{len(nest)} levels of loops for the {len(machine.levels)} levels of {machine.name}",
            help=f"one for each of {', '.join(memory.name for memory in machine.levels)}",
        )
    for level, memory in zip(nest, machine.levels, strict=True):
        if level.held_bytes > memory.capacity_bytes:
            return Prediction(
                inf, inf, refused=f"{memory.name} holds {memory.capacity_bytes:.0f} bytes, the tile has "
                f"{level.held_bytes:.0f}",
            )  # fmt: skip
    memories = _as_reached(nest, machine)
    rounds = nest[0].rounds(memories[0].units)
    timings = [Timing(memories[0].name, rounds, call_cycles, 0.0, 0.0)]
    cycles = rounds * call_cycles
    for inner, outer, below, memory in zip(nest, nest[1:], memories, memories[1:], strict=False):
        executions = prod((*outer.trips, *outer.reductions, *outer.parallel))
        read = (inner.bytes_in + outer.copied_bytes / executions) / below.in_bytes_per_cycle
        write = inner.bytes_out / below.out_bytes_per_cycle / prod(outer.reductions)
        rounds = outer.rounds(memory.units)
        timings.append(Timing(memory.name, rounds, cycles, read, write))
        if pipelined:
            cycles = (rounds - 1) * max(read, cycles) + read + cycles
        else:
            cycles = rounds * combined((cycles, read, write), overlap)
    extra = relayout_seconds(relayouts, machine)
    return Prediction(cycles, cycles / machine.clock_hz + extra, extra, tuple(timings))


def combined(times: Sequence[float], overlap: float) -> float:
    """Time of what goes on at once, the norm of `times`: with `overlap` inf the longest hides the others, with 1 it
    hides nothing, and in between times hide each other the less the closer they are.
    """
    longest = max(times)
    if overlap == inf or longest in (0.0, inf):
        return longest
    return float(longest * sum((time / longest) ** overlap for time in times) ** (1 / overlap))


def _as_reached(nest: Sequence[Level], machine: Hierarchy) -> tuple[Memory, ...]:
    """The memories with the rates that this working set sees: of what the last cache does not hold, those of main
    memory.
    """
    *inner, near, far = machine.levels
    held_bytes = nest[-1].held_bytes
    if held_bytes <= far.near_bytes:
        return machine.levels
    missed = 1 - far.near_bytes / held_bytes
    slower = replace(
        near,
        in_bytes_per_cycle=_mixed_rate(near.in_bytes_per_cycle, far.in_bytes_per_cycle, missed),
        out_bytes_per_cycle=_mixed_rate(near.out_bytes_per_cycle, far.out_bytes_per_cycle, missed),
    )
    return (*inner, slower, far)


def _mixed_rate(near: float, far: float, missed: float) -> float:
    """Bytes per cycle where the part `missed` of all bytes comes at the rate of the level beyond, if that is slower."""
    return 1 / ((1 - missed) / near + missed / min(near, far))


def relayout_seconds(relayouts: Iterable[Relayout], machine: Hierarchy) -> float:
    """Time of the relayouts that have a kernel of their own: what they read and write, at the device's rate.

    One in the copy costs where it writes (`Level.copied_bytes`), a folded one nothing.
    """
    moved = sum(each.bytes_read + each.bytes_written for each in relayouts if each.realisation == "materialised")
    return moved / machine.device_bytes_per_second if moved else 0.0


# From loops and accesses to levels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitLoop:
    """A loop cut along the levels: `counts` are its trips at each, innermost first; `unit` elements per call.

    At the levels in `parallel` its trips are distributed to units.
    """

    name: str
    kind: LoopKind
    counts: tuple[int, ...]
    unit: int = 1
    parallel: frozenset[int] = frozenset()

    def extent(self, level: int) -> int:
        """Elements within one execution of `level`."""
        return self.unit * prod(self.counts[: level + 1])


@dataclass(frozen=True)
class Access:
    """How an operand is indexed: for each dimension the coefficients of the loops, by name."""

    dims: tuple[Mapping[str, int], ...]
    element_bytes: float
    output: bool = False

    def bytes(self, extents: Mapping[str, float]) -> float:
        """Footprint of a tile of iterations: distinct elements, each dimension an interval."""
        spans = (1 + sum(abs(step) * (extents[loop] - 1) for loop, step in dim.items()) for dim in self.dims)
        return prod(spans) * self.element_bytes

    def touches(self, loop: str) -> bool:
        return any(dim.get(loop) for dim in self.dims)


def levels_of(loops: Sequence[SplitLoop], accesses: Sequence[Access]) -> tuple[Level, ...]:
    """The levels of a nest; `loops` stand in their order at every level, outermost first.

    An input is not loaded again by the innermost loops of the next level that do not touch it; an output leaves where
    its reduction completes.
    """
    return tuple(_level(loops, accesses, number) for number in range(len(loops[0].counts)))


def _level(loops: Sequence[SplitLoop], accesses: Sequence[Access], number: int) -> Level:
    extents = {loop.name: loop.extent(number) for loop in loops}
    held = [access.bytes(extents) for access in accesses]

    def trips(kind: LoopKind) -> tuple[int, ...]:
        return tuple(
            loop.counts[number]
            for loop in loops
            if loop.kind == kind and number not in loop.parallel and loop.counts[number] > 1
        )

    parallel = tuple(loop.counts[number] for loop in loops if number in loop.parallel and loop.counts[number] > 1)
    moved_in = sum(
        size / _reuse(access, loops, number + 1)
        for access, size in zip(accesses, held, strict=True)
        if not access.output
    )
    moved_out = sum(
        size / _stay(access, loops, number + 1) for access, size in zip(accesses, held, strict=True) if access.output
    )
    return Level(trips("S"), trips("R"), parallel, moved_in, moved_out, resident_bytes=float(sum(held)))


def _reuse(access: Access, loops: Sequence[SplitLoop], level: int) -> int:
    """Executions that one load of the operand serves: innermost loops of the level outside that do not touch it."""
    served = 1
    for loop in reversed(loops):
        if level >= len(loop.counts) or level in loop.parallel or loop.counts[level] == 1:
            continue
        if access.touches(loop.name):
            break
        served *= loop.counts[level]
    return served


def _stay(access: Access, loops: Sequence[SplitLoop], level: int) -> int:
    """Rounds of the levels beyond the next that an output stays for: while nothing but reductions lies between."""
    stayed = 1
    for outer in range(level, len(loops[0].counts) - 1):
        if any(loop.counts[outer] > 1 and (loop.kind == "S" or outer in loop.parallel) for loop in loops):
            break
        stayed *= prod(loop.counts[outer + 1] for loop in loops if loop.kind == "R")
    return stayed


def nest_of(
    physical: PhysicalMapping,
    counts: Mapping[str, Sequence[int]],
    parallel: Mapping[str, Collection[int]] | None = None,
) -> tuple[Level, ...]:
    """The levels of a mapping under a tiling: `counts` has the trips of every loop at every level, innermost first.

    Loops are those around the intrinsic, by name, and the tiles of every intrinsic loop, by its name; `counts` has them
    in their order, outermost first. `parallel` says at which levels a loop is distributed to units. Raises
    InvalidArgument where loops are missing or unknown, or trips cover less than the loop.
    """
    index = physical.index_axes
    trips = {axis.name: (axis.size, 1, physical.match.kind(axis)) for axis in physical.outer}
    for loop, count in zip(physical.record.loops, physical.tiles, strict=True):
        trips[index[loop.name].name] = (count, loop.extent, loop.kind)
    if set(counts) != set(trips):
        wrong = sorted(set(counts) ^ set(trips))
        raise InvalidArgument(f"trips of {', '.join(wrong)}", where="counts", help=f"give those of {', '.join(trips)}")
    loops = []
    for name, levels in counts.items():
        whole, unit, kind = trips[name]
        if prod(levels) < whole:
            raise InvalidArgument(f"loop {name} has {whole} trips, its levels {prod(levels)}", where="counts",
                                  help="levels that multiply to as many or more")  # fmt: skip
        loops.append(SplitLoop(name, kind, tuple(levels), unit, frozenset((parallel or {}).get(name, ()))))
    return levels_of(loops, [_access(physical, placement) for placement in physical.placements])


def _access(physical: PhysicalMapping, placement: Placement) -> Access:
    """How the stored operand is indexed by the loops around calls."""
    outer = [{axis.name: step for axis, step in each.form.terms.items()} for each in placement.outer]
    inner = [{physical.index_axes[loop.name].name: 1} for loop in placement.loops]
    output = placement.operand is physical.record.destination
    return Access((*outer, *inner), bits(placement.dtype) / 8, output)


# Before any schedule --------------------------------------------------------------------------------------------------


def mapping_seconds(physical: PhysicalMapping, machine: Machine | Hierarchy) -> float:
    """Order of mappings before any schedule: their calls at full rate, and their relayouts at the device's rate.

    It costs nothing to ask, and no schedule of the mapping can be faster.
    """
    found = machine if isinstance(machine, Hierarchy) else hierarchy(machine)
    waves = -(-physical.calls // found.cores)
    compute_seconds = waves * core_cycles(physical.record, found) / found.clock_hz
    return compute_seconds + physical.relayout_bytes / found.device_bytes_per_second
