"""The machine this process runs on, from what LLVM and Linux tell.

Base facts (units, rates) come from the most specific machine file: the one of the processor LLVM names, else the
highest generic level whose features the host has, whose units `runtime.host_units` replaces by measured ones. Features
are exactly those LLVM reports; caches, cores and memory size are the system's own. What neither tells keeps the value
of the base file.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any, Final

from tilewright.errors import InvalidMachine
from tilewright.machine import features as feature_tables
from tilewright.machine import targets
from tilewright.machine.description import Cpu
from tilewright.machine.registry import machine_from_json, naming, resolve, resolve_cpu

GENERIC: Final = {"x86_64": ("x86-64-v4", "x86-64-v3", "x86-64-v2"), "aarch64": ("aarch64",)}  # best first
SYSTEM: Final = Path("/sys/devices/system")
GIB: Final = 1 << 30


@functools.cache
def host() -> Cpu:
    """The host as a machine named `host`; computed once per process.

    The number of cores is the machine's, whatever this process's affinity mask allows.
    """
    return described(*_reported(), SYSTEM)


def host_limited_to(level: Cpu) -> Cpu:
    """The host with no feature that `level` lacks: its caches and units, the vectors and registers of `level`.

    Raises InvalidMachine for another architecture, and where the host lacks a feature of `level`.
    """
    architecture, triple, processor, reported = _reported()
    missing = sorted(level.features - host().features)
    if level.architecture != architecture or missing:
        lacks = f"lacks {', '.join(missing)}" if level.architecture == architecture else f"is of {architecture}"
        raise InvalidMachine(f"this machine cannot be limited to {level.name}: it {lacks}",
                             help=f"one of {', '.join(GENERIC[architecture])}")  # fmt: skip
    return described(architecture, triple, processor, reported & level.features, SYSTEM)


def _reported() -> tuple[str, str, str, frozenset[str]]:
    """Architecture, triple, processor and features as LLVM tells them."""
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    architecture = triple.partition("-")[0]
    architecture = {"arm64": "aarch64", "amd64": "x86_64"}.get(architecture, architecture)
    features = frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
    return architecture, triple, llvm.get_host_cpu_name(), features


def described(architecture: str, triple: str, processor: str, reported: frozenset[str], system: Path) -> Cpu:
    """A host with these LLVM facts and the directory tree `system` in the form of Linux's /sys/devices/system."""
    known = feature_tables.BY_ARCHITECTURE.get(architecture, frozenset())
    features = (reported | feature_tables.BASELINE.get(architecture, frozenset())) & known
    features = _closed(architecture, features)
    base = base_machine(architecture, processor, features)
    cores = _physical_cores(system / "cpu") or os.cpu_count() or base.cores
    vector_bits = min(base.vector_bits, _widest_vector(architecture, features))
    wide_file = architecture == "aarch64" or "avx512vl" in features  # 32 registers need EVEX or Armv8
    facts: dict[str, Any] = base.to_json() | {
        "name": "host",
        "llvm": _llvm(triple, processor, base),
        "cores": cores,
        "vector_bits": vector_bits,
        "vector_registers": base.vector_registers if wide_file or vector_bits == 512 else 16,
        "features": sorted(features),
        "intrinsics": [name for name, needs in feature_tables.INTRINSICS.items() if needs <= features],
    }
    clock_hz = _clock_hz(system / "cpu")
    if clock_hz is not None:
        facts["clock_hz"] = clock_hz
    caches = _caches(system / "cpu", base)
    if caches:
        facts["caches"] = caches
    capacity_bytes = _memory_bytes()
    if capacity_bytes:
        facts["dram"]["capacity_bytes"] = capacity_bytes
    machine = machine_from_json(facts)
    assert isinstance(machine, Cpu)
    return machine


def base_machine(architecture: str, processor: str, features: frozenset[str]) -> Cpu:
    """The machine file with the most specific facts for this processor, else the highest level it fulfils."""
    named = named_machine(architecture, processor)
    if named is not None:
        return named
    generic = GENERIC.get(architecture, GENERIC["x86_64"])
    for name in generic:
        machine = resolve(name)
        if isinstance(machine, Cpu) and machine.features <= features:
            return machine
    return resolve_cpu(generic[-1])


