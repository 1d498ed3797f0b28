"""Few and long reductions on several threads of a CPU: parts on all threads, and the reduction of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler import cpu_rows, rows
from tilewright.compiler.compile import compile_graph, plan_graph
from tilewright.compiler.tests.bounded import evaluate_bounded, violations
from tilewright.expr import dtypes
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import reduce
from tilewright.machine import resolve_cpu
from tilewright.operator.rewrites.split_reduction import SplitReduction, split_loop, split_reduction
from tilewright.operator.statements import Statements
from tilewright.options import Options

UNCACHED = Options(cache=False)
REDUCTIONS = {
    "sum": reduce.reduce_sum,
    "mean": reduce.reduce_mean,
    "max": reduce.reduce_max,
    "min": reduce.reduce_min,
    "prod": reduce.reduce_prod,
}


def whole(shape: tuple[int, ...], dtype: str = "f32", name: str = "sum", axes: tuple[int, ...] | None = None) -> Graph:
    b = GraphBuilder()
    x = b.input("x", shape, dtype)
    return b.finish([REDUCTIONS[name](x, axes=axes)])


def parts(graph: Graph, threads: int = 2) -> list[str]:
    plan = plan_graph(graph, resolve_cpu("znver5"), threads, UNCACHED)
    return [kernel.name for kernel in plan.kernels if kernel.name.endswith(".parts")]


def test_one_sum_of_many_elements_is_in_parts_on_two_threads() -> None:
    graph = whole((2048, 2048))
    assert len(parts(graph)) == 1
    assert parts(graph, threads=1) == []
    (kernel,) = (each for each in plan_graph(graph, resolve_cpu("znver5"), 2, UNCACHED).kernels if "parts" in each.name)
    (sums,) = kernel.writes
    assert sums.endswith(".parts")


def test_few_elements_and_many_sums_stay_in_one_kernel() -> None:
    assert parts(whole((1000,))) == [], "waking a thread takes longer"
    assert parts(whole((4096, 1000), axes=(1,))) == [], "rows are shared evenly"
    assert parts(whole((4096, 1000), axes=(0,))) == [], "columns are shared evenly"


def test_the_decision_says_what_either_way_takes() -> None:
    decisions = plan_graph(whole((2048, 2048)), resolve_cpu("znver5"), 2, UNCACHED).decisions
    (found,) = (each for each in decisions if each.subject.startswith("parts of"))
    assert found.cost is not None
    assert found.runner_up_cost is not None
    assert found.runner_up_cost.cycles >= found.cost.cycles
    assert "in one" in found.reason


@given(
    shape=st.sampled_from([(7,), (17,), (1031,), (1, 997), (5, 4099), (3, 41, 557), (64, 64), (2, 1 << 12)]),
    dtype=st.sampled_from(["f32", "f64", "f16", "bf16", "i32"]),
    name=st.sampled_from(sorted(REDUCTIONS)),
    count=st.integers(2, 9),
    inner=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=tries(10, full=200), deadline=None)
def test_random_reductions_in_parts_are_right(
    shape: tuple[int, ...], dtype: str, name: str, count: int, inner: bool, seed: int
) -> None:
    b = GraphBuilder()
    axes = tuple(range(1, len(shape))) if inner and len(shape) > 1 else None
    graph = b.finish([-REDUCTIONS[name](b.input("x", shape, dtype), axes=axes)])
    rng = np.random.default_rng(seed)
    values = 1 + rng.normal(size=shape) * 1e-4 if name == "prod" else rng.normal(size=shape) * 8
    array = values.astype(dtypes.numpy_dtype(dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_rows, "is_even", lambda *_: False)
        patch.setattr(rows, "choose_split", always(count))
        module = compile_graph(graph, "host", 2, UNCACHED)
    assert any(launch.name.endswith(".parts") for launch in module.manifest.launches)
    (expected,) = evaluate_bounded(graph, {"x": array})
    assert not violations(np.asarray(module(array)), expected).any()


def always(count: int) -> Callable[..., tuple[SplitReduction | None, None]]:
    """What splits every reduction in so many parts, or in as many as it has points."""

    def chosen(statements: Statements, *others: Any) -> tuple[SplitReduction | None, None]:
        axis = split_loop(statements)
        taken = others[3] if len(others) > 3 else ()
        return None if axis is None else split_reduction(statements, axis, min(count, axis.size), taken), None

    return chosen


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_special_values_survive(special: float) -> None:
    x = np.zeros((400, 1003), np.float32)
    x[7, 1000] = special
    for name in ("sum", "max"):
        module = compile_graph(whole(x.shape, name=name), "host", 2, UNCACHED)
        assert len(module.manifest.launches) == 2
        found = module(x)
        np.testing.assert_array_equal(found, getattr(np, name)(x))
