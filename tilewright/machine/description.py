"""What a machine description holds: CPUs, GPUs, and accelerators that exist only as a file.

Facts with units in their names and no behaviour. Values are immutable and compare by content; `digest` is stable
between runs and machines. Shared code asks for facts (`machine.intrinsics`), never for a name.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from tilewright.machine import features as feature_tables

Count = Annotated[int, Field(strict=True, gt=0, lt=1 << 62)]
Rate = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Word = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=100)]
Flag = Annotated[bool, Field(strict=True)]


def _listed(value: Any) -> Any:
    """A list without repetitions, as a tuple; anything else is left to fail."""
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)
        repeated = sorted({item for item in items if isinstance(item, str) and items.count(item) > 1})
        if repeated:
            raise ValueError(f"lists {', '.join(repeated)} twice")
        return tuple(items)
    return value


Names = Annotated[tuple[Word, ...], BeforeValidator(_listed)]
NameSet = Annotated[frozenset[Word], BeforeValidator(_listed), PlainSerializer(sorted)]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


class Llvm(_Facts):
    """What LLVM is told. For a CPU, `features` is made from `Cpu.features` and may be left out."""

    triple: Word
    cpu: Word
    features: Annotated[str, Field(strict=True, pattern=r"^([+-][A-Za-z0-9._-]+(,[+-][A-Za-z0-9._-]+)*)?$")] = ""


class Cache(_Facts):
    """One cache level; `shared_by` counts the cores that share one instance, and rates are per core."""

    name: Word
    bytes: Count
    ways: Count | None = None
    line_bytes: Count
    shared_by: Count
    bytes_per_cycle: Rate | None = None
    bytes_per_second: Rate | None = None


class Dram(_Facts):
    """Main or device memory. A copy counts what it reads and what it writes; a non-temporal one passes the caches."""

    bytes_per_second: Rate
    bytes_per_second_per_core: Rate | None = None
    copy_bytes_per_second: Rate | None = None
    nontemporal_copy_bytes_per_second: Rate | None = None
    capacity_bytes: Count | None = None
    latency_seconds: Rate | None = None


class DeviceMemory(Dram):
    """Memory of a GPU: `latency_seconds` are of a load while others are under way."""

    latency_seconds: Rate = 7e-7  # an order of magnitude, where the file does not say


class Machine(_Facts):
    """What every machine has: a unique name, its kind, and the intrinsics it can execute, best first.

    `issue_cycles` are measured cycles between two independent calls of an intrinsic on one core, by its name.
    """

    name: Word
    kind: Literal["cpu", "gpu", "accelerator"]
    clock_hz: Rate | None = None
    intrinsics: Names = ()
    issue_cycles: dict[Word, Rate] | None = None

    def to_json(self) -> dict[str, Any]:
        """The description as JSON values; `registry.machine_from_json` reads it back."""
        return self.model_dump(mode="json", exclude_none=True)

    def digest(self) -> str:
        """A hash of every fact, equal for equal descriptions in any process: 64 hexadecimal digits."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class Cpu(Machine):
    """A processor. Rates are per core and cycle: `fma_units` counts fused multiply-adds of a whole vector.

    `features` decides what generated code may use: LLVM is told to use these and to leave out all others.
    """

    kind: Literal["cpu"]
    llvm: Llvm
    cores: Count
    vector_bits: Literal[128, 256, 512]
    vector_registers: Count
    fma_units: Count
    loads_per_cycle: Count
    stores_per_cycle: Count
    features: NameSet
    caches: Annotated[tuple[Cache, ...], Field(min_length=1)]
    dram: Dram

    VECTOR_FEATURE: ClassVar = {("x86_64", 256): "avx", ("x86_64", 512): "avx512f", ("aarch64", 256): "sve"}

    @property
    def architecture(self) -> str:
        """The first part of the triple: `x86_64` or `aarch64`."""
        return self.llvm.triple.partition("-")[0]

    @model_validator(mode="before")
    @classmethod
    def _tell_llvm(cls, value: Any) -> Any:
        """Write `features` and their absence into `llvm.features`."""
        if not isinstance(value, dict) or not isinstance(value.get("llvm"), dict):
            return value
        architecture = str(value["llvm"].get("triple")).partition("-")[0]
        listed, known = value.get("features"), feature_tables.BY_ARCHITECTURE.get(architecture)
        if known is None or not isinstance(listed, list | tuple | set | frozenset):
            return value
        told = ",".join(("+" if name in listed else "-") + name for name in sorted(known))
        given = value["llvm"].get("features")
        if given not in (None, "", told):
            raise ValueError("llvm.features of a CPU is made from `features`; list the names there")
        return {**value, "llvm": {**value["llvm"], "features": told}}

    @model_validator(mode="after")
    def _is_consistent(self) -> Cpu:
        known = feature_tables.BY_ARCHITECTURE.get(self.architecture)
        if known is None:
            legal = ", ".join(sorted(feature_tables.BY_ARCHITECTURE))
            raise ValueError(f"llvm.triple {self.llvm.triple!r} starts with none of {legal}")
        for name in sorted(self.features - known):
            raise ValueError(f"features has {name!r}, unknown on {self.architecture}{_closest(name, known)}")
        for name in sorted(feature_tables.BASELINE[self.architecture] - self.features):
            raise ValueError(f"features lacks {name!r}, which every {self.architecture} processor has")
        for name in sorted(self.features):
            for need in feature_tables.NEEDS.get(name, ()):
                if need not in self.features:
                    raise ValueError(f"features has {name!r} but not {need!r}, which it needs")
        vector_feature = self.VECTOR_FEATURE.get((self.architecture, self.vector_bits))
        if vector_feature is not None and vector_feature not in self.features:
            raise ValueError(f"vector_bits is {self.vector_bits} but features lacks {vector_feature!r}")
        for name in self.intrinsics:
            for need in sorted(feature_tables.INTRINSICS.get(name, frozenset()) - self.features):
                raise ValueError(f"intrinsics has {name!r} but features lacks {need!r}, which it needs")
        return self


