"""What the host reaches, measured at first use: cycles of every intrinsic, bandwidth of every memory level.

The result is the description of the host with measured rates, a machine file like any other. It lies in the cache
directory under the identity of the processor, so that a program measures once per machine. A measurement takes
two to four seconds. The best of many short runs counts, so that other programs on the machine change little; of
broadcasts, the mean of longer ones.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod, sqrt
from statistics import harmonic_mean
from typing import get_args

from llvmlite import ir

from tilewright.codegen.cpu.dot import Emission, product_of_record
from tilewright.codegen.cpu.target import Target
from tilewright.codegen.values import F32, F64, I32, I64, POINTER
from tilewright.errors import CompileError
from tilewright.expr.dtypes import DType, bits
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import standard
from tilewright.machine import Cpu, host, machine_from_json
from tilewright.machine.description import Cache
from tilewright.options import Options
from tilewright.runtime import loops
from tilewright.runtime.calibration_file import calibration_file, read, write
from tilewright.runtime.loader import Code
from tilewright.runtime.quota import affinity

NAME = "host-calibrated"
ACCUMULATORS = 20
DEPENDENT = 8  # steps of a single chain in one trip, so that its time is not that of the loop around it
RUN_SECONDS = 0.0003  # short enough that most runs are not disturbed
# As long as a kernel runs, and so many times: on a virtual Zen 3 broadcasts go at 2 a cycle or at 1.1 for some
# milliseconds, and a kernel sees the mean of it.
LASTING_RUN_SECONDS = 0.003
LASTING_RUNS = 15
THREADED_RUN_SECONDS = 0.005  # threads start within tens of microseconds of each other
WITHIN_SECONDS = 0.03  # for one number in a round, whatever the machine is doing; twice that with threads
ROUNDS, MOST_ROUNDS = 2, 8
AGREE = 0.05  # how far the best rounds may differ
HIDDEN = 1.1  # of the cycles of a multiply-add, or of a broadcast, up to which doing both takes no longer
MEMORY_LOOPS: tuple[loops.MemoryLoop, ...] = get_args(loops.MemoryLoop)
COPIES: tuple[loops.MemoryLoop, ...] = ("copy", "stream")  # loops that read and write
DRAM_BYTES = 128 << 20  # at least this much and four times the last cache, where memory allows

LLVM_TYPES: dict[DType, ir.Type] = {"f32": F32, "f64": F64, "i32": I32, "i64": I64}  # that accumulate

Work = Callable[[int], object]  # does something so many times

_log = logging.getLogger(__name__)


class BusyMachine(CompileError):
    """What this machine reaches cannot be told, since measurements do not agree."""

    code = "busy-machine"


def calibrated(options: Options | None = None, *, force: bool = False, machine: Cpu | None = None) -> Cpu:
    """The host with measured rates: from the file of an earlier measurement, else measured now and stored.

    It is measured again where the file lacks a record of today.
    `machine` is the host or the host limited to fewer features. `force` measures again. Where the cache directory
    cannot be written the result is only returned. Raises BusyMachine where measurements do not agree.
    """
    machine, path = machine or host(), calibration_file(options, machine)
    if not force:
        stored = read(path)
        if stored is not None and {record.name for record in measurable(machine)} <= {*(stored.issue_cycles or {})}:
            return stored
    _log.info("the rates of this machine are measured, once, and kept in %s", path)
    measured = measure(machine)
    write(path, measured)
    return measured


def measure(machine: Cpu) -> Cpu:
    """`machine`, the host or limited to fewer features, with its clock, cycles and bandwidths as measured now."""
    rates = _best_rates(machine)
    clock_hz = rates["clock"]
    facts = machine.to_json() | {"name": NAME, "clock_hz": _rounded(clock_hz)}
    facts["issue_cycles"] = {record.name: _rounded(1 / rates[_function(record)]) for record in measurable(machine)}
    facts["latency_cycles"] = {record.name: _rounded(1 / rates[_dependent(record)]) for record in measurable(machine)}
    facts |= _units(machine, rates)
    facts["broadcasts_per_cycle"] = _rounded(_broadcasts_per_cycle(facts["fma_units"], rates))
    facts["scattered_factor"] = _rounded(max(1.0, rates[machine.caches[:2][-1].name] / rates["scattered"]))
    facts["store_bytes_per_cycle"] = _rounded(rates["write"])
    facts["dram"] |= {
        "bytes_per_second": _rounded(max(rates["memory"], rates["memory, one core"])),
        "bytes_per_second_per_core": _rounded(rates["memory, one core"]),
        "copy_bytes_per_second": _rounded(rates["copy"]),
        "nontemporal_copy_bytes_per_second": _rounded(rates["stream"]),
    }
    fastest = rates["memory, one core"] / clock_hz  # what is further in cannot be slower
    for stored in reversed(facts["caches"]):
        fastest = max(fastest, rates[stored["name"]])
        stored["bytes_per_cycle"] = _rounded(fastest)
        stored.pop("bytes_per_second", None)
    held_bytes = _held_bytes(machine.caches, rates)
    if held_bytes is not None:
        facts["caches"][-1]["held_bytes"] = held_bytes
    measured = machine_from_json(facts)
    assert isinstance(measured, Cpu)
    return measured


def _units(machine: Cpu, rates: Mapping[str, float]) -> dict[str, int]:
    """Multiply-adds, loads and stores of a whole vector per cycle, as whole numbers of 1 or more."""
    vector_bytes = machine.vector_bits / 8
    product = next(each for each in measurable(machine) if {each.destination.dtype, each.sources[0].dtype} == {"f32"})
    per_cycle = {
        "fma_units": rates[_function(product)],
        "loads_per_cycle": rates[machine.caches[0].name] / vector_bytes,
        "stores_per_cycle": rates["write"] / vector_bytes,
    }
    return {name: max(1, round(value)) for name, value in per_cycle.items()}


def _broadcasts_per_cycle(fma_units: float, rates: Mapping[str, float]) -> float:
    """Loads of an element into all lanes in a cycle: alone, or beside as many multiply-adds where that is slower.

    On processors that have no port of their own for all of it (Zen 1) they wait for multiply-adds.
    """
    alone, beside = (rates[name] / loops.LINE_BYTES for name in loops.SPREAD)
    return alone if beside * HIDDEN >= min(fma_units, alone) else beside


def _bytes_read(caches: Sequence[Cache]) -> list[int]:
    """How much is read to measure each cache: half of the first, else the mean of the inner one and it by factors.

    A program on a virtual machine has only a part of the last cache, which others use too.
    """
    means = [round(sqrt(inner.bytes * outer.bytes)) for inner, outer in pairwise(caches)]
    return [caches[0].bytes // 2, *means]


def _held_names(caches: Sequence[Cache]) -> dict[int, str]:
    """Names of the rates at which half of the last cache is read, a quarter, and so on, by their bytes."""
    least, found, bytes_ = _bytes_read(caches)[-1], {}, caches[-1].bytes // 2
    while bytes_ > least:
        found[bytes_] = f"{caches[-1].name}, {bytes_} bytes"
        bytes_ //= 2
    return found


def _held_bytes(caches: Sequence[Cache], rates: Mapping[str, float]) -> int | None:
    """The most bytes that are read at the rate of the last cache rather than that of memory; None where half of it is,
    and so all are taken to be.
    """
    between = sqrt(rates[caches[-1].name] * rates["memory, one core"] / rates["clock"])
    names = _held_names(caches)
    held = next((bytes_ for bytes_, name in names.items() if rates[name] >= between), _bytes_read(caches)[-1])
    return None if held == next(iter(names), held) else held


def _best_rates(machine: Cpu) -> dict[str, float]:
    """Everything that is measured, by name: the best of several rounds, which are disturbed differently.

    What one core does without memory is per cycle, the rest per second. Rounds go on until the best of every rate agree
    (`confirmed`). Raises BusyMachine where that takes too many. Of parts of the last cache only the order of size
    counts, and of broadcasts the mean: these need not agree.
    """
    records = measurable(machine)
    code = _compiled(machine, records)
    buffers = _Buffers(min(max(DRAM_BYTES, 4 * machine.caches[-1].bytes), _available_bytes() // 4))
    cores, whole = affinity(), buffers.bytes
    core, one = cores[0], cores[:1]
    rates: dict[str, Callable[[], float]] = {"clock": lambda: _clock_hz(code, one)}
    for record in records:
        rates[_function(record)] = partial(_calls_per_cycle, code, _function(record), core, _chains(machine))
        rates[_dependent(record)] = partial(_calls_per_cycle, code, _dependent(record), core, 1)
    near = min(machine.caches[0].bytes // 2, whole)
    rates["write"] = partial(buffers.per_cycle, code, "write", near, core)
    for level, bytes_ in zip(machine.caches, _bytes_read(machine.caches), strict=True):
        rates[level.name] = partial(buffers.per_cycle, code, "read", min(bytes_, whole), core)
    span = _bytes_read(machine.caches)[:2][-1] // loops.LINE_BYTES * loops.SCATTERED_BYTES
    rates["scattered"] = partial(buffers.per_cycle, code, "scattered", min(span, whole), core)
    rates["memory, one core"] = partial(buffers.per_second, code, "read", whole, one)
    shared: list[tuple[str, loops.MemoryLoop]] = [("memory", "read"), *((name, name) for name in COPIES)]
    for name, loop in shared:
        rates[name] = partial(buffers.per_second, code, loop, whole, cores)
    found: dict[str, list[float]] = {name: [] for name in rates}
    unsteady = list(rates)
    for number in range(MOST_ROUNDS):
        for name in rates if number < ROUNDS else unsteady:
            found[name] = sorted([*found[name], rates[name]()], reverse=True)
        best = {name: confirmed(rounds) for name, rounds in found.items()}
        unsteady = [name for name, rate in best.items() if rate is None]
        if not unsteady:
            steady = {name: rate for name, rate in best.items() if rate is not None}
            for name in loops.SPREAD:
                lasting = (buffers.per_cycle(code, name, near, core, LASTING_RUN_SECONDS) for _ in range(LASTING_RUNS))
                steady[name] = harmonic_mean(lasting)
            for bytes_, name in _held_names(machine.caches).items():
                steady[name] = max(buffers.per_cycle(code, "read", min(bytes_, whole), core) for _ in range(ROUNDS))
            return steady
    name = unsteady[0]
    rounds = ", ".join(f"{rate:.3g}" for rate in found[name])
    raise BusyMachine(
        f"the best of {MOST_ROUNDS} rounds differ by more than {AGREE:.0%} for {len(unsteady)} of {len(rates)} rates; "
        f"{name}: {rounds}",
        where="calibrate", help="measure again when nothing else runs",
    )  # fmt: skip


def confirmed(rounds: Sequence[float]) -> float | None:
    """The rate that rounds agree on, of rates in falling order; None where they do not.

    It is the best where the second best is within `AGREE` of it. One round alone may be faster than all others (seen of
    memory on a virtual machine): then it is the second best, if two more agree with it.
    """
    for best, others in ((0, 1), (1, 3)):
        if len(rounds) > others and rounds[others] >= (1 - AGREE) * rounds[best]:
            return rounds[best]
    return None


def measurable(machine: Cpu) -> list[Intrinsic]:
    """The records that are one instruction on a whole vector of this machine and a broadcast scalar or word.

    Records made of others follow from these; conversions are no part of a chain.
    """
    records = standard().select(features=machine.features)
    single = (record for record in records if record.emitter and not record.realised_by)
    return [record for record in single if _fills_vector(record, machine)]


def _fills_vector(record: Intrinsic, machine: Cpu) -> bool:
    result, product = record.destination, product_of_record(record)
    whole = prod(record.shape(result)) * bits(result.dtype) == machine.vector_bits
    broadcast = not set(result.loops) & set(record.sources[0].loops)
    return whole and broadcast and (product.group > 1 or all(source.dtype == result.dtype for source in record.sources))


# The loops ------------------------------------------------------------------------------------------------------------


def _compiled(machine: Cpu, records: Sequence[Intrinsic]) -> Code:
    target = Target(machine.llvm.triple, machine.llvm.cpu, tuple(sorted(machine.features)), machine.vector_bits)
    module = ir.Module("calibrate")
    for record in records:
        _chain_loop(module, target, record, _function(record), _chains(machine))
        _chain_loop(module, target, record, _dependent(record), 1)
    text = [
        str(module), loops.clock_loop("clock"),
        *(loops.memory_loop(kind, kind, machine.vector_bits) for kind in MEMORY_LOOPS), loops.METADATA,
    ]  # fmt: skip
    names = [name(record) for record in records for name in (_function, _dependent)]
    return loops.compiled("".join(text), [*names, "clock", *MEMORY_LOOPS], machine.llvm.cpu, machine.llvm.features)


def _chains(machine: Cpu) -> int:
    """Independent accumulators: more than latency times throughput, as many as registers allow."""
    return min(ACCUMULATORS, machine.vector_registers - 4)


def _chain_loop(module: ir.Module, target: Target, record: Intrinsic, name: str, chains: int) -> None:
    """``void name(ptr operands, i64 count)``: each trip takes one step in each of `chains` independent registers.

    `operands` holds two factors and the first values of the registers, and takes their last ones. A single chain takes
    `DEPENDENT` steps, through the sum, whose latency is asked for.
    """
    product = product_of_record(record)
    accumulator = LLVM_TYPES[record.destination.dtype]
    lanes = target.vector_bits // bits(record.destination.dtype)
    register = ir.VectorType(accumulator, lanes)
    factor = register if product.group == 1 else ir.VectorType(I32, lanes)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, I64]), name)
    entry, loop, done = (function.append_basic_block(name) for name in ("entry", "loop", "done"))
    builder = ir.IRBuilder(entry)
    places = [builder.gep(function.args[0], [I64(slot)], source_etype=register) for slot in range(chains + 2)]
    x, y = (builder.load(place, typ=factor) for place in places[:2])
    first = [builder.load(place, typ=register) for place in places[2:]]
    builder.branch(loop)
    builder.position_at_end(loop)
    trip = builder.phi(I64)
    registers = [builder.phi(register) for _ in first]
    at = Emission(builder, target, accumulator, "a")
    # Several chains go through a factor where products are added up by themselves, so that no product can be hoisted.
    by_factor = chains > 1 and (product.group == 1 or record.emitter == "added_words")
    if chains == 1:
        last: Sequence[ir.Value] = registers
        for _ in range(DEPENDENT):
            last = [_opaque(builder, product.step(at, x, y, c)) for c in last]
    else:
        last = [product.step(at, c, x, y) if by_factor else product.step(at, x, y, c) for c in registers]
    following = builder.add(trip, I64(1))
    trip.add_incoming(I64(0), entry)
    trip.add_incoming(following, loop)
    for phi, value, result in zip(registers, first, last, strict=True):
        phi.add_incoming(value, entry)
        phi.add_incoming(result, loop)
    builder.cbranch(builder.icmp_signed("<", following, function.args[1]), loop, done)
    builder.position_at_end(done)
    for place, result in zip(places[2:], last, strict=True):
        builder.store(result, place)
    builder.ret_void()


def _opaque(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The same register, of which LLVM does not know what it holds: sums of several steps are not joined."""
    same = ir.InlineAsm(ir.FunctionType(value.type, [value.type]), "", "=x,0")
    return builder.call(same, [value])


