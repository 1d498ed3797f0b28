"""Edited tile trees end in a refusal with place and help, or in a program with the right result."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.covering import some
from tests.fuzz_trees import CASES, case, verdict


@pytest.mark.parametrize("seed", some(range(8), 4))
def test_an_edited_tree_is_right_or_refused(seed: int) -> None:
    found: Counter[str] = Counter()
    for number in range(24):
        roll = random.Random(1000 * seed + number)
        name, machine, threads, trees = case(roll, CASES)
        found[verdict(name, machine, threads, trees, roll.random() < 0.3)] += 1
    assert found["right"]
    assert found["refused"]
