"""Sums that are rescaled while a value is running: what they read again, and how often they are multiplied."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import pytest

from tests.random_tiles import ATTENTION, random_case
from tilewright.expr.text import parse_graph
from tilewright.graph.chain.softmax import running
from tilewright.tiles.analysis import analyse
from tilewright.tiles.footprints import footprints
from tilewright.tiles.movement import Boundaries, movement
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.topology import Topology
from tilewright.tiles.turns import Point

SOFTMAX = Problem.of(
    parse_graph("""
    input S: f32[8, 16]
    input V: f32[16, 4]
    M: f32[i:8] max= S[i, l] over l:16
    E: f32[i:8, l:16] = exp(S[i, l] - M[i])
    T: f32[i:8] += E[i, l] over l:16
    P: f32[i:8, l:16] = E[i, l] / T[i]
    O: f32[i:8, j:4] += P[i, l] * V[l, j] over l:16
    output O""").nodes
)
ONLINE = running(SOFTMAX)
POINTS = 4 * 8 * 16 + 8 * 4 * 16
LEVELS = Resources((Level("DRAM"), Level("L1"), Level("L0", read_words_per_cycle=1.0)))


def stages(parts: int) -> str:
    """The rows of the softmax in one stage, its product in another one, over so many parts of a row."""
    rest = 16 // parts
    rows = ", ".join(f"@L0 for i:2, l:{rest} {{ op {op} }}" for op in "METP")
    last = f"@L1 for i:8 {{ @L0 for l:{rest}, j:4 {{ op O }} }}"
    loop = f"l:{parts}" if parts > 1 else "i:1"
    return f"@DRAM for {loop} {{ shar[@L1 for i:4 {{ seq[{rows}] }}, {last}] }}"


def test_a_running_value_is_read_again() -> None:
    """In 4 parts: 8 rows of M by the product each, and 8 by the maximum itself in each part but the first."""
    tree = parse_tree(stages(4))
    assert "M" not in movement(tree, SOFTMAX).at("L1")  # the other stage does not need it
    moved = movement(tree, ONLINE).at("L1")["M"]
    assert (moved.loads, moved.stores) == (4 * 8 + 3 * 8, 4 * 8)
    held = footprints(tree, ONLINE)[()] - footprints(tree, SOFTMAX)[()]
    assert held == 2 * 8  # rows of M and T as results of their stage


def test_every_element_is_multiplied_in_each_part_but_the_first() -> None:
    online, whole = (analyse(parse_tree(stages(parts)), ONLINE, LEVELS) for parts in (4, 1))
    once = analyse(parse_tree(stages(4)), SOFTMAX, LEVELS)
    again = 3 * (8 + 2 * 8 * 4)  # T when M changes, O when M and when T change
    assert online.operations == POINTS + again
    assert once.operations == whole.operations == POINTS
    reads, before = online.levels[-1].read, once.levels[-1].read
    writes, written = online.levels[-1].update, once.levels[-1].update
    assert reads["M"] == before["M"] + 2 * 3 * (8 + 32)  # before and after
    assert reads["T"] == before["T"] + 3 * 8 + 2 * 3 * 32
    assert reads["O"] == before["O"] + 2 * 3 * 32
    assert writes["O"] == written["O"] + 2 * 3 * 32
    assert online.busiest == online.operations  # one unit does all
    # each multiplication takes the sum and both values of f32, two words each, from its registers
    assert online.cycles - once.cycles == 6 * again
    assert online.operation_energy - once.operation_energy == 4 * again


def test_distinct_units_share_the_multiplications() -> None:
    text = "@DRAM for l:4 {{ shar[{}] }}".format(
        ", ".join(f"par i:4 {{ @L1 for i:2, l:4{', j:4' * (op == 'O')} {{ op {op} }} }}" for op in "METPO")
    )
    found = analyse(parse_tree(text), ONLINE, Resources((Level("DRAM"), Level("L1"))))
    assert found.operations == POINTS + 3 * (8 + 2 * 32)
    assert found.busiest == found.operations / 4


@pytest.mark.parametrize("seed", range(60))
def test_multiplications_are_those_of_the_steps(seed: int) -> None:
    case = random_case(random.Random(seed), (ATTENTION,))
    topology = Topology(case.tree, case.problem)
    boundaries = Boundaries(topology)
    point = boundaries.point()
    for each in topology.rescaled.values():
        for one in each:
            assert boundaries.multiplied(point, one)[0] == literal(topology, point, one)


def literal(topology: Topology, point: Point, one: Rescaled) -> int:
    """Elements of the sum in every step of the loops around both expressions in which its row has begun before."""
    total = one.rescaling.total
    place, around = topology.places[total], topology.above(one.meeting)
    names = [topology.problem.names[total, axis.name] for axis in topology.computes[total].axes]
    loops = topology.above(place)
    counts = 0
    for step in product(
        *(range(point.factors[loop]) if loop.spatial or loop in around or loop.axis in names else [0] for loop in loops)
    ):
        at: dict[str, int] = {}
        for loop, digit in zip(loops, step, strict=True):
            at[loop.axis] = at.get(loop.axis, 0) + digit * point.strides[loop]
        runs = all(first < topology.extents.get(axis, first + 1) for axis, first in at.items())
        begun = any(
            digit for loop, digit in zip(loops, step, strict=True) if loop.axis in one.loops and not loop.spatial
        )
        if runs and begun:
            counts += prod(
                min(point.inside(total, name, place), topology.extents[name] - at.get(name, 0)) for name in names
            )
    return counts
