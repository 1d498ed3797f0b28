"""Joint choice of mapping and tiling (spec 3, section 4.4): `search.rounds` over the schedules of every mapping.

In: for every mapping the space of its schedules, what the model predicts of a point, and what measures one. Out: the
best point that was measured, why, and every measurement. The same seed and the same measurements give the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Refusal
from tilewright.fields import Readable, optional, real, record, required, several, size
from tilewright.instruction.products import ProductKey
from tilewright.operator.product_point import ProductPoint
from tilewright.search.cost import Evaluation
from tilewright.search.minimise import minimise
from tilewright.search.rounds import GROUP, HOPELESS, LEAST_GAIN, RATIO, ROUNDS, Arm, Rounds
from tilewright.search.space import Listed


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
    if not any(each.points for each in candidates):
        raise ValueError(f"no mapping of {subject} has a schedule")
    mappings = [each.mapping for each in candidates]
    begun = None if first is None else (mappings.index(first.mapping), first.point)
    method = Rounds(list(map(_arm, candidates)), trials, begun, rounds, group, ratio)

    def cost(place: tuple[int, ProductPoint]) -> Evaluation:
        return Evaluation(measure(Choice(mappings[place[0]], place[1])))

    if minimise(cost, method, seed=seed).stopped == "interrupted":
        raise KeyboardInterrupt
    best = method.best()
    if best is None:
        raise ValueError(f"the model refuses every schedule that was drawn for {subject}")
    made = {id(each): Trial(Choice(mappings[each.arm], each.point), each.predicted, each.seconds)
            for each in method.measured}  # fmt: skip
    trial, found = made[id(best)], tuple(made.values())
    left_out = [
        (each.mapping, method.best_of(number))
        for number, each in enumerate(candidates)
        if each.points and number not in method.alive
    ]
    count = sum(bool(each.points) for each in candidates)
    return Found(trial, found, _decision(subject, trial, found, count, left_out), method.drawn)


def _arm(candidate: Candidate) -> Arm[ProductPoint]:
    points = Listed(len(candidate.points), candidate.points, lambda a, b: _differences(a, b) == 1, ProductPoint.to_json)
    return Arm(candidate.mapping.to_json(), points, candidate.predict)


def _differences(a: ProductPoint, b: ProductPoint) -> int:
    return (a.rows != b.rows) + (a.vectors != b.vectors) + (a.order != b.order) + (a.k_blocks != b.k_blocks)


def _decision(
    subject: str, best: Trial, trials: Sequence[Trial], mappings: int, left_out: Sequence[tuple[ProductKey, float]]
) -> Decision:
    """The best choice, that of the second-best mapping, and the mappings that were left out."""
    others = [trial for trial in trials if trial.choice.mapping != best.choice.mapping]
    second = min(others, key=lambda trial: trial.seconds, default=None)
    refused: tuple[Refusal, ...] = ()
    if second is not None and second.seconds < best.seconds:
        rule = f"{LEAST_GAIN:.0%} faster than where the search began"
        refused = (Refusal(str(second.choice), rule, _times(second), Cost(seconds=second.seconds)),)
        second = None
    refused += tuple(
        Refusal(str(mapping), f"within {HOPELESS:g} times the best", f"{seconds:.3g} s", Cost(seconds=seconds))
        for mapping, seconds in left_out
    )
    least = min(trial.seconds for trial in trials)
    what = "least" if best.seconds == least else f"where it began, and none is {LEAST_GAIN:.0%} faster"
    reason = f"{_times(best)}, {what} of {len(trials)} measured points of {mappings} mappings"
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
