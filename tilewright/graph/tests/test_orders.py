"""Orders of loops: none is made before it is asked for, and those of one canonical form cost the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations

import numpy as np
import pytest

from tilewright.expr.ordered import Scatter
from tilewright.expr.text import parse_graph
from tilewright.graph import orders as module
from tilewright.graph.chain.softmax import running
from tilewright.graph.chain.workloads import ConvChain, attention, two_products, unpadded_convolutions
from tilewright.graph.orders import Orders, replaced_slices
from tilewright.graph.tests.test_tree_space import any_genome
from tilewright.graph.tree_factors import TreeFactors
from tilewright.graph.tree_space import TreeSpace
from tilewright.search.random import Random
from tilewright.tiles.analysis import analyse
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.tests.test_legality import ordered

LEVELS = ("DRAM", "L1", "RF")
MACHINE = Resources(
    (
        Level("DRAM", instances=1, technology="dram", read_words_per_cycle=3, write_words_per_cycle=2),
        Level("L1", instances=4, read_words_per_cycle=5, write_words_per_cycle=5),
        Level("RF", instances=64),
    ),
    units=64,
)
PROBLEMS = {
    "maps": Problem.of(
        parse_graph("""
            input A: f16[4, 4, 6]
            input m: f16[4, 4]
            B: f16[i:4, j:4, k:6] = exp(A[i, j, k])
            C: f16[i:4, j:4, k:6] = B[i, j, k] - m[i, j]
            output C""").nodes
    ),
    "attention": running(Problem.of(attention(2, 6, 4, 3, 4, "f16"))),
    "convolutions": Problem.of(unpadded_convolutions(ConvChain(2, 6, 6, 3, 4, 1, 1, 3, 1), "f16")),
}


def test_the_usual_order_comes_first_and_every_order_once() -> None:
    orders = Orders(("i", "l", "k"))
    assert list(orders) == ["i l k", "i k l", "l i k", "l k i", "k i l", "k l i"]
    assert orders.count == 6
    assert all(each in orders for each in orders)
    assert not any(each in orders for each in ("i l", "i l l", "", 3, "i  l k"))
    assert list(Orders(())) == [""]
    assert "" in Orders(())


def test_every_order_is_drawn_as_often() -> None:
    numbers = np.random.default_rng(0)
    orders = Orders(("i", "l", "k"))
    drawn = [orders.drawn(numbers) for _ in range(600)]
    assert all(60 < drawn.count(each) < 140 for each in orders)


def test_no_order_is_made_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 loops there are 6 * 10^23 orders; a search of genomes makes as many as it draws."""
    made = []

    def counted(loops: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for each in permutations(loops):
            made.append(each)
            yield each

    monkeypatch.setattr(module, "permutations", counted)
    names = [f"a{number}" for number in range(24)]
    loops, index = ", ".join(f"{name}:2" for name in names), ", ".join(names)
    sizes = ", ".join("2" for _ in names)
    text = f"input A: f16[{sizes}]\nB: f16[{loops}] = exp(A[{index}])\nC: f16[{loops}] = exp(B[{index}])\noutput C"
    space = TreeSpace(Problem.of(parse_graph(text).nodes), LEVELS[:2])
    assert space.size == 2 * 4 * Orders(tuple(names)).count ** 2
    points = list(islice(space.points(), 5))
    assert len(set(points)) == 5
    assert len(made) <= 6
    numbers = np.random.default_rng(0)
    genome = space.sample(numbers)
    assert space.from_json(space.to_json(genome)) == genome
    assert len(space.neighbours(genome)) == 1 + 0 + 3 + 23 + 23
    assert space.mutated(1, 0, genome[1][0], numbers) in space.cells[1][0]
    next(Random(space).ask(0))
    assert len(made) <= 6


def test_neighbouring_loops_that_replace_the_same_slices_stand_as_usual() -> None:
    products = Problem.of(two_products(2, 6, 4, 3, 4, "f16"))
    usual = Orders(("b", "m", "l", "k"))
    replaced = replaced_slices(products, ["C"], usual.loops)
    assert usual.canonical("k m b l", replaced) == "k m b l"  # b moves A, B and C, m A and C
    one = replaced_slices(products, ["C"], ("m", "l"))
    assert one["m"] != one["l"]
    text = "input A: f16[4, 4, 4]\nB: f16[i:4, j:4, k:4] = exp(A[i, j, k])\noutput B"
    usual = Orders(("i", "j", "k"))
    replaced = replaced_slices(Problem.of(parse_graph(text).nodes), ["B"], usual.loops)
    assert {usual.canonical(each, replaced) for each in usual} == {"i j k"}
    rows = "input A: f16[4, 4]\ninput m: f16[4]\nB: f16[i:4, j:4] = A[i, j] - m[i]\noutput B"
    assert len({*replaced_slices(Problem.of(parse_graph(rows).nodes), ["B"], ("i", "j")).values()}) == 2


def test_rows_and_windows_of_an_image_commute_with_none() -> None:
    text = """
        input X: f16[2, 8, 8]
        input W: f16[4, 2, 3, 3]
        Y: f16[n:4, h:6, w:6] += X[c, h + r, w + s] * W[n, c, r, s] over c:2, r:3, s:3
        output Y"""
    replaced = replaced_slices(Problem.of(parse_graph(text).nodes), ["Y"], tuple("nhwcrs"))
    assert {loop for loop, what in replaced.items() if what == (loop,)} == {*"hwrs"}


def test_the_steps_of_a_scatter_keep_their_order() -> None:
    replaced = replaced_slices(ordered(Scatter((0,))), ["S"], ("i", "j", "u", "v"))
    assert replaced["u"] == ("u",)
    assert replaced["v"] == ("v",)


@pytest.mark.parametrize("name", PROBLEMS)
def test_trees_whose_orders_have_one_canonical_form_cost_the_same(name: str) -> None:
    """Random factors, and the same ones in the tree that the canonical orders give."""
    problem = PROBLEMS[name]
    space = TreeSpace(problem, LEVELS, frozenset({"DRAM", "L1"}), MACHINE)
    numbers = np.random.default_rng(3)
    compared = 0
    for drawn in (any_genome(space, numbers) for _ in range(150)):
        found = space.repaired(drawn)
        if found is None or space.tree(found) == space.tree(drawn):
            continue
        given, canonical = (TreeFactors(space.tree(each), problem, MACHINE) for each in (drawn, found))
        if given.start() is None:
            continue
        point = given.sample(numbers)
        factors = given.to_json(point)
        same = canonical.from_json({label: factors[label] for label in canonical.to_json(point)})
        a, b = analyse(given.filled(point), problem, MACHINE), analyse(canonical.filled(same), problem, MACHINE)
        assert (a.cycles, a.bottleneck, a.traffic) == (b.cycles, b.bottleneck, b.traffic)
        assert a.energy == pytest.approx(b.energy, rel=1e-12)
        compared += 1
    assert compared > 2, compared
