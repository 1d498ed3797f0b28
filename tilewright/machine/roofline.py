"""How long a launch on a CPU takes: cycles of its arithmetic with all data near, and the bytes that it moves.

Bytes come from the smallest level of memory that holds what is used again before they are; the caller says how much
that is, its footprint.
"""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.machine.description import Cpu

OVERLAP = 3.0  # arithmetic and bytes hide each other but where they are equal: the norm of `instruction.model.combined`
LAUNCH_SECONDS = 3e-8  # of one trip of a launch on one thread
FORK_SECONDS = 2e-6  # of one that is distributed to several threads: they wake up and wait for each other
WRITES = 0.65  # of the rate of reading a cache, that of reading and writing it: Zen 5


@dataclass(frozen=True)
class LaunchTime:
    """Seconds of a launch, and what bounds it: "compute", or a level of memory by its name, read at such a rate."""

    seconds: float
    bound: str
    bytes_per_second: float


class LaunchModel:
    """Times of launches on some threads of a machine, whose data come from where `footprint_bytes` fit."""

    def __init__(self, machine: Cpu, threads: int, footprint_bytes: int) -> None:
        self.machine = machine
        self.threads = min(threads, machine.cores)
        self.clock_hz = machine.nominal_clock_hz
        self.footprint_bytes = footprint_bytes

    def time(
        self,
        cycles: float,
        programs: int,
        bytes_moved: int,
        constant_bytes: int = 0,
        reads: bool = False,
        trips: int = 1,
    ) -> LaunchTime:
        """The time of a launch of so many programs, 0 where their number is not known.

        Constants come from memory where no cache holds the footprint. A launch that `reads` writes far less than that.
        """
        threads = self.busy_threads(programs)
        compute = cycles / self.clock_hz * busiest_share(programs, threads)
        level, moved, rate = self._moved(bytes_moved, constant_bytes, reads, threads, trips)
        both = (compute**OVERLAP + moved**OVERLAP) ** (1 / OVERLAP)
        overhead = (LAUNCH_SECONDS if threads == 1 else FORK_SECONDS) * trips
        return LaunchTime(both + overhead, "compute" if compute >= moved else level, rate)

    def busy_threads(self, programs: int) -> int:
        """The threads that so many programs keep busy."""
        return min(self.threads, programs or self.threads)

    def _moved(
        self, bytes_moved: int, constant_bytes: int, reads: bool, threads: int, trips: int
    ) -> tuple[str, float, float]:  # fmt: skip
        """The level of memory that takes the longest, seconds for all bytes, and the rate of reading that level."""
        last, dram = self.machine.caches[-1], self.machine.dram
        memory = dram.bytes_per_second if threads > 1 else dram.core_bytes_per_second
        if bytes_moved > last.kept_bytes * trips:  # read and written where no cache holds what one trip moves
            copies = threads == self.machine.cores and not reads
            copied = dram.copy_bytes_per_second if copies else None
            rate = copied or memory
            return "memory", bytes_moved / rate, rate
        far = constant_bytes if self.footprint_bytes > last.kept_bytes else 0
        name, near_rate = self._near(threads)
        share = 1.0 if reads else WRITES
        seconds = (bytes_moved - far) / (share * near_rate), far / memory
        return (name, sum(seconds), near_rate) if seconds[0] >= seconds[1] else ("memory", sum(seconds), memory)

    def _near(self, threads: int) -> tuple[str, float]:
        """The smallest level that keeps the footprint, the last one if none does, and its rate."""
        outer = self.machine.caches[1:] or self.machine.caches
        fits = (
            each for each in outer if self.footprint_bytes <= each.kept_bytes * (threads if each.shared_by == 1 else 1)
        )
        level = next(fits, outer[-1])
        per_cycle = level.bytes_per_cycle or self.machine.loads_per_cycle * self.machine.vector_bits / 8
        return level.name, per_cycle * self.clock_hz * threads


def busiest_share(programs: int, threads: int) -> float:
    """The part of all programs that the thread with the most of them runs; an even part where they are not known."""
    return -(-programs // threads) / programs if programs else 1 / threads
