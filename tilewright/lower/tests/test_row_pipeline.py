"""Rows in a pipeline: same results as passes in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright.compiler.rows as rows_module
from tilewright.compiler.compile import compile_graph
from tilewright.expr import GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops.norm import layer_norm, softmax
from tilewright.operator.passes import passes_of, row_buffers, walks_inner
from tilewright.operator.rules.cpu_rows import row_tree
from tilewright.operator.statements import inner_loops, outer_loops
from tilewright.options import Options
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.parts import register_tiles


def _softmax(b: GraphBuilder, rows: int, columns: int) -> Any:
    return softmax(b.input("x", (rows, columns), "f32"), axis=-1)


def _norm(b: GraphBuilder, rows: int, columns: int) -> Any:
    x = b.input("x", (rows, columns), "f32")
    scale, shift = b.input("scale", (columns,), "f32"), b.input("shift", (columns,), "f32")
    return layer_norm(x, scale, shift)


def _pipelined(kernel: Kernel, every: bool) -> Kernel:
    """The kernel with each pass over the inner loop in a stage of its own, or all but the last in one; two programs."""
    statements = kernel.statements
    (outer,) = {axis for each in statements for axis in each.axes} - set(inner_loops(statements))
    passes = sum(1 for step in passes_of(statements, row_buffers(statements)) if walks_inner(step[-1], statements))
    ((vector, points, lanes),) = {
        (tile.vector, tile.along(tile.vector), tile.lanes) for _, tile in register_tiles(kernel.tree) if tile.vector
    }
    starts = range(passes) if every else (0, passes - 1)
    return Kernel(statements, row_tree(statements, [SpatialLoop(outer, 1, 2)], (vector, points), lanes, starts=starts))


@pytest.mark.covering(1)
@pytest.mark.parametrize("build", [_softmax, _norm])
@pytest.mark.parametrize(("rows", "columns"), [(7, 100), (33, 64), (2, 17), (5, 1000), (3, 64)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("every", [True, False])
def test_pipelined_rows_agree(
    build: Callable[..., Any], rows: int, columns: int, threads: int, every: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled = rows_module.schedule_statements
    pipelined = []

    def always(statements: Any, *rest: Any) -> Any:
        kernel, decision = scheduled(statements, *rest)
        if not (len(outer_loops(statements)) == len(inner_loops(statements)) == 1 and len(statements) > 1):
            return kernel, decision
        pipelined.append(_pipelined(kernel, every))
        return pipelined[-1], decision

    monkeypatch.setattr(rows_module, "schedule_statements", always)
    builder = GraphBuilder()
    graph = builder.finish([build(builder, rows, columns)])
    inputs = [np.random.default_rng(0).standard_normal(t.shape).astype(np.float32) for t in graph.inputs]
    module = compile_graph(graph, threads=threads, options=Options(cache=False))
    assert pipelined
    (expected,) = evaluate(graph, inputs, precise=True, wide=True)
    assert np.abs(module(*inputs) - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max())


def test_pipelined_rows_with_unsafe_divisors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose sum is tiny is divided, not multiplied by an infinite reciprocal; its neighbours are unchanged."""
    from tilewright.expr import Axis, Compute, Tensor, apply

    scheduled = rows_module.schedule_statements

    def always(*arguments: Any) -> Any:
        kernel, decision = scheduled(*arguments)
        return _pipelined(kernel, every=True), decision

    monkeypatch.setattr(rows_module, "schedule_statements", always)
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
