"""What the kernel tells about processes: cores they may use, processor time they took. Linux only."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

BUSY = 0.2  # of the elapsed time: threads that wait for others, or spin a little, take less
WATCH_SECONDS = 0.005  # between looks at the threads of a process


def own_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def thread_seconds(pid: int) -> dict[int, float]:
    """Processor time of each thread of a process, by thread id; those that have ended are left out."""
    seconds = {}
    for task in _tasks(pid):
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds[int(task.name)] = nanoseconds * 1e-9
    return seconds


def process_seconds(pid: int) -> float:
    """Processor time of the threads that a process has now."""
    return sum(thread_seconds(pid).values())


def busy_threads(pid: int, work: Callable[[], object]) -> dict[int, str]:
    """The threads of a process that take more than `BUSY` of the time of `work`, and the cores they may use.

    Cores are in the kernel's list notation ("0" is pinned, "0-1" is not), as seen most often while the thread ran:
    some libraries pin their threads at the start of a task and release them at its end.
    """
    seen: dict[int, Counter[str]] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            for thread, cores in _running_threads(pid):
                seen.setdefault(thread, Counter())[cores] += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, before = time.perf_counter(), thread_seconds(pid)
    try:
        work()
        elapsed, after = time.perf_counter() - start, thread_seconds(pid)
    finally:
        done.set()
        watcher.join()
    busy = [thread for thread in after if after[thread] - before.get(thread, 0.0) > BUSY * elapsed]
    return {thread: seen[thread].most_common(1)[0][0] for thread in busy if thread in seen}


def _running_threads(pid: int) -> Iterator[tuple[int, str]]:
    """The threads of a process that run just now, with the cores they may use."""
    for task in _tasks(pid):
        try:
            fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields["State"].strip().startswith("R"):
            yield int(task.name), fields["Cpus_allowed_list"].strip()


def _tasks(pid: int) -> list[Path]:
    """The directories of a process's threads; none if it has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def machine_seconds() -> float:
    """Processor time that all processes of the machine took since it started, and time taken from the machine."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
