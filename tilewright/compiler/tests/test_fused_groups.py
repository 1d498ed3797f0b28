"""Reductions fused for instructions that take several neighbours at once: exact for integers, ragged groups too."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.compile import build, compile_graph
from tilewright.expr import GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.ops import conv
from tilewright.machine import resolve_cpu
from tilewright.options import Options

UNCACHED = Options(cache=False)


def convolution(channels: int, kernel: int, stride: int, dtypes: tuple[str, str, str], size: int = 11) -> Graph:
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    x = b.input("x", (2, channels, size, size), dtypes[0])
    shape = (19, channels, kernel, kernel)
    if dtypes[1] == "i8":
        w = b.constant(rng.integers(-128, 128, shape).astype(np.int8), "w")
    else:
        import ml_dtypes

        w = b.constant(rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16), "w")
    return b.finish([conv.conv(x, w, strides=stride, pads=kernel // 2, out_dtype=dtypes[2], name="y")])


@pytest.mark.covering(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 7])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (2, 1), (3, 2), (7, 2)])
def test_bytes_are_exact(channels: int, kernel: int, stride: int, threads: int) -> None:
    graph = convolution(channels, kernel, stride, ("u8", "i8", "i32"))
    x = np.random.default_rng(1).integers(0, 256, graph.inputs[0].shape).astype(np.uint8)
    (expected,) = evaluate(graph, [x])
    assert (compile_graph(graph, threads=threads, options=UNCACHED)(x) == expected).all()


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_infinities_next_to_a_run_do_not_spread(channels: int) -> None:
    """Floats are never read beyond their run: zero times infinity is no zero."""
    import ml_dtypes

    graph = convolution(channels, 3, 1, ("bf16", "bf16", "f32"))
    x = np.random.default_rng(1).integers(-3, 4, graph.inputs[0].shape).astype(ml_dtypes.bfloat16)
    x[0, 0, 5, 5] = np.inf
    (expected,) = evaluate(graph, [x])
    result = compile_graph(graph, threads=1, options=UNCACHED)(x)
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(expected))


def test_the_decision_counts_groups() -> None:
    artifact = build(convolution(3, 7, 2, ("u8", "i8", "i32")), resolve_cpu("znver5"), 1, UNCACHED)
    assert "6 groups of 4 instead of 7" in "\n".join(each.explain() for each in artifact.stored_plan().decisions)
