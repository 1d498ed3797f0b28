"""Random legal trees of chains: what their programs compute, and what they move, is what the trees say."""

from __future__ import annotations

import random

import pytest

from tests.covering import some
from tests.random_chains import counted, differences, random_case, run
from tilewright.machine import host
from tilewright.machine.registry import resolve_cpu
from tilewright.tiles.notation import print_tree

MACHINE = resolve_cpu("x86-64-v3")


CASES = [
    *((seed, 2, False) for seed in some(range(500), 24)),
    *((seed, 3, False) for seed in some(range(500), 10)),
    *((seed, 2, True) for seed in some(range(500), 16)),
]


@pytest.mark.parametrize(("seed", "products", "windows"), CASES)
def test_a_random_tree_computes_the_chain_and_moves_what_it_says(seed: int, products: int, windows: bool) -> None:
    case = random_case(random.Random(seed), MACHINE, small=True, products=products, windows=windows)
    counts = counted(case, MACHINE, seed)
    found = differences(case, counts, MACHINE)
    assert not found, "\n".join([print_tree(case.tree, indented=True), *found])
    if not set(MACHINE.features) <= set(host().features):
        return
    if seed % 250 == 0:  # machine code that writes down what it touches takes long to make
        assert counted(case, MACHINE, seed, "cpu") == counts
    else:
        run(case, MACHINE, seed)
