"""Run a search: hand a method's points to a cost, here or in workers, and keep every answer.

In: a method with its space, a cost, a budget and a seed. Out: the best point, and the trace. The outcome is a function
of these and of what the cost answers; the number of workers and an interruption that is continued change nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidFile
from tilewright.search.cost import BatchCost, Budget, Cost, Evaluation
from tilewright.search.method import Batch, Method
from tilewright.search.records import Records
from tilewright.search.space import canonical_json
from tilewright.search.trace import Header, Step, Trace, TraceFile, better

P = TypeVar("P")

Stopped: TypeAlias = Literal["finished", "evaluations", "seconds", "interrupted"]
Progress: TypeAlias = Callable[[Step], None]  #: is told of every evaluation once it is stored


@dataclass(frozen=True)
class Outcome(Generic[P]):
    """The best point with its evaluation, None where no point was valid; every evaluation; and why the search ended.

    It ends when the method has `finished`, when the budget of `evaluations` or `seconds` is used up, or when it is
    `interrupted` by Ctrl-C.
    """

    best: P | None
    evaluation: Evaluation | None
    trace: Trace
    stopped: Stopped


def minimise(
    cost: Cost[P],
    method: Method[P],
    budget: Budget = Budget(),  # noqa: B008  (immutable)
    *,
    seed: int = 0,
    executor: Executor | None = None,
    trace: str | os.PathLike[str] | Records | None = None,
    progress: Progress | None = None,
    notes: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome[P]:
    """Search the space of `method` for the point of least value.

    With an `executor` the points of a batch are evaluated at the same time; a process pool needs a cost and points that
    pickle; `workers.processes` makes one that bears Ctrl-C. `trace` names a file that gets every evaluation, or is what
    else keeps them; a search that is in it already is continued. `notes` are JSON values on which the cost depends.
    After KeyboardInterrupt the best so far is returned.

    Raises InvalidFile where the trace is damaged or of another search (space, method, seed, notes), InvalidArgument
    where it cannot be written.
    """
    header = header_of(method, seed, notes)

    def run(records: Records | None) -> Outcome[P]:
        stored = () if records is None else records.stored
        return _Run(cost, method, budget, header, executor, records, stored, progress, clock).outcome()

    if isinstance(trace, str | os.PathLike):
        with TraceFile(trace, header) as file:
            return run(file)
    return run(trace)


def replay(trace: Trace, method: Method[P]) -> Outcome[P]:
    """Run a search again with the answers of its trace, to the end of that.

    Raises InvalidFile where the trace is of another search, or where the method asks for other points than it has.
    """
    header = header_of(method, trace.header.seed, trace.header.notes)
    if difference := trace.header.difference(header):
        raise InvalidFile(f"the trace is of another search: {difference}", where="trace", help="replay that search")
    budget = Budget(evaluations=len(trace.steps))
    return _Run(_no_cost, method, budget, header, None, None, trace.steps, None, lambda: 0.0).outcome()


def header_of(method: Method[Any], seed: int, notes: Mapping[str, Any] | None = None) -> Header:
    """What a trace of this search begins with. Every value of it is what a reader of the file gets."""
    values = json.loads(canonical_json([method.space.identity, dict(method.parameters), dict(notes or {})]))
    return Header(values[0], method.name, values[1], seed, values[2])


class _Spent(Exception):
    """The budget is used up: of evaluations, or of seconds."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(stopped)
        self.stopped: Stopped = stopped


