"""A product behind a channel shuffle reads the channels where they are: no kernel copies them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.compile import compile_graph, resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.expr import Graph, GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import conv, elementwise, shape
from tilewright.options import Options


def shuffled(half: int, groups: int) -> Graph:
    """A shuffle of the channels of an input and of a convolution, and a convolution that reads the second half."""
    generator = np.random.default_rng(0)
    b, channels = GraphBuilder("shuffle"), 2 * half
    first, second = (
        b.constant(generator.standard_normal(size).astype(np.float32), name)
        for name, size in (("v", (half, 8, 1, 1)), ("w", (24, half, 1, 1)))
    )
    x = elementwise.relu(conv.conv(b.input("x", (1, 8, 7, 7), "f32"), first))
    joined = shape.concat([b.input("z", (1, half, 7, 7), "f32"), x], axis=1, name="joined")
    parts = shape.reshape(joined, (1, groups, channels // groups, 7, 7))
    mixed = shape.reshape(shape.transpose(parts, (0, 2, 1, 3, 4)), (1, channels, 7, 7))
    behind = shape.slice_(mixed, (0, half, 0, 0), (1, half, 7, 7))
    return b.finish([conv.conv(behind, second, name="y")])


@pytest.mark.parametrize(
    ("half", "groups"), [(58, 2), (32, 4), (29, 2)]
)  # 29 channels end within a pair, and are copied
def test_a_product_reads_shuffled_channels(half: int, groups: int) -> None:
    graph = shuffled(half, groups)
    generator = np.random.default_rng(1)
    inputs = [generator.standard_normal((1, channels, 7, 7)).astype(np.float32) for channels in (8, half)]
    found = compile_graph(graph, threads=1, options=Options(cache=False))(*inputs)
    np.testing.assert_allclose(found, evaluate(graph, inputs)[0], rtol=1e-4, atol=1e-4)


def test_no_kernel_copies_shuffled_channels() -> None:
    plan = make_plan(shuffled(58, 2), resolve_target("x86-64-v3"), 1)
    reads = next(kernel.reads for kernel in plan.kernels if kernel.name == "y")
    assert reads[0] == "joined"