class MatrixSchedules(_Facts):
    """What the deduction of matrix schedules (`instruction.mma`) does differently on one architecture.

    `vector_distribution`: tiles are distributed to lanes by layout before packing is tried. `reduction_rows`: a block
    that reduces one row of a matrix-vector product may take several. `tensor_core_table`: there are fixed tiles for its
    matrix units. `size_class_seeds` replaces the built-in seeds of the size classes: by operation and class
    (subgroups, tiles along M and N, tiles along K, bits along K).
    """

    vector_distribution: Flag = False
    reduction_rows: Flag = False
    tensor_core_table: Flag = False
    size_class_seeds: dict[
        Literal["matmul", "convolution"],
        dict[Literal["small", "medium", "large"], tuple[Count, Count, Count, Count]],
    ] = {}


class Gpu(Machine):
    """A GPU. A multiprocessor is what runs a block: NVIDIA's SM, AMD's work-group processor or compute unit.

    `warp_sizes` starts with the preferred one. `shared_bytes_per_block` is what a kernel may have when it asks,
    `shared_bytes_per_block_default` what it has otherwise. Registers have 32 bits. `fma_per_cycle` counts dense
    multiply-adds per multiprocessor by input dtype, on the fastest unit; in `caches`, `shared_by` counts
    multiprocessors. `copy_cycles` go by from the start of a copy until its bytes are in shared memory, most of them
    from L2; `block_cycles` are of a block's start, its addresses and its last stores. `launch_seconds` go by from the
    end of one kernel to the first loads of the next, `dispatch_seconds` between the starts of two blocks, wherever they
    run. L2 gives `l2_bytes_per_cycle` to all multiprocessors together, `l2_port_bytes_per_cycle` to one at most.
    """

    kind: Literal["gpu"]
    llvm: Llvm
    clock_hz: Rate
    architecture: Word
    multiprocessors: Count
    subcores: Count
    warp_sizes: Annotated[tuple[Count, ...], Field(min_length=1)]
    max_threads_per_block: Count
    max_block: tuple[Count, Count, Count]
    max_threads_per_multiprocessor: Count
    max_blocks_per_multiprocessor: Count
    registers_per_multiprocessor: Count
    max_registers_per_thread: Count
    shared_bytes_per_block: Count
    shared_bytes_per_block_default: Count
    shared_bytes_per_multiprocessor: Count
    shared_banks: Count
    shared_bytes_per_cycle: Rate
    load_bits: Count
    fma_per_cycle: dict[Word, Rate]
    copy_cycles: Rate = 700  # an order of magnitude, where the file does not say
    block_cycles: Rate = 700  # likewise
    launch_seconds: Rate = 1.5e-6  # likewise
    dispatch_seconds: Rate = 5e-10  # likewise
    l2_bytes_per_cycle: Rate = 5120  # of an A100, by its whitepaper
    l2_port_bytes_per_cycle: Rate = 64  # two sectors, likewise an order of magnitude
    matrix_schedules: MatrixSchedules = MatrixSchedules()
    features: NameSet = frozenset()
    caches: Annotated[tuple[Cache, ...], Field(min_length=1)]
    dram: DeviceMemory

    @property
    def ptx_version(self) -> tuple[int, int] | None:
        """The PTX version that LLVM is told, as (major, minor); None on other vendors' GPUs."""
        for part in self.llvm.features.split(","):
            if part.startswith("+ptx") and part[4:].isdigit():
                return divmod(int(part[4:]), 10)
        return None

    @model_validator(mode="after")
    def _is_consistent(self) -> Gpu:
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
        return self


