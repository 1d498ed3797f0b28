"""Explanations of networks for GPUs: convolutions come first, with a model of their time or without one."""

from __future__ import annotations

import pytest

from tilewright.compiler.compile import resolve_target
from tilewright.compiler.interface import planned_manifest
from tilewright.compiler.make_plan import make_plan
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, pool, reduce
from tilewright.runtime.explanation import Explanation


def network(dtype: str) -> Graph:
    """A small residual network."""
    b = GraphBuilder("network")
    image, w = b.input("image", (1, 3, 61, 61), dtype), b.input("w0", (32, 3, 7, 7), dtype)
    x = elementwise.relu(conv.conv(image, w, strides=2, pads=3, name="conv0"))
    x = elementwise.relu(conv.conv(x, b.input("w1", (64, 32, 3, 3), dtype), strides=2, pads=1, name="conv1"))
    y = conv.conv(x, b.input("w2", (64, 64, 3, 3), dtype), pads=1, name="conv2")
    x = elementwise.relu(elementwise.binary(x, y, "add"))
    x = reduce.reduce_mean(pool.max_pool(x, (2, 2), strides=(2, 2)), (2, 3), keepdims=False)
    return b.finish([linalg.matmul(x, b.input("w", (64, 10), dtype), name="y")])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("machine", ["sm_80", "sm_90a", "gfx1100"])
def test_convolutions_come_before_what_takes_less(machine: str, dtype: str) -> None:
    """In f32 they have no cycles, and came last."""
    target = resolve_target(machine)
    plan = make_plan(network(dtype), target, 1)
    found = Explanation(planned_manifest(plan, target), plan.decisions, 1)
    assert {each.names[0][:5] for each in found.kernels[:3]} == {"conv0", "conv1", "conv2"}
    lines = found.text().splitlines()
    assert max(map(len, lines)) <= 80
    without = [each for each in found.kernels if not each.cycles]
    assert ("ranked by an estimate" in "\n".join(lines)) == bool(without)
    if dtype == "f32":
        assert without
