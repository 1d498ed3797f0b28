"""Flat grouped convolutions become split ones: bit-equal results, affine indices, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.expr import Axis, Compute, Graph, GraphBuilder, Tensor
from tilewright.expr.affine import affine
from tilewright.expr.core import Read, walk
from tilewright.expr.evaluate import evaluate
from tilewright.expr.infer import check_bounds
from tilewright.expr.ops import catalogue, conv
from tilewright.expr.rewrites.flat_to_split import find_split, flat_to_split


def assert_equal_results(before: Graph, after: Graph) -> None:
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(t.shape).astype(np.float32) for t in before.inputs]
    for one, two in zip(evaluate(before, inputs), evaluate(after, inputs), strict=True):
        assert np.array_equal(one, two)


def is_affine(compute: Compute) -> bool:
    return all(affine(i) is not None for node in walk(compute.body) if isinstance(node, Read) for i in node.indices)


@pytest.mark.parametrize(("c", "k", "groups"), [(6, 4, 2), (3, 3, 3), (5, 15, 5), (8, 4, 4), (7, 7, 7)])
@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_convolutions_split(c: int, k: int, groups: int, transposed: bool) -> None:
    b = GraphBuilder()
    x = b.input("x", (2, c, 5, 7), "f32")
    bias = b.input("bias", (k,), "f32")
    if transposed:
        w = b.input("w", (c, k // groups, 3, 2), "f32")
        out = conv.conv_transpose(x, w, bias, groups=groups, strides=2, name="y")
    else:
        w = b.input("w", (k, c // groups, 3, 2), "f32")
        out = conv.conv(x, w, bias, groups=groups, pads=1, name="y")
    before = b.finish([out])
    after = flat_to_split(before)
    check_bounds(after)
    assert_equal_results(before, after)
    assert after.outputs == before.outputs
    assert all(is_affine(node) for node in after.nodes if node.accum)
    is_flat = any(not is_affine(node) for node in before.nodes if node.accum)
    split = [node for node in after.nodes if node.name == "y.acc.split"]
    assert [node.output.shape[1:3] for node in split] == ([(groups, k // groups)] if is_flat else [])


def test_depthwise_multiplier_splits_into_channel_and_multiplier() -> None:
    before = catalogue.build("DEP", batch=1, c=5, size=7, multiplier=3)
    after = flat_to_split(before)
    assert_equal_results(before, after)
    split = next(node for node in after.nodes if node.accum)
    assert split.output.shape == (1, 5, 3, 7, 7)
    assert is_affine(split)
    expected = next(
        n for n in catalogue.build("DEP", form="mapping", batch=1, c=5, size=7, multiplier=3).nodes if n.accum
    )
    assert [read.tensor.shape for read in split.reads()] == [read.tensor.shape for read in expected.reads()]


def test_split_keeps_names_free_and_takes_loops_with_several_divisors() -> None:
    x, w = Tensor("x", (6, 4), "f32"), Tensor("y.split", (2, 3, 4), "f32")
    k, r, other = Axis("k", 24), Axis("r", 4), Axis("k_0", 2)
    y = Tensor("y", (24, 2), "f32")
    node = Compute(y, (k, other), x[k // 4, r] * w[k // 12, k // 4 % 3, k % 4] + x[k // 4, other], (r,), "sum")
    before = Graph((x, w), (y,), (node,))
    after = flat_to_split(before)
    assert [n.name for n in after.nodes] == ["y.split.1", "y"]
    assert after.nodes[0].output.shape == (2, 3, 4, 2)
    assert_equal_results(before, after)


def test_what_is_not_split() -> None:
    x = Tensor("x", (24,), "f32")
    k, r = Axis("k", 24), Axis("r", 3)
    y = Tensor("y", (24,), "f32")
    for body in (x[k], x[(k + r) // 5], x[k // 5 + r], x[k * 2 // 4 + r]):  # affine; composite; 5 does not divide 24
        assert find_split(Compute(y, (k,), body + x[r], (r,), "sum")) is None
    assert find_split(Compute(y, (k,), x[k // 4])) is None  # no reduction
    graph = catalogue.build("C2D", size=7)
    assert flat_to_split(graph).nodes == graph.nodes
