"""The memory levels of any machine, as tile trees name them: outermost first, to what feeds the arithmetic units."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.intrinsics.registry import Registry, standard
from tilewright.machine.description import Accelerator, Cache, Cpu, Gpu, Machine
from tilewright.tiles.resources import Level, Resources, Threads, Units

BYTE_BITS = 8
FLOAT_BITS = 32


def resources(machine: Machine) -> Resources:
    """The levels, rates and units of a machine.

    An accelerator has the levels of its file; vector units have registers like those of the innermost one. A CPU has
    DRAM, its caches and REG, the vector registers of a core; a unit is a 32-bit lane of a multiply-add unit. A GPU has
    DRAM, SHARED, the memory of a multiprocessor, and REG, its register file; a unit is a 32-bit multiply-add per cycle.
    Words of CPUs and GPUs are bytes. What a file does not say is unlimited.
    """
    if isinstance(machine, Accelerator):
        return _accelerator(machine)
    if isinstance(machine, Cpu):
        return _cpu(machine)
    assert isinstance(machine, Gpu), f"a machine of kind {machine.kind}"
    return _gpu(machine)


def _accelerator(machine: Accelerator) -> Resources:
    arrays = [level.fanout for level in machine.levels]
    arrays[-1] = (arrays[-1][0] * machine.compute.fanout[0], arrays[-1][1] * machine.compute.fanout[1])
    levels = tuple(
        Level(
            level.name,
            level.capacity_bytes,
            level.reduces,
            level.multicasts,
            instances=machine.instances(level.name) + (machine.vector_units if level is machine.levels[-1] else 0),
            array=array,
            word_bits=level.word_bits or machine.word_bits,
            technology=level.technology,
            read_words_per_cycle=level.read_words_per_cycle,
            write_words_per_cycle=level.write_words_per_cycle,
            shares_port=level.shares_port,
            accumulate=level.accumulates,
            read_energy_macs=level.read_energy_macs,
            write_energy_macs=level.write_energy_macs,
            retain=level.retains,
            read_latency_cycles=level.read_latency_cycles or 0.0,
            write_latency_cycles=level.write_latency_cycles or 0.0,
            load_slots=level.load_slots,
            store_slots=level.store_slots,
        )
        for level, array in zip(machine.levels, arrays, strict=True)
    )
    compute = machine.compute
    return Resources(
        levels,
        machine.units,
        compute.operations_per_cycle,
        compute.operation_energy_macs,
        compute.latency_cycles or 0.0,
        vector=_vector(machine),
        direct_paths=machine.direct_paths,
    )


def _vector(machine: Accelerator) -> Units | None:
    own = machine.vector
    if own is None:
        return None
    rate, energy = own.operations_per_cycle, own.operation_energy_macs
    return Units("vector units", machine.vector_units, own.fanout, rate, energy)


def _cpu(machine: Cpu) -> Resources:
    dram = machine.dram.bytes_per_second / machine.nominal_clock_hz
    levels = [Level("DRAM", machine.dram.capacity_bytes, instances=1, word_bits=BYTE_BITS, technology="dram",
                    read_words_per_cycle=dram, write_words_per_cycle=dram, shares_port=True)]  # fmt: skip
    for cache in reversed(machine.caches):
        per_core = cache.bytes_per_cycle
        if per_core is None and cache.bytes_per_second is not None:
            per_core = cache.bytes_per_second / machine.nominal_clock_hz
        rate = None if per_core is None else per_core * cache.shared_by
        levels.append(Level(cache.name, cache.bytes, instances=max(1, machine.cores // cache.shared_by),
                            word_bits=BYTE_BITS, read_words_per_cycle=rate, write_words_per_cycle=rate))  # fmt: skip
    registers = machine.vector_registers * machine.vector_bits // BYTE_BITS
    levels.append(Level("REG", registers, reduce=True, instances=machine.cores, word_bits=BYTE_BITS,
                        technology="regfile"))  # fmt: skip
    units = machine.cores * machine.fma_units * machine.vector_bits // FLOAT_BITS
    return Resources(tuple(levels), units)


def _gpu(machine: Gpu) -> Resources:
    dram = machine.dram.bytes_per_second / machine.clock_hz
    shared = machine.shared_bytes_per_cycle
    levels = (
        Level("DRAM", machine.dram.capacity_bytes, instances=1, word_bits=BYTE_BITS, technology="dram",
              read_words_per_cycle=dram, write_words_per_cycle=dram, shares_port=True),
        Level("SHARED", machine.shared_bytes_per_multiprocessor, multicast=True, instances=machine.multiprocessors,
              word_bits=BYTE_BITS, read_words_per_cycle=shared, write_words_per_cycle=shared, shares_port=True),
        Level("REG", machine.registers_per_multiprocessor * FLOAT_BITS // BYTE_BITS, reduce=True,
              instances=machine.multiprocessors, word_bits=BYTE_BITS, technology="regfile"),
    )  # fmt: skip
    return Resources(levels, int(machine.multiprocessors * machine.fma_per_cycle.get("f32", 1)))


# Of one program -------------------------------------------------------------------------------------------------------


CACHES = ("L1", "L2", "L3")  # by which trees of kernels name the caches of any CPU, from the cores on


def level_for(bytes_: int, caches: Sequence[Cache], first: int = 0) -> str:
    """The first of the caches, from the number `first` on, that holds so many bytes; memory where none does."""
    fitting = zip(CACHES[first:], caches[first:], strict=False)
    return next((level for level, cache in fitting if bytes_ <= cache.bytes), "DRAM")


def program_resources(machine: Cpu | Gpu, intrinsics: Registry | None = None) -> Resources:
    """The levels of one program of a grid, as trees of kernels name them, with what it may place there.

    A program of a CPU runs on a core, which has all of its caches; a level that it has not is memory. A program of a
    GPU is a block: SHARED is its shared memory, L1 and L2 are caches. The hardware decides which programs run at once,
    so that units are not counted. `intrinsics` has the records of products, the catalogue without.
    """
    if isinstance(machine, Gpu):
        return _block(machine, intrinsics or standard())
    bytes_of = [cache.bytes for cache in machine.caches]
    caches = [
        Level(name, bytes_of[number] if number < len(bytes_of) else None, by_placement=True)
        for number, name in enumerate(CACHES)
    ]
    registers = machine.vector_registers * machine.vector_bits // BYTE_BITS
    vectors = Level("REG", registers, reduce=True, word_bits=machine.vector_bits, by_placement=True)
    return Resources((Level("DRAM", by_placement=True), *reversed(caches), vectors))


def _block(machine: Gpu, intrinsics: Registry) -> Resources:
    l2 = next((cache.bytes for cache in machine.caches if cache.name == "L2"), None)
    levels = (
        Level("DRAM", by_placement=True),
        Level("L2", l2, by_placement=True),
        Level("L1", by_placement=True),
        Level("SHARED", machine.shared_bytes_per_block, by_placement=True),
        Level("REG", reduce=True, by_placement=True),
    )
    threads = Threads(
        machine.warp_sizes[0], machine.max_threads_per_block, machine.max_registers_per_thread,
        machine.registers_per_multiprocessor,
    )  # fmt: skip
    return Resources(levels, threads=threads, intrinsics=intrinsics)
