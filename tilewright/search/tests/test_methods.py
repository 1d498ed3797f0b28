"""Every method finds what exhaustive search finds, draws the same for a seed, and ends."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from tilewright.search.cost import Budget, Evaluation
from tilewright.search.exhaustive import Exhaustive
from tilewright.search.factor_space import FactorSpace, Row, Table
from tilewright.search.genetic import Genetic, best
from tilewright.search.method import Method
from tilewright.search.minimise import minimise
from tilewright.search.random import Random
from tilewright.search.tests.tiles import PRODUCTS, VALLEYS, Product, Valley
from tilewright.search.tree_search import TreeSearch, completed, infeasible, reward, upper_bound


def methods(space: FactorSpace) -> list[Method[Table]]:
    return [Random(space, patience=500), Genetic(space, rounds=60), TreeSearch(space, rollouts=4)]


def least(cost: Product) -> float:
    """Brute force."""
    return min(cost(point).value for point in cost.space().points())


@pytest.mark.parametrize("cost", PRODUCTS)
def test_exhaustive_is_brute_force(cost: Product) -> None:
    space = cost.space()
    outcome = minimise(cost, Exhaustive(space))
    assert outcome.evaluation is not None
    assert outcome.evaluation.value == least(cost)
    assert outcome.best == min(space.points(), key=lambda point: cost(point).value)
    assert len(outcome.trace.steps) == space.size
    assert outcome.stopped == "finished"


@pytest.mark.covering(1)
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("cost", PRODUCTS)
def test_with_time_enough_every_method_is_within_one_percent(cost: Product, number: int) -> None:
    """The cost is rough: one or two points in three hundred are that good."""
    outcome = minimise(cost, methods(cost.space())[number], seed=1)
    assert outcome.evaluation is not None
    assert outcome.stopped == "finished"
    assert outcome.evaluation.value <= 1.01 * least(cost)


@pytest.mark.parametrize("cost", VALLEYS)
def test_where_the_cost_is_smooth_a_genetic_search_needs_a_quarter_of_the_points(cost: Valley) -> None:
    space = cost.space()
    legal = sum(not space.refuses(point) for point in space.points())
    for seed in range(4):
        outcome = minimise(cost, Genetic(space), Budget(legal // 4), seed=seed)
        assert outcome.evaluation is not None
        assert outcome.evaluation.value <= 1.01 * least(cost)


@pytest.mark.parametrize("cost", PRODUCTS[1:2])
def test_tree_search_walks_every_legal_point_once_and_ends(cost: Product) -> None:
    space = cost.space()
    outcome = minimise(cost, TreeSearch(space, rollouts=4))
    assert outcome.stopped == "finished"
    visited = {str(step.point) for step in outcome.trace.steps}
    assert len(visited) == len(outcome.trace.steps)
    assert visited == {str(space.to_json(point)) for point in space.points() if not space.refuses(point)}


def test_tree_search_where_nothing_is_legal_asks_for_nothing() -> None:
    space = FactorSpace((Row("m", 8, (None, None)),), lambda _: True)
    outcome = minimise(_unasked, TreeSearch(space))
    assert (outcome.best, outcome.stopped, outcome.trace.steps) == (None, "finished", ())


def _unasked(_: Table) -> Evaluation:
    raise AssertionError("there is no legal point")


def test_random_search_draws_each_point_once_and_ends() -> None:
    space = PRODUCTS[3].space()
    outcome = minimise(PRODUCTS[3], Random(space, patience=500))
    points = [str(step.point) for step in outcome.trace.steps]
    assert outcome.stopped == "finished"
    assert len(points) == len(set(points)) > 0.8 * sum(not space.refuses(point) for point in space.points())


def test_genetic_search_keeps_its_best_and_breeds_new_points() -> None:
    large = Product((512, 512, 512), (4000, 200))
    outcome = minimise(large, Genetic(large.space(), population=20, keep=5, rounds=10))
    iterations = [step.iteration for step in outcome.trace.steps]
    assert [iterations.count(number) for number in range(10)] == [20] + [15] * 9
    assert outcome.stopped == "finished"


class Families(FactorSpace):
    """Points are of one family where their first two factors are equal."""

    def family(self, point: Table) -> Any:
        return point[0][:2]


def test_parents_are_of_different_families_as_far_as_there_are_enough() -> None:
    space = Families((Row("m", 8, (None, None, None, None)),))
    points = [(a, b, c, 8 // (a * b * c)) for a in (1, 2, 4) for b in (1, 2) for c in (1, 2) if a * b * c <= 8]
    found = [(100.0 * a + 10 * b + c, (point,)) for point in reversed(points) for a, b, c, _ in (point,)]
    assert [point[0][:3] for _, point in best(found, space, 4)] == [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1)]
    few = [each for each in found if each[0] < 130]
    assert [point[0][:3] for _, point in best(few, space, 4)] == [(1, 1, 1), (1, 2, 1), (1, 1, 2), (1, 2, 2)]


@pytest.mark.parametrize("number", range(3))
def test_equal_seeds_ask_for_equal_points(number: int) -> None:
    def points(seed: int) -> list[Any]:
        method = methods(PRODUCTS[0].space())[number]
        return [step.point for step in minimise(PRODUCTS[0], method, Budget(100), seed=seed).trace.steps]

    assert points(3) == points(3)
    assert points(3) != points(4)


def test_spec1_g38() -> None:
    assert round(upper_bound(-5.5, parent_visits=100, visits=10, exploration=1.0), 6) == -4.821386


def test_rewards_of_spec_1_section_5_11() -> None:
    assert reward(Evaluation(1e-5)) == 5.0
    assert reward(Evaluation(0.0)) < inf
    assert infeasible(0.0) == -20.0
    assert infeasible(-3.0) == -20.0, "the worst legal point is no worse than -18"
    assert infeasible(-30.0) == -32.0


def test_tree_search_decides_the_variable_with_the_fewest_candidates_first() -> None:
    """The row of a prime has two candidates, the row of 64 seven."""
    asked: list[Any] = []

    class Watched(FactorSpace):
        def decide(self, state: Any, variable: Any, value: Any) -> Any:
            if variable in self.candidates(state) and state == self.start():
                asked.append(variable)
            return super().decide(state, variable, value)

    space = Watched((Row("m", 64, (None, None, None)), Row("n", 7, (None, None))))
    minimise(lambda point: Evaluation(float(point[0][0])), TreeSearch(space, rollouts=2), Budget(40))
    assert set(asked) == {(1, 0)}


def test_a_fitness_may_be_a_search_of_its_own() -> None:
    """Outside the extents are split in two, inside each part is split again."""
    outer = FactorSpace((Row("m", 64, (None, None)),))

    def inner(point: Table) -> Evaluation:
        space = FactorSpace((Row("m", point[0][1], (None, None)),))
        found = minimise(lambda each: Evaluation(abs(each[0][1] - 4) + 1.0), TreeSearch(space, rollouts=2), Budget(8))
        assert found.evaluation is not None
        return Evaluation(found.evaluation.value + point[0][0] / 100)

    outcome = minimise(inner, Genetic(outer, population=4, keep=2, rounds=5))
    assert outcome.evaluation is not None
    assert outcome.evaluation.value == 1.01


def test_random_decisions_are_given_up_after_so_many() -> None:
    taken = []

    class Counted(FactorSpace):
        def decide(self, state: Any, variable: Any, value: Any) -> Any:
            taken.append(variable)
            return super().decide(state, variable, value)

    rows = (Row("m", 2**10, (None,) * 4), Row("n", 2**10, (None,) * 4))
    space = Counted(rows, refuses=lambda table: all(None not in row for row in table))
    start = space.start()
    assert start is not None
    assert completed(space, start, np.random.default_rng(0), 50) is None
    assert len(taken) == 50
