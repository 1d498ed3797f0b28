"""The joint search on a made-up machine: it finds the best mapping, is deterministic, and says what it left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import product
from math import inf

import pytest

from tilewright.instruction.products import ProductKey
from tilewright.instruction.search import Candidate, Choice, Found, search
from tilewright.operator.product_point import ProductPoint
from tilewright.search.rounds import FINALISTS, KEPT, TURNS

POINTS = [ProductPoint((rows,), vectors, ("n", "m")) for rows, vectors in product(range(1, 15), range(1, 5))]


def key(name: str) -> ProductKey:
    return ProductKey("fma", "b", ((name,), ("n",), ("k",)))


def seconds(choice: Choice) -> float:
    """Mapping p3 is best, and 6 rows by 4 vectors in every mapping."""
    ((name,), _, _) = choice.mapping.loops
    point = choice.point
    return (1 + abs(int(name[1:]) - 3)) * (1 + abs(point.rows[0] - 6) + abs(point.vectors - 4)) * 1e-3


def candidates(count: int, predict: Callable[[Choice], float] = seconds) -> list[Candidate]:
    return [
        Candidate(each, POINTS, lambda point, each=each: predict(Choice(each, point)))  # type: ignore[misc]
        for each in (key(f"p{number}") for number in range(count))
    ]


def test_the_best_mapping_and_a_good_point_are_found() -> None:
    found = search(candidates(8), seconds, subject="y", trials=240)
    assert found.best.choice.mapping == key("p3")
    assert found.best.seconds <= 3e-3
    assert found.decision.chosen == str(found.best.choice)
    assert found.decision.runner_up
    assert not found.decision.runner_up.startswith(str(key("p3")))


def test_every_mapping_is_measured_and_hopeless_ones_are_left_out() -> None:
    found = search(candidates(8), seconds, subject="y", trials=240)
    measured = {trial.choice.mapping for trial in found.trials}
    assert measured == {key(f"p{number}") for number in range(8)}
    assert 0 < len(found.decision.refused) <= 8 - KEPT
    assert all(refusal.values for refusal in found.decision.refused)


def test_the_same_seed_makes_the_same_choice() -> None:
    once, again = (search(candidates(4), seconds, subject="y", trials=80, seed=5) for _ in range(2))
    assert once == again
    other = search(candidates(4), seconds, subject="y", trials=80, seed=6)
    assert [trial.choice for trial in once.trials] != [trial.choice for trial in other.trials]


def test_the_model_filters_what_is_measured() -> None:
    asked: list[Choice] = []

    def measure(choice: Choice) -> float:
        asked.append(choice)
        return seconds(choice)

    found = search(candidates(2), measure, subject="y", trials=64, group=16, ratio=1 / 8)
    assert found.drawn == 64
    assert len(found.trials) <= 64 / 16 * 2
    assert len(asked) <= len(found.trials) + TURNS * FINALISTS
    random = search(candidates(2, lambda _: 1.0), seconds, subject="y", trials=64, group=16, ratio=1 / 8)
    assert found.best.seconds <= random.best.seconds


def test_the_best_is_a_point_that_was_measured_again_however_many_were_lucky() -> None:
    asked: Counter[Choice] = Counter()

    def measure(choice: Choice) -> float:
        asked[choice] += 1
        return seconds(choice) / (2 if asked[choice] == 1 else 1)

    among = candidates(3)
    first = Choice(among[0].mapping, among[0].points[0])
    found = search(among, measure, subject="y", trials=120, first=first)
    assert asked[found.best.choice] == asked[first] == 1 + TURNS
    assert found.best.seconds == seconds(found.best.choice)
    again = [choice for choice, count in asked.items() if count > 1]
    assert seconds(found.best.choice) == min(map(seconds, again))


@pytest.mark.parametrize(("gain", "kept"), [(0.005, True), (0.02, False)])
def test_where_the_search_began_stays_unless_another_is_clearly_faster(gain: float, kept: bool) -> None:
    among = candidates(1)
    first = Choice(among[0].mapping, among[0].points[7])

    found = search(among, lambda each: 1.0 if each == first else 1.0 - gain, subject="y", trials=40, first=first)
    assert (found.best.choice == first) is kept
    assert Found.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert ("where it began" in found.decision.reason) is kept


def test_points_that_the_model_refuses_are_not_measured() -> None:
    def predict(choice: Choice) -> float:
        return inf if choice.point.rows[0] > 3 else 1.0

    found = search(candidates(2, predict), seconds, subject="y", trials=60)
    assert all(trial.choice.point.rows[0] <= 3 for trial in found.trials)


def test_a_first_choice_is_measured_first() -> None:
    first = Choice(key("p3"), ProductPoint((6,), 4, ("n", "m")))
    found = search(candidates(4), seconds, subject="y", trials=20, first=first)
    assert found.trials[0].choice == first == found.best.choice


def test_a_lucky_measurement_is_not_believed() -> None:
    lucky = ProductPoint((1,), 1, ("n", "m"))
    first = Choice(key("p3"), lucky)
    seen: list[Choice] = []

    def measure(choice: Choice) -> float:
        seen.append(choice)
        return 1e-6 if choice == first and seen.count(choice) == 1 else seconds(choice)

    assert search(candidates(4), measure, subject="y", trials=80, first=first).best.choice != first


def test_a_record_is_json_and_can_be_read_back() -> None:
    found = search(candidates(3), seconds, subject="y", trials=45)
    assert Found.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_nothing_to_choose_from() -> None:
    with pytest.raises(ValueError, match="refuses every schedule"):
        search(candidates(2, lambda _: inf), seconds, subject="y", trials=20)
    with pytest.raises(ValueError, match="no mapping of y"):
        search([Candidate(key("p0"), [], lambda _: 1.0)], seconds, subject="y", trials=10)
