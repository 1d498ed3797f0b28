"""A process that runs tasks for one peer, on cores of its own: ``python -m bench.worker PEER CORES``.

Names other than those of peers are allowed, for the workers that prepare cases and that measure ceilings.

One JSON object per line comes in and one goes out; between commands the process sleeps in a read. Commands:

    prepare  {case, directory}         write a case's files                   → facts
    load     {case, directory}         compile it and run it once             → compile_seconds, notes, variant, version
    save     {path}                    write the outputs of the last call     → {}
    measure  {samples, calls, warm}    `warm` calls, then samples of `calls`  → seconds per call, page faults per call
    gauge    {ceiling}                 get ready to measure a ceiling         → {}
    rates    {runs}                    measure it so many times               → rates
    unload   {}                        forget it                              → {}

An answer with `skip` says why a peer can't run a task, one with `error` that it failed.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.arrays import save_arrays
from bench.cases import CASES
from bench.ceilings import Gauge, Loops
from bench.peers import PEERS
from bench.prepare import prepare as write_case
from bench.problem import Loaded, SkippedError, Task


class Worker:
    def __init__(self, peer: str, cores: tuple[int, ...]) -> None:
        self.peer = PEERS.get(peer)
        self.cores = cores
        self.task: Task | None = None
        self.loaded: Loaded | None = None
        self.loops: Loops | None = None
        self.ceiling: Gauge | None = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command. Failures of the peer become answers, for the runner to report."""
        arguments = dict(command)
        name = arguments.pop("command")
        try:
            return COMMANDS[name](self, **arguments)
        except SkippedError as reason:
            return {"skip": str(reason)}
        except Exception as error:
            traceback.print_exc()
            first = (str(error).splitlines() or [""])[0]
            return {"error": f"{type(error).__name__}: {first[:300]}"}

    def prepare(self, case: str, directory: str) -> dict[str, Any]:
        facts = write_case(CASES[case], Path(directory))
        gc.collect()
        return {"flops": facts.flops, "bytes": facts.bytes, "tolerance": facts.tolerance}

    def load(self, case: str, directory: str) -> dict[str, Any]:
        assert self.peer is not None
        self.unload()
        os.sched_setaffinity(0, self.cores)
        self.task = Task(case, Path(directory), self.cores)
        self.loaded = self.peer.load(self.task)
        self.loaded.call()
        os.sched_setaffinity(0, self.cores[:1])  # the peer has started and placed its threads: now this one
        return {
            "compile_seconds": self.loaded.compile_seconds,
            "notes": self.loaded.notes,
            "variant": self.loaded.variant,
            "version": self.peer.version(),
        }

    def save(self, path: str) -> dict[str, Any]:
        assert self.task is not None
        assert self.loaded is not None
        self.loaded.call()
        names = self.task.facts().output_names
        save_arrays(Path(path), dict(zip(names, self.loaded.outputs(), strict=True)))
        return {}

    def measure(self, samples: int, calls: int, warm: int) -> dict[str, Any]:
        assert self.loaded is not None
        call = self.loaded.call
        for _ in range(warm):
            call()
        seconds = []
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(samples):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            seconds.append((time.perf_counter() - start) / calls)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        return {"seconds": seconds, "faults": faults / (samples * calls)}

    def gauge(self, ceiling: str) -> dict[str, Any]:
        self.loops = self.loops or Loops()
        self.ceiling = Gauge(self.loops, ceiling, self.cores)
        return {}

    def rates(self, runs: int) -> dict[str, Any]:
        assert self.ceiling is not None
        return {"rates": self.ceiling.rates(runs)}

    def unload(self) -> dict[str, Any]:
        self.loaded = self.task = self.ceiling = None
        gc.collect()
        return {}


COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": Worker.prepare,
    "load": Worker.load,
    "save": Worker.save,
    "measure": Worker.measure,
    "gauge": Worker.gauge,
    "rates": Worker.rates,
    "unload": Worker.unload,
}


def main() -> None:
    peer, cores = sys.argv[1], tuple(int(core) for core in sys.argv[2].split(","))
    os.sched_setaffinity(0, cores)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with answers
    gc.disable()
    worker = Worker(peer, cores)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
