"""Rows in a pipeline: same results as passes in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright.compiler.rows as rows_module
from tilewright.compiler.compile import compile_graph
from tilewright.expr import GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops.norm import layer_norm, softmax
from tilewright.options import Options


def _softmax(b: GraphBuilder, rows: int, columns: int) -> Any:
    return softmax(b.input("x", (rows, columns), "f32"), axis=-1)


def _norm(b: GraphBuilder, rows: int, columns: int) -> Any:
    x = b.input("x", (rows, columns), "f32")
    scale, shift = b.input("scale", (columns,), "f32"), b.input("shift", (columns,), "f32")
    return layer_norm(x, scale, shift)


@pytest.mark.parametrize("build", [_softmax, _norm])
@pytest.mark.parametrize(("rows", "columns"), [(7, 100), (33, 64), (2, 17), (5, 1000), (3, 64)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("every", [True, False])
def test_pipelined_rows_agree(
    build: Callable[..., Any], rows: int, columns: int, threads: int, every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled = rows_module.schedule_nest
    pipelined = []

    def always(nest: Any, *rest: Any) -> Any:
        schedule, decision = scheduled(nest, *rest)
        fits = len(nest.outer) == len(nest.inner) == 1 and len(nest.nodes) > 1
        pipelined.append(fits)
        passes = sum(1 for node in nest.nodes if node.accum is not None) + 1
        stages = (tuple(range(passes)) if every else (0, passes - 1)) if fits else ()
        return replace(schedule, stages=stages, blocks={nest.outer[0].name: 2} if fits else schedule.blocks), decision

    monkeypatch.setattr(rows_module, "schedule_nest", always)
    builder = GraphBuilder()
    graph = builder.finish([build(builder, rows, columns)])
    inputs = [np.random.default_rng(0).standard_normal(t.shape).astype(np.float32) for t in graph.inputs]
    module = compile_graph(graph, threads=threads, options=Options(cache=False))
    assert any(pipelined)
    (expected,) = evaluate(graph, inputs, precise=True, wide=True)
    assert np.abs(module(*inputs) - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


def test_pipelined_rows_with_unsafe_divisors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose sum is tiny is divided, not multiplied by an infinite reciprocal; its neighbours are unchanged."""
    from tilewright.expr import Axis, Compute, Tensor, apply

    scheduled = rows_module.schedule_nest
    monkeypatch.setattr(
        rows_module,
        "schedule_nest",
        lambda nest, *rest: (replace(scheduled(nest, *rest)[0], stages=(0, 1)), scheduled(nest, *rest)[1]),
    )
    b = GraphBuilder()
    x = b.input("x", (5, 40), "f32")
    i, k, j, m = Axis("i", 5), Axis("k", 40), Axis("j", 40), Axis("m", 5)
    total = b.add(Compute(Tensor("t", (5,), "f32"), (i,), apply("abs", x[i, k]), (k,), "sum"))
    y = b.add(Compute(Tensor("y", (5, 40), "f32"), (m, j), x[m, j] / total[m]))
    graph = b.finish([y])
    data = np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)
    data[1] *= np.float32(1e-40)
    data[3] *= np.float32(1e-38)
    result = compile_graph(graph, threads=1, options=Options(cache=False))(data)
    (expected,) = evaluate(graph, [data])
    np.testing.assert_allclose(result, expected, rtol=1e-5)
