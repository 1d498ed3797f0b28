"""Graphs compiled for a GPU and run by the emulator, against the evaluator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright
from tilewright import Options
from tilewright.codegen.nvptx import ptxas
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, norm, pool
from tilewright.expr.ops import shape as shapes

Build = Callable[[GraphBuilder], Tensor]

GRAPHS: dict[str, Build] = {
    "gelu": lambda b: elementwise.gelu(b.input("x", (7, 33), "f32")),
    "softmax": lambda b: norm.softmax(b.input("x", (5, 100), "f32")),
    "long softmax": lambda b: norm.softmax(b.input("x", (3, 1300), "f32")),
    "matmul": lambda b: linalg.matmul(b.input("x", (13, 17), "f32"), b.input("w", (17, 9), "f32")),
    "transposed product": lambda b: linalg.linear(b.input("x", (5, 7), "f32"), b.input("w", (11, 7), "f32")),
    "convolution": lambda b: conv.conv(
        b.input("x", (1, 3, 9, 9), "f32"), b.input("w", (5, 3, 3, 3), "f32"), pads=1, strides=2
    ),
    "pool": lambda b: pool.max_pool(b.input("x", (1, 3, 9, 9), "f32"), (3, 3), strides=2, pads=1),
    "one element": lambda b: elementwise.relu(b.input("x", (1,), "f32")),
}


def graph_of(build: Build) -> Graph:
    b = GraphBuilder()
    return b.finish([build(b)])


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_agree_with_the_evaluator(name: str, machine: str) -> None:
    graph = graph_of(GRAPHS[name])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(static_shape(tensor.shape)).astype(np.float32) for tensor in graph.inputs]
    module = tilewright.compile(graph, machine=machine, options=Options(cache=False))
    np.testing.assert_allclose(module(*arrays), evaluate(graph, arrays)[0], rtol=2e-4, atol=2e-5)
    resources = ptxas.check(module.artifact.code.decode(), machine)
    assert resources is None or all(each.spills == 0 for each in resources.values())
    assert "tile of" in module.explain(all=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("extents", "axes"), [((2, 16), [0]), ((7, 64), [0]), ((7, 16, 64), [1]), ((3, 1, 17), [0, 2])]
)
def test_axes_backwards(extents: tuple[int, ...], axes: list[int], machine: str) -> None:
    b = GraphBuilder()
    x = b.input("x", extents, "f32")
    values = np.arange(np.prod(extents), dtype=np.float32).reshape(extents)
    found = tilewright.compile(b.finish([shapes.flip(x, axes)]), machine=machine)(values)
    np.testing.assert_array_equal(found, np.flip(values, axes))
