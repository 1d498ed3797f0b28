"""The execution of trees finds points that are missing, and reads of what is not complete."""

from __future__ import annotations

import random

import pytest

from tests.random_tiles import CHAIN, CHAIN_OF_THREE, CONVOLUTIONS, random_case
from tilewright.expr.text import parse_graph
from tilewright.tiles.legality import violations
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.tests.executed import Execution

PROBLEM = Problem.of(parse_graph(CHAIN.format(m=4, k=4, l=4, n=4)).nodes)


@pytest.mark.parametrize(
    ("tree", "complete", "faults"),
    [
        ("@DRAM for l:2 { shar[@L1 for m:4, l:2, k:4 { op C }, @L1 for m:4, l:2, n:4 { op E }] }", True, 0),
        ("@DRAM for l:2 { shar[@L1 for m:4, l:2, k:4 { op C }, @L1 for m:4, l:2, n:3 { op E }] }", False, 0),
        ("@DRAM for k:2 { shar[@L1 for m:4, l:4, k:2 { op C }, @L1 for m:4, l:4, n:4 { op E }] }", True, 1),
        ("@DRAM for l:2 { shar[@L1 for m:4, l:2, n:4 { op E }, @L1 for m:4, l:2, k:4 { op C }] }", True, 2),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(tree: str, complete: bool, faults: int) -> None:
    found = Execution(parse_tree(tree), PROBLEM)
    assert found.complete is complete
    assert len(found.faults) == faults  # steps of E
    assert {fault.partition(" too")[0] for fault in found.faults} <= {"E reads C"}


def test_points_that_run_again_count_again() -> None:
    tree = parse_tree("@DRAM for n:2 { shar[@L1 for m:4, l:4, k:4 { op C }, @L1 for m:4, l:4, n:2 { op E }] }")
    assert Execution(tree, PROBLEM).evaluations == {"C": 2 * 64, "E": 64}


@pytest.mark.parametrize("text", [CHAIN, CHAIN_OF_THREE, CONVOLUTIONS])
def test_legal_trees_are_carried_out_in_order(text: str) -> None:
    legal = 0
    for seed in range(300):
        case = random_case(random.Random(seed), (text,))
        if any(violations(case.tree, case.problem, imperfect=True)):
            continue
        legal += 1
        found = Execution(case.tree, case.problem)
        assert found.complete, f"tree {seed}"
        assert found.faults == [], f"tree {seed}"
    assert legal > 5
