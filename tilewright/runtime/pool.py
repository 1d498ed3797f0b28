"""Threads: pools that run the programs of a kernel, one per (threads, pinning, cores, OpenMP runtime) in a process.

A pool is on an OpenMP runtime that is already loaded, if there is one, so that its threads and ours are the same and
do not compete for cores; else it has workers of its own (`native.py`). The calling thread is always thread 0.

Workers are pinned to distinct cores of the caller's affinity mask, other than the core the caller is on; when the
system moves the caller to the core of a worker, that worker moves out of its way at the next launch. The caller's own
affinity is never changed. Nothing is pinned where a CPU quota grants less than these cores. A pool that is in use by
another thread runs a job on the calling thread alone.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.options import Options, environment_threads
from tilewright.runtime import native
from tilewright.runtime.loader import Code, load_ir
from tilewright.runtime.memory import allocate
from tilewright.runtime.once import creation_lock, once
from tilewright.runtime.quota import affinity, cpu_quota

MAX_THREADS = 4096  # far above any machine's cores, so that a typing error does not take all memory
_SPIN_NS = 50_000  # about the time of one small kernel: between the launches of a call workers never sleep
_YIELD_NS = 50_000  # then let others use the core, still without the few microseconds of a wake-up

_pools: dict[tuple[object, ...], Pool] = {}
_forked = False  # an OpenMP runtime of the parent does not work in a forked child


@dataclass(frozen=True)
class OpenMP:
    """An OpenMP runtime found in this process: its file and the functions that a pool calls."""

    path: str
    parallel: int  # void GOMP_parallel(void (*)(void *), void *, unsigned threads, unsigned flags)
    thread: int  # int omp_get_thread_num(void)
    binds: bool  # OMP_PROC_BIND is set: the runtime places its threads itself


class Pool:
    """A number of threads. `address` is the `pool` and `parallel` the function of that name in a call of `tw_main`."""

    def __init__(self, threads: int, cores: Sequence[int], openmp: OpenMP | None) -> None:
        """`cores`: one for each worker and, last, the one that is left to the caller; empty: workers are not pinned."""
        assert not cores or len(cores) == threads
        self.threads = threads
        self.pinned = bool(cores)
        self.openmp = openmp
        self._memory = allocate(8 * (native.SLOTS + native.SLOT_WORDS * threads))
        self._words = self._memory.view(np.int64)
        self.address = int(self._memory.ctypes.data)
        self._code = pool_code(threads == 1)
        self.parallel = self._code.address("tw_parallel")
        self._stop = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._code.address("tw_stop"))
        self._fill_in(cores)

    @property
    def workers(self) -> int:
        """Workers of our own that exist now: none before the first job, nor on an OpenMP runtime."""
        return int(self._words[native.POOL["started"]])

    def stop(self) -> bool:
        """End the workers; the next job starts them again. False if a job is running, which is left alone."""
        return int(self._stop(self.address)) == 0

    def reset_after_fork(self) -> None:
        """In a child: no worker has come along, and a lock that the parent held will not be released."""
        for name in ("job", "busy", "started", "stop", "sleepers", "omp_parallel"):
            self._words[native.POOL[name]] = 0
        self.openmp = None

    def _fill_in(self, cores: Sequence[int]) -> None:
        words, field, slot_field = self._words, native.POOL, native.SLOT
        words[field["threads"]] = self.threads
        words[field["spin_ns"]], words[field["yield_ns"]] = _SPIN_NS, _YIELD_NS
        words[field["seen_core"]] = -1
        if self.openmp:
            words[field["omp_parallel"]] = self.openmp.parallel
            words[field["omp_thread"]] = self.openmp.thread
        if cores:
            words[field["pin"]] = 1
            words[field["free_core"]] = cores[-1]
        for index in range(self.threads):
            slot = words[native.SLOTS + native.SLOT_WORDS * index :]
            slot[slot_field["index"]], slot[slot_field["pool"]] = index, self.address
            slot[slot_field["pinned"]] = -1
            slot[slot_field["core"]] = cores[index - 1] if cores and index else -1


def get_pool(threads: int | None = None, options: Options | None = None) -> Pool:
    """The pool of this process with so many threads, made when it is first asked for.

    `threads` is by default `default_threads()`.
    Raises InvalidArgument for a number that is not between 1 and MAX_THREADS.
    """
    options = options or Options()
    count = default_threads() if threads is None else threads
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_THREADS:
        raise InvalidArgument(
            f"{count!r} threads", where="threads", help=f"a number from 1 to {MAX_THREADS}; 1 is serial"
        )
    if not native.supported():
        count = 1
    mask = affinity()
    openmp = find_openmp() if options.openmp and count > 1 and not _forked else None
    pin = options.pin and 1 < count <= len(mask) and max(mask) < 1024 and not (openmp and openmp.binds)
    pin = pin and (cpu_quota() or len(mask)) >= len(mask)  # who has a part of the cores' time shares all of them
    key = (count, pin, mask, openmp)
    with creation_lock():
        if key not in _pools:
            _pools[key] = Pool(count, pin_order(mask, _current_core())[-count:] if pin else (), openmp)
        return _pools[key]


def default_threads() -> int:
    """OMP_NUM_THREADS, or the cores in the caller's affinity mask, but no more than the container's CPU quota grants.

    A quota that is no whole number is rounded down, to 1 at least: with a thread more all of them would be paused.
    """
    return environment_threads() or max(1, min(len(affinity()), int(cpu_quota() or sys.maxsize)))


def pin_order(mask: Sequence[int], current: int) -> list[int]:
    """The cores of `mask`, best last: the caller's, before it others that share no core with one behind them.

    >>> pin_order([0, 1], current=1)
    [0, 1]
    """
    wanted = [current, *(core for core in mask if core != current)] if current in mask else list(mask)
    first: list[int] = []
    second: list[int] = []  # hardware threads of a core that is in `first`
    taken: set[int] = set()
    for core in wanted:
        siblings = hardware_siblings(core)
        (second if siblings & taken else first).append(core)
        taken |= siblings
    return [*first, *second][::-1]


@functools.cache
def hardware_siblings(core: int) -> frozenset[int]:
    """The logical cores that share a physical core with `core`, itself among them."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        bounds = [part.split("-") for part in text.strip().split(",")]
        return frozenset(c for part in bounds for c in range(int(part[0]), int(part[-1]) + 1)) | {core}
    except (OSError, ValueError):
        return frozenset({core})


