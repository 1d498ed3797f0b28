"""Where the sums of a product wait between blocks of k: the first cache that holds them, or memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.compiler.make_plan import make_plan
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.machine import resolve_cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_tree import product_tree
from tilewright.operator.rules.cpu_product import scheduled_product
from tilewright.options import Options
from tilewright.tiles.legality import violations
from tilewright.tiles.machines import level_for, program_resources
from tilewright.tiles.problem import problem_of

MACHINE = resolve_cpu("znver5")


def product(rows: int) -> Graph:
    b = GraphBuilder()
    a, w = b.input("a", (rows, 4096), "f32"), b.input("w", (4096, 512), "f32")
    return b.finish([a @ w])


@pytest.mark.parametrize(("l2", "level"), [(1 << 20, "L2"), (1 << 17, "L3")])
def test_a_tree_with_blocks_of_k_is_legal_whatever_the_size_of_l2(l2: int, level: str) -> None:
    plan = make_plan(product(1024), MACHINE, 1, Options(cache=False))
    (planned,) = (each for each in plan.kernels if each.instruction)
    work = product_tree(planned.scheduled).work
    point = ProductPoint((6,), 4, (work.columns.name, work.rows[0].name), k_blocks=4)
    first, second, *others = MACHINE.caches
    machine = replace(MACHINE, caches=(first, replace(second, bytes=l2), *others))
    kernel = scheduled_product(work, point, {}, machine)
    found = product_tree(kernel)
    assert found.k_block, "the sum is cut"
    assert found.sums_level == level
    assert not list(violations(kernel.tree, problem_of(kernel), imperfect=True, resources=program_resources(machine)))


def test_the_first_cache_that_holds_so_many_bytes() -> None:
    first, second, third = MACHINE.caches
    assert [level_for(each.bytes, MACHINE.caches) for each in (first, second, third)] == ["L1", "L2", "L3"]
    assert level_for(1, MACHINE.caches, first=1) == "L2"
    assert level_for(third.bytes + 1, MACHINE.caches) == "DRAM"
