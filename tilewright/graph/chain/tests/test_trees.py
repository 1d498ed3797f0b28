"""Trees move what their plans say: a literal walk over a tree, with a memory that forgets what no stage keeps."""

from __future__ import annotations

import random

import pytest

from tilewright.graph.chain.candidates import candidates
from tilewright.graph.chain.hierarchy import Hierarchy, Store
from tilewright.graph.chain.levels import solve_levels
from tilewright.graph.chain.loops import Chain, chain_of
from tilewright.graph.chain.orders import legal_orders
from tilewright.graph.chain.tests.chains import gemm_chain, three_products
from tilewright.graph.chain.trees import tree_of
from tilewright.tiles.tree import Leaf, Node, Scope, Stage, Tile


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
