"""Worker processes: started when first asked, stopped together, started again after one dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from bench.peers import OURS
from bench.problem import SkippedError

ROOT = Path(__file__).parent.parent

# The C library gives freed memory back and faults its pages in again at the next call: large results would be timed
# with thousands of page faults. Every worker keeps what it once had.
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


class WorkerError(Exception):
    """A worker could not do what it was asked to."""


class Role(Protocol):
    """What a worker is for: a peer, or something that the runner needs done in a process of its own."""

    @property
    def name(self) -> str: ...

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]: ...


@dataclass(frozen=True)
class Assistant:
    """A role that needs no environment."""

    name: str

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        return {}


PREPARER = Assistant("preparer")  # writes cases
GAUGER = Assistant("gauger")  # measures ceilings between the turns of the peers


class Workers:
    """One process per peer and number of threads; logs and the peers' files lie in `scratch`."""

    def __init__(self, scratch: Path, patience_seconds: float = 600.0, trees: Mapping[str, Path] | None = None) -> None:
        self.scratch = scratch
        self.trees = trees or {}  # by peer: where this project lies that it stands for
        self.patience_seconds = patience_seconds  # per command; a worker that takes longer is killed
        self.running: dict[tuple[str, int], subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            assert process.stdin is not None
            process.stdin.close()  # a worker ends with its input
        for process in self.running.values():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()

    def ask(self, peer: Role, cores: Sequence[int], command: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a command of `bench.worker`.

        Raises SkippedError for what the peer can't do, WorkerError if it failed, died, or took too long.
        """
        key = (peer.name, len(cores))
        if key not in self.running:
            self.running[key] = self._start(peer, cores)
        process = self.running[key]
        line = self._exchange(process, json.dumps({"command": command, **arguments}))
        if not line:
            del self.running[key]
            status = process.wait()
            last = self._log(*key).read_text(errors="replace").strip().splitlines()[-1:]
            raise WorkerError(f"its process ended with status {status}: {' '.join(last)[:300]}")
        answer: dict[str, Any] = json.loads(line)
        if "skip" in answer:
            raise SkippedError(answer["skip"])
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def unload(self, peer: Role, cores: Sequence[int]) -> None:
        """Have the worker of `peer`, if there is one, forget its task."""
        if (peer.name, len(cores)) in self.running:
            self.ask(peer, cores, "unload")

    def pid(self, peer: Role, threads: int) -> int:
        return self.running[peer.name, threads].pid

    def pids(self) -> list[int]:
        return [process.pid for process in self.running.values() if process.poll() is None]

    def _exchange(self, process: subprocess.Popen[str], line: str) -> str:
        """Send a line and wait for the one that answers it; empty if the process ends instead."""
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self.patience_seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return ""
        finally:
            timer.cancel()

    def _log(self, name: str, threads: int) -> Path:
        return self.scratch / f"{name}-{threads}.log"

    def _start(self, peer: Role, cores: Sequence[int]) -> subprocess.Popen[str]:
        tree = self.trees.get(peer.name)
        environment = {**os.environ, **KEEP_PAGES, **peer.environment(cores, self.scratch)}
        with self._log(peer.name, len(cores)).open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "bench.worker", OURS if tree else peer.name, ",".join(map(str, cores))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=tree or ROOT,
            )
