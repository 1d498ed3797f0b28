"""Joint choice of mapping and tiling (spec 3, section 4.4): rounds of draws, the model as a filter, measured feedback.

In: for every mapping the space of its schedules, what the model predicts of a point, and what measures one. Out: the
best point that was measured, why, and every measurement. Each round gives every mapping a share of the trials: points
are drawn in groups, half of them next to the best point so far, the better ones by prediction are measured, and
mappings that measure well get larger shares. After two rounds mappings whose best point takes twice as long as the best
of all are left out, but for a few. The same seed and the same measurements give the same choice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import ceil, exp, inf
from statistics import median
from typing import Protocol

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Refusal
from tilewright.fields import Readable, optional, real, record, required, several, size
from tilewright.instruction.products import ProductKey
from tilewright.operator.product_point import ProductPoint

ROUNDS = 10
GROUP = 5  # points drawn at a time
RATIO = 0.5  # of a group that is measured
MOMENTUM = 0.8  # of the old share in the new one
HOPELESS = 2.0  # times the best: a mapping whose best is slower is left out
KEPT = 5  # mappings that are never left out
FINALISTS = 4  # best points that are measured again at the end
TURNS = 5  # in which they are: the median counts
LEAST_GAIN = 0.01  # over the point where the search began, for another to replace it
UNMEASURED_ROUNDS = 2  # before any is left out


@dataclass(frozen=True)
class Choice(Readable):
    """How one product runs: its mapping and a point of the space of schedules that the mapping leaves."""

    mapping: ProductKey = required(record(ProductKey))
    point: ProductPoint = required(record(ProductPoint))

    def __str__(self) -> str:
        return f"{self.mapping}, vectors of {self.mapping.vector}, {self.point}"


@dataclass(frozen=True)
class Candidate:
    """A mapping with the points of its schedules, and the seconds that are predicted of each, infinite if refused."""

    mapping: ProductKey
    points: Sequence[ProductPoint]
    predict: Callable[[ProductPoint], float]


class Measure(Protocol):
    """Runs a choice: seconds, infinite if it cannot run."""

    def __call__(self, choice: Choice) -> float: ...


@dataclass(frozen=True)
class Trial(Readable):
    """One measured choice."""

    choice: Choice = required(record(Choice))
    predicted: float = required(real)
    seconds: float = required(real)


@dataclass(frozen=True)
class Found(Readable):
    """The outcome of a search: the best, every measurement in the order in which it was made, and the decision.

    Its JSON is enough to replay the choice without measuring.
    """

    best: Trial = required(record(Trial))
    trials: tuple[Trial, ...] = required(several(record(Trial)))
    decision: Decision = required(record(Decision))
    drawn: int = optional(size, 0)


def search(
    candidates: Sequence[Candidate],
    measure: Measure,
    *,
    subject: str,
    trials: int,
    first: Choice | None = None,
    rounds: int = ROUNDS,
    group: int = GROUP,
    ratio: float = RATIO,
    seed: int = 0,
) -> Found:
    """The best choice of `trials` drawn points, every mapping visited at least once; `first` is measured before all.

    What replaces `first` is faster than it by LEAST_GAIN, in the same turns.
    Points that the model refuses count as drawn, as points that were drawn before do. What the rounds leave of the
    trials goes to the best mapping. Raises ValueError where there is nothing to choose from.
    """
    runs = [_Run(each, random.Random(f"{seed} {number}")) for number, each in enumerate(candidates) if each.points]
    if not runs:
        raise ValueError(f"no mapping of {subject} has a schedule")
    search = _Search(runs, measure, group, ratio)
    if first is not None:
        search.measure(search.run_of(first), first.point)
    share = dict.fromkeys(range(len(runs)), 1 / len(runs))
    alive = set(share)
    for number in range(rounds):
        for index in sorted(alive):
            # What a share has too little of for a group waits for the next round.
            runs[index].budget += share[index] * trials / rounds
            if number == 0:
                runs[index].budget = max(runs[index].budget, group)
            while runs[index].budget >= group and (number == 0 or search.drawn + group <= trials):
                search.visit(runs[index])
        if number + 1 >= UNMEASURED_ROUNDS:
            alive = _promising(runs, alive)
        share = _shares(runs, share, alive)
    while search.drawn + group <= trials:
        search.visit(min((runs[index] for index in sorted(alive)), key=lambda run: run.best))
    if not search.trials:
        raise ValueError(f"the model refuses every schedule that was drawn for {subject}")
    search.confirm(first)
    best = search.best(first)
    return Found(best, tuple(search.trials), _decision(subject, runs, best, search.trials, alive), search.drawn)


@dataclass
class _Run:
    """One mapping during a search."""

    candidate: Candidate
    random: random.Random
    predicted: dict[ProductPoint, float] = field(default_factory=dict)
    measured: dict[ProductPoint, float] = field(default_factory=dict)
    budget: float = 0.0

    @property
    def best(self) -> float:
        return min(self.measured.values(), default=inf)

    def prediction(self, point: ProductPoint) -> float:
        if point not in self.predicted:
            self.predicted[point] = self.candidate.predict(point)
        return self.predicted[point]


class _Search:
    """What all mappings of a search share."""

    def __init__(self, runs: Sequence[_Run], measure: Measure, group: int, ratio: float) -> None:
        self.runs, self._measure = runs, measure
        self.group, self.ratio = group, ratio
        self.trials: list[Trial] = []
        self.drawn = 0

    def run_of(self, choice: Choice) -> _Run:
        return next(run for run in self.runs if run.candidate.mapping == choice.mapping)

    def visit(self, run: _Run) -> None:
        """Draw a group, and measure the part of it that is predicted to be best."""
        drawn = list(_draws(run, self.group))
        self.drawn += len(drawn)
        run.budget -= len(drawn)
        fitting = [point for point in dict.fromkeys(drawn) if run.prediction(point) < inf]
        fitting = [point for point in fitting if point not in run.measured]
        fitting.sort(key=run.prediction)
        for point in fitting[: ceil(self.ratio * len(fitting))]:
            self.measure(run, point)

    def measure(self, run: _Run, point: ProductPoint) -> None:
        choice = Choice(run.candidate.mapping, point)
        seconds = self._measure(choice)
        run.measured[point] = seconds
        self.trials.append(Trial(choice, run.prediction(point), seconds))

    def confirm(self, first: Choice | None) -> None:
        """Measure the best points again, in turns: the least of many measurements was lucky as well as good.

        Where the search began is one of them, so that what replaces it was faster in the same turns. Ends once the best
        of all is a point that was measured again.
        """
        ranked = sorted(self.trials, key=lambda trial: trial.seconds)
        asked = list(dict.fromkeys(trial.choice for trial in ranked[:FINALISTS]))
        if first is not None and first not in asked:
            asked.append(first)
        confirmed: dict[Choice, float] = {}
        while asked:
            timings = [[self._measure(choice) for choice in asked] for _ in range(TURNS)]
            confirmed.update(zip(asked, map(median, zip(*timings, strict=True)), strict=True))
            self.trials = [replace(trial, seconds=confirmed.get(trial.choice, trial.seconds)) for trial in self.trials]
            best = min(self.trials, key=lambda trial: trial.seconds).choice
            asked = [] if best in confirmed else [best]
        for choice, seconds in confirmed.items():
            self.run_of(choice).measured[choice.point] = seconds

    def best(self, first: Choice | None) -> Trial:
        """The best point, or where the search began if that is as good."""
        best = min(self.trials, key=lambda trial: trial.seconds)
        begun = next((trial for trial in self.trials if trial.choice == first), best)
        return best if best.seconds < (1 - LEAST_GAIN) * begun.seconds else begun


def _draws(run: _Run, count: int) -> Iterator[ProductPoint]:
    """Half of the points anywhere in the space, half next to the best one so far: they differ from it in one part."""
    points = run.candidate.points
    best = min(run.measured, key=lambda point: run.measured[point], default=None)
    near = [] if best is None else [point for point in points if _differences(point, best) == 1]
    for number in range(count):
        yield run.random.choice(near if near and number % 2 else points)


def _differences(a: ProductPoint, b: ProductPoint) -> int:
    return (a.rows != b.rows) + (a.vectors != b.vectors) + (a.order != b.order) + (a.k_blocks != b.k_blocks)


def _promising(runs: Sequence[_Run], alive: set[int]) -> set[int]:
    """Without the mappings whose best is far behind, but never fewer than `KEPT`."""
    order = sorted(alive, key=lambda index: runs[index].best)
    limit = HOPELESS * runs[order[0]].best
    return {index for place, index in enumerate(order) if place < KEPT or runs[index].best <= limit}


def _shares(runs: Sequence[_Run], old: Mapping[int, float], alive: set[int]) -> dict[int, float]:
    """Shares of the next round: softmax of the throughput relative to the best, with momentum."""
    least = min(run.best for run in runs)
    weights = {index: exp(least / runs[index].best if runs[index].best < inf else 0.0) for index in alive}
    total = sum(weights.values())
    kept = sum(old[index] for index in alive)
    return {index: MOMENTUM * old[index] / kept + (1 - MOMENTUM) * weights[index] / total for index in sorted(alive)}


def _decision(subject: str, runs: Sequence[_Run], best: Trial, trials: Sequence[Trial], alive: set[int]) -> Decision:
    """The best choice, that of the second-best mapping, and the mappings that were left out."""
    others = [trial for trial in trials if trial.choice.mapping != best.choice.mapping]
    second = min(others, key=lambda trial: trial.seconds, default=None)
    refused: tuple[Refusal, ...] = ()
    if second is not None and second.seconds < best.seconds:
        rule = f"{LEAST_GAIN:.0%} faster than where the search began"
        refused = (Refusal(str(second.choice), rule, _times(second), Cost(seconds=second.seconds)),)
        second = None
    refused += tuple(
        Refusal(
            str(run.candidate.mapping),
            f"within {HOPELESS:g} times the best",
            f"{run.best:.3g} s",
            Cost(seconds=run.best),
        )
        for index, run in enumerate(runs)
        if index not in alive
    )
    least = min(trial.seconds for trial in trials)
    what = "least" if best.seconds == least else f"where it began, and none is {LEAST_GAIN:.0%} faster"
    reason = f"{_times(best)}, {what} of {len(trials)} measured points of {len(runs)} mappings"
    return Decision(
        subject,
        str(best.choice),
        reason,
        "" if second is None else str(second.choice),
        "" if second is None else f"{_times(second)}, the best of another mapping",
        refused,
        Cost(seconds=best.seconds),
        None if second is None else Cost(seconds=second.seconds),
    )


def _times(trial: Trial) -> str:
    return f"{trial.seconds:.3g} s measured ({trial.predicted:.3g} s predicted)"