class _Run(Generic[P]):
    """One search on its way. `stored` answers come first, then those of the cost."""

    def __init__(
        self, cost: Cost[P], method: Method[P], budget: Budget, header: Header, executor: Executor | None,
        file: Records | None, stored: Sequence[Step], progress: Progress | None, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._cost, self._method, self._budget, self._header = cost, method, budget, header
        self._executor, self._file, self._progress, self._clock = executor, file, progress, clock
        self._stored = deque(stored)
        self._began = clock() - (stored[-1].time if stored else 0.0)
        self._known: dict[str, Evaluation] = {}
        self._steps: list[Step] = []
        self._best: tuple[P, Evaluation] | None = None

    def outcome(self) -> Outcome[P]:
        stopped: Stopped = "finished"
        asking = self._method.ask(self._header.seed)
        try:
            iteration, batch = 0, next(asking)
            while True:
                answers = self._answers(batch, iteration)
                iteration, batch = iteration + 1, asking.send(answers)
        except StopIteration:
            if self._stored:
                self._disagree("the method has finished")
        except _Spent as spent:
            stopped = spent.stopped
        except KeyboardInterrupt:
            stopped = "interrupted"
        finally:
            asking.close()
        point, evaluation = self._best or (None, None)
        return Outcome(point, evaluation, Trace(self._header, tuple(self._steps)), stopped)

    def _answers(self, batch: Batch[P], iteration: int) -> list[Evaluation]:
        """The evaluations of a batch: of points that are not known yet, as far as the budget goes, and from memory."""
        written = [self._method.space.to_json(point) for point in batch.points]
        keys = list(map(canonical_json, written))
        unknown = dict.fromkeys(key for key in keys if key not in self._known)
        fresh = range(len(keys)) if batch.again else [keys.index(key) for key in unknown]
        allowed = self._allowed(len(fresh))
        found = []
        for place, step in self._evaluated(fresh[:allowed], batch.points, written, iteration):
            self._known[keys[place]] = step.evaluation
            self._steps.append(step)
            if step.evaluation.valid and (self._best is None or step.evaluation.value < self._best[1].value):
                self._best = batch.points[place], step.evaluation
            found.append(step.evaluation)
            if not self._at_once:
                self._check_seconds(step.time)
        if found:
            self._check_seconds(self._steps[-1].time)
        if allowed < len(fresh):
            raise _Spent("evaluations")
        return found if batch.again else [self._known[key] for key in keys]

    @property
    def _at_once(self) -> bool:
        """Whether all points of a batch are evaluated before the first answer is there."""
        return self._executor is None and isinstance(self._cost, BatchCost)

    def _allowed(self, wanted: int) -> int:
        if self._budget.evaluations is None:
            return wanted
        return max(0, min(wanted, self._budget.evaluations - len(self._steps)))

    def _check_seconds(self, seconds: float) -> None:
        if self._budget.seconds is not None and seconds >= self._budget.seconds:
            raise _Spent("seconds")

    def _evaluated(
        self, places: Sequence[int], points: Sequence[P], written: Sequence[Any], iteration: int
    ) -> Iterator[tuple[int, Step]]:
        """Place and step of each of these points, in order: as they are stored, then as they are evaluated."""
        past = min(len(places), len(self._stored))
        for place in places[:past]:
            step = self._stored.popleft()
            if (step.iteration, step.point) != (iteration, written[place]):
                self._stored.appendleft(step)
                self._disagree(f"the method asks for {_shown(written[place])} in batch {iteration}")
            yield place, step
        if past == len(places):
            return
        self._check_seconds(self._clock() - self._began)
        for place, evaluation in zip(places[past:], self._computed([points[p] for p in places[past:]]), strict=True):
            least = better(None if self._best is None else self._best[1].value, evaluation)
            step = Step(self._clock() - self._began, iteration, written[place], evaluation, least)
            if self._file is not None:
                self._file.append(step)
            if self._progress is not None:
                self._progress(step)
            yield place, step

    def _computed(self, points: Sequence[P]) -> Iterator[Evaluation]:
        """What the points cost, in their order; in workers all at the same time."""
        if self._at_once:
            assert isinstance(self._cost, BatchCost)
            yield from (each.checked() for each in self._cost.batch(points))
            return
        if self._executor is None:
            yield from (self._cost(point).checked() for point in points)
            return
        futures = [self._executor.submit(self._cost, point) for point in points]
        try:
            for future in futures:
                yield future.result().checked()
        finally:
            for future in futures:
                future.cancel()

    def _disagree(self, instead: str) -> NoReturn:
        step, number = self._stored[0], len(self._steps) + 1
        raise InvalidFile(
            f"evaluation {number} of the trace is of {_shown(step.point)} in batch {step.iteration}, but {instead}",
            where="trace" if self._file is None else self._file.path,
            help="the code of the space or the method has changed since; search again into another file",
        )


def _no_cost(_: object) -> Evaluation:
    raise AssertionError("a replay has the answers of all points that it asks for")


def _shown(value: Any) -> str:
    text = canonical_json(value)
    return text if len(text) <= 80 else text[:77] + "..."
