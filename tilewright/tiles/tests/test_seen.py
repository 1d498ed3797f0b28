"""Loops that a mask ends early: steps that a tree leaves out, counted by hand and against trees without a mask."""

from __future__ import annotations

import random
import re

import pytest

from tests.random_tiles import CHAIN_OF_THREE, random_case
from tilewright.expr.text import parse_graph
from tilewright.tiles.analysis import analyse
from tilewright.tiles.brute import walk
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.movement import movement
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.traffic import Moved

MASKED = Problem.of(
    parse_graph("""
        input A: f32[4, 8]
        input D: f32[8, 3]
        S: f32[m:4, l:8] = l <= m + 1 ? A[m, l] : -inf
        E: f32[m:4, n:3] += S[m, l] * D[l, n] over l:8
        output E""").nodes
)
TREE = "@DRAM {} m:2 {{ @DRAM for l:4 {{ shar[@L1 for m:2, l:2 {{ op S{} }}, @L1 for m:2, l:2, n:3 {{ op E }}] }} }}"
TOGETHER, APART = (Resources((Level("DRAM", multicast=each), Level("L1"))) for each in (True, False))


@pytest.mark.parametrize(("hint", "steps"), [
    ("", [4, 4]),
    (' with seen("l", 1)', [2, 3]),  # rows 0 and 1 see points 0 to 2, rows 2 and 3 see 0 to 4: a part of a step
    (' with seen("l", 2)', [2, 3]),
    (' with seen("l", 4)', [2, 4]),
    (' with seen("l", 16)', [4, 4]),
])  # fmt: skip
def test_steps_behind_the_mask_do_not_run(hint: str, steps: list[int]) -> None:
    found = movement(parse_tree(TREE.format("for", hint)), MASKED, resources=TOGETHER).at("DRAM")
    rows = 2
    seen = {' with seen("l", 1)': [3, 5]}.get(hint, [2 * each for each in steps])
    assert found["A"] == Moved(rows * sum(seen), rows * sum(seen), 0)
    assert found["D"] == Moved(3 * sum(seen), 3 * sum(seen), 0)
    assert found["E"] == Moved(0, 0, 12)
    analysis = analyse(parse_tree(TREE.format("for", hint)), MASKED, TOGETHER)
    assert analysis.operations == rows * sum(seen) + rows * 3 * sum(seen)


def test_a_walk_of_too_many_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = parse_tree(TREE.format("for", ' with seen("l", 2)'))
    monkeypatch.setattr("tilewright.tiles.equal_steps.MOST_VISITS", 20)
    with pytest.raises(Unanalysable, match="too many of its steps differ: more than 20 visits") as caught:
        movement(tree, MASKED)
    assert caught.value.help == "smaller extents, or factors that divide them"
    movement(parse_tree(TREE.format("for", "")), MASKED)  # which is not walked


def test_in_a_batch_trees_of_many_steps_are_refused_before_their_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search evaluates hundreds of them."""
    tree = parse_tree(TREE.format("for", ' with seen("l", 2)').replace("l:4", "l"))
    alone = movement(tree, MASKED, factors=[4]).at("L1")
    monkeypatch.setattr("tilewright.tiles.movement.MOST_STEPS", 100)
    with pytest.raises(Unanalysable, match="such a tree of 128 steps is not analysed in a batch") as caught:
        movement(tree, MASKED, factors=[[2], [4]])
    assert caught.value.help == "one tree at a time, or 100 steps at most"
    assert movement(tree, MASKED, factors=[4]).at("L1") == alone


def test_a_mask_over_long_loops_takes_no_longer() -> None:
    """Blocks of 32 rows see 4 steps of 8 points, 8, and so on: within a block, all but the first step are equal."""
    size = 1024
    masked = Problem.of(
        parse_graph(f"""
            input A: f32[{size}, {size}]
            input D: f32[{size}, 3]
            S: f32[m:{size}, l:{size}] = l <= m ? A[m, l] : -inf
            E: f32[m:{size}, n:3] += S[m, l] * D[l, n] over l:{size}
            output E""").nodes
    )
    tree = """@DRAM for m:32, l:128 { shar[
        @L1 for m:32, l:8 { op S with seen("l", 8) }, @L1 for m:32, l:8, n:3 { op E }] }"""
    found = movement(parse_tree(tree), masked, resources=TOGETHER).at("DRAM")
    seen = sum(32 * each for each in range(1, 33))
    assert found["A"] == Moved(32 * seen, 32 * seen, 0)
    assert found["D"] == Moved(3 * seen, 3 * seen, 0)
    assert found["E"] == Moved(0, 0, 3 * size)


def test_units_read_together_what_some_of_them_still_need() -> None:
    """Of two units one ends after 2 steps of D, the other one after 3."""
    tree = parse_tree(TREE.format("par", ' with seen("l", 2)'))
    together, apart = (movement(tree, MASKED, resources=each).at("DRAM") for each in (TOGETHER, APART))
    assert together["D"] == Moved(3 * 6, 3 * (4 + 6), 0)
    assert apart["D"] == Moved(3 * (4 + 6), 3 * (4 + 6), 0)
    assert together["A"] == apart["A"] == Moved(2 * (4 + 6), 2 * (4 + 6), 0)
    analysis = analyse(tree, MASKED, TOGETHER)
    assert (analysis.operations, analysis.busiest) == (8 * 4 + 8 * 6, 8 * 6)


def test_without_blocks_of_rows_all_see_what_the_last_one_sees() -> None:
    tree = """@DRAM for l:4 { shar[
        @DRAM for m:2 { @L1 for m:2, l:2 { op S with seen("l", 2) } },
        @DRAM for m:2 { @L1 for m:2, l:2, n:3 { op E } }] }"""
    assert movement(parse_tree(tree), MASKED).at("DRAM")["A"] == Moved(4 * 6, 4 * 6, 0)


def test_a_mask_that_hides_nothing_changes_nothing() -> None:
    """The walk, with ends of loops at their extents, against the boundary method without."""
    checked = 0
    masked = CHAIN_OF_THREE.replace("exp(C[m, l])", "l <= m + 8 ? C[m, l] : -inf")
    for seed in range(40):
        case = random_case(random.Random(seed), [masked])
        loops = [case.problem.names["X", axis.name] for axis in case.problem.compute("X").axes]
        plain = print_tree(case.tree)
        tree = parse_tree(re.sub(r"op X\b", f'op X with seen("{loops[1]}", {seed % 3 + 1})', plain))
        options = {"resources": case.resources, "compat_evict": case.compat_evict}
        assert movement(tree, case.problem, **options) == walk(tree, case.problem, **options)
        assert movement(tree, case.problem, **options).moved == movement(case.tree, case.problem, **options).moved
        checked += tree != case.tree
    assert checked == 40


@pytest.mark.parametrize(("hint", "message"), [
    ('seen("n", 2)', "op S hides no steps of 2 points of n"),
    ('seen("m", 2)', "op S hides no steps of 2 points of m"),
    ('seen("l", 0)', "op S hides no steps of 0 points of l"),
])  # fmt: skip
def test_a_loop_without_a_mask_is_refused(hint: str, message: str) -> None:
    with pytest.raises(Unanalysable, match=message) as raised:
        walk(parse_tree(TREE.format("for", f" with {hint}")), MASKED)
    assert raised.value.where == "tile tree"
    assert "a mask of S" in raised.value.help
