"""Slices as rows of elements and turns, beside sets of elements in `Memories`."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tilewright.expr.text import parse_graph
from tilewright.tiles.held_slices import OWN, READ, READY, WRITTEN, HeldSlices
from tilewright.tiles.memories import Key, Memories
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.topology import Topology

PROBLEM = Problem.of(
    parse_graph("""
        input X: f32[6]
        Y: f32[i:6] = X[i] + 1.0
        output Y""").nodes
)
TREE = parse_tree("@DRAM for i:3 { @L1 for i:2 { op Y } }")
KEY: Key = ((), "Y", (), ())


def memories(retain: bool) -> Memories[Any]:
    levels = (Level("DRAM", multicast=False), Level("L1", multicast=False, retain=retain), Level("REG"))
    topology = Topology(TREE, PROBLEM, Resources(levels))
    return Memories(topology, lambda a, b: len(a) if b is None else len(a - b))


@pytest.mark.parametrize("retain", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_visits_in_any_order_move_what_sets_of_elements_do(seed: int, retain: bool) -> None:
    """Each visit reads some elements, and writes some where it computes the tensor; some slices are dropped."""
    roll, wanted, slices = random.Random(seed), memories(retain), HeldSlices(retain)
    turn, fills, stores = 0, 0, 0
    for number in range(40):
        own = roll.random() < 0.6
        read, written, ready = (set(roll.sample(range(8), roll.randrange(6))) for _ in range(3))
        state = wanted.states.get(KEY)
        dirty = frozenset() if state is None or state.dirty is None else state.dirty
        need = frozenset(read | written)
        wanted.visit(KEY, need, frozenset(read - ready), writes=own, written=(dirty & need) | written)
        turn += 1
        parts = [(each, READ | (READY if each in ready else 0)) for each in read] + [
            (each, WRITTEN) for each in written
        ]
        for part in (parts[: number % 3], parts[number % 3 :]):  # of one visit, what comes later is counted with it
            elements, flags = np.array([each for each, _ in part], np.int64), [flag for _, flag in part]
            marks = np.array(flags, np.int64) | (OWN if own else 0)
            moved = slices.touch(elements, np.full(len(part), turn), marks, turn)
            fills, stores = fills + moved[0], stores + moved[1]
        if roll.random() < 0.2:
            wanted.drop(KEY)
            turn += 1
    moved = slices.end()
    last = wanted.traffic().at("DRAM")["Y"]
    assert (fills + moved[0], stores + moved[1]) == (last.fills, last.stores)
    assert fills
    assert stores


def test_the_first_value_of_a_sum_is_not_filled() -> None:
    slices = HeldSlices(True)
    elements, turns = np.array([3, 4, 3]), np.array([1, 1, 2])
    assert slices.touch(elements, turns, np.array([READ | READY, READ, READ]) | OWN, 2) == (1, 0)
    assert slices.end() == (0, 0)
