"""What the kernel tells about processes: cores they may use, processor time they took. Linux only."""

from __future__ import annotations

import os
from pathlib import Path


def own_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def thread_seconds(pid: int) -> dict[int, float]:
    """Processor time of each thread of a process, by thread id; threads that end meanwhile are left out."""
    seconds = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds[int(task.name)] = nanoseconds * 1e-9
    return seconds


def process_seconds(pid: int) -> float:
    """Processor time of the threads that a process has now."""
    return sum(thread_seconds(pid).values())


def allowed_cores(pid: int, thread: int) -> str:
    """The cores a thread may use, in the kernel's list notation: ``0``, ``0-1``."""
    for line in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return line.split()[1]
    raise AssertionError("the kernel lists allowed cores for every thread")


def machine_seconds() -> float:
    """Processor time that all processes of the machine took since it started, and time taken from the machine."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
