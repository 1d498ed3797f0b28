"""The joint choice: every candidate computes the same, the plan says which mapping runs, and a choice is replayed."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from tests.covering import FULL, some
from tilewright.compiler.compile import build
from tilewright.compiler.joint import candidates, default_choice, replay
from tilewright.compiler.make_plan import make_plan
from tilewright.errors import InvalidArgument
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv
from tilewright.instruction.model import hierarchy
from tilewright.instruction.products import ProductKey
from tilewright.instruction.search import Choice, search
from tilewright.machine import host
from tilewright.operator.product_tree import product_tree
from tilewright.options import Options
from tilewright.runtime.module import Module
from tilewright.tiles.product import product_of

Array = np.ndarray[Any, Any]
MODEL = hierarchy(host(), cores=1)


def layer(
    kernel: int, stride: int = 1, channels: int = 6, batch: int = 1, integer: bool = False
) -> tuple[Graph, Array]:
    """A convolution of an image of 11 x 9 pixels with 40 filters, padded so that it keeps its size with stride 1."""
    generator = np.random.default_rng(0)
    b = GraphBuilder("layer")
    if integer:
        image = generator.integers(0, 256, (batch, channels, 11, 9), np.uint8)
        weights = generator.integers(-128, 128, (40, channels, kernel, kernel), np.int8)
    else:
        image = generator.standard_normal((batch, channels, 11, 9), np.float32)
        weights = generator.standard_normal((40, channels, kernel, kernel), np.float32)
    x = b.input("x", image.shape, "u8" if integer else "f32")
    kind = "i32" if integer else None
    y = conv.conv(x, b.constant(weights, "w"), strides=stride, pads=kernel // 2, name="y", accumulate=kind,
                  out_dtype=kind)  # fmt: skip
    return b.finish([y]), image


def run(graph: Graph, image: Array, choice: Choice) -> Array:
    found = Module(build(graph, host(), 1, Options(cache=False), choose=replay({"y": choice})), threads=1)(image)
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize(("kernel", "stride", "batch"), some([(3, 2, 3), (3, 1, 1), (1, 1, 2), (1, 2, 1)], 1))
def test_every_mapping_computes_the_same(kernel: int, stride: int, batch: int) -> None:
    graph, image = layer(kernel, stride, batch=batch)
    (expected,) = evaluate(graph, [image], precise=True, wide=True)
    among = candidates(graph, "y", host(), MODEL)
    vectors = {each.mapping.loops[1] for each in among}
    assert vectors >= {("k",), ("i",), ("j",)}, "any loop of the vector operand and the result may be the vector"
    for number, candidate in enumerate(among):
        for point in (candidate.points[0], candidate.points[-1]) if FULL else (candidate.points[-(number % 2)],):
            found = run(graph, image, Choice(candidate.mapping, point))
            assert np.abs(found - expected).max() <= 1e-4, f"{candidate.mapping} {point}"


def test_sums_in_groups_are_one_loop_or_all() -> None:
    graph, image = layer(3, channels=3, integer=True)
    (expected,) = evaluate(graph, [image])
    among = candidates(graph, "y", host(), MODEL)
    if "vpdpbusd" not in among[0].mapping.instruction:
        pytest.skip("no dot products here")
    assert {len(each.mapping.loops[2]) for each in among} == {1, 3}
    for candidate in among:
        choice = Choice(candidate.mapping, candidate.points[0])
        assert np.array_equal(run(graph, image, choice), expected), str(choice)
    assert {len(each.mapping.loops[2]) for each in candidates(layer(3, channels=8, integer=True)[0], "y", host(), MODEL)
            } == {1}, "groups of one loop are full"  # fmt: skip


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_register_tile_has_rows_along_i1_and_no_others(kernel: int) -> None:
    graph, _ = layer(kernel, batch=2)
    for candidate in candidates(graph, "y", host(), MODEL):
        plan = make_plan(graph, host(), 1, choose=replay({"y": Choice(candidate.mapping, candidate.points[-1])}))
        product = plan.products["y"]
        assert ProductKey.of(product) == candidate.mapping
        tile = product["schedule"]["tile"]
        rows = {part for name in tile if name not in product["loops"][1] for part in name.split("_")}
        assert rows == set(candidate.mapping.loops[0])


def test_without_a_choice_the_plan_says_which_mapping_runs() -> None:
    graph, _ = layer(3)
    plan = make_plan(graph, host(), 1)
    (decision,) = [each for each in plan.decisions if each.subject == "instruction of y"]
    product = plan.products["y"]
    assert decision.chosen == str(ProductKey.of(product))
    (tree,) = [product_tree(each.scheduled) for each in plan.kernels if product_of(each.scheduled)]
    assert {name for name in ("i", "j") if tree.tile.get(name, 1) > 1} == set(product["loops"][0])
    height, vectors = map(int, re.findall(r"outer_(\d+)x(\d+)x", product["record"])[0])
    tile = product["schedule"]["tile"]
    assert tile.get("i", 1) * tile.get("j", 1) <= height
    assert tile["k"] <= vectors * tree.work.lanes
    stored = json.loads(build(graph, host(), 1, Options(cache=False)).plan)
    assert stored["products"]["y"] == json.loads(json.dumps(product))


def test_a_search_is_replayed_from_its_record() -> None:
    graph, image = layer(3)
    among = candidates(graph, "y", host(), MODEL)
    predicted = {each.mapping: each.predict for each in among}
    found = search(
        among, lambda choice: predicted[choice.mapping](choice.point), subject="y", trials=40,
        first=default_choice(graph, "y", host(), among),
    )  # fmt: skip
    choice = Choice.from_json(json.loads(json.dumps(found.to_json()))["best"]["choice"])
    assert choice == found.best.choice
    plan = make_plan(graph, host(), 1, choose=replay({"y": choice}))
    assert ProductKey.of(plan.products["y"]) == choice.mapping
    (expected,) = evaluate(graph, [image], precise=True, wide=True)
    assert np.abs(run(graph, image, choice) - expected).max() <= 1e-4


def test_the_default_is_among_the_candidates() -> None:
    graph, _ = layer(3)
    choice = default_choice(graph, "y", host(), candidates(graph, "y", host(), MODEL))
    assert choice is not None
    by_rule, replayed = (make_plan(graph, host(), 1, choose=each) for each in (None, replay({"y": choice})))
    assert by_rule.products["y"]["loops"] == replayed.products["y"]["loops"]
    assert by_rule.products["y"]["schedule"]["tile"] == replayed.products["y"]["schedule"]["tile"]


def test_an_unknown_mapping_is_the_users_error() -> None:
    graph, _ = layer(3)
    among = candidates(graph, "y", host(), MODEL)
    strange = Choice(ProductKey("fma", "w", (("k",), ("i",), ("j",))), among[0].points[0])
    with pytest.raises(InvalidArgument, match="y has no mapping"):
        make_plan(graph, host(), 1, choose=replay({"y": strange}))
