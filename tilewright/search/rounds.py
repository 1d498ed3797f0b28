"""Rounds of draws from several spaces: a prediction filters points, measurements share out the trials (spec 3, 4.4).

An *arm* is a space with a prediction: the schedules that one mapping leaves. Each round gives every arm a share of the
trials. Points are drawn in groups, half of them next to the arm's best point so far; the better ones by prediction are
measured, and arms that measure well get larger shares. After two rounds arms whose best point takes twice as long as
the best of all are left out, but for a few. At the end the best points are measured again, in turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import field
from math import ceil, exp, inf
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.search.cost import Evaluation
from tilewright.search.method import Asking, Batch
from tilewright.search.space import NoLegalPoint, Space, canonical

if TYPE_CHECKING:
    from numpy.random import Generator as Numbers

P = TypeVar("P")

ROUNDS = 10
GROUP = 5  # points drawn at a time
RATIO = 0.5  # of a group that is measured
MOMENTUM = 0.8  # of the old share in the new one
HOPELESS = 2.0  # times the best: an arm whose best is slower is left out
KEPT = 5  # arms that are never left out
FINALISTS = 4  # best points that are measured again at the end
TURNS = 5  # in which they are: the median counts
LEAST_GAIN = 0.01  # over the point where the search began, for another to replace it
UNMEASURED_ROUNDS = 2  # before any is left out


@dataclass(frozen=True)
class Arm(Generic[P]):
    """One of the spaces, by a name, and the seconds that are predicted of its points, infinite if refused."""

    name: Any
    space: Space[P]
    predict: Callable[[P], float]


@dataclass(frozen=True)
class Arms(Generic[P]):
    """The points of all arms as one space; a point is the number of its arm, and a point of that."""

    arms: Sequence[Arm[P]]

    @property
    def identity(self) -> Any:
        return [[arm.name, arm.space.identity] for arm in self.arms]

    @property
    def size(self) -> int:
        return sum(arm.space.size for arm in self.arms)

    def points(self) -> Iterator[tuple[int, P]]:
        return ((number, point) for number, arm in enumerate(self.arms) for point in arm.space.points())

    def sample(self, numbers: Numbers) -> tuple[int, P]:
        number = int(numbers.integers(len(self.arms)))
        return number, self.arms[number].space.sample(numbers)

    def neighbours(self, point: tuple[int, P]) -> Sequence[tuple[int, P] | None]:
        number, inner = point
        return [None if each is None else (number, each) for each in self.arms[number].space.neighbours(inner)]

    def to_json(self, point: tuple[int, P]) -> Any:
        return [point[0], self.arms[point[0]].space.to_json(point[1])]

    def from_json(self, value: Any) -> tuple[int, P]:
        right = isinstance(value, list) and len(value) == 2 and type(value[0]) is int
        if not right or not 0 <= value[0] < len(self.arms):
            raise NoLegalPoint(f"{str(value)[:60]} is no point of an arm", help="a number of an arm, and its point")
        return value[0], self.arms[value[0]].space.from_json(value[1])


@dataclass
class Measured(Generic[P]):
    """One measured point of an arm; `seconds` are the median of the turns where it was measured again."""

    arm: int
    point: P
    predicted: float
    seconds: float


@dataclass
class Rounds(Generic[P]):
    """`trials` points are drawn, every arm visited at least once; `first` is measured before all.

    Points that a prediction refuses count as drawn, as points that were drawn before do. What the rounds leave of the
    trials goes to the best arm. While it runs and afterwards, `measured`, `drawn` and `alive`, the numbers of the arms
    that were not left out, say what was done. Raises InvalidArgument for arms none of which has a point.
    """

    arms: Sequence[Arm[P]]
    trials: int
    first: tuple[int, P] | None = None
    rounds: int = ROUNDS
    group: int = GROUP
    ratio: float = RATIO
    measured: list[Measured[P]] = field(default_factory=list, init=False)
    drawn: int = field(default=0, init=False)
    alive: set[int] = field(default_factory=set, init=False)
    name: ClassVar[str] = "rounds"

    def __post_init__(self) -> None:
        if not any(arm.space.size for arm in self.arms):
            raise InvalidArgument("no arm has a point", where="arms", help="an arm with a space that is not empty")

    @property
    def space(self) -> Arms[P]:
        return Arms(self.arms)

    @property
    def parameters(self) -> Mapping[str, Any]:
        first = None if self.first is None else self.space.to_json(self.first)
        return {"trials": self.trials, "first": first, "rounds": self.rounds, "group": self.group, "ratio": self.ratio}

    def ask(self, seed: int) -> Asking[tuple[int, P]]:
        self.measured, self.drawn = [], 0
        self._runs = {
            number: _Run(arm, random.Random(f"{seed} {number}"))
            for number, arm in enumerate(self.arms)
            if arm.space.size
        }
        share = dict.fromkeys(self._runs, 1 / len(self._runs))
        self.alive = set(share)
        if self.first is not None:
            yield from self._measure(self.first[0], [self.first[1]])
        for number in range(self.rounds):
            for index in sorted(self.alive):
                run = self._runs[index]
                # What a share has too little of for a group waits for the next round.
                run.budget += share[index] * self.trials / self.rounds
                if number == 0:
                    run.budget = max(run.budget, self.group)
                while run.budget >= self.group and (number == 0 or self.drawn + self.group <= self.trials):
                    yield from self._visit(index)
            if number + 1 >= UNMEASURED_ROUNDS:
                self.alive = self._promising()
            share = self._shares(share)
        while self.drawn + self.group <= self.trials:
            yield from self._visit(min(sorted(self.alive), key=self.best_of))
        if self.measured:
            yield from self._confirm()

    def best_of(self, arm: int) -> float:
        """The least seconds that were measured of an arm, infinite where none were."""
        run = self._runs.get(arm)
        return inf if run is None else run.best

    def best(self) -> Measured[P] | None:
        """The best point, or where the search began if none is faster by LEAST_GAIN; None while nothing is measured."""
        best = min(self.measured, key=lambda each: each.seconds, default=None)
        begun = next((each for each in self.measured if (each.arm, each.point) == self.first), best)
        if best is None or begun is None:
            return None
        return best if best.seconds < (1 - LEAST_GAIN) * begun.seconds else begun

    def _visit(self, index: int) -> Generator[Batch[tuple[int, P]], Sequence[Evaluation], None]:
        """Draw a group, and measure the part of it that is predicted to be best."""
        run = self._runs[index]
        drawn = list(run.draws(self.group))
        self.drawn += len(drawn)
        run.budget -= len(drawn)
        different = {run.key(point): point for point in drawn}
        fitting = [point for key, point in different.items() if key not in run.seconds and run.prediction(point) < inf]
        fitting.sort(key=run.prediction)
        yield from self._measure(index, fitting[: ceil(self.ratio * len(fitting))])

    def _measure(self, index: int, points: Sequence[P]) -> Generator[Batch[tuple[int, P]], Sequence[Evaluation], None]:
        if not points:
            return
        run = self._runs[index]
        answers = yield Batch([(index, point) for point in points])
        for point, answer in zip(points, answers, strict=True):
            run.note(point, answer.value)
            self.measured.append(Measured(index, point, run.prediction(point), answer.value))

    def _confirm(self) -> Generator[Batch[tuple[int, P]], Sequence[Evaluation], None]:
        """Measure the best points again, in turns: the least of many measurements was lucky as well as good.

        Where the search began is one of them, so that what replaces it was faster in the same turns. Ends once the best
        of all is a point that was measured again.
        """
        asked = sorted(self.measured, key=lambda each: each.seconds)[:FINALISTS]
        begun = next((each for each in self.measured if (each.arm, each.point) == self.first), None)
        if begun is not None and begun not in asked:
            asked.append(begun)
        confirmed: list[Measured[P]] = []
        while asked:
            points = [(each.arm, each.point) for each in asked]
            timings = []
            for _ in range(TURNS):
                answers = yield Batch(points, again=True)
                timings.append([each.value for each in answers])
            for each, seconds in zip(asked, map(median, zip(*timings, strict=True)), strict=True):
                each.seconds = seconds
                self._runs[each.arm].note(each.point, seconds)
            confirmed += asked
            best = min(self.measured, key=lambda each: each.seconds)
            asked = [] if any(each is best for each in confirmed) else [best]

    def _promising(self) -> set[int]:
        """Without the arms whose best is far behind, but never fewer than `KEPT`."""
        order = sorted(sorted(self.alive), key=self.best_of)
        limit = HOPELESS * self.best_of(order[0])
        return {index for place, index in enumerate(order) if place < KEPT or self.best_of(index) <= limit}

    def _shares(self, old: Mapping[int, float]) -> dict[int, float]:
        """Shares of the next round: softmax of the throughput relative to the best, with momentum."""
        bests = {index: run.best for index, run in self._runs.items()}
        least, alive = min(bests.values()), sorted(self.alive)
        weights = {index: exp(least / bests[index] if bests[index] < inf else 0.0) for index in alive}
        total, kept = sum(weights.values()), sum(old[index] for index in alive)
        return {index: MOMENTUM * old[index] / kept + (1 - MOMENTUM) * weights[index] / total for index in alive}


class _Run(Generic[P]):
    """One arm during a search."""

    def __init__(self, arm: Arm[P], numbers: random.Random) -> None:
        self.arm, self.random = arm, numbers
        self.points = list(arm.space.points())
        self.seconds: dict[str, float] = {}  # measured, by the text of the point
        self.budget = 0.0
        self._predicted: dict[str, float] = {}
        self._measured: dict[str, P] = {}

    @property
    def best(self) -> float:
        return min(self.seconds.values(), default=inf)

    def key(self, point: P) -> str:
        return canonical(self.arm.space, point)

    def note(self, point: P, seconds: float) -> None:
        key = self.key(point)
        self.seconds[key], self._measured[key] = seconds, point

    def prediction(self, point: P) -> float:
        key = self.key(point)
        if key not in self._predicted:
            self._predicted[key] = self.arm.predict(point)
        return self._predicted[key]

    def draws(self, count: int) -> Iterator[P]:
        """Half of the points anywhere in the space, half next to the best one so far."""
        best = min(self.seconds, key=lambda key: self.seconds[key], default=None)
        near = [] if best is None else self.arm.space.neighbours(self._measured[best])
        legal = [point for point in near if point is not None]
        for number in range(count):
            yield self.random.choice(legal if legal and number % 2 else self.points)
