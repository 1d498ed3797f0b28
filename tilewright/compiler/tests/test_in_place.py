"""Scatters into the memory of their initial values: the kernels of a plan, and results against the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.random_graphs import random_array
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.tests.bounded import evaluate_bounded, violations
from tilewright.expr.core import Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise, indexing, linalg, shape
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module
from tilewright.machine.registry import resolve
from tilewright.options import Options

UNCACHED = replace(Options(), cache=False)
ROWS, COLUMNS = 21, 48


def built(build: Callable[[GraphBuilder, Tensor], Tensor | Sequence[Tensor]]) -> Graph:
    """A graph of a product `t`, which no map can be inlined into."""
    b = GraphBuilder("updates")
    weights = b.constant(np.random.default_rng(0).standard_normal((5, COLUMNS)).astype(np.float32), "w")
    made = build(b, linalg.matmul(b.input("x", (ROWS, 5), "f32"), weights, name="t"))
    return b.finish([made] if isinstance(made, Tensor) else list(made))


def updated(b: GraphBuilder, tensor: Tensor, number: int = 0) -> Tensor:
    """Three rows of a tensor replaced."""
    rows = b.input(f"i{number}", (3, 1), "i64")
    return indexing.scatter_nd(tensor, rows, b.input(f"u{number}", (3, int(tensor.shape[1])), "f32"))  # type: ignore[arg-type]


def plan_of(graph: Graph) -> Plan:
    return make_plan(graph, resolve("x86-64-v4"), 1)


def check(graph: Graph, scatters: int, copies: int) -> Plan:
    """So many scatters, of which so many copy their initial values; and the right results."""
    plan = plan_of(graph)
    updates = [kernel for kernel in plan.kernels if kernel.updates]
    starts = [k for k in plan.kernels if any(k.writes == u.writes and not k.updates for u in updates)]
    assert (len(updates), len(starts)) == (scatters, copies)
    inputs = {tensor.name: random_array(tensor, n) for n, tensor in enumerate(graph.inputs)}
    rng = np.random.default_rng(1)
    inputs |= {t.name: rng.integers(-ROWS, ROWS, (3, 1)) for t in graph.inputs if t.dtype == "i64"}
    module = compile_graph(graph, "host", 2, UNCACHED)
    arguments = [inputs[tensor.name] for tensor in graph.inputs]
    returned = module(*arguments)
    found = list(returned) if isinstance(returned, tuple) else [returned]
    played = [np.zeros(result.size, result.dtype) for result in found]
    run_main(parse_module(module.artifact.program), [np.ascontiguousarray(a).reshape(-1) for a in arguments], played,
             module.artifact.constants, races=True)  # fmt: skip
    for result, again, wanted in zip(found, played, evaluate_bounded(graph, inputs), strict=True):
        assert not violations(result, wanted).any()
        assert not violations(again.reshape(result.shape), wanted).any()
    return plan


def test_a_chain_of_updates_is_in_the_output() -> None:
    plan = check(built(lambda b, t: updated(b, updated(b, t), 1)), 2, 0)
    assert {plan.stored[name].memory for name in ("t", plan.graph.outputs[0].name)} == {plan.graph.outputs[0].name}


def test_an_intermediate_is_updated_where_it_is() -> None:
    """The result is read by a product, which wants rows."""

    def build(b: GraphBuilder, t: Tensor) -> Tensor:
        return linalg.matmul(updated(b, t), b.input("v", (COLUMNS, 3), "f32"))

    check(built(build), 1, 0)


@pytest.mark.parametrize("why", ["read later", "an output", "an input", "read by the updates", "transposed", "a part"])
def test_initial_values_that_must_stay_are_copied(why: str) -> None:
    def build(b: GraphBuilder, t: Tensor) -> list[Tensor]:
        if why == "read later":
            return [updated(b, t), linalg.matmul(t, b.input("v", (COLUMNS, 3), "f32"))]
        if why == "an output":
            return [updated(b, t), t]
        if why == "an input":
            return [updated(b, b.input("y", (ROWS, COLUMNS), "f32")), t]
        if why == "read by the updates":
            rows = b.input("i", (3, 1), "i64")
            return [indexing.scatter_nd(t, rows, elementwise.relu(shape.slice_(t, (1, 0), (3, COLUMNS))))]
        if why == "transposed":
            return [updated(b, shape.transpose(t, (1, 0)))]
        return [updated(b, shape.slice_(t, (2, 0), (18, COLUMNS)))]

    check(built(build), 1, 1)


def test_a_reshaped_initial_value_is_updated_too() -> None:
    """The reshape is a view, which only the scatter reads."""
    check(built(lambda b, t: updated(b, shape.reshape(t, (ROWS * 2, COLUMNS // 2)))), 1, 0)


@pytest.mark.parametrize(
    ("initial", "copies"), [("computed in each trip", 0), ("computed before", 1), ("the state", 1)]
)
def test_initial_values_in_a_loop(initial: str, copies: int) -> None:
    """What is computed outside of a loop is the initial value of every trip."""

    def build(b: GraphBuilder, t: Tensor) -> Tensor:
        parts, rows = b.input("parts", (3, ROWS, COLUMNS), "f32"), b.input("i", (3, 1), "i64")
        weights = b.input("v", (COLUMNS, COLUMNS), "f32")

        def body(slices: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[Tensor, bool]]]:
            (part,), (state,) = slices, states
            inner = linalg.matmul(state, weights)
            begins = {"computed in each trip": inner, "computed before": t, "the state": state}[initial]
            made = indexing.scatter_nd(begins, rows, shape.slice_(part, (0, 0), (3, COLUMNS)))
            return [elementwise.binary(made, state if begins is inner else inner, "add")], []

        (final,), _ = b.loop("trips", 3, [(parts, False)], [t], body)
        return final

    check(built(build), 1, copies)