def find_openmp() -> OpenMP | None:
    """The OpenMP runtime that is loaded in this process: GNU's, LLVM's or Intel's. Nothing is loaded here."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return None
    paths = re.findall(r"(/\S.*/lib(?:gomp|iomp5|omp)\b\S*\.so\S*)$", maps, re.MULTILINE)
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError, AttributeError):  # deleted since, or without these functions: not usable
            return _openmp_at(path)
    return None


@once
def _openmp_at(path: str) -> OpenMP:
    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    return OpenMP(
        path,
        parallel=_address(library.GOMP_parallel),
        thread=_address(library.omp_get_thread_num),
        binds=library.omp_get_proc_bind() != 0,
    )


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _current_core() -> int:
    return int(ctypes.CDLL(None).sched_getcpu())


@once
def pool_code(serial: bool) -> Code:
    """The functions of a pool; those of a caller alone are a few instructions, which LLVM compiles in no time."""
    text = native.SERIAL_IR if serial or not native.supported() else native.pool_ir(platform.machine())
    return load_ir(text, ["tw_parallel", "tw_stop"])


def _after_fork_in_child() -> None:
    global _forked
    _forked = True
    for pool in _pools.values():
        pool.reset_after_fork()


def _stop_all() -> None:
    for pool in list(_pools.values()):  # a daemon thread may still be making another
        pool.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_stop_all)
