"""The joint search chooses as it did when it was first written: its questions, draws and decisions are recorded.

`python -m tilewright.instruction.tests.test_search_choices` records them anew, after a change that is meant.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tilewright.instruction.search import Candidate, Choice, search
from tilewright.instruction.tests.test_search import POINTS, key, seconds

RECORDED = Path(__file__).with_name("search_choices.json")
MAPPINGS = 7


def rough(choice: Choice) -> float:
    """A model that errs by up to a half, always in the same way."""
    return seconds(choice) * (1 + zlib.crc32(str(choice).encode()) % 1000 / 2000)


def refusing(choice: Choice) -> float:
    """A model that refuses tall tiles."""
    return inf if choice.point.rows[0] > 9 else rough(choice)


def steady(choice: Choice, _: int) -> float:
    return seconds(choice)


def noisy(choice: Choice, asked: int) -> float:
    """Each measurement of a choice is another one."""
    return seconds(choice) * (1 + zlib.crc32(f"{choice} {asked}".encode()) % 1000 / 5000)


def failing(choice: Choice, asked: int) -> float:
    """Some choices do not run."""
    return inf if zlib.crc32(str(choice).encode()) % 5 == 0 else noisy(choice, asked)


CASES: dict[str, tuple[Callable[[Choice], float], Callable[[Choice, int], float], dict[str, Any]]] = {
    "default": (rough, steady, {"trials": 200}),
    "noisy": (rough, noisy, {"trials": 240}),
    "failing": (rough, failing, {"trials": 160}),
    "refusing": (refusing, noisy, {"trials": 200, "rounds": 4}),
    "one of a group": (rough, noisy, {"trials": 320, "group": 32, "ratio": 1 / 32}),
    "few rounds": (rough, failing, {"trials": 90, "rounds": 3, "group": 4, "ratio": 0.75}),
}
BEGUN = (None, 0, 41)  # where the search begins: nowhere, or at this point of the second mapping
SEEDS = (0, 1, 7)


def outcome(case: str, seed: int, begun: int | None) -> dict[str, Any]:
    """Everything that a search asks and says: measured choices as (mapping, point) in numbers."""
    predict, measure, options = CASES[case]
    among = [
        Candidate(each, POINTS, lambda point, each=each: predict(Choice(each, point)))  # type: ignore[misc]
        for each in (key(f"p{number}") for number in range(MAPPINGS))
    ]
    asked: list[Choice] = []
    times: Counter[Choice] = Counter()

    def measured(choice: Choice) -> float:
        asked.append(choice)
        times[choice] += 1
        return measure(choice, times[choice])

    first = None if begun is None else Choice(among[1].mapping, POINTS[begun])
    found = search(among, measured, subject="y", first=first, seed=seed, **options)
    return {
        "asked": [f"{choice.mapping.loops[0][0]}/{POINTS.index(choice.point)}" for choice in asked],
        "seconds": [trial.seconds for trial in found.trials],
        "drawn": found.drawn,
        "best": str(found.best.choice),
        "decision": found.decision.to_json(),
    }


def names() -> list[tuple[str, int, int | None]]:
    return [(case, seed, begun) for case in CASES for seed in SEEDS for begun in BEGUN]


@pytest.mark.parametrize(("case", "seed", "begun"), names())
def test_choices_are_as_recorded(case: str, seed: int, begun: int | None) -> None:
    recorded = json.loads(RECORDED.read_text())[f"{case}, seed {seed}, from {begun}"]
    assert outcome(case, seed, begun) == recorded


def test_the_record_tells_cases_apart() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded) == len(names())
    assert len({json.dumps(each["asked"]) for each in recorded.values()}) == len(recorded)


if __name__ == "__main__":
    found = {f"{case}, seed {seed}, from {begun}": outcome(case, seed, begun) for case, seed, begun in names()}
    RECORDED.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n")
