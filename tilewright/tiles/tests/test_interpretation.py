"""Legal trees compute what their expressions say: every step carried out in NumPy, in the order of the tree."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from tests.random_tiles import CHAIN, Case, random_case
from tilewright.expr.text import parse_graph
from tilewright.tiles.legality import violations
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.topology import LoopAt, Topology, bound
from tilewright.tiles.tree import Leaf, Path, Scope

Arrays = dict[str, np.ndarray]


def run(case: Case, arrays: Arrays) -> None:
    """Add to `arrays` what the tree of two products computes; units take their turns."""
    topology = Topology(case.tree, case.problem)
    factors = bound(topology)
    strides = topology.strides(factors)

    def inside(op: str, axis: str, path: Path) -> int:
        loops, size = topology.inside(op, axis, path)
        return size * int(np.prod([factors[loop] for loop in loops]))

    def node(path: Path, digits: dict[LoopAt, int]) -> None:
        here = topology.nodes[path]
        if isinstance(here, Leaf):
            step(path, here.op, digits)
        elif isinstance(here, Scope):
            for number in range(len(here.children)):
                node((*path, number), digits)
        else:
            loops = topology.loops[path]
            for values in product(*(range(factors[loop]) for loop in loops)):
                node((*path, 0), {**digits, **dict(zip(loops, values, strict=True))})

    def step(path: Path, op: str, digits: dict[LoopAt, int]) -> None:
        def at(axis: str, _: int) -> int:
            return sum(digits[loop] * strides[loop] for loop in topology.above(path) if loop.axis == axis)

        rows, columns, sums = (
            slice(*topology.range(op, axis.name, path, at, inside)) for axis in case.problem.compute(op).loops
        )
        a, b = (read.tensor.name for read in case.problem.compute(op).reads())
        arrays[op][rows, columns] += arrays[a][rows, sums] @ arrays[b][sums, columns]

    node((), {})


def test_spec1_g42_random_legal_trees_of_two_products() -> None:
    found = 0
    for seed in range(2000):
        roll = random.Random(seed)
        case = random_case(roll, (CHAIN,))
        if any(violations(case.tree, case.problem, imperfect=True)):
            continue
        found += 1
        rng = np.random.default_rng(seed)
        shapes = {name: tuple(map(int, tensor.shape)) for name, tensor in case.problem.tensors().items()}
        arrays = {name: rng.integers(-9, 10, shapes[name]) for name in "ABD"}
        arrays |= {name: np.zeros(shapes[name], np.int64) for name in "CE"}
        run(case, arrays)
        assert (arrays["E"] == arrays["A"] @ arrays["B"] @ arrays["D"]).all(), f"tree {seed}"
        if found == 60:
            return
    pytest.fail(f"{found} legal trees in 2000")


def test_an_illegal_tree_computes_something_else() -> None:
    """The interpretation is no formality: where sums are shared, the second product reads them too early."""
    problem = Problem.of(parse_graph(CHAIN.format(m=4, k=4, l=4, n=4)).nodes)
    tree = parse_tree("@DRAM for k:2 { shar[@L1 for m:4, l:4, k:2 { op C }, @L1 for m:4, l:4, n:4 { op E }] }")
    arrays = {name: np.ones((4, 4), np.int64) for name in "ABD"} | {name: np.zeros((4, 4), np.int64) for name in "CE"}
    run(Case(problem, tree, None, False), arrays)
    assert (arrays["C"] == 4).all()
    assert (arrays["E"] == 4 * (2 + 4)).all()  # not 4 * 4
