"""What the passes do to loops: before, after, and the values that stay."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from tilewright.expr.core import Compute
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_graph, print_graph
from tilewright.graph.groups import form_groups
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.table import NAMES, REQUIRED, run_pass, run_passes, simplifying
from tilewright.instruction.products import product_factors

RECURRENT = """
    input x: f32[5, 2, 3]
    input v: f32[4, 3]
    input h0: f32[2, 4]
    const r: f32[4, 4]
    loop steps times 5
    slice x.t of x backwards
    state h of h0
    u: f32[k:4, j:3] = exp(v[k, j])
    twice: f32[n:2, j:3] = x.t[n, j] * 2.0
    p: f32[n:2, k:4] += u[k, j] * twice[n, j] over j:3
    q: f32[n:2, k:4] += r[k, j] * h[n, j] over j:4
    next: f32[n:2, k:4] = tanh(p[n, k] + q[n, k])
    spare: f32[n:2, k:4] = next[n, k] * 3.0
    carry h to next as last
    stack next as all
    stack spare as unused
    end
    output last
    output all
"""


def is_product(node: Compute) -> bool:
    return product_factors(node) is not None


def graph_of(text: str) -> tuple[Graph, list[Any]]:
    rng = np.random.default_rng(0)
    constants = {"r": rng.standard_normal((4, 4)).astype(np.float32)} if "const r" in text else {}
    graph = parse_graph(dedent(text), constants)
    return graph, [rng.standard_normal(t.shape).astype(np.float32) for t in graph.inputs]


def agrees(before: Graph, after: Graph, inputs: list[Any]) -> None:
    for found, wanted in zip(evaluate(after, inputs), evaluate(before, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*NAMES, *sorted(REQUIRED)])
def test_every_pass_keeps_what_a_loop_computes(name: str) -> None:
    graph, inputs = graph_of(RECURRENT)
    agrees(graph, run_pass(graph, name, is_product).graph, inputs)


def test_sums_over_slices_leave_the_loop_and_weights_become_constants_of_it() -> None:
    graph, inputs = graph_of(RECURRENT)
    state = run_passes(graph, simplifying(is_product))
    agrees(graph, state.graph, inputs)
    (loop,) = state.graph.loops
    assert [node.name for node in loop.body.nodes] == ["q", "next"]
    assert list(loop.body.constants) == ["r"]
    assert [each.part.name for each in loop.sliced] == ["p"]
    assert [each.whole.name for each in loop.stacked] == ["all"]
    assert any(d.subject == "loop steps" and d.chosen == "u, twice.all, p.all before it" for d in state.decisions)
    (product,) = [node for node in state.graph.nodes if node.name == "p.all"]
    assert is_product(product)
    assert "- trip" not in print_graph(state.graph)  # rows in the order of x: no index runs backwards


def test_sums_that_would_take_too_much_memory_stay() -> None:
    from tilewright.graph.passes.hoist_from_loops import HoistFromLoops

    graph, inputs = graph_of(RECURRENT)
    found = HoistFromLoops(most_bytes=100).apply(Rewritten(graph)).graph
    agrees(graph, found, inputs)
    assert [node.name for node in found.nodes] == ["u"]


def test_sums_stay_whose_operands_would_take_too_much_memory() -> None:
    """`e` of all trips is 8 KiB, the sums over it 512 bytes each; `q` reads slices alone and moves."""
    from tilewright.graph.passes.hoist_from_loops import HoistFromLoops

    text = """
        input x: f32[8, 16]
        input v: f32[16, 16]
        input h0: f32[16]
        loop a times 8
        slice part of x
        state h of h0
        e: f32[i:16, j:16] = exp(part[i] * part[j])
        p: f32[i:16] += e[i, j] over j:16
        s: f32[i:16] += e[j, i] over j:16
        q: f32[i:16] += part[j] * v[i, j] over j:16
        h.next: f32[i:16] = h[i] * 0.5 + p[i] + s[i] + q[i]
        carry h to h.next as last
        end
        output last
    """
    graph, inputs = graph_of(text)
    found = HoistFromLoops(most_bytes=4096).apply(Rewritten(graph)).graph
    agrees(graph, found, inputs)
    assert [node.name for node in found.nodes] == ["q.all"]
    assert len(HoistFromLoops(most_bytes=1 << 14).apply(Rewritten(graph)).graph.nodes) == 4


def test_what_leaves_a_loop_gets_a_name_that_no_tensor_has() -> None:
    """`p.all` is the stacked tensor already: the loop read it and wrote it."""
    text = """
        input x: f32[3, 4]
        input v: f32[4, 4]
        input h0: f32[4]
        loop a times 3
        slice part of x
        state h of h0
        p: f32[k:4] += v[k, j] * part[j] over j:4
        n: f32[k:4] = h[k] * 0.5 + p[k]
        carry h to n as last
        stack n as p.all
        end
        output last
        output p.all
    """
    graph, inputs = graph_of(text)
    found = run_passes(graph, simplifying(is_product)).graph
    agrees(graph, found, inputs)
    assert [node.name for node in found.nodes if node.accum] == ["p.all.1"]


@pytest.mark.parametrize("kind", ["input", "const"])
def test_nested_sums_leave_all_loops_that_they_do_not_need(kind: str) -> None:
    """Of a constant that only the inner body reads: the sum came out of the outer loop without it."""
    text = f"""
        input x: f32[3, 2, 4]
        {kind} r: f32[4, 4]
        input h0: f32[4]
        loop outer times 3
        slice row of x
        state h of h0
        loop inner times 2
        slice part of row backwards
        state s of h
        p: f32[k:4] += r[k, j] * part[j] over j:4
        s.next: f32[k:4] = s[k] * 0.5 + p[k]
        carry s to s.next as s.last
        end
        carry h to s.last as last
        end
        output last
    """
    graph, inputs = graph_of(text)
    graph = graph.closed(graph.opened(), graph.loops)  # as GraphBuilder.finish makes it: bodies have constants
    found = run_passes(graph, simplifying(is_product)).graph
    agrees(graph, found, inputs)
    assert [node.name for node in found.nodes if node.accum] == ["p.all.all"]
    assert not any(node.accum for node in found.loops[0].body.loops[0].body.nodes)


def test_loops_without_trips_become_copies() -> None:
    text = """
        input h0: f32[3]
        input x: f32[0, 3]
        loop none times 0
        slice part of x
        state h of h0
        next: f32[i:3] = h[i] + part[i]
        carry h to next as last
        stack next as all
        end
        twice: f32[i:3] = last[i] * 2.0
        output twice
        output all
    """
    graph, inputs = graph_of(text)
    found = run_passes(graph, simplifying(is_product)).graph
    assert found.loops == ()
    agrees(graph, found, inputs)


def test_copies_that_passes_name_alike_get_names_of_their_own() -> None:
    """`x` is an output around the loop and a state in it: both copies were `x.output0`."""
    text = """
        input x: f32[3]
        loop same times 2
        state h of x
        carry h to x as last
        end
        output x
        output last
    """
    graph, inputs = graph_of(text)
    found = run_passes(graph, simplifying(is_product)).graph
    agrees(graph, found, inputs)


def test_nodes_around_a_loop_are_no_group() -> None:
    """The second sum is over the same rows as the first, but needs a loop that needs the first."""
    text = """
        input x: f32[3, 4]
        largest: f32[i:3] max= x[i, j] over j:4
        loop twice times 2
        state h of largest
        next: f32[i:3] = h[i] * 0.5
        carry h to next as last
        end
        less: f32[i:3] += x[i, j] - largest[i] + last[i] over j:4
        output less
    """
    graph, _ = graph_of(text)
    groups = form_groups(graph, lambda _: False)
    assert [group.name for group in groups] == ["largest", "twice", "less"]


def test_ordered_accumulations_leave_loops_along_their_own_dimension() -> None:
    """With the trips in front of its dimensions, a scan along the first one went along the trips."""
    text = """
        input x: f32[3, 4]
        input h0: f32[4]
        loop rows times 3
        slice row of x
        state h of h0
        p: f32[j:4] += row[k] over k:4 scanned j
        i: i64[j:4] = row[k] over k:4 sorted j
        s: f32[j:4] += scatter(0.0, row[k], i[k]) over k:4 scattered j
        h.next: f32[j:4] = h[j] * 0.5 + p[j] + s[j]
        carry h to h.next as last
        end
        output last
    """
    graph, inputs = graph_of(text)
    found = run_passes(graph, simplifying(is_product)).graph
    agrees(graph, found, inputs)
    assert [len(node.axes) for node in found.nodes if node.ordered] == [2, 2, 2]
