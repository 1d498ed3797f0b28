"""The register tile of reductions whose vector runs along an outer loop: columns, windows, shared weights."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.make_plan import make_plan
from tilewright.expr.core import Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, pool, reduce
from tilewright.machine import resolve_cpu
from tilewright.tiles.parts import register_tiles

MACHINE = resolve_cpu("x86-64-v3")  # 8 lanes of f32


def quanta(graph: Graph, name: str, threads: int = 1) -> list[int]:
    """Points along each loop of the register tile that computes a value, 1 left out."""
    for kernel in make_plan(graph, MACHINE, threads).kernels:
        for leaf, tile in register_tiles(kernel.scheduled.tree):
            if leaf.op == name:
                return sorted(points for _, points in tile.points if points > 1)
    raise AssertionError(f"no kernel computes {name}")


def column_sums(shape: tuple[int, ...]) -> Graph:
    b = GraphBuilder()
    return b.finish([reduce.reduce_sum(b.input("x", shape, "f32"), [1], name="y")])


@pytest.mark.parametrize(
    ("shape", "threads", "expected"),
    [
        ((16, 64, 256), 1, [64]),  # nothing repeats from one sum to the next
        ((16, 64, 40), 1, [40]),
        ((16, 64, 5), 1, [5]),
        ((16, 64, 256), 2, [64]),
        ((1, 64, 256), 2, [32]),  # else threads have too few tiles
    ],
)
def test_column_sums_take_vectors_behind_each_other(
    shape: tuple[int, ...], threads: int, expected: list[int]
) -> None:  # fmt: skip
    assert quanta(column_sums(shape), "y", threads) == expected


def windows(stride: int, weights: bool) -> Graph:
    """Windows of 3 x 3 on an image whose channels lie innermost, as a convolution of 1 x 1 leaves it."""
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    filters = b.constant(rng.normal(size=(64, 8, 1, 1)).astype("f4"), "filters")
    image = elementwise.relu(conv.conv(b.input("x", (1, 8, 19, 19), "f32"), filters))
    y: Tensor
    if weights:
        depthwise = b.constant(rng.normal(size=(64, 1, 3, 3)).astype("f4"), "depthwise")
        y = conv.depthwise_conv(image, depthwise, strides=stride, name="y")
    else:
        y = pool.max_pool(image, [3, 3], strides=stride, name="y")
    last = b.constant(rng.normal(size=(16, 64, 1, 1)).astype("f4"), "last")
    return b.finish([conv.conv(y, last)])


@pytest.mark.parametrize(
    ("stride", "weights", "expected"),
    [
        (1, False, [3, 4, 16]),  # neighbours share two thirds of their windows, which a step has a row of
        (2, False, [64]),
        (2, True, [3, 4, 16]),  # and these their weights
    ],
)
def test_neighbours_share_a_tile_where_reads_repeat(stride: int, weights: bool, expected: list[int]) -> None:
    assert quanta(windows(stride, weights), "y") == expected
