"""Networks as parts and chains, and what searches of their trees find: sums, choices, budgets, interruption."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from tilewright.errors import InvalidArgument
from tilewright.expr.core import Axis, Compute, Dim, Tensor
from tilewright.expr.graph import Carried, Graph, GraphBuilder, loop_of
from tilewright.expr.text import parse_graph
from tilewright.graph.network import Network, network_of
from tilewright.graph.network_facts import network_facts, totals
from tilewright.graph.network_search import NetworkCost, search_network
from tilewright.graph.search_options import SearchOptions
from tilewright.graph.tree_cost import TreeCost
from tilewright.graph.tree_factors import TreeFactors
from tilewright.graph.tree_space import TreeSpace, spatial_levels
from tilewright.instruction.products import product_factors
from tilewright.machine.registry import resolve
from tilewright.search.cost import Budget
from tilewright.search.exhaustive import Exhaustive
from tilewright.search.minimise import minimise
from tilewright.search.trace import Step
from tilewright.tiles.legality import violations
from tilewright.tiles.machines import resources
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources

#: A convolution with padding, its epilogue with a residual, one of 1 x 1 behind it, then the same two products twice.
TEXT = """
input x: f32[4, 4, 4]
input w: f32[4, 4, 3, 3]
input v: f32[4, 4, 1, 1]
input b: f32[4]
input m: f32[16, 8]
input a: f32[8, 8]
pad: f32[c:4, p:6, q:6] = p + -1 >= 0 and p + -1 < 4 and q + -1 >= 0 and q + -1 < 4 ? x[c, p + -1, q + -1] : 0.0
conv: f32[k:4, i:4, j:4] += pad[c, i + r, j + s] * w[k, c, r, s] over c:4, r:3, s:3
relu: f32[k:4, i:4, j:4] = max(conv[k, i, j] + b[k] + x[k, i, j], 0.0)
one: f32[k:4, i:4, j:4] += relu[c, i + r, j + s] * v[k, c, r, s] over c:4, r:1, s:1
mm: f32[i:16, j:8] += m[i, k] * a[k, j] over k:8
exp: f32[i:16, j:8] = exp(mm[i, j])
sum: f32[i:16] += exp[i, j] over j:8
div: f32[i:16, j:8] = exp[i, j] / sum[i]
again: f32[p:16, q:8] += div[p, r] * a[r, q] over r:8
output one
output again
"""

#: Factors fit one unit only; one level of memory on the chip.
SMALL = Resources(
    (
        Level("DRAM", instances=1, technology="dram", read_words_per_cycle=1, write_words_per_cycle=1),
        Level("L1", 2048, instances=1, read_words_per_cycle=16, write_words_per_cycle=16),
        Level("RF", 6, instances=16, technology="regfile", read_words_per_cycle=3, write_words_per_cycle=3),
    ),
    units=16,
)


def is_product(node: Compute) -> bool:
    return product_factors(node) is not None and len(node.inputs()) > 1


def network(text: str = TEXT) -> Network:
    return network_of(parse_graph(text), is_product, "f16")


@pytest.fixture(scope="module")
def searched() -> NetworkCost:
    return search_network(network(), SMALL, SearchOptions(Budget(5000)))


def test_products_are_parts_of_their_own_and_padding_is_none() -> None:
    found = network()
    assert [(part.name, part.is_product) for part in found.parts] == [
        ("conv", True), ("relu", False), ("one", True),
        ("mm", True), ("exp", False), ("sum+div", False), ("again", True),
    ]  # fmt: skip
    assert [part.results for part in found.parts][5] == ("div",)
    assert [tensor.name for tensor in found.parts[0].graph.inputs] == ["pad", "w"]
    assert {tensor.dtype for part in found.parts for tensor in part.tensors().values()} == {"f16"}


def test_parts_that_compute_the_same_have_one_key() -> None:
    keys = {part.name: part.key for part in network().parts}
    assert keys["mm"] == keys["again"]
    assert len(set(keys.values())) == len(keys) - 1


def test_chains_have_whole_parts_and_steps_of_two_operands() -> None:
    found = network()
    names = [[found.parts[number].name for number in chain.parts] for chain in found.chains]
    assert ["conv", "relu"] in names
    assert ["conv", "relu", "one"] in names
    assert ["mm", "exp", "sum+div", "again"] in names
    assert ["exp", "sum+div"] not in names
    for chain in found.chains:
        maps = [compute for compute in chain.part.computes if compute.accum is None]
        assert all(len(set(compute.reads())) <= 2 for compute in maps)
        assert "pad" not in {compute.name for compute in chain.part.computes}
    steps = next(chain for chain, own in zip(found.chains, names, strict=True) if own == ["conv", "relu"])
    assert [compute.name for compute in steps.part.computes] == ["conv", "relu.1", "relu"]


def test_padding_between_two_convolutions_is_in_the_second_one() -> None:
    found = network("""
        input x: f32[2, 6]
        input w: f32[2, 2, 3]
        one: f32[k:2, i:4] += x[c, i + r] * w[k, c, r] over c:2, r:3
        pad: f32[c:2, p:6] = p + -1 >= 0 and p + -1 < 4 ? one[c, p + -1] : 0.0
        two: f32[k:2, i:4] += pad[c, i + r] * w[k, c, r] over c:2, r:3
        output two
    """)
    (chain,) = found.chains
    assert [compute.name for compute in chain.part.computes] == ["one", "two"]
    assert [tensor.name for tensor in chain.part.computes[1].inputs()] == ["one", "w"]


@pytest.mark.parametrize(("addends", "chains"), [(9, 1), (10, 0)])
def test_a_chain_has_ten_expressions_at_most(addends: int, chains: int) -> None:
    names = [f"b{number}" for number in range(addends)]
    inputs = "".join(f"input {name}: f32[4]\n" for name in names)
    found = network(f"""
        input a: f32[4, 4]
        input x: f32[4, 4]
        {inputs}
        c: f32[i:4, j:4] += a[i, k] * x[k, j] over k:4
        y: f32[i:4, j:4] = c[i, j] + {" + ".join(f"{name}[j]" for name in names)}
        output y
    """)
    assert [chain.part.name for chain in found.chains] == ["c + y"] * chains


def test_parts_in_loops_run_once_a_trip() -> None:
    builder = GraphBuilder()
    x, a = builder.input("x", (8, 8), "f32"), builder.input("a", (8, 8), "f32")
    body = parse_graph("""
        input s: f32[8, 8]
        input a: f32[8, 8]
        t: f32[i:8, j:8] += s[i, k] * a[k, j] over k:8
        output t
    """)
    (node,) = body.nodes
    state = next(tensor for tensor in node.inputs() if tensor.name == "s")
    final = Tensor("y", (8, 8), "f32")
    loop = loop_of("loop", 5, [node], [], {}, [], [Carried(state, x, node.output, final)], [])
    found = network_of(Graph((x, a), (final,), (), loops=(loop,)), is_product)
    assert [(part.name, part.runs) for part in found.parts] == [("t", 5)]


def test_an_extent_that_is_open_is_refused() -> None:
    size = Dim("n")
    x, y = Tensor("x", (size,), "f32"), Tensor("y", (size,), "f32")
    axis = Axis("i", size)
    graph = Graph((x,), (y,), (Compute(y, (axis,), x[axis,]),))
    with pytest.raises(InvalidArgument, match="extent n of a loop is not known"):
        network_of(graph, is_product)


def test_totals_are_sums_over_runs(searched: NetworkCost) -> None:
    shown = network_facts(searched, SMALL, 1e9)
    assert shown["missing"] == []
    assert sum(layer["runs"] * layer["cycles"] for layer in shown["layers"]) == pytest.approx(
        shown["totals"]["apart"]["cycles"]
    )
    fused = shown["totals"]["fused"]
    saved = [each["apart"]["cycles"] - each["cycles"] for each in shown["chains"] if each["chosen"]]
    assert fused["cycles"] == pytest.approx(shown["totals"]["apart"]["cycles"] - sum(saved))
    assert fused["seconds"] == pytest.approx(fused["cycles"] / 1e9)
    assert fused["levels"]["DRAM"]["update"] < shown["totals"]["apart"]["levels"]["DRAM"]["update"]
    assert [layer["same_as"] for layer in shown["layers"]] == [None] * 6 + ["mm"]
    assert totals([], SMALL, 1e9)["cycles"] == 0


def test_trees_are_legal_and_found_once_for_equal_parts(searched: NetworkCost) -> None:
    found = {each.part.name: each for each in searched.parts}
    assert found["again"].tree is found["mm"].tree
    assert (found["again"].like, found["mm"].how, found["relu"].how) == (found["mm"].part, "tree", "streamed")
    for each in (*searched.parts, *(chain.fused for chain in searched.chains)):
        if each.tree is not None:
            problem = Problem.of((each.like or each.part).computes)
            assert list(violations(each.tree, problem, resources=SMALL)) == []


def test_chosen_chains_save_most_of_all_that_do_not_overlap(searched: NetworkCost) -> None:
    savings = {
        number: each.apart[0] - each.fused.value("cycles")[0]
        for number, each in enumerate(searched.chains)
        if each.apart is not None and each.fused.analysis is not None
    }
    assert len(savings) > 3
    best = 0.0
    for count in range(len(savings) + 1):
        for chosen in combinations(savings, count):
            parts = [part for number in chosen for part in searched.chains[number].chain.parts]
            if len(parts) == len(set(parts)):
                best = max(best, sum(savings[number] for number in chosen))
    ours = [number for number, each in enumerate(searched.chains) if each.chosen]
    assert ours
    assert sum(savings[number] for number in ours) == pytest.approx(best)


def test_the_tree_of_a_product_is_within_a_hundredth_of_the_best_of_its_space(searched: NetworkCost) -> None:
    found = next(each for each in searched.parts if each.part.name == "mm")
    problem = Problem.of(found.part.computes)
    space = TreeSpace(problem, ("DRAM", "L1", "RF"), spatial_levels(SMALL), SMALL)
    factors = TreeFactors(space.tree(()), problem, SMALL)
    best = minimise(TreeCost(factors, SMALL), Exhaustive(factors)).evaluation
    assert best is not None
    assert found.value("cycles")[0] <= 1.01 * best.value


def test_evaluations_are_shared_and_give_the_same_again() -> None:
    once, again = (search_network(network(), SMALL, SearchOptions(Budget(1000))) for _ in range(2))
    assert once == again
    count = sum(each.evaluations for each in (*once.parts, *(chain.fused for chain in once.chains)) if each.like is None
                or each.like == each.part)  # fmt: skip
    assert 0 < count <= 1000 + len(once.parts) + 3 * len(once.chains)
    assert search_network(network(), SMALL, SearchOptions(Budget(1000), seed=1)) != once


def test_fewest_joules_are_another_goal() -> None:
    found = search_network(network(), SMALL, SearchOptions(Budget(1200), objective="energy"))
    cycles = search_network(network(), SMALL, SearchOptions(Budget(1200)))
    assert totals(found.apart(), SMALL, 1e9)["energy"] <= totals(cycles.apart(), SMALL, 1e9)["energy"]
    shown = network_facts(found, SMALL, 1e9)
    chain = next(each for each in shown["chains"] if each["chosen"])
    assert chain["energy"] < chain["apart"]["energy"]


def test_after_an_interruption_what_was_found_is_kept() -> None:
    names: list[str] = []

    def interrupt(name: str, _: Step) -> None:
        names.append(name)
        if len(names) == 130 and name == "conv":
            raise KeyboardInterrupt

    found = search_network(network(), SMALL, SearchOptions(Budget(2000), progress=interrupt))
    assert found.stopped == "interrupted"
    costs = {each.part.name: each.analysis for each in found.parts}
    assert costs["conv"] is not None
    assert costs["relu"] is not None
    assert costs["mm"] is costs["one"] is None
    assert network_facts(found, SMALL, 1e9)["missing"] == ["one", "mm", "again"]
    assert not any(each.chosen for each in found.chains)


def test_a_search_goes_on_with_the_evaluations_that_it_has(tmp_path: Path) -> None:
    names: list[str] = []
    options = SearchOptions(Budget(500), trace=tmp_path / "trace", progress=lambda name, _: names.append(name))
    search_network(network(), SMALL, options)
    count = len(names)
    found = search_network(network(), SMALL, options)
    assert len(names) == count > 0
    assert found == search_network(network(), SMALL, SearchOptions(Budget(500)))


def test_a_part_without_a_legal_tree_says_why() -> None:
    levels = (SMALL.levels[0], Level("L1", 4, instances=1), SMALL.levels[2])
    found = search_network(network(), Resources(levels, units=16), SearchOptions(Budget(500)))
    mm = next(each for each in found.parts if each.part.name == "mm")
    assert mm.analysis is None
    assert "L1" in mm.reason
    assert not any(each.chosen for each in found.chains)
    assert {each.fused.reason for each in found.chains} >= {"a part of it has no cost"}


def test_no_level_on_the_chip_leaves_chains_apart() -> None:
    flat = Resources((SMALL.levels[0], SMALL.levels[2]), units=16)
    found = search_network(network(), flat, SearchOptions(Budget(2000)))
    assert not any(each.chosen for each in found.chains)
    assert all(each.analysis is not None for each in found.parts)


def test_every_machine_has_levels_of_which_several_lie_below() -> None:
    assert spatial_levels(resources(resolve("edge"))) == {"DRAM", "L1"}
    assert spatial_levels(resources(resolve("tileflow-rtl"))) == {"L1"}
