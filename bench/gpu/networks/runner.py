"""The run: processes that prepare side by side and are timed one after another; one that dies or hangs costs itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bench.gpu.networks.results import Row
from bench.gpu.process import Lost, Process
from bench.gpu.runs import Run

PREPARATION = 0.6  # of the time of a wave is for preparing, at most
GRACE = 20.0  # seconds that a process may take longer than its share, near the end less


@dataclass(frozen=True)
class Task:
    """One contender on one network."""

    network: str
    batch: int
    contender: str

    def __str__(self) -> str:
        return f"{self.contender}: {self.network}, batch {self.batch}"


class Child(Protocol):
    """The process of a task; `rows` and `stage` are what it has said last."""

    rows: list[Row]
    stage: str
    machine: dict[str, Any]

    def until_turn(self, limit: float) -> None:
        """Wait until it has prepared, or is done; raises Lost."""

    def measure(self, seconds: float) -> None:
        """Tell it that it is its turn; raises Lost."""

    def end(self) -> None: ...


def run(
    tasks: Sequence[Task],
    seconds: float,
    together: int,
    start: Callable[[Task], Child],
    now: Callable[[], float],
    progress: Callable[[Run[Row], str], None] = lambda done, message: None,
) -> Run[Row]:
    """Run all tasks, at most `together` of them alive at a time; `progress` gets what is known so far, and a line."""
    return _Running(tasks, start, now, progress).run(seconds, together)


class _Running:
    """A run that goes on: the processes so far, and why some are lost."""

    def __init__(
        self,
        tasks: Sequence[Task],
        start: Callable[[Task], Child],
        now: Callable[[], float],
        progress: Callable[[Run[Row], str], None],
    ) -> None:
        self.tasks, self.start, self.now, self.progress = tasks, start, now, progress
        self.begin = now()
        self.children: dict[Task, Child] = {}
        self.lost: dict[Task, str] = {}
        self.lock = threading.Lock()  # of what many threads write while processes prepare

    def run(self, seconds: float, together: int) -> Run[Row]:
        waves = [self.tasks[first : first + together] for first in range(0, len(self.tasks), together)]
        for number, wave in enumerate(waves):
            left = max(0.0, self.begin + seconds - self.now())
            self._wave(wave, self.now() + left / (len(waves) - number))
        return self._so_far()

    def _wave(self, tasks: Sequence[Task], end: float) -> None:
        """Prepare these tasks at once, then time each of those that are ready."""
        prepared_by = self.now() + PREPARATION * (end - self.now())
        with ThreadPoolExecutor(len(tasks)) as pool:
            list(pool.map(lambda task: self._prepare(task, prepared_by), tasks))
        ready = [task for task in tasks if task not in self.lost]
        for position, task in enumerate(ready):
            self._measure(task, max(0.0, end - self.now()) / (len(ready) - position))

    def _prepare(self, task: Task, end: float) -> None:
        child = self.start(task)
        with self.lock:
            self.children[task] = child
        try:
            child.until_turn(end - self.now())
        except Lost as error:
            self._lose(task, error)
        else:
            self._say(f"prepared {task}")

    def _measure(self, task: Task, share: float) -> None:
        child = self.children[task]
        try:
            child.measure(share / 2)  # the rest is for checking and profiles
            child.until_turn(share + min(GRACE, share))
        except Lost as error:
            self._lose(task, error)
        else:
            child.end()
            self._say(f"done with {task}")

    def _lose(self, task: Task, error: Lost) -> None:
        child = self.children[task]
        child.end()
        with self.lock:
            self.lost[task] = f"{error} at {child.stage}"
        self._say(f"lost {task}: {self.lost[task]}")

    def _say(self, message: str) -> None:
        with self.lock:
            self.progress(self._so_far(), f"{self.now() - self.begin:4.0f} s: {message}")

    def _so_far(self) -> Run[Row]:
        begun = [task for task in self.tasks if task in self.children]
        machine = next((child.machine for child in map(self.children.__getitem__, begun) if child.machine), {})
        rows = [row for task in begun for row in _rows(task, self.children[task], self.lost.get(task))]
        return Run(machine, rows, self.now() - self.begin)


def _rows(task: Task, child: Child, reason: str | None) -> list[Row]:
    """What a process has said, and of one that is lost when and why."""
    rows = [replace(row) for row in child.rows] or [Row(task.network, task.batch, task.contender)]
    if reason is not None:
        last = rows[-1]
        last.note = "; ".join(filter(None, [last.note, reason]))
        last.status = last.status if last.seconds is not None else "failed"
    return rows


class ProcessChild(Process):
    """A task in a process of its own."""

    def __init__(self, task: Task, device: str, mode: str, machine: str | None = None) -> None:
        named = ["--network", task.network, "--batch", str(task.batch), "--contender", task.contender]
        named += ["--machine", machine] if machine is not None else []
        threads = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"}
        super().__init__(["bench.gpu.networks", "--worker", *named, "--device", device, "--mode", mode], threads)
        self.rows: list[Row] = []
        self.stage = "its start"
        self.machine: dict[str, Any] = {}

    def until_turn(self, limit: float) -> None:
        end = time.monotonic() + limit
        while True:
            said = self.answer(end - time.monotonic())
            self.rows, self.stage = [Row(**row) for row in said["rows"]], said["stage"]
            self.machine = said["machine"]
            if said["turn"]:
                return

    def measure(self, seconds: float) -> None:
        if self.stage != "nothing":  # it has failed already
            self.send({"seconds": seconds})
