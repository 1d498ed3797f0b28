"""The time of a launch at peak rates: of its operations at the peak of a machine, or its bytes at the rate of memory.

It exists for every launch on every machine, and compares launches of which some have no model of their time. A launch
whose data are in a cache may take less.
"""

from __future__ import annotations

from dataclasses import field

from tilewright.codegen.host_program import Launch
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidIntrinsic
from tilewright.instruction.model import Hierarchy, core_cycles, hierarchy
from tilewright.intrinsics.registry import standard
from tilewright.machine.description import Cpu, Gpu
from tilewright.machine.registry import names, resolve

_VALUE_BITS = 32  # of an operation of no product: most are in f32


@dataclass(frozen=True)
class PeakRates:
    """What a machine does at most on some threads of a CPU, or on all of a GPU."""

    machine: Cpu | Gpu
    threads: int
    _hierarchy: Hierarchy = field(init=False)

    def __post_init__(self) -> None:
        cores = min(self.threads, self.machine.cores) if isinstance(self.machine, Cpu) else None
        object.__setattr__(self, "_hierarchy", hierarchy(self.machine, cores))

    def seconds(self, launch: Launch) -> float:
        """The larger of its operations at the peak rate and of its bytes at that of main or device memory."""
        rate = 2 * self._macs_per_cycle(launch.instruction) * self._hierarchy.cores * self._hierarchy.clock_hz
        return max(launch.flops / rate, launch.bytes / self.machine.dram.bytes_per_second)

    def _macs_per_cycle(self, instruction: str) -> float:
        """Multiply-adds of one core by an instruction; by arithmetic in f32 where none is named, or known here."""
        try:
            record = standard().find(instruction) if instruction else None
        except InvalidIntrinsic:
            record = None  # of a user's registry
        if record is not None and isinstance(self.machine, Cpu):
            return record.macs / self.machine.cycles_of(record.name, record.cost.issue_cycles)
        if record is not None:
            return record.macs / core_cycles(record, self._hierarchy)
        if isinstance(self.machine, Cpu):
            return self.machine.fma_units * self.machine.vector_bits / _VALUE_BITS
        return self.machine.fma_per_cycle.get("f32", self.machine.subcores * self.machine.warp_sizes[0])


def machine_of(name: str, triple: str) -> Cpu | Gpu | None:
    """The machine that a module was made for, by the name in its manifest; another one with its triple for a machine
    that only a user's file describes; None where there is none either.
    """
    listed = names()
    if name in listed:
        found = resolve(name)
        return found if isinstance(found, Cpu | Gpu) else None
    described = (resolve(each) for each in listed)
    return next((each for each in described if isinstance(each, Cpu | Gpu) and each.llvm.triple == triple), None)
