"""The run: items in order, each with its share of the time, in a process that may die or hang without ending it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.gpu import process
from bench.gpu.budget import Budget
from bench.gpu.cases import Case
from bench.gpu.contenders import names
from bench.gpu.process import Lost
from bench.gpu.results import Row
from bench.gpu.runs import Run

START_SECONDS = 90.0  # for a process to import torch and open the device
LEAST_SECONDS = 0.3  # a share smaller than this is left to others
GRACE = 20.0  # compiling and checking may take this much longer than the share, near the end less

Item = tuple[int, str]  # number of the case, name of the contender


class Worker(Protocol):
    machine: dict[str, Any]
    alive: bool  # after a fault of a kernel no other runs there

    def ask(self, item: Item, seconds: float, limit: float) -> Row:
        """Raises Lost where it dies or takes longer than `limit`."""

    def end(self) -> None: ...


@dataclass(frozen=True)
class Selection:
    """What is run: cases of `families` with one of `texts` in name and type, all where these are empty, by all
    contenders but `without`.
    """

    families: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def takes(self, case: Case) -> bool:
        """Whether a case is run."""
        named = not self.texts or any(text in f"{case.name} {case.dtype}" for text in self.texts)
        return named and (not self.families or case.family in self.families)

    def items(self, cases: Sequence[Case]) -> list[Item]:
        wanted = [(number, case) for number, case in enumerate(cases) if self.takes(case)]
        return [(number, name) for number, case in wanted for name in names(case) if name not in self.without]


def run(
    cases: Sequence[Case],
    seconds: float,
    weights: dict[str, float],
    start: Callable[[float], Worker],
    now: Callable[[], float],
    progress: Callable[[Run[Row], str], None] = lambda done, message: None,
    selection: Selection = Selection(),
) -> Run[Row]:
    """Run every item that there is time for; `start(limit)` makes a worker, and may raise Lost.

    `progress` gets what is done so far, after every item, and a line about the last one.
    """
    items = selection.items(cases)
    begin = now()
    budget = Budget(seconds, weights, [cases[number].family for number, _ in items], now)
    done: Run[Row] = Run({})
    worker = None
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


class Process(process.Process):
    """A worker in a process of its own."""

    def __init__(self, device: str, limit: float, compiled: Path | None = None) -> None:
        compiled_at = ["--compiled", str(compiled)] if compiled is not None else []
        super().__init__(["bench.gpu", "--worker", "--device", device, *compiled_at])
        self.alive = True
        try:
            self.machine = self.answer(limit)
        except Lost:
            self.end()
            raise

    def ask(self, item: Item, seconds: float, limit: float) -> Row:
        self.send({"case": item[0], "contender": item[1], "seconds": seconds})
        answer = self.answer(limit)
        self.alive = answer["alive"]
        return Row(**answer["row"])
