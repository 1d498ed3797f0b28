"""Chains in graphs of any topology: which are found, which are not and why, and their costs."""

from __future__ import annotations

import random

import pytest

from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, norm
from tilewright.expr.text import parse_graph
from tilewright.graph.chain.hierarchy import Hierarchy, Store, hierarchy_of
from tilewright.graph.chain.tests.chains import attention
from tilewright.graph.chains import cost_chains, find_chains
from tilewright.machine import resolve
from tilewright.tiles.legality import check


def names(graph: Graph) -> list[str]:
    return [chain.name for chain in find_chains(graph)[0]]


def reasons(graph: Graph) -> list[str]:
    return [f"{refusal.candidate}: {refusal.values}" for refusal in find_chains(graph)[1]]


def three_convolutions(residual: bool) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (1, 8, 12, 12), "f32")
    w = [b.input(f"w{number}", (8, 8, 3, 3), "f32") for number in range(3)]
    first = elementwise.relu(conv.conv(x, w[0], pads=1, name="c0"))
    second = elementwise.relu(conv.conv(first, w[1], pads=1, name="c1"))
    if residual:
        second = second + first
    return b.finish([conv.conv(second, w[2], pads=1, name="c2")])


def test_a_line_of_convolutions_is_a_chain_with_padding() -> None:
    graph = three_convolutions(residual=False)
    (chain,) = find_chains(graph)[0]
    assert chain.name == "c0 + c1 + c2"
    assert [compute.name for compute in chain.computes] == [node.name for node in graph.nodes]
    assert [chain.name for chain in find_chains(graph, most=2)[0]] == ["c0 + c1"]


def test_a_residual_ends_the_chain_before_it() -> None:
    """The first result is read by the addition too, which lies behind the second convolution."""
    graph = three_convolutions(residual=True)
    assert names(graph) == ["c1 + c2"]
    assert any("c0" in reason for reason in reasons(graph))


def test_attention_is_a_chain() -> None:
    nodes = attention(32, 32, 8, 8)
    inputs = tuple(t for node in nodes for t in node.inputs() if t.name in ("Q", "K", "V"))
    graph = Graph(inputs, (nodes[-1].output,), nodes)
    assert names(graph) == ["S + A"]


def test_an_output_in_between_ends_a_chain() -> None:
    text = """
        input A: f32[8, 8]
        C: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        R: f32[m:8, l:8] = max(C[m, l], 0.0)
        E: f32[m:8, n:8] += R[m, l] * A[l, n] over l:8
        output E"""
    assert names(parse_graph(text)) == ["C + E"]
    graph = parse_graph(text.replace("output E", "output R\n        output E"))
    assert names(graph) == []
    assert reasons(graph) == ["C + …: R is an output of the graph"]


def test_two_readers_end_a_chain() -> None:
    graph = parse_graph("""
        input A: f32[8, 8]
        C: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        E: f32[m:8, n:8] += C[m, l] * A[l, n] over l:8
        F: f32[m:8, n:8] += C[m, l] * A[n, l] over l:8
        output E
        output F""")
    assert names(graph) == []
    assert reasons(graph) == ["C + …: 2 products read it: E, F"]


def test_what_needs_all_of_a_result_is_no_chain() -> None:
    graph = parse_graph("""
        input A: f32[8, 8]
        C: f32[m:8, l:8] += A[m, k] * A[k, l] over k:8
        E: f32[m:8, n:8] += C[m, l] * C[l, n] over l:8
        output E""")
    assert names(graph) == []
    assert "E needs all of C" in reasons(graph)[0]


def test_both_operands_are_products_of_one_chain_at_most() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (16, 16), "f32"), b.input("y", (16, 16), "f32")
    left, right = linalg.matmul(x, y, name="left"), linalg.matmul(y, x, name="right")
    graph = b.finish([linalg.matmul(left, right, name="both")])
    assert names(graph) == ["left + both"]
    assert reasons(graph) == ["right + …: both is part of another chain"]


def test_every_chain_is_costed_and_has_a_decision() -> None:
    graph = three_convolutions(residual=True)
    (costed,), refused = cost_chains(graph, hierarchy_of(resolve("x86-64-v4")))
    assert refused
    assert costed.solution is not None
    best = costed.solution.best
    check(best.tree, best.chain.problem, imperfect=True, recompute=best.recomputes)
    assert costed.decision.subject == "fusion of c1 + c2"
    assert costed.decision.cost is not None
    assert costed.decision.cost.seconds == min(best.time, costed.solution.apart.time)


def test_a_chain_without_a_plan_says_why() -> None:
    tiny = Hierarchy("tiny", (Store("DRAM", None, 1e9), Store("L1", 8, 1e12)), 1e9, 0.0)
    (costed,), _ = cost_chains(three_convolutions(residual=True), tiny)
    assert costed.solution is None
    assert costed.decision.chosen == "apart"
    assert costed.decision.refused[0].rule == "no-tiling"


def random_network(seed: int) -> Graph:
    """Products, maps, softmaxes, transposes and residuals in a random order."""
    roll, b = random.Random(seed), GraphBuilder()
    x = b.input("x", (roll.choice((8, 17)), roll.choice((8, 12))), "f32")
    before = [x]
    for number in range(roll.randint(3, 7)):
        kind = roll.choice(("product", "product", "product", "relu", "softmax", "transpose", "residual"))
        if kind == "product":
            x = linalg.matmul(x, b.input(f"w{number}", (x.shape[1], roll.choice((8, 12))), "f32"))
        elif kind == "relu":
            x = elementwise.relu(x)
        elif kind == "softmax":
            x = norm.softmax(x, axis=-1)
        elif kind == "transpose":
            x = x.transpose((1, 0))
        else:
            x = x + roll.choice([each for each in before if each.shape == x.shape] or [x])
        before.append(x)
    return b.finish([x])


@pytest.mark.parametrize("seeds", [range(12), range(12, 24)])
def test_plans_of_random_networks_are_legal(seeds: range) -> None:
    hierarchy = hierarchy_of(resolve("sm_80"))
    planned = 0
    for seed in seeds:
        for costed in cost_chains(random_network(seed), hierarchy, most=2)[0]:
            assert costed.solution is not None, (seed, costed.decision)
            for plan in costed.solution.plans:
                check(plan.tree, plan.chain.problem, imperfect=True, recompute=plan.recomputes)
                planned += 1
    assert planned > 8


def test_a_map_that_reads_its_operand_transposed_too_ends_a_chain() -> None:
    """Its tile of rows would need all rows of the product."""
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), "f32"), b.input("w", (8, 8), "f32")
    first = linalg.matmul(x, x, name="first")
    graph = b.finish([linalg.matmul(elementwise.relu(first) + first.transpose((1, 0)), w, name="second")])
    assert names(graph) == []
    assert "needs all of first" in reasons(graph)[0]