def _function(record: Intrinsic) -> str:
    return f"chain.{record.name}"


def _dependent(record: Intrinsic) -> str:
    return f"dependent.{record.name}"


# Timing ---------------------------------------------------------------------------------------------------------------


def _clock_hz(code: Code, cores: Sequence[int]) -> float:
    return loops.TICKS_PER_TRIP / _best_seconds([_clock(code)], cores)


def _clock(code: Code) -> Work:
    return loops.function(code, "clock", ctypes.c_int64)


def _calls_per_cycle(code: Code, name: str, core: int, chains: int) -> float:
    run = loops.function(code, name, ctypes.c_void_p, ctypes.c_int64)
    operands = loops.pages(4096, fill=1.0)
    steps = DEPENDENT if chains == 1 else chains
    return steps / _best_cycles(code, partial(run, operands.ctypes.data), core)


class _Buffers:
    """Memory to read and to copy, touched once: a source and a sink of `bytes` each."""

    def __init__(self, bytes_: int) -> None:
        self.bytes = bytes_
        self._source, self._sink = loops.pages(bytes_), loops.pages(bytes_)

    def per_second(self, code: Code, name: loops.MemoryLoop, bytes_: int, cores: Sequence[int]) -> float:
        """Bytes per second of all cores together, each at its own part of `bytes_`; a copy reads and writes them."""
        touched, work = self._parts(code, name, bytes_, len(cores))
        return touched * (2 if name in COPIES else 1) / _best_seconds(work, cores)

    def per_cycle(
        self, code: Code, name: loops.MemoryLoop, bytes_: int, core: int, run_seconds: float = RUN_SECONDS
    ) -> float:
        """Bytes per cycle of one core. A scattered loop touches few of `bytes_`, which count."""
        touched, (work,) = self._parts(code, name, bytes_, 1)
        return touched / _best_cycles(code, work, core, run_seconds)

    def _parts(self, code: Code, name: loops.MemoryLoop, bytes_: int, cores: int) -> tuple[int, list[Work]]:
        """How many bytes all cores touch, and the work of each."""
        step = loops.lines_of_trip(name) * loops.bytes_of_step(name)
        part = max(bytes_ // cores // step, 1) * step
        touched = part // loops.bytes_of_step(name) * loops.LINE_BYTES
        run = loops.function(code, name, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        source, sink = self._source.ctypes.data, self._sink.ctypes.data
        work: list[Work] = [partial(run, source + part * i, sink + part * i, part) for i in range(cores)]
        return touched * cores, work


def _best_seconds(work: Sequence[Work], cores: Sequence[int]) -> float:
    if len(cores) == 1:
        return loops.best_seconds(work, cores, run_seconds=RUN_SECONDS, within=WITHIN_SECONDS)
    return loops.best_seconds(work, cores, run_seconds=THREADED_RUN_SECONDS, within=2 * WITHIN_SECONDS)


def _best_cycles(code: Code, work: Work, core: int, run_seconds: float = RUN_SECONDS) -> float:
    """Cycles of one unit: its least time by that of the clock's loop, which takes turns with it.

    The clock of a core changes from one moment to the next, by a sixth on a virtual Zen 1.
    """
    in_turns = (_clock(code), work)
    trip, unit = loops.best_in_turns(in_turns, core, run_seconds=run_seconds, within=WITHIN_SECONDS)
    return loops.TICKS_PER_TRIP * unit / trip


def _available_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 1 << 30


def _rounded(value: float) -> float:
    """Four digits: what a measurement can tell."""
    return float(f"{value:.4g}")
