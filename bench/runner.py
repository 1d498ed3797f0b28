"""Run cases on peers, in turns, and collect results.

Each peer lives in one worker process per number of threads. For a case all its workers load the task and prove their
results against the exact ones; then they are timed in turns (A B C A B C ...), so that what slows the machine for a
while slows them all. The ceiling that bounds the case takes part: clocks and memory bandwidths change within minutes,
and a peer is held against what the machine could do in the same turn. A worker whose turn it is not sleeps in a read.
Nothing is timed while the runner computes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.arrays import Array, load_arrays
from bench.ceilings import TURN_RUNS, Bound, Ceilings, bound
from bench.peers import EARLIER, Peer
from bench.problem import Case, SkippedError, Task
from bench.processes import busy_threads, machine_seconds, own_cores, process_seconds
from bench.results import Conditions, Result, Run
from bench.summary import summarise
from bench.workers import GAUGER, PREPARER, ROOT, WorkerError, Workers

SETTLE_SECONDS = 0.02  # before a turn: OpenMP threads spin for up to 8 ms after a call before they sleep
SAMPLE_SECONDS = 1e-4  # shortest sample: short calls are timed in groups that take this long
MOST_SAMPLES = 200  # in a turn


@dataclass(frozen=True)
class Effort:
    """How long to measure: `turns` per peer and case, of about `turn_seconds` and at least two samples each.

    Without turns, peers only show that their results are right.
    """

    turns: int = 9
    turn_seconds: float = 0.05
    warm_seconds: float = 0.2


def run(
    cases: Sequence[Case],
    peers: Sequence[Peer],
    threads: Sequence[int],
    effort: Effort,
    with_ceilings: bool = True,
    earlier: Path | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Run:
    """Time every case on every peer with every number of threads.

    `earlier` is the source tree of another version of this project, one more peer. Raises ValueError for more threads
    than cores, WorkerError for a case that can't be built here.
    """
    cores = own_cores()
    if max(threads) > len(cores):
        raise ValueError(f"{max(threads)} threads need as many cores, and this process may use {len(cores)}")
    done = Run(environment=_environment(cores))
    trees = {} if earlier is None else {EARLIER.name: earlier.resolve()}
    peers = [*peers, *([EARLIER] if trees else ())]
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, Workers(Path(scratch), trees=trees) as workers:
        for count in threads if with_ceilings else ():
            progress(f"ceilings, threads: {count}")
            done.ceilings[count] = _measure_ceilings(cores[:count])
        for case in cases:
            progress(f"{case.name}: prepare")
            directory = Path(scratch) / case.name
            directory.mkdir()
            workers.ask(PREPARER, cores, "prepare", case=case.name, directory=str(directory))
            for count in threads:
                progress(f"{case.name}: threads: {count}")
                task = Task(case.name, directory, cores[:count])
                _run_case(done, case, task, peers, effort, workers)
            shutil.rmtree(directory)
    return done


def error_of(actual: Array, exact: Array) -> float:
    """Largest difference, relative to the largest magnitude of `exact`; infinite for another shape or NaN."""
    if actual.shape != exact.shape:
        return math.inf
    largest = float(np.abs(exact).max(initial=0.0)) or 1.0
    difference = float(np.abs(actual.astype(np.float64) - exact).max(initial=0.0)) / largest
    return math.inf if math.isnan(difference) else difference


def _run_case(done: Run, case: Case, task: Task, peers: Sequence[Peer], effort: Effort, workers: Workers) -> None:
    """Append the results of one case with one number of threads, and their conditions, to `done`."""
    facts, threads = task.facts(), len(task.cores)
    results = {peer.name: _load(case, task, peer, done, workers) for peer in peers}
    ready = [peer for peer in peers if results[peer.name].status == "ok"]
    ceilings = done.ceilings.get(threads)
    least = bound(case.limit, facts, ceilings) if ceilings else None
    conditions = Conditions(
        case=case.name,
        threads=threads,
        limit=case.limit,
        flops=facts.flops,
        exponentials=facts.exponentials,
        bytes=facts.bytes,
        ceiling=least.ceiling if least else None,
        bound_seconds=least.seconds if least else None,
        turn_bounds=[],
        idle_load=0.0,
        foreign_load=0.0,
    )
    if effort.turns and ready:
        turns = _time_in_turns(task, ready, least, effort, workers, results)
        conditions = replace(
            conditions, turn_bounds=turns.bounds, idle_load=turns.idle_load, foreign_load=turns.foreign_load
        )
    for peer in peers:
        workers.unload(peer, task.cores)
    workers.unload(GAUGER, task.cores)
    done.results.extend(results.values())
    done.conditions.append(conditions)


def _load(case: Case, task: Task, peer: Peer, done: Run, workers: Workers) -> Result:
    """Have `peer` compile the task and prove what it computes. The result has no times yet."""
    result = Result(case.name, case.family, len(task.cores), peer.name, "ok")
    if reason := peer.missing():
        return replace(result, status="skipped", reason=reason)
    path = task.directory / f"{peer.name}-{len(task.cores)}.npz"
    try:
        answer = workers.ask(peer, task.cores, "load", case=case.name, directory=str(task.directory))
        workers.ask(peer, task.cores, "save", path=str(path))
    except SkippedError as skipped:
        return replace(result, status="skipped", reason=str(skipped))
    except WorkerError as failed:
        return replace(result, status="failed", reason=str(failed))
    done.versions[peer.name] = answer["version"]
    result = replace(
        result, compile_seconds=answer["compile_seconds"], notes=answer["notes"], variant=answer["variant"]
    )
    computed = task.variant(result.variant)
    actual, exact, tolerance = load_arrays(path), computed.reference(), computed.facts().tolerance
    path.unlink()
    error = max(error_of(actual[name], exact[name]) for name in exact)
    if error > tolerance:
        reason = f"differs from the exact result by {error:.1e} of its largest value, more than {tolerance:.1e}"
        return replace(result, status="wrong", reason=reason, error=error)
    return replace(result, error=error)


@dataclass(frozen=True)
class _Turns:
    """What was seen while peers were timed: see `Conditions`."""

    bounds: list[float]
    idle_load: float
    foreign_load: float


def _time_in_turns(
    task: Task,
    ready: Sequence[Peer],
    least: Bound | None,
    effort: Effort,
    workers: Workers,
    results: dict[str, Result],
) -> _Turns:
    """Time the peers that are `ready` and put their times into `results`; one that fails is left out from then on."""
    samples: dict[str, list[list[float]]] = {}
    bounds: list[float] = []
    faults: dict[str, list[float]] = {}
    plans: dict[str, dict[str, int]] = {}
    for peer in ready:
        try:
            plans[peer.name], busy = _warm_up(peer, task, effort, workers)
            results[peer.name] = replace(results[peer.name], busy_threads=busy)
        except WorkerError as error:
            results[peer.name] = replace(results[peer.name], status="failed", reason=str(error))
    if least:
        workers.ask(GAUGER, task.cores, "gauge", ceiling=least.ceiling)
    idle = timed = 0.0
    began, machine, ours = time.perf_counter(), machine_seconds(), _own_seconds(workers)
    for _ in range(effort.turns):
        if least:
            time.sleep(SETTLE_SECONDS)
            rates = workers.ask(GAUGER, task.cores, "rates", runs=TURN_RUNS)["rates"]
            bounds.append(least.amount / median(rates))
        for peer in ready:
            if results[peer.name].status != "ok":
                continue
            time.sleep(SETTLE_SECONDS)
            waiting = [pid for pid in workers.pids() if pid != workers.pid(peer, len(task.cores))]
            start, burnt = time.perf_counter(), sum(map(process_seconds, waiting))
            try:
                answer = workers.ask(peer, task.cores, "measure", **plans[peer.name])
            except WorkerError as error:
                results[peer.name] = replace(results[peer.name], status="failed", reason=str(error))
                continue
            timed += time.perf_counter() - start
            idle += sum(map(process_seconds, waiting)) - burnt
            samples.setdefault(peer.name, []).append(answer["seconds"])
            faults.setdefault(peer.name, []).append(answer["faults"])
    elapsed = time.perf_counter() - began
    foreign = machine_seconds() - machine - (_own_seconds(workers) - ours)
    for name in samples:
        if results[name].status == "ok":
            mean_faults = sum(faults[name]) / len(faults[name])
            results[name] = replace(
                results[name],
                times=summarise([seconds for turn in samples[name] for seconds in turn]),
                turn_seconds=[median(turn) for turn in samples[name]],
                faults=mean_faults,
            )
    return _Turns(bounds, idle / timed if timed else 0.0, max(0.0, foreign / elapsed))


def _warm_up(peer: Peer, task: Task, effort: Effort, workers: Workers) -> tuple[dict[str, int], list[str]]:
    """Run the task for a while: what to ask for in each turn, and the cores that each working thread may use."""
    seconds = min(workers.ask(peer, task.cores, "measure", samples=2, calls=1, warm=0)["seconds"])
    calls = max(1, math.ceil(effort.warm_seconds / seconds))

    def warm() -> None:
        nonlocal seconds
        seconds = min(workers.ask(peer, task.cores, "measure", samples=1, calls=calls, warm=0)["seconds"])

    busy = busy_threads(workers.pid(peer, len(task.cores)), warm)
    calls = max(1, math.ceil(SAMPLE_SECONDS / seconds))
    samples = min(MOST_SAMPLES, max(2, round(effort.turn_seconds / (calls * seconds))))
    untimed = calls if calls * seconds < effort.turn_seconds else 0  # what takes a whole turn needs no other before
    return {"samples": samples, "calls": calls, "warm": untimed}, sorted(busy.values())


def _own_seconds(workers: Workers) -> float:
    return time.process_time() + sum(map(process_seconds, workers.pids()))


def _measure_ceilings(cores: Sequence[int]) -> Ceilings:
    """In a process of its own, which leaves no memory and no threads behind."""
    command = [sys.executable, "-m", "bench.ceilings", "--cores", ",".join(map(str, cores))]
    measured = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return Ceilings(**json.loads(measured.stdout))


def _environment(cores: Sequence[int]) -> dict[str, Any]:
    information = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in information if line.startswith("model name")), "unknown")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": model,
        "cores": list(cores),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }
