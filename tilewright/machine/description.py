"""What a machine description holds: CPUs, GPUs, and accelerators that exist only as a file.

Facts with units in their names and no behaviour. Values are immutable and compare by content; `digest` is stable
between runs and machines. Shared code asks for facts (`machine.intrinsics`), never for a name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

from tilewright.dataclass import dataclass
from tilewright.errors import nearest
from tilewright.fields import (
    Contradiction,
    Readable,
    choice,
    count,
    flag,
    items,
    name_set,
    names,
    optional,
    rate,
    record,
    required,
    several,
    table,
    text,
    whole,
    word,
)
from tilewright.machine import features as feature_tables
from tilewright.machine import targets

USUAL_WAYS = 8  # of a first cache whose description does not say
NOMINAL_CLOCK_HZ = 2.5e9  # of servers under load, an order of magnitude
SCATTERED = 1.7  # how much longer a line takes that was not prefetched: L2 of Zen 5, 36 instead of 61 bytes per cycle
MOST_CYCLES = 1_000_000  # between two calls of an intrinsic
RECORDED_UNITS = 2  # multiply-adds a cycle of the processors for which records of intrinsics say cycles
CORE_BYTES_PER_SECOND = 2e10  # that one core reads from main memory, an order of magnitude
_LLVM_FEATURES = r"([+-][A-Za-z0-9._-]+(,[+-][A-Za-z0-9._-]+)*)?"


@dataclass(frozen=True, kw_only=True)
class Llvm(Readable):
    """What LLVM is told. For a CPU, `features` is made from `Cpu.features` and may be left out."""

    triple: str = required(word)
    cpu: str = required(word)
    features: str = optional(text(_LLVM_FEATURES), "")

    def check(self) -> None:
        misfit = targets.misfit(self.triple, self.cpu, self.features.split(",") if self.features else [])
        if misfit is not None:
            raise Contradiction(misfit.field, misfit.message, misfit.help)


@dataclass(frozen=True, kw_only=True)
class Cache(Readable):
    """One cache level; `shared_by` counts the cores that share one instance, and rates are per core.

    `held_bytes` are those that one program was measured to keep in it: of a cache that a virtual machine shares with
    others, fewer than all.
    """

    name: str = required(word)
    bytes: int = required(count)
    ways: int | None = optional(count)
    line_bytes: int = required(count)
    shared_by: int = required(count)
    held_bytes: int | None = optional(count)
    bytes_per_cycle: float | None = optional(rate)
    bytes_per_second: float | None = optional(rate)

    @property
    def kept_bytes(self) -> int:
        """Bytes that a program keeps in it: all, where nothing else was measured."""
        return self.held_bytes or self.bytes

    @property
    def lines_per_set(self) -> int:
        """The ways; a usual number where the description has none."""
        return self.ways or USUAL_WAYS

    @property
    def sets(self) -> int:
        """Sets of lines: addresses `sets * line_bytes` apart share one."""
        return max(1, self.bytes // (self.line_bytes * self.lines_per_set))


@dataclass(frozen=True, kw_only=True)
class Dram(Readable):
    """Main or device memory. A copy counts what it reads and what it writes; a non-temporal one passes the caches."""

    bytes_per_second: float = required(rate)
    bytes_per_second_per_core: float | None = optional(rate)
    copy_bytes_per_second: float | None = optional(rate)
    nontemporal_copy_bytes_per_second: float | None = optional(rate)
    capacity_bytes: int | None = optional(count)
    latency_seconds: float | None = optional(rate)

    @property
    def core_bytes_per_second(self) -> float:
        """What one core reads; an order of magnitude where the description does not say."""
        return self.bytes_per_second_per_core or min(CORE_BYTES_PER_SECOND, self.bytes_per_second)


@dataclass(frozen=True, kw_only=True)
class DeviceMemory(Dram):
    """Memory of a GPU: `latency_seconds` are of a load while others are under way."""

    latency_seconds: float = optional(rate, 7e-7)  # an order of magnitude, where the file does not say


@dataclass(frozen=True, kw_only=True)
class Machine(Readable):
    """What every machine has: a unique name, its kind, and the intrinsics it can execute, best first.

    `issue_cycles` are stated or measured cycles between two independent calls of an intrinsic on one core, by its name.
    """

    name: str = required(word)
    kind: str = required(choice("cpu", "gpu", "accelerator"))
    clock_hz: float | None = optional(rate)
    intrinsics: tuple[str, ...] = optional(names, ())
    issue_cycles: dict[str, float] | None = optional(table(word, rate))

    @property
    def nominal_clock_hz(self) -> float:
        """The clock; a usual one for the description of a whole architecture, which has none."""
        return self.clock_hz or NOMINAL_CLOCK_HZ

    def digest(self) -> str:
        """A hash of every fact, equal for equal descriptions in any process: 64 hexadecimal digits."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Cpu(Machine):
    """A processor. Rates are per core and cycle: `fma_units` counts fused multiply-adds of a whole vector,
    `arithmetic_per_cycle` instructions of a usual mix, multiply-adds among them (None: 2).

    `latency_cycles` are measured cycles until a dependent call of an intrinsic can start, by its name. A broadcast
    loads one element into all lanes of a vector. Its rate and that of bytes stored to the first cache are measured
    too. A line of the second cache that no stream leads to takes `scattered_factor` times as long as others.
    `features` decides what generated code may use: LLVM is told to use these and to leave out all others.
    """

    kind: str = required(choice("cpu"))
    llvm: Llvm = required(record(Llvm))
    cores: int = required(count)
    vector_bits: int = required(choice(128, 256, 512))
    vector_registers: int = required(count)
    fma_units: int = required(count)
    arithmetic_per_cycle: float | None = optional(rate)
    loads_per_cycle: int = required(count)
    stores_per_cycle: int = required(count)
    broadcasts_per_cycle: float | None = optional(rate)
    scattered_factor: float | None = optional(rate)
    store_bytes_per_cycle: float | None = optional(rate)
    latency_cycles: dict[str, float] | None = optional(table(word, rate))
    features: frozenset[str] = required(name_set)
    caches: tuple[Cache, ...] = required(several(record(Cache), 1))
    dram: Dram = required(record(Dram))

    VECTOR_FEATURE: ClassVar = {("x86_64", 256): "avx", ("x86_64", 512): "avx512f", ("aarch64", 256): "sve"}

    @property
    def architecture(self) -> str:
        """The first part of the triple: `x86_64` or `aarch64`."""
        return self.llvm.triple.partition("-")[0]

    @property
    def is_measured(self) -> bool:
        """Whether its rates are those that `calibrate` measured; a description may state some of them."""
        return self.latency_cycles is not None

    def cycles_of(self, instruction: str, recorded: float = 1 / RECORDED_UNITS) -> float:
        """Cycles between two calls of an intrinsic that multiplies vectors: those that are stated or measured.

        Else those of its record, which are `recorded` for processors with two multiply-adds a cycle.
        """
        known = (self.issue_cycles or {}).get(instruction)
        return recorded * self.recorded_factor if known is None else known

    @property
    def recorded_factor(self) -> float:
        """How many times the cycles of their records intrinsics that multiply vectors take."""
        return RECORDED_UNITS / self.fma_units

    def rate_beyond_l2(self, bytes_: int) -> float:
        """Bytes per cycle of one core from the first level beyond L2 that holds so many."""
        level = next((cache for cache in self.caches[2:] if bytes_ <= cache.kept_bytes), None)
        rate = self.dram.core_bytes_per_second / self.nominal_clock_hz if level is None else level.bytes_per_cycle
        return rate or self.vector_bits / 8

    @classmethod
    def prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Write `features` and their absence into `llvm.features`."""
        if not isinstance(value.get("llvm"), dict):
            return value
        architecture = str(value["llvm"].get("triple")).partition("-")[0]
        listed, known = value.get("features"), feature_tables.BY_ARCHITECTURE.get(architecture)
        if known is None or not isinstance(listed, list | tuple | set | frozenset):
            return value
        off = [f"-{name}" for name in sorted(known) if name not in listed]  # first: LLVM goes by the order
        told = ",".join([*off, *(f"+{name}" for name in sorted(known) if name in listed)])
        given = value["llvm"].get("features")
        if given not in (None, "", told):
            raise ValueError("llvm.features of a CPU is made from `features`; list the names there")
        return {**value, "llvm": {**value["llvm"], "features": told}}

    def check(self) -> None:
        known = feature_tables.BY_ARCHITECTURE.get(self.architecture)
        if known is None:
            raise _of_another_kind(self, sorted(feature_tables.BY_ARCHITECTURE))
        for name in sorted(self.features - known):
            raise ValueError(f"features has {name!r}, unknown on {self.architecture}{_closest(name, known)}")
        for name in sorted(feature_tables.BASELINE[self.architecture] - self.features):
            raise ValueError(f"features lacks {name!r}, which every {self.architecture} processor has")
        for name in sorted(self.features):
            for need in feature_tables.NEEDS[self.architecture].get(name, ()):
                if need not in self.features:
                    raise ValueError(f"features has {name!r} but not {need!r}, which it needs")
        vector_feature = self.VECTOR_FEATURE.get((self.architecture, self.vector_bits))
        if vector_feature is not None and vector_feature not in self.features:
            raise ValueError(f"vector_bits is {self.vector_bits} but features lacks {vector_feature!r}")
        for name, cycles in (self.issue_cycles or {}).items():
            if cycles > MOST_CYCLES:
                raise ValueError(f"issue_cycles has {cycles:g} of {name!r}, at most {MOST_CYCLES:,}")
        for name in self.intrinsics:
            for need in sorted(feature_tables.INTRINSICS.get(name, frozenset()) - self.features):
                raise ValueError(f"intrinsics has {name!r} but features lacks {need!r}, which it needs")


_SEEDS = table(
    choice("matmul", "convolution"), table(choice("small", "medium", "large"), items(count, count, count, count))
)


@dataclass(frozen=True, kw_only=True)
class MatrixSchedules(Readable):
    """What the deduction of matrix schedules (`instruction.mma`) does differently on one architecture.

    `vector_distribution`: tiles are distributed to lanes by layout before packing is tried. `reduction_rows`: a block
    that reduces one row of a matrix-vector product may take several. `tensor_core_table`: there are fixed tiles for its
    matrix units. `size_class_seeds` replaces the built-in seeds of the size classes: by operation and class
    (subgroups, tiles along M and N, tiles along K, bits along K).
    """

    vector_distribution: bool = optional(flag, False)
    reduction_rows: bool = optional(flag, False)
    tensor_core_table: bool = optional(flag, False)
    size_class_seeds: dict[str, dict[str, tuple[int, int, int, int]]] = field(
        default_factory=dict, metadata={"kind": _SEEDS}
    )


SYSTEM_SHARED_BYTES = 1024
"""Shared memory that the system takes of every block: CUDA C++ Programming Guide, "Shared Memory" of 8.x and 9.0."""


@dataclass(frozen=True, kw_only=True)
class Gpu(Machine):
    """A GPU. A multiprocessor is what runs a block: NVIDIA's SM, AMD's work-group processor or compute unit.

    `warp_sizes` starts with the preferred one. `shared_bytes_per_block` is what a kernel may have when it asks,
    `shared_bytes_per_block_default` what it has otherwise. Registers have 32 bits; a warp has `scalar_registers`, which
    its lanes share, where there are such. `fma_per_cycle` counts dense multiply-adds per multiprocessor by input dtype,
    on the fastest unit; in `caches`, `shared_by` counts multiprocessors. `copy_cycles` go by from the start of a copy
    until its bytes are in shared memory, most of them from L2; `block_cycles` are of a block's start, its addresses and
    its last stores. `launch_seconds` go by from the end of one kernel to the first loads of the next,
    `dispatch_seconds` between the starts of two blocks, wherever they run. L2 gives `l2_bytes_per_cycle` to all
    multiprocessors together, `l2_port_bytes_per_cycle` to one at most. Of a thread that multiplies matrices an
    assembler takes `spare_registers` beside sums, fragments and what is copied, and `step_registers` more for each step
    of k beyond two.
    """

    kind: str = required(choice("gpu"))
    llvm: Llvm = required(record(Llvm))
    clock_hz: float = required(rate)
    architecture: str = required(word)
    multiprocessors: int = required(count)
    subcores: int = required(count)
    warp_sizes: tuple[int, ...] = required(several(count, 1))
    max_threads_per_block: int = required(count)
    max_block: tuple[int, int, int] = required(items(count, count, count))
    max_threads_per_multiprocessor: int = required(count)
    max_blocks_per_multiprocessor: int = required(count)
    registers_per_multiprocessor: int = required(count)
    max_registers_per_thread: int = required(count)
    scalar_registers: int | None = optional(count)
    shared_bytes_per_block: int = required(count)
    shared_bytes_per_block_default: int = required(count)
    shared_bytes_per_multiprocessor: int = required(count)
    shared_banks: int = required(count)
    shared_bytes_per_cycle: float = required(rate)
    load_bits: int = required(choice(64, 128))
    fma_per_cycle: dict[str, float] = required(table(word, rate))
    copy_cycles: float = optional(rate, 700.0)  # an order of magnitude, where the file does not say
    block_cycles: float = optional(rate, 700.0)  # likewise
    launch_seconds: float = optional(rate, 1.5e-6)  # likewise
    dispatch_seconds: float = optional(rate, 5e-10)  # likewise
    l2_bytes_per_cycle: float = optional(rate, 5120.0)  # of an A100, by its whitepaper
    l2_port_bytes_per_cycle: float = optional(rate, 64.0)  # two sectors, likewise an order of magnitude
    # From above, by ptxas 13.0 for sm_80: of large tiles it takes 10 to 30 less, of small ones with deep k tiles 90.
    spare_registers: int = optional(whole(0, 8), 50)
    step_registers: int = optional(whole(0, 8), 6)
    matrix_schedules: MatrixSchedules = optional(record(MatrixSchedules), MatrixSchedules())
    features: frozenset[str] = optional(name_set, frozenset())
    caches: tuple[Cache, ...] = required(several(record(Cache), 1))
    dram: DeviceMemory = required(record(DeviceMemory))

    @property
    def ptx_version(self) -> tuple[int, int] | None:
        """The PTX version that LLVM is told, as (major, minor); None on other vendors' GPUs."""
        for part in self.llvm.features.split(","):
            if part.startswith("+ptx") and part[4:].isdigit():
                return divmod(int(part[4:]), 10)
        return None

    def check(self) -> None:
        if self.llvm.triple not in targets.GPUS:
            raise _of_another_kind(self, targets.GPUS)
        for unit in sorted(self.features):
            if targets.lacks(self.llvm.cpu, unit):
                has = ", ".join(targets.units(self.llvm.cpu)) or "none"
                raise Contradiction("features", f"has {unit!r}, a unit that {self.llvm.cpu} lacks", f"it has: {has}")
        if any(cache.bytes_per_cycle is not None for cache in self.caches):
            raise ValueError("bytes_per_cycle is of CPUs' caches; give l2_bytes_per_cycle, l2_port_bytes_per_cycle")
        block, whole = self.shared_bytes_per_block, self.shared_bytes_per_multiprocessor
        if not self.shared_bytes_per_block_default <= block <= whole:
            raise ValueError(
                f"shared bytes must grow from block default ({self.shared_bytes_per_block_default}) over block "
                f"({block}) to multiprocessor ({whole})"
            )
        for size in self.warp_sizes:
            if self.max_threads_per_block % size:
                raise ValueError(f"max_threads_per_block {self.max_threads_per_block} is no multiple of {size}")
        lanes = targets.lanes(self.llvm.cpu)
        if self.warp_sizes[0] != lanes:
            fact = f"starts with {self.warp_sizes[0]}, but code for {self.llvm.cpu} is made for {lanes} lanes"
            raise Contradiction("warp_sizes", fact, f"{lanes} as the first")
        of_a_warp = lanes * self.max_registers_per_thread
        if of_a_warp > self.registers_per_multiprocessor:
            fact = f"is {self.registers_per_multiprocessor}, less than the {of_a_warp} that one warp may take"
            help = f"{of_a_warp} or more, or fewer max_registers_per_thread"
            raise Contradiction("registers_per_multiprocessor", fact, help)