@functools.cache
def named_machine(architecture: str, processor: str) -> Cpu | None:
    """The machine file of a processor that LLVM names so, those of generic levels aside."""
    for name in naming(processor):
        if name not in GENERIC.get(architecture, ()):
            machine = resolve(name)
            if isinstance(machine, Cpu) and machine.llvm.cpu == processor and machine.architecture == architecture:
                return machine
    return None


def _llvm(triple: str, processor: str, base: Cpu) -> dict[str, str]:
    """What LLVM is told: the system and the processor that it reports, where the tables know them."""
    known = targets.misfit(triple, base.llvm.cpu, ()) is None and triple.startswith(base.architecture)
    triple = triple if known else base.llvm.triple
    return {"triple": triple, "cpu": processor if targets.misfit(triple, processor, ()) is None else base.llvm.cpu}


def _closed(architecture: str, features: frozenset[str]) -> frozenset[str]:
    """Without features whose prerequisites are missing: a hypervisor may hide AVX2 and leave AVX-512."""
    needs = feature_tables.NEEDS.get(architecture, {})
    while True:
        kept = frozenset(name for name in features if all(need in features for need in needs.get(name, ())))
        if kept == features:
            return kept
        features = kept


def _widest_vector(architecture: str, features: frozenset[str]) -> int:
    if architecture != "x86_64":
        return 128
    return 512 if "avx512f" in features else 256 if "avx" in features else 128


def _physical_cores(cpu: Path) -> int | None:
    """Distinct (package, core) pairs of the processors that are online; None where the system does not tell."""
    found = set()
    for processor in _online(cpu):
        topology = cpu / f"cpu{processor}" / "topology"
        package, core = _number(topology / "physical_package_id"), _number(topology / "core_id")
        if package is None or core is None:
            return None
        found.add((package, core))
    return len(found) or None


def _caches(cpu: Path, base: Cpu) -> list[dict[str, Any]]:
    """Data and unified caches of the first online processor, with rates of the same level of the base file."""
    online = _online(cpu)
    if not online:
        return []
    rates = {cache.name: cache.bytes_per_cycle for cache in base.caches}
    threads = len(_listed_numbers(_text(cpu / f"cpu{online[0]}/topology/thread_siblings_list"))) or 1
    found: list[dict[str, Any]] = []
    for index in sorted((cpu / f"cpu{online[0]}/cache").glob("index[0-9]*")):
        size = re.fullmatch(r"([0-9]+)([KMG]?)", _text(index / "size"))
        level, line_bytes = _number(index / "level"), _number(index / "coherency_line_size")
        if _text(index / "type") not in ("Data", "Unified") or not size or not level or not line_bytes:
            continue
        name = f"L{level}"
        ways = _number(index / "ways_of_associativity")
        sharers = len(_listed_numbers(_text(index / "shared_cpu_list"))) or threads
        capacity_bytes = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
        if capacity_bytes == 0:  # some hypervisors
            continue
        found.append({
            "name": name,
            "bytes": capacity_bytes,
            "line_bytes": line_bytes,
            "shared_by": max(1, sharers // threads),
            **({"ways": ways} if ways else {}),
            **({"bytes_per_cycle": rates[name]} if rates.get(name) else {}),
        })  # fmt: skip
    return found


def _clock_hz(cpu: Path) -> float | None:
    """The highest clock that frequency scaling offers, where the system has it."""
    khz = _number(cpu / "cpu0/cpufreq/cpuinfo_max_freq")
    return khz * 1000.0 if khz else None


def _memory_bytes() -> int | None:
    """Main memory in whole GiB: what a kernel keeps for itself changes from boot to boot, a digest must not."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB) * GIB
    except (ValueError, OSError, AttributeError):
        return None


def _online(cpu: Path) -> list[int]:
    return _listed_numbers(_text(cpu / "online"))


def _listed_numbers(text: str) -> list[int]:
    """The numbers of a Linux list such as `0-3,8`."""
    numbers: list[int] = []
    for first, last in re.findall(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text):
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else None


def _text(path: Path) -> str:
    """The content of a file of the system, or nothing where there is no such file."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
