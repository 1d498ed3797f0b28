"""The search of order, mapping and factors together: what it finds, that it is repeatable, and that Ctrl-C ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.expr.text import parse_graph
from tilewright.graph.chain.workloads import two_products
from tilewright.graph.dataflow_search import search_dataflow
from tilewright.graph.dataflows.table import ATTENTION
from tilewright.graph.genome_search import PER_GENOME, search_genomes
from tilewright.graph.search_options import SearchOptions
from tilewright.graph.tests.test_network import SMALL
from tilewright.graph.tree_cost import TreeCost
from tilewright.graph.tree_factors import TreeFactors
from tilewright.graph.tree_space import TreeSpace, spatial_levels
from tilewright.search.cost import Budget
from tilewright.search.exhaustive import Exhaustive
from tilewright.search.genetic import Genetic
from tilewright.search.minimise import minimise, replay
from tilewright.search.space import NoLegalPoint
from tilewright.search.trace import Step, Trace
from tilewright.tiles.legality import violations
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources

CHAIN = Problem.of(two_products(1, 16, 8, 8, 16, "f16"))


@pytest.mark.parametrize("objective", ["cycles", "energy"])
def test_a_fused_tree_is_found_that_beats_layers_apart(objective: str) -> None:
    found = search_genomes("any", CHAIN, SMALL, SearchOptions(Budget(2000), objective))  # type: ignore[arg-type]
    layerwise = ATTENTION["Layerwise"]
    apart = search_dataflow("Layerwise", layerwise, CHAIN, SMALL, SearchOptions(Budget(2000), objective))  # type: ignore[arg-type]
    value, layers = found.value(objective), apart.value(objective)  # type: ignore[arg-type]
    assert value is not None
    assert layers is not None
    assert value < layers
    assert found.tree is not None
    assert list(violations(found.tree, CHAIN, resources=SMALL)) == []
    assert 0 < found.evaluations <= 2000
    assert found.outcome.best is not None
    assert found.outcome.best[0][0] == "L1"  # where the result of the first product is staged


def test_equal_budgets_and_seeds_give_equal_trees() -> None:
    once, again = (search_genomes("any", CHAIN, SMALL, SearchOptions(Budget(600), seed=3)) for _ in range(2))
    assert once.tree == again.tree
    assert [step.point for step in once.outcome.trace.steps] == [step.point for step in again.outcome.trace.steps]


def test_monte_carlo_tree_search_may_look_for_the_factors() -> None:
    found = search_genomes("any", CHAIN, SMALL, SearchOptions(Budget(500), method="tree-search"))
    assert found.tree is not None


def test_few_evaluations_are_those_of_one_genome() -> None:
    found = search_genomes("any", CHAIN, SMALL, SearchOptions(Budget(30)))
    assert len(found.outcome.trace.steps) == 1
    assert found.evaluations == 30 < PER_GENOME


def test_an_interruption_inside_a_genome_ends_the_whole_search(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    batch = TreeCost.batch

    def interrupted(self: TreeCost, points: object) -> object:
        calls.append(points)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return batch(self, points)  # type: ignore[arg-type]

    monkeypatch.setattr(TreeCost, "batch", interrupted)
    found = search_genomes("any", CHAIN, SMALL, SearchOptions(Budget(4000)))
    assert found.outcome.stopped == "interrupted"
    assert len(found.outcome.trace.steps) < 6


def test_a_search_goes_on_with_its_trace(tmp_path: Path) -> None:
    steps: list[tuple[str, Step]] = []
    options = SearchOptions(Budget(500), trace=tmp_path / "trace", progress=lambda *step: steps.append(step))
    once = search_genomes("any", CHAIN, SMALL, options)
    count = len(steps)
    again = search_genomes("any", CHAIN, SMALL, options)
    assert len(steps) == count > 0
    assert {name for name, _ in steps} == {"any"}
    assert once.tree == again.tree
    space = TreeSpace(CHAIN, ("DRAM", "L1", "RF"), spatial_levels(SMALL), SMALL)
    assert replay(Trace.read(tmp_path / "trace"), Genetic(space)).best == once.outcome.best


def test_a_trace_of_genomes_without_orders_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    search_genomes("any", CHAIN, SMALL, SearchOptions(Budget(100), trace=path))
    header, *steps = path.read_text().splitlines()
    older = json.loads(header)
    del older["space"]["cells"]
    path.write_text("\n".join((json.dumps(older), *steps, "")))
    with pytest.raises(InvalidFile, match=r"of another search: space\.cells is missing") as raised:
        search_genomes("any", CHAIN, SMALL, SearchOptions(Budget(200), trace=path))
    assert raised.value.help


def test_a_better_order_than_the_usual_one_is_found() -> None:
    """Rows of 16 and columns of 8, of which a memory of 48 words holds few: B is to be read once, and A again."""
    machine = Resources((SMALL.levels[0], Level("L1", 96, instances=1), Level("RF", 6, instances=1)), units=1)
    product = Problem.of(
        parse_graph("""
            input A: f16[16, 8]
            input B: f16[8, 8]
            C: f16[m:16, n:8] += A[m, k] * B[k, n] over k:8
            output C""").nodes
    )
    found = search_genomes("any", product, machine, SearchOptions(Budget(600), "energy"))
    space = TreeSpace(product, ("DRAM", "L1", "RF"), spatial_levels(machine), machine)
    usual = TreeFactors(space.tree(()), product, machine)
    best = minimise(TreeCost(usual, machine, "energy"), Exhaustive(usual)).evaluation
    value = found.value("energy")
    assert best is not None
    assert value is not None
    assert value < 0.9 * best.value
    assert found.outcome.best is not None
    ((order,),) = found.outcome.best
    assert order.split().index("n") < order.split().index("m")


def test_nothing_legal_and_too_few_levels_are_said() -> None:
    tiny = Resources((SMALL.levels[0], Level("L1", 2, instances=1), SMALL.levels[2]), units=16)
    with pytest.raises(NoLegalPoint, match="no genome of C, E is legal"):
        search_genomes("any", CHAIN, tiny, SearchOptions(Budget(100)))
    with pytest.raises(InvalidArgument, match="over the levels DRAM"):
        search_genomes("any", CHAIN, Resources(SMALL.levels[:1]), SearchOptions(Budget(100)))
