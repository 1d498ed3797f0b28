"""A machine as the chain solver sees it: memory levels from the outside in, peak arithmetic, the start of a kernel.

Rates and capacities are those that one core, or one block of a GPU, has of each level; volumes are divided evenly among
all of them, as a split of the outer loops over cores does (spec 1, decision Q22).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr import dtypes
from tilewright.expr.dtypes import DType
from tilewright.machine.description import Accelerator, Cpu, Gpu, Machine

#: The part of a cache that blocks may take. A cache that replaces the least recently used line brings the next blocks
#: in over those that are used least often, which are still needed; 0.75 is from counts (`reproduce chimera-traffic`).
USABLE = 0.75
CPU_START_SECONDS = 2e-6  # handing a kernel to the threads of a pool, an order of magnitude


@dataclass(frozen=True)
class Store:
    """One memory level: bytes that one core may use (None: enough), and what all together read from it per second.

    `fuses`: blocks of a link may stay here while a kernel goes on. `cached_bytes` is what all instances keep from one
    kernel to the next by themselves.
    """

    name: str
    capacity_bytes: int | None
    bytes_per_second: float
    cached_bytes: int = 0
    fuses: bool = True


@dataclass(frozen=True)
class Hierarchy:
    """Levels outermost first, operations per second of all cores, and seconds that starting a kernel takes."""

    machine: str
    levels: tuple[Store, ...]
    flops_per_second: float
    start_seconds: float

    def __post_init__(self) -> None:
        if not any(level.fuses and level.capacity_bytes for level in self.levels[1:]):
            raise InvalidArgument(
                f"{self.machine} has no memory on chip in which blocks can stay",
                where="machine",
                help="a machine with a cache, shared memory or an sram level",
            )


def hierarchy_of(machine: Machine, dtype: DType = "f32") -> Hierarchy:
    """The hierarchy of a machine for products of `dtype`."""
    for kind, make in _KINDS:
        if isinstance(machine, kind):
            return make(machine, dtype)
    raise InvalidArgument(f"{machine.name} is a {machine.kind}", where="machine", help="a cpu, gpu or accelerator")


def _cpu(machine: Cpu, dtype: DType) -> Hierarchy:
    clock = machine.nominal_clock_hz
    lanes = machine.vector_bits // 8 // dtypes.size_bytes(dtype)
    levels = [Store("DRAM", None, machine.dram.bytes_per_second)]
    for cache in reversed(machine.caches):
        rate = cache.bytes_per_second or (cache.bytes_per_cycle or inf) * clock
        total = cache.bytes * max(1, machine.cores // cache.shared_by)
        own = int(USABLE * cache.bytes / cache.shared_by)
        levels.append(Store(cache.name, own, rate * machine.cores, total))
    flops = 2.0 * machine.fma_units * lanes * clock * machine.cores
    return Hierarchy(machine.name, tuple(levels), flops, CPU_START_SECONDS)


def _gpu(machine: Gpu, dtype: DType) -> Hierarchy:
    clock, count = machine.clock_hz, machine.multiprocessors
    levels = [Store("DRAM", None, machine.dram.bytes_per_second)]
    for cache in machine.caches:
        rate = machine.l2_bytes_per_cycle * clock
        levels.append(Store(cache.name, int(USABLE * cache.bytes), rate, cache.bytes, fuses=False))
    shared = machine.shared_bytes_per_block
    levels.append(Store("SHARED", shared, machine.shared_bytes_per_cycle * clock * count))
    rates = machine.fma_per_cycle
    flops = 2.0 * rates.get(dtype, rates.get("f32", min(rates.values()))) * clock * count
    return Hierarchy(machine.name, tuple(levels), flops, machine.launch_seconds)


def _accelerator(machine: Accelerator, dtype: DType) -> Hierarchy:
    levels = []
    for level in machine.levels:
        if level.technology == "regfile":
            continue
        word_bytes = (level.word_bits or machine.word_bits) / 8
        words = inf if level.read_words_per_cycle is None else level.read_words_per_cycle
        count = machine.instances(level.name)
        capacity = level.capacity_bytes if level.technology != "dram" else None
        levels.append(Store(level.name, capacity, words * word_bytes * count * machine.clock_hz))
    flops = 2.0 * machine.units * machine.compute.operations_per_cycle * machine.clock_hz
    return Hierarchy(machine.name, tuple(levels), flops, 0.0)


_KINDS: tuple[tuple[type[Machine], Callable[..., Hierarchy]], ...] = (
    (Cpu, _cpu), (Gpu, _gpu), (Accelerator, _accelerator),
)  # fmt: skip
