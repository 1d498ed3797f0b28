"""The run: items in order, each with its share of the time, in a process that may die or hang without ending it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.gpu.budget import Budget
from bench.gpu.cases import Case
from bench.gpu.contenders import names
from bench.gpu.results import Row, Run

START_SECONDS = 90.0  # for a process to import torch and open the device
END_SECONDS = 10.0  # for one to go, when it is ended
LEAST_SECONDS = 0.3  # a share smaller than this is left to others
GRACE = 20.0  # compiling and checking may take this much longer than the share, near the end less

Item = tuple[int, str]  # number of the case, name of the contender


class Lost(Exception):
    """The worker is gone; the text says how."""


class Worker(Protocol):
    machine: dict[str, Any]
    alive: bool  # after a fault of a kernel no other runs there

    def ask(self, item: Item, seconds: float, limit: float) -> Row:
        """Raises Lost where it dies or takes longer than `limit`."""

    def end(self) -> None: ...


@dataclass(frozen=True)
class Selection:
    """What of the cases is run: those of `families` (all if empty), by all contenders but `without`."""

    families: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def items(self, cases: Sequence[Case]) -> list[Item]:
        wanted = [
            (number, case) for number, case in enumerate(cases) if not self.families or case.family in self.families
        ]
        return [(number, name) for number, case in wanted for name in names(case) if name not in self.without]


def run(
    cases: Sequence[Case],
    seconds: float,
    weights: dict[str, float],
    start: Callable[[float], Worker],
    now: Callable[[], float],
    progress: Callable[[Run, str], None] = lambda done, message: None,
    selection: Selection = Selection(),
) -> Run:
    """Run every item that there is time for; `start(limit)` makes a worker, and may raise Lost.

    `progress` gets what is done so far, after every item, and a line about the last one.
    """
    items = selection.items(cases)
    begin = now()
    budget = Budget(seconds, weights, [cases[number].family for number, _ in items], now)
    done, worker = Run({}), None
    for item in items:
        case, share = cases[item[0]], budget.next_share()
        row = Row(case.family, case.name, case.dtype, item[1], "failed", flops=case.flops, bytes=case.bytes)
        if budget.seconds_left < LEAST_SECONDS:
            row.status, row.note = "skipped", "no time was left"
            done.rows.append(row)
            continue
        try:
            if worker is None:
                worker = start(min(START_SECONDS, budget.seconds_left))
                done.machine = done.machine or worker.machine
            row = worker.ask(item, share, share + min(GRACE, budget.seconds_left / 10))
            lost = not worker.alive
        except Lost as error:
            row.note, lost = str(error), True
        if worker is not None and lost:
            worker.end()
            worker = None
        done.rows.append(row)
        done.seconds = now() - begin
        progress(
            done,
            f"{budget.seconds_left:4.0f} s left: {row.status} {row.contender}: {row.family} {row.case} {row.dtype}",
        )
    if worker is not None:
        worker.end()
    done.seconds = now() - begin
    return done


class Process:
    """A worker in a process of its own."""

    def __init__(self, device: str, limit: float, compiled: Path | None = None) -> None:
        command = [sys.executable, "-m", "bench.gpu", "--worker", "--device", device]
        command += ["--compiled", str(compiled)] if compiled is not None else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.alive = True
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.machine = self._answer(limit)
        except Lost:
            self.end()
            raise

    def ask(self, item: Item, seconds: float, limit: float) -> Row:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"case": item[0], "contender": item[1], "seconds": seconds}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Lost("the process had ended") from error
        answer = self._answer(limit)
        self.alive = answer["alive"]
        return Row(**answer["row"])

    def end(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may take its time to stop a kernel that hangs
            self._process.wait(END_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, limit: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            raise Lost(f"took longer than {limit:.0f} s") from None
        if not line:
            raise Lost(f"the process ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found