class Level(_Facts):
    """One memory level of an accelerator; rates are per instance, unlimited when absent.

    `fanout` is how many instances lie below one instance of the level outside it, along X and Y. Energy is per
    word in units of one 16-bit multiply-add; when absent the analysis uses its table for `technology`.
    """

    name: Word
    technology: Literal["dram", "sram", "regfile"]
    fanout: tuple[Count, Count] = (1, 1)
    capacity_bytes: Count | None = None
    word_bits: Count | None = None
    block_words: Count = 1
    read_words_per_cycle: Rate | None = None
    write_words_per_cycle: Rate | None = None
    read_energy_macs: Rate | None = None
    write_energy_macs: Rate | None = None
    reduces: Flag = False
    multicasts: Flag = True


class Compute(_Facts):
    """The arithmetic unit below the innermost level: operations per cycle and energy in 16-bit multiply-adds."""

    fanout: tuple[Count, Count] = (1, 1)
    operations_per_cycle: Rate = 1.0
    operation_energy_macs: Rate | None = None


class Accelerator(Machine):
    """An accelerator for analysis only: memory levels from DRAM inward and the compute units at the end.

    `word_bits` holds for levels that do not state their own. `direct_paths` lists pairs of levels that exchange
    words without passing the levels outside them.
    """

    kind: Literal["accelerator"]
    clock_hz: Rate
    word_bits: Count
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    compute: Compute
    direct_paths: tuple[tuple[Word, Word], ...] = ()

    @property
    def units(self) -> int:
        """Compute units in the whole machine."""
        product = self.compute.fanout[0] * self.compute.fanout[1]
        for level in self.levels:
            product *= level.fanout[0] * level.fanout[1]
        return product

    def instances(self, name: str) -> int:
        """Instances of the level `name` in the whole machine; KeyError if there is no such level."""
        product = 1
        for level in self.levels:
            product *= level.fanout[0] * level.fanout[1]
            if level.name == name:
                return product
        raise KeyError(name)

    @model_validator(mode="after")
    def _is_consistent(self) -> Accelerator:
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
        return self


def missing_features(machine: Cpu, host: Cpu) -> list[str]:
    """What code for `machine` needs and `host` lacks; empty if the host runs it.

    Another architecture is one entry, its name.
    """
    if machine.architecture != host.architecture:
        return [machine.architecture]
    return sorted(machine.features - host.features)


def _closest(name: str, legal: Any) -> str:
    close = difflib.get_close_matches(name, list(legal), n=3)
    return f"; close: {', '.join(close)}" if close else ""
