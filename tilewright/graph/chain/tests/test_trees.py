"""Trees move what their plans say: a literal walk over a tree, with a memory that forgets what no stage keeps."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tilewright.expr.text import parse_graph
from tilewright.graph.chain.candidates import candidates
from tilewright.graph.chain.hierarchy import Hierarchy, Store
from tilewright.graph.chain.levels import Levels, solve_levels
from tilewright.graph.chain.loops import Access, Chain, chain_of
from tilewright.graph.chain.orders import legal_orders
from tilewright.graph.chain.solve import NoTiling, solve
from tilewright.graph.chain.tests.chains import (
    Computes,
    attention,
    gemm_chain,
    three_products,
    two_convolutions,
    two_products,
)
from tilewright.graph.chain.trees import tree_of
from tilewright.tiles.notation import print_tree
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.tests.executed import Execution
from tilewright.tiles.tree import Kind, Leaf, Node, Scope, Stage, Tile


class Walk:
    """Runs a tree of one memory level on chip; counts the elements of every tensor that is no link."""

    def __init__(self, chain: Chain, tile: dict[str, int]) -> None:
        self.chain, self.tile = chain, tile
        self.memory: dict[str, object] = {}
        self.moved: dict[str, int] = {}
        self.staged: list[str] = []
        self.last = ""

    def run(self, node: Node, at: dict[str, int]) -> None:
        if isinstance(node, Stage):
            assert node.level == "L1"
            self.staged.append(node.tensor)
            self.run(node.child, at)
            assert self.staged.pop() == node.tensor
        elif isinstance(node, Scope):
            for child in node.children:
                self.run(child, at)
        elif isinstance(node, Leaf):
            self.execute(node.op, at)
        elif node.level == "L1":
            self.run(node.child, at)  # a block: its loops run inside
        else:
            self.loop(node, 0, at)

    def loop(self, node: Tile, depth: int, at: dict[str, int]) -> None:
        if depth == len(node.loops):
            self.run(node.child, at)
            return
        loop = node.loops[depth]
        for step in range(loop.trips):
            self.loop(node, depth + 1, {**at, loop.name: step})

    def execute(self, op: str, at: dict[str, int]) -> None:
        if op != self.last:
            self.memory = {name: block for name, block in self.memory.items() if name in self.staged}
        self.last = op
        operator = next(each for each in self.chain.operators if each.name == op)
        for access in operator.accesses:
            if access.tensor in self.chain.links:
                continue
            block, size = [], 1
            for index in access.dims:
                assert index.plain is not None
                begin = at.get(index.plain, 0) * self.tile[index.plain]
                block.append(begin)
                size *= min(begin + self.tile[index.plain], index.extent) - begin
            if self.memory.get(access.tensor) != block:
                self.memory[access.tensor] = block
                self.moved[access.tensor] = self.moved.get(access.tensor, 0) + size


@pytest.mark.parametrize("products", [2, 3])
def test_a_tree_moves_what_its_plan_says(products: int) -> None:
    """Every order and policy on random sizes and memories."""
    roll = random.Random(products)
    checked = staged = 0
    for _ in range(12 if products == 2 else 5):
        sizes = [roll.randint(3, 9) for _ in range(products + 2)]
        chain = gemm_chain(*sizes) if products == 2 else chain_of(three_products(*sizes))
        hierarchy = Hierarchy("one", (Store("DRAM", None, 1e9), Store("L1", 2 * roll.randint(20, 160), 1e9)), 1e30, 0.0)
        for each in candidates(chain, legal_orders(chain)[0]):
            levels = solve_levels(each, hierarchy, 1)
            if levels is None:
                continue
            walk = Walk(chain, dict(levels.tiles[0]))
            tree = tree_of(levels, hierarchy)
            walk.run(tree, {})
            assert walk.moved == levels.dv[0], (sizes, each.order, each.policy, levels.tiles, tree)
            checked += 1
            staged += "stage=" in repr(tree) or "Stage(" in repr(tree)
    assert checked > 50
    assert staged > 20


# Several levels -------------------------------------------------------------------------------------------------------

THREE = ("DRAM", "L2", "L1")


class LevelWalk:
    """Runs a tree of several memory levels; counts what each of them is filled with, links inside the fused level only.

    A memory has one block of a tensor at a time. When another operator runs, the fused level forgets all blocks but
    those that a stage keeps, and levels further in all of them.
    """

    def __init__(self, chain: Chain, levels: Levels) -> None:
        self.chain, self.levels = chain, levels
        self.memory: list[dict[str, object]] = [{} for _ in levels.tiles]
        self.moved: list[dict[str, int]] = [{} for _ in levels.tiles]
        self.staged: list[str] = []
        self.last = ""

    def run(self, node: Node, at: dict[tuple[int, str], int]) -> None:
        if isinstance(node, Stage):
            assert node.level == THREE[self.levels.fused]
            self.staged.append(node.tensor)
            self.run(node.child, at)
            self.staged.pop()
        elif isinstance(node, Scope):
            assert node.kind is Kind.SEQ, "operators take turns, and what the next one does not need is gone"
            for child in node.children:
                self.run(child, at)
        elif isinstance(node, Leaf):
            self.execute(node.op, at)
        elif node.level == THREE[-1]:
            self.run(node.child, at)  # a block: its loops run inside
        else:
            filled = THREE.index(node.level)  # the number of the level that its steps fill, in `tiles`
            names = [(filled, loop.name) for loop in node.loops]
            assert not set(names) & set(at), "a loop of a level stands once on a way"
            for step in product(*(range(loop.trips) for loop in node.loops)):
                self.run(node.child, {**at, **dict(zip(names, step, strict=True))})

    def execute(self, op: str, at: dict[tuple[int, str], int]) -> None:
        operator = next(each for each in self.chain.operators if each.name == op)
        for number in range(len(self.levels.tiles)):
            if op != self.last:
                stays = self.staged if number == self.levels.fused - 1 else []
                if number < self.levels.fused - 1:
                    continue  # what happens further in drops nothing here
                self.memory[number] = {n: block for n, block in self.memory[number].items() if n in stays}
        for number in range(len(self.levels.tiles)):
            for access in operator.accesses:
                if access.tensor not in self.chain.links or number >= self.levels.fused:
                    self.touch(number, access, at)
        self.last = op

    def touch(self, number: int, access: Access, at: dict[tuple[int, str], int]) -> None:
        """Bring the block of a tensor into a level, where it is not there."""
        block, size = [], 1
        for index in access.dims:
            assert index.plain is not None
            loop, first, end = index.plain, 0, index.extent
            for outer in range(number + 1):
                width, step = self.levels.tiles[outer][loop], at.get((outer, loop), 0)
                first, end = first + step * width, min(end, first + (step + 1) * width)
                block.append(step)
            size *= max(0, end - first)
        if self.memory[number].get(access.tensor) != block:
            self.memory[number][access.tensor] = block
            self.moved[number][access.tensor] = self.moved[number].get(access.tensor, 0) + size


@pytest.mark.parametrize("fused", [1, 2])
@pytest.mark.parametrize("products", [2, 3])
def test_every_level_of_a_tree_moves_what_its_plan_says(products: int, fused: int) -> None:
    """Random sizes and memories, also tiles that do not divide those outside."""
    roll = random.Random(10 * products + fused)
    checked = staged = split = 0
    for _ in range(10 if products == 2 else 3):
        sizes = [roll.randint(3, 9) for _ in range(products + 2)]
        chain = gemm_chain(*sizes) if products == 2 else chain_of(three_products(*sizes))
        outer, inner = 2 * roll.randint(60, 200), 2 * roll.randint(12, 50)
        stores = (Store("DRAM", None, 1e9), Store("L2", outer, 1e9), Store("L1", inner, 1e9))
        hierarchy = Hierarchy("two", stores, 1e30, 0.0)
        for each in candidates(chain, legal_orders(chain)[0])[:: 1 if products == 2 else 3]:
            levels = solve_levels(each, hierarchy, fused)
            if levels is None:
                continue
            tree = tree_of(levels, hierarchy)
            walk = LevelWalk(chain, levels)
            walk.run(tree, {})
            assert walk.moved == list(levels.dv), (sizes, each.order, each.policy, levels.tiles, print_tree(tree))
            checked += 1
            staged += "stage" in print_tree(tree)
            split += levels.tiles[0] != levels.tiles[1]
    assert checked > 40
    assert staged > 10
    assert split > 20


# What a tree computes -------------------------------------------------------------------------------------------------

MACHINE = Resources(tuple(map(Level, THREE)))
SMALL: dict[str, Computes] = {
    "two products": two_products(9, 5, 4, 7, 2),
    "three products, relus": three_products(6, 4, 5, 4, 3, relu=True),
    "attention": attention(6, 8, 3, 4),
    "rows behind the second product": parse_graph("""
        input A: f32[6, 4]
        input B: f32[4, 7]
        input D: f32[7, 8]
        C: f32[m:6, l:7] += A[m, k] * B[k, l] over k:4
        E: f32[m:6, n:8] += C[m, l] * D[l, n] over l:7
        Z: f32[m:6] += exp(E[m, n]) over n:8
        N: f32[m:6, n:8] = exp(E[m, n]) / Z[m]
        output N""").nodes,
    "convolutions": two_convolutions(2, 8, 3, 2, (1, 1), (3, 3)),
    "strides": two_convolutions(2, 9, 3, 2, (2, 1), (3, 1)),
    "strides of the second": two_convolutions(2, 9, 2, 2, (1, 2), (1, 3)),
}


@pytest.mark.parametrize("name", SMALL)
def test_trees_of_plans_compute_every_point_from_complete_operands(name: str) -> None:
    """Plans of memories of several sizes; and as often as the plan counts, where no edge is clipped."""
    found: set[str] = set()
    for outer, inner in ((80, 30), (200, 30), (200, 90), (1000, 200)):
        stores = (Store("DRAM", None, 1e9), Store("L2", 4 * outer, 2e9), Store("L1", 4 * inner, 4e9))
        try:
            plans = solve(SMALL[name], Hierarchy("two", stores, 1e12, 0.0), halo=("recompute", "keep")).plans
        except NoTiling:
            continue
        for plan in plans:
            text = print_tree(plan.tree)
            if text in found:
                continue
            found.add(text)
            run = Execution(plan.tree, plan.chain.problem, MACHINE)
            assert run.faults == [], text
            assert run.complete, text
            evaluated = sum(2 * run.evaluations[operator.name] for operator in plan.chain.operators)
            assert evaluated <= plan.flops, text
            if not plan.recomputes and not plan.chain.windows:
                once = sum(plan.chain.flops(number) for number in range(len(plan.chain.operators)))
                assert evaluated == once, text
    assert len(found) > 5
