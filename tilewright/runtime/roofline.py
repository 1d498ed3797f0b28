"""How long a launch should take on a CPU whose rates were measured, what bounds it, and the least that it could take.

A launch has cycles of its arithmetic with all data near, and bytes that it moves. Bytes come from the level of memory
that still holds them from the call before: all tensors of a module together decide which.
"""

from __future__ import annotations

from tilewright.codegen.host_program import Launch
from tilewright.dataclass import dataclass
from tilewright.machine.description import Cpu
from tilewright.runtime.manifest import Manifest

OVERLAP = 3.0  # arithmetic and bytes hide each other but where they are equal: the norm of `instruction.model.combined`
LAUNCH_SECONDS = 3e-8  # of one trip of a launch on one thread
FORK_SECONDS = 2e-6  # of one that is distributed to several threads: they wake up and wait for each other
WRITES = 0.65  # of the rate of reading a cache, that of reading and writing it: Zen 5


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of a launch, and what bounds it: "compute", or a level of memory by its name.

    `least_seconds` is the time at the measured ceiling of that: operations of a product at the rate of its instruction,
    or bytes at the rate of reading that level. Other arithmetic has no ceiling: None.
    """

    seconds: float
    bound: str
    least_seconds: float | None


class Roofline:
    """Estimates for the launches of one module on some threads of a machine whose rates were measured."""

    def __init__(self, machine: Cpu, manifest: Manifest, threads: int) -> None:
        self.machine = machine
        self.threads = min(threads, machine.cores)
        self.clock_hz = machine.nominal_clock_hz
        interface = sum(spec.bytes for spec in (*manifest.inputs, *manifest.outputs))
        self.footprint_bytes = manifest.constants_bytes + manifest.arena_bytes + interface

    def estimate(self, launch: Launch) -> Estimate | None:
        """None for a launch without a model, as those of GPUs are."""
        if not launch.cycles:
            return None
        threads = min(self.threads, launch.programs or self.threads)
        compute = launch.cycles / self.clock_hz * _busiest(launch.programs, threads)
        level, moved, rate = self._moved(launch, threads)
        longest = max(compute, moved)
        both = longest * ((compute / longest) ** OVERLAP + (moved / longest) ** OVERLAP) ** (1 / OVERLAP)
        overhead = (LAUNCH_SECONDS if threads == 1 else FORK_SECONDS) * launch.trips
        peak = self._peak(launch.instruction) * threads
        if compute < moved:
            return Estimate(both + overhead, level, launch.bytes / rate)
        return Estimate(both + overhead, "compute", launch.flops / peak if peak else None)

    def _moved(self, launch: Launch, threads: int) -> tuple[str, float, float]:
        """The level of memory that takes the longest, seconds for all bytes, and the rate of reading that level."""
        last, dram = self.machine.caches[-1], self.machine.dram
        memory = dram.bytes_per_second if threads > 1 else dram.bytes_per_second_per_core or dram.bytes_per_second
        if launch.bytes > last.bytes:  # read and written where no cache holds it
            copied = dram.copy_bytes_per_second if threads == self.machine.cores else None
            rate = copied or memory
            return "memory", launch.bytes / rate, rate
        far = launch.constant_bytes if self.footprint_bytes > last.bytes else 0
        name, near_rate = self._near(threads)
        share = 1.0 if launch.instruction else WRITES  # products read far more than they write
        seconds = (launch.bytes - far) / (share * near_rate), far / memory
        return (name, sum(seconds), near_rate) if seconds[0] >= seconds[1] else ("memory", sum(seconds), memory)

    def _near(self, threads: int) -> tuple[str, float]:
        """The smallest level that keeps all tensors of the module, the last one if none does, and its rate."""
        outer = self.machine.caches[1:] or self.machine.caches
        fits = (each for each in outer if self.footprint_bytes <= each.bytes * (threads if each.shared_by == 1 else 1))
        level = next(fits, outer[-1])
        per_cycle = level.bytes_per_cycle or self.machine.loads_per_cycle * self.machine.vector_bits / 8
        return level.name, per_cycle * self.clock_hz * threads

    def _peak(self, instruction: str) -> float:
        """Operations per second of one core that does nothing but `instruction`; 0 where its rate is not known."""
        cycles = (self.machine.issue_cycles or {}).get(instruction)
        if not cycles:
            return 0.0
        from tilewright.intrinsics.registry import catalogue  # a module that is not profiled does without

        return 2 * catalogue(self.machine.architecture).find(instruction).macs / cycles * self.clock_hz


def _busiest(programs: int, threads: int) -> float:
    """The part of all programs that the thread with the most of them runs; an even part where they are not known."""
    return -(-programs // threads) / programs if programs else 1 / threads