@dataclass(frozen=True, kw_only=True)
class Level(Readable):
    """One memory level of an accelerator; rates are per instance, unlimited when absent.

    `fanout` is how many instances lie below one instance of the level outside it, along X and Y. Energy is per
    word in units of one 16-bit multiply-add; when absent the analysis uses its table for `technology`. With
    `shares_port`, reads and writes take turns at one port, whose rate is that of reads. A level that accumulates adds
    what is stored to it, so that partial sums are not read back.

    The rest is for latency step by step. A transfer takes `read_latency_cycles` or `write_latency_cycles` besides its
    words. The level holds the operands of `load_slots` steps and the results of `store_slots` steps at once; 2 is
    double buffering. A level that does not retain loads the slice of each step anew, also where the last step had it.
    """

    name: str = required(word)
    technology: str = required(choice("dram", "sram", "regfile"))
    fanout: tuple[int, int] = optional(items(count, count), (1, 1))
    capacity_bytes: int | None = optional(count)
    word_bits: int | None = optional(count)
    block_words: int = optional(count, 1)
    read_words_per_cycle: float | None = optional(rate)
    write_words_per_cycle: float | None = optional(rate)
    read_energy_macs: float | None = optional(rate)
    write_energy_macs: float | None = optional(rate)
    reduces: bool = optional(flag, False)
    multicasts: bool = optional(flag, True)
    shares_port: bool = optional(flag, False)
    accumulates: bool = optional(flag, False)
    retains: bool = optional(flag, True)
    read_latency_cycles: float | None = optional(rate)
    write_latency_cycles: float | None = optional(rate)
    load_slots: int = optional(count, 2)
    store_slots: int = optional(count, 2)


