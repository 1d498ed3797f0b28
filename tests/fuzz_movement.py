"""Random tile trees: the boundary method gives the numbers of the walk, for one tree and in a batch.

So does the walk that takes equal steps at once (`equal_steps`). What moves is compared, and how often each expression
is evaluated on all units and on the one that does most. Half of the trees have long loops, and some of them masks that
end loops early.

    python -m tests.fuzz_movement --trees 10000 --seed 0

Prints every tree with a difference; the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace

import numpy as np

from tests.random_tiles import EXTENTS, LARGE, Case, random_case, random_masked
from tilewright.tiles.brute import Walk
from tilewright.tiles.equal_steps import EqualSteps
from tilewright.tiles.movement import Boundaries, movement
from tilewright.tiles.notation import print_tree
from tilewright.tiles.topology import Topology, bound
from tilewright.tiles.traffic import Moved, Traffic
from tilewright.tiles.tree import Leaf, Loop, Scope, Tile, TileTree
from tilewright.tiles.tree import walk as nodes


def difference(case: Case) -> str:
    """What the boundary method counts differently from the walk; empty if nothing."""
    options = {"resources": case.resources, "compat_evict": case.compat_evict}
    topology = Topology(case.tree, case.problem, case.resources)
    walk = Walk(topology, bound(topology), compat_evict=case.compat_evict)
    wanted = walk.traffic
    equal = EqualSteps(topology, bound(topology), compat_evict=case.compat_evict)
    if equal.traffic != wanted:
        return f"with equal steps at once: {equal.traffic.moved}, walked {wanted.moved}"
    found = movement(case.tree, case.problem, **options)
    tree, factors = opened(case.tree)
    batch = movement(tree, case.problem, factors=np.array([factors, [1] * len(factors), factors]), **options)
    for path, tensors in wanted.moved.items():
        for name, moved in tensors.items():
            if found.moved[path][name] != moved:
                return f"{name} at {wanted.sources[path, name]}: {found.moved[path][name]}, walked {moved}"
            one = _first(batch, path, name)
            if one != moved:
                return f"{name} at {wanted.sources[path, name]} in a batch: {one}, walked {moved}"
    boundaries = Boundaries(topology, compat_evict=case.compat_evict)
    point = boundaries.point()
    for op in walk.evaluations:
        evaluated = walk.evaluated(op)
        if equal.evaluated(op) != evaluated:
            return f"with equal steps at once, {op} is evaluated {equal.evaluated(op)} times, walked {evaluated}"
        if boundaries.points(point, op) != evaluated:
            return f"{op} is evaluated {boundaries.points(point, op)} times, walked {evaluated}"
    return ""


def numbered_case(number: int) -> Case:
    """The case of this number, the same each time."""
    roll = random.Random(number)
    if number % 8 == 7:
        return random_masked(roll, LARGE)
    return random_case(roll, extents=LARGE if number % 2 else EXTENTS)


def _first(batch: Traffic, path: tuple[int, ...], name: str) -> Moved:
    moved = batch.moved[path][name]
    return Moved(*(int(np.broadcast_to(value, (3,))[2]) for value in (moved.loads, moved.fills, moved.stores)))


def opened(tree: TileTree) -> tuple[TileTree, list[int]]:
    """The tree with open factors, and the factors that it had."""
    factors = [loop.trips for _, node in nodes(tree) if isinstance(node, Tile) for loop in node.loops]

    def visit(node: TileTree | Leaf) -> TileTree | Leaf:
        if isinstance(node, Leaf):
            return node
        if isinstance(node, Scope):
            return Scope(node.kind, tuple(visit(child) for child in node.children))  # type: ignore[misc]
        if isinstance(node, Tile):
            loops = tuple(Loop(loop.name) for loop in node.loops)
            return replace(node, loops=loops, child=visit(node.child))
        return replace(node, child=visit(node.child))

    return visit(tree), factors  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=1000, help="how many trees (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first tree (default: 0)")
    arguments = parser.parse_args()
    wrong = 0
    for number in range(arguments.seed, arguments.seed + arguments.trees):
        case = numbered_case(number)
        found = difference(case)
        if found:
            wrong += 1
            print(f"tree {number}: {found}\n{print_tree(case.tree, indented=True)}")
    print(f"{arguments.trees} trees, {wrong} with a difference")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
