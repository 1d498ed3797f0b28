"""What a tuner needs: many artifacts loaded at once, one timed, and kernels that fault or hang survived.

A kernel that faults takes the GPU's context with it, and one that hangs cannot be stopped from inside; so candidates
run in a process of their own, one after the other, and after one that fails the next gets a fresh process.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.cuda.module import DeviceModule

Array = np.ndarray[Any, Any]
_START_SECONDS = 120.0  # for a process to import everything and to open the device


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, and the range from the 10th to the 90th percentile of so many samples."""

    seconds: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """
        >>> Timing.of([3.0, 1.0, 2.0])
        Timing(seconds=2.0, low=1.0, high=3.0, samples=3)
        """
        ordered = sorted(seconds)
        tenth = len(ordered) // 10
        return cls(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered))


@dataclass(frozen=True)
class Outcome:
    """The median time of a candidate, or why there is none."""

    seconds: float | None
    failure: str = ""


def load_many(artifacts: Sequence[Artifact], device: str, workers: int = 8) -> list[DeviceModule | CompileError]:
    """Load artifacts side by side: the driver assembles their code outside of the interpreter's lock."""

    def load(artifact: Artifact) -> DeviceModule | CompileError:
        try:
            return DeviceModule(artifact, device)
        except CompileError as error:
            return error

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(load, artifacts))


def measure(
    module: DeviceModule,
    inputs: Sequence[Array],
    expected: Sequence[Array] | None = None,
    tolerance: float = 1e-2,
    repeats: int = 20,
) -> Outcome:
    """Check one module against `expected`, then time it with a cold cache.

    `tolerance` is the largest error, relative to the largest value of an output. A fault is raised as DeviceError.
    """
    found = module(*inputs)
    results = found if isinstance(found, tuple) else (found,)
    for number, (ours, wanted) in enumerate(zip(results, results if expected is None else expected, strict=True)):
        scale = float(np.abs(wanted.astype(np.float64)).max(initial=0.0)) or 1.0
        error = float(np.abs(ours.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0)) / scale
        if not error <= tolerance:  # NaN is no small error
            return Outcome(None, f"output {number} is wrong by {error:.3g} of its largest value")
    return Outcome(statistics.median(module.samples(*inputs, repeats=repeats)))


def measure_apart(
    candidates: Sequence[Artifact],
    inputs: Sequence[Array],
    expected: Sequence[Array] | None = None,
    *,
    device: str = "cuda",
    tolerance: float = 1e-2,
    repeats: int = 20,
    limit_seconds: float = 20.0,
) -> Iterator[Outcome]:
    """`measure` every candidate in a child process; yields an outcome for each, in order, whatever they do.

    A candidate that takes longer than `limit_seconds` is ended with its process.
    """
    child: _Child | None = None
    try:
        for candidate in candidates:
            child = child or _Child(device, inputs, expected, tolerance, repeats)
            outcome, alive = child.measure(candidate, limit_seconds)
            if not alive:
                child.end()
                child = None
            yield outcome
    finally:
        if child is not None:
            child.end()


class _Child:
    """A process that measures what it is sent."""

    def __init__(self, *task: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a context of the driver does not survive a fork
        self._connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, *task), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def measure(self, artifact: Artifact, limit_seconds: float) -> tuple[Outcome, bool]:
        """The outcome, and whether the process can go on."""
        try:
            if not self._ready and not self._connection.poll(_START_SECONDS):
                return Outcome(None, f"the process did not start in {_START_SECONDS:.0f} s"), False
            if not self._ready:
                self._connection.recv()
                self._ready = True
            self._connection.send({name: bytes(block) for name, block in artifact.to_blocks().items()})
            if not self._connection.poll(limit_seconds):
                return Outcome(None, f"took longer than {limit_seconds:g} s"), False
            outcome, alive = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return Outcome(None, f"the process ended with status {self._process.exitcode}"), False
        return outcome, bool(alive)

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()


def _serve(
    connection: Connection,
    device: str,
    inputs: Sequence[Array],
    expected: Sequence[Array] | None,
    tolerance: float,
    repeats: int,
) -> None:
    """Measure artifacts until the parent goes, or one fails: the device may be lost then."""
    connection.send("ready")
    alive = True
    while alive:
        try:
            blocks = connection.recv()
        except EOFError:
            return
        try:
            module = DeviceModule(Artifact.from_blocks(blocks), device)
            outcome = measure(module, inputs, expected, tolerance, repeats)
        except CompileError as error:
            outcome, alive = Outcome(None, error.message), False
        connection.send((outcome, alive))
