"""What a run found, as values that go to JSON and come back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from bench.ceilings import Ceilings
from bench.peers import OURS
from bench.summary import Times
from tilewright.files import read_bytes, write_file

VERSION = 3  # of the JSON form

Status = Literal["ok", "wrong", "skipped", "failed"]


@dataclass(frozen=True)
class Result:
    """One peer on one case with one number of threads. Times are there if `status` is "ok".

    reason        why it was skipped, failed, or counts as wrong
    error         largest error, relative to the largest magnitude of the exact result
    faults        page faults per call while timed
    busy_threads  for each thread that worked: the cores it may use ("0" is pinned, "0-1" is not)
    variant       the variant of the problem that it computed; empty: the problem itself
    turn_seconds  median of each turn
    """

    case: str
    family: str
    threads: int
    peer: str
    status: Status
    reason: str = ""
    times: Times | None = None
    compile_seconds: float | None = None
    error: float | None = None
    faults: float = 0.0
    busy_threads: list[str] = field(default_factory=list)
    notes: str = ""
    variant: str = ""
    turn_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Conditions:
    """Under which one case was timed with one number of threads.

    limit            what bounds it
    ceiling          the one that sets the least time, a field of `Ceilings`; None: there is none
    bound_seconds    least time by the ceilings of the run; None: there is none
    turn_bounds      least time by that ceiling as it was in each turn
    idle_load        cores' worth of time that waiting peers burnt while another was timed
    foreign_load     cores' worth of time that processes outside this benchmark took meanwhile
    """

    case: str
    threads: int
    limit: str
    flops: int
    exponentials: int
    bytes: int
    ceiling: str | None
    bound_seconds: float | None
    turn_bounds: list[float]
    idle_load: float
    foreign_load: float


@dataclass(frozen=True)
class Run:
    """A whole run; `ceilings` by number of threads."""

    environment: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    ceilings: dict[int, Ceilings] = field(default_factory=dict)
    conditions: list[Conditions] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, (json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Run:
        """Raises ValueError for another version of the form."""
        stored = json.loads(read_bytes(path))
        if stored.get("version") != VERSION:
            raise ValueError(f"{path} has version {stored.get('version')} of the result form, not {VERSION}")
        return cls(
            environment=stored["environment"],
            versions=stored["versions"],
            ceilings={int(threads): Ceilings(**values) for threads, values in stored["ceilings"].items()},
            conditions=[Conditions(**values) for values in stored["conditions"]],
            results=[_result(values) for values in stored["results"]],
        )

    def ratio(self, case: str, threads: int) -> float | None:
        """Speed of Tilewright over that of the best other peer: above 1 we are faster. None where either is missing."""
        return min(self.ratios(case, threads).values(), default=None)

    def ratios(self, case: str, threads: int) -> dict[str, float]:
        """Speed of Tilewright over that of each other peer that has a time; empty if it has none itself."""
        medians = {
            result.peer: result.times.median
            for result in self.results
            if result.times and (result.case, result.threads) == (case, threads)
        }
        ours = medians.pop(OURS, None)
        return {peer: median / ours for peer, median in medians.items()} if ours else {}


def share(result: Result, conditions: Conditions) -> float | None:
    """The part of the ceiling that a peer reached: the median over turns, each by the ceiling as it was in it."""
    if not conditions.turn_bounds or not result.turn_seconds:
        return None
    turns = zip(conditions.turn_bounds, result.turn_seconds, strict=True)
    return median(bound / seconds for bound, seconds in turns)


def _result(values: dict[str, Any]) -> Result:
    times = values["times"]
    return Result(**{**values, "times": Times(**times) if times else None})
