"""How long a launch should take on a CPU whose rates were measured, what bounds it, and the least that it could take.

Bytes come from the level of memory that still holds them from the call before: all tensors of a module together decide
which.
"""

from __future__ import annotations

from tilewright.codegen.host_program import Launch
from tilewright.dataclass import dataclass
from tilewright.machine.description import Cpu
from tilewright.machine.roofline import LaunchModel
from tilewright.runtime.manifest import Manifest


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
        interface = sum(spec.bytes for spec in (*manifest.inputs, *manifest.outputs))
        footprint_bytes = manifest.constants_bytes + manifest.arena_bytes + interface
        self.machine = machine
        self.model = LaunchModel(machine, threads, footprint_bytes)

    def estimate(self, launch: Launch) -> Estimate | None:
        """None for a launch without a model, as those of GPUs are."""
        if not launch.cycles:
            return None
        product = bool(launch.instruction)  # which reads far more than it writes
        least = self._least_cycles(launch)  # the plan was made without the measured rate of the instruction
        cycles = max(launch.cycles, least)
        time = self.model.time(cycles, launch.programs, launch.bytes, launch.constant_bytes, product, launch.trips)
        if time.bound != "compute":
            return Estimate(time.seconds, time.bound, launch.bytes / time.bytes_per_second)
        threads = self.model.busy_threads(launch.programs)
        return Estimate(time.seconds, time.bound, least / self.model.clock_hz / threads if least else None)

    def _least_cycles(self, launch: Launch) -> float:
        """Cycles of all operations of a product at the measured rate of its instruction; 0 where that is not known."""
        cycles = (self.machine.issue_cycles or {}).get(launch.instruction)
        if not cycles:
            return 0.0
        from tilewright.intrinsics.registry import catalogue  # a module that is not profiled does without

        return launch.flops / (2 * catalogue(self.machine.architecture).find(launch.instruction).macs) * cycles
