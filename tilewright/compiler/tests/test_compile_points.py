"""Products that run as a point of their space says: right for every point, and the plan shows it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.covering import tries
from tilewright.compiler.compile import build
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import ChooseProduct
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv
from tilewright.machine import host
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_space import ProductSpace
from tilewright.operator.product_tree import product_tree
from tilewright.options import Options
from tilewright.runtime.module import Module
from tilewright.tiles.product import product_of


def convolution(kernel: int, stride: int) -> tuple[Graph, np.ndarray]:  # type: ignore[type-arg]
    generator = np.random.default_rng(0)
    b = GraphBuilder("layer")
    image = generator.standard_normal((1, 6, 11, 9), np.float32)
    x = b.input("x", image.shape, "f32")
    w = b.constant(generator.standard_normal((40, 6, kernel, kernel), np.float32), "w")
    return b.finish([conv.conv(x, w, strides=stride, pads=kernel // 2, name="y")]), image


def space_of(graph: Graph) -> ProductSpace:
    asked: list[ProductSpace] = []

    def ask(space: ProductSpace, name: str) -> None:
        asked.append(space)

    make_plan(graph, host(), 1, choose=ChooseProduct(point=ask))
    (space,) = asked
    return space


@pytest.mark.parametrize(("kernel", "stride", "seed"), [(3, 1, 0), (3, 2, 1), (1, 1, 2)])
def test_every_point_computes_the_same(kernel: int, stride: int, seed: int) -> None:
    graph, image = convolution(kernel, stride)
    (expected,) = evaluate(graph, [image], precise=True, wide=True)
    for point in space_of(graph).sample(tries(2, full=8), seed):
        choose = ChooseProduct(point=lambda space, name, point=point: point)
        artifact = build(graph, host(), 1, Options(cache=False), choose=choose)
        found = Module(artifact, threads=1)(image)
        assert np.abs(found - expected).max() <= 1e-4, f"{point}, seed {seed}"
        assert str(point) in json.dumps(json.loads(artifact.plan), ensure_ascii=False).replace('\\"', '"')


def test_a_point_decides_tile_order_and_blocks() -> None:
    graph, _ = convolution(3, 1)
    space = space_of(graph)
    (n, *m_loops) = (space.work.columns.name, *(axis.name for axis in space.work.rows))
    point = ProductPoint((1, 3)[-len(m_loops) :], 1, (n, *m_loops), 2)
    plan = make_plan(graph, host(), 1, choose=ChooseProduct(point=lambda space, name: point))
    (tree,) = [product_tree(each.scheduled) for each in plan.kernels if product_of(each.scheduled)]
    assert [loop.axis.name for loop in (*tree.outside, *tree.inside)][-1 - len(m_loops) :] == [n, *m_loops]
    assert tree.tile[m_loops[-1]] == 3
    assert tree.k_block > 0


def test_without_a_choice_the_rules_decide() -> None:
    graph, _ = convolution(3, 1)
    by_rule, undecided = (make_plan(graph, host(), 1, choose=choose) for choose in (None, ChooseProduct()))
    assert [kernel.scheduled for kernel in by_rule.kernels] == [kernel.scheduled for kernel in undecided.kernels]