@dataclass(frozen=True, kw_only=True)
class Compute(Readable):
    """The arithmetic unit below the innermost level: operations per cycle and energy in 16-bit multiply-adds.

    A step of all units together takes `latency_cycles` besides its operations.
    """

    fanout: tuple[int, int] = optional(items(count, count), (1, 1))
    operations_per_cycle: float = optional(rate, 1.0)
    operation_energy_macs: float | None = optional(rate)
    latency_cycles: float | None = optional(rate)


@dataclass(frozen=True, kw_only=True)
class VectorUnits(Readable):
    """Units beside the compute units, for all expressions but products; rates and energy are those of `Compute`.

    `fanout` is how many lie below one instance of the level outside the innermost one, along X and Y. Each has an
    instance of the innermost level as its registers.
    """

    fanout: tuple[int, int] = required(items(count, count))
    operations_per_cycle: float = optional(rate, 1.0)
    operation_energy_macs: float | None = optional(rate)


@dataclass(frozen=True, kw_only=True)
class Accelerator(Machine):
    """An accelerator for analysis only: memory levels from DRAM inward and the compute units at the end.

    With `vector` units, the compute units run matrix operators only (`expr.intensity.is_matrix_operator`).
    `word_bits` holds for levels that do not state their own. `direct_paths` lists pairs of levels that exchange
    words without passing the levels outside them.
    """

    kind: str = required(choice("accelerator"))
    clock_hz: float = required(rate)
    word_bits: int = required(count)
    levels: tuple[Level, ...] = required(several(record(Level), 1))
    compute: Compute = required(record(Compute))
    vector: VectorUnits | None = optional(record(VectorUnits))
    direct_paths: tuple[tuple[str, str], ...] = optional(several(items(word, word)), ())

    @property
    def units(self) -> int:
        """Compute units in the whole machine, without vector units."""
        product = self.compute.fanout[0] * self.compute.fanout[1]
        for level in self.levels:
            product *= level.fanout[0] * level.fanout[1]
        return product

    @property
    def vector_units(self) -> int:
        """Vector units in the whole machine."""
        if self.vector is None:
            return 0
        outside = self.instances(self.levels[-2].name) if len(self.levels) > 1 else 1
        return outside * self.vector.fanout[0] * self.vector.fanout[1]

    def instances(self, name: str) -> int:
        """Instances of the level `name` in the whole machine; KeyError if there is no such level."""
        product = 1
        for level in self.levels:
            product *= level.fanout[0] * level.fanout[1]
            if level.name == name:
                return product
        raise KeyError(name)

    def check(self) -> None:
        level_names = [level.name for level in self.levels]
        for name in sorted({name for name in level_names if level_names.count(name) > 1}):
            raise ValueError(f"levels has {name!r} twice")
        for index, level in enumerate(self.levels):
            if (level.technology == "dram") != (index == 0):
                raise ValueError(f"levels start with the only dram, but level {index} ({level.name}) is "
                                 f"{level.technology}")  # fmt: skip
            if index and level.capacity_bytes is None:
                raise ValueError(f"level {level.name!r} needs capacity_bytes")
        for name in (name for path in self.direct_paths for name in path):
            if name not in level_names:
                raise ValueError(f"direct_paths has {name!r}, which is no level{_closest(name, level_names)}")


def _of_another_kind(machine: Cpu | Gpu, legal: Sequence[str]) -> Contradiction:
    fact = f"is {machine.kind!r}, but llvm.triple is {machine.llvm.triple!r}"
    return Contradiction("kind", fact, f"for a {machine.kind} the triple is one of {', '.join(legal)}")


def missing_features(machine: Cpu, host: Cpu) -> list[str]:
    """What code for `machine` needs and `host` lacks; empty if the host runs it.

    Another architecture is one entry, its name.
    """
    if machine.architecture != host.architecture:
        return [machine.architecture]
    return sorted(machine.features - host.features)


def _closest(name: str, legal: Any) -> str:
    close = nearest(name, legal, 3)
    return f"; close: {', '.join(close)}" if close else ""
