"""Chains whose first result is read through windows, and trees for them by chance.

A convolution before another one, or before a depthwise convolution or a pool and a convolution of 1 x 1. Windows have
any extents, steps, dilations and padding. Behind each sum there may be a bias, the addition of another tensor or of the
image itself, and an activation. Trees differ in register tiles, the order of their loops, blocks of the loops
that windows move along and those outside, programs of the grid, and whether blocks keep what they share.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm, prod

from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, pool
from tilewright.machine.description import Cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.products_tree import ProductsTree
from tilewright.operator.rules.cpu_fused import FusedPoint, fused_kernel
from tilewright.operator.rules.cpu_windows import Cut, windowed
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Product
from tilewright.tiles.tree import TileTree

EXTENTS = (1, 2, 3, 5, 7, 8, 11, 13, 17)
CHANNELS = (1, 2, 3, 5, 7, 8, 17)
MOST_POINTS = 100  # of an image: the analysis visits each step of a tree with windows
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "": lambda value: value,
    "relu": elementwise.relu,
    "relu6": lambda value: elementwise.map_elements([value], lambda v: elementwise.clamp(v, 0.0, 6.0), name="relu6"),
}
KINDS = ("convolution", "depthwise", "max", "average")


def random_windows(roll: random.Random, small: bool = False) -> Graph:
    """A chain of two or three operators, of which the second reads the first one through windows."""
    while True:
        image = [roll.choice(EXTENTS) for _ in range(roll.choice((1, 2, 2, 2)))]
        if prod(image) <= MOST_POINTS // (2 if small else 1):
            break
    b, kind = GraphBuilder("windows"), roll.choice(KINDS)
    channels, middle, filters = (roll.choice(CHANNELS) for _ in range(3))
    kernel, strides = [roll.choice((1, 1, 3)) for _ in image], [roll.choice((1, 1, 2)) for _ in image]
    x = b.input("x", (roll.choice((1, 1, 2)), channels, *image), "f32")
    weights = b.input("w0", (middle, channels, *kernel), "f32")
    pads = [size // 2 for size in kernel] * 2
    value = conv.conv(x, weights, _bias(b, "v0", middle, roll), strides=strides, pads=pads, name="c0")
    value = _finished(b, "r0", value, x, roll)
    value = _through_windows(b, value, kind, filters, roll)
    if kind != "convolution":
        weights = b.input("w2", (filters, middle, *[1] * len(image)), "f32")
        value = conv.conv(_activated(value, roll), weights, _bias(b, "v2", filters, roll), name="c2")
    return b.finish([_finished(b, "r2", value, x, roll)])


def _through_windows(b: GraphBuilder, value: Tensor, kind: str, filters: int, roll: random.Random) -> Tensor:
    _, channels, *extents = static_shape(value.shape)
    pools = kind in ("max", "average")
    sides = [_random_side(extent, roll, pools) for extent in extents]
    kernel, strides, dilations, before, after = (list(each) for each in zip(*sides, strict=True))
    if pools:
        operator = pool.max_pool if kind == "max" else pool.average_pool
        return operator(value, kernel, strides=strides, pads=[*before, *after], name="p")
    groups = channels if kind == "depthwise" else 1
    results = channels if kind == "depthwise" else filters
    weights = b.input("w1", (results, channels // groups, *kernel), "f32")
    sliding = {"strides": strides, "dilations": dilations, "pads": [*before, *after]}
    bias = _bias(b, "v1", results, roll)
    return conv.conv(value, weights, bias, groups=groups, name="c1", **sliding)  # type: ignore[arg-type]


def _random_side(extent: int, roll: random.Random, pools: bool) -> tuple[int, int, int, int, int]:
    """Kernel, step, dilation, and padding before and behind along one dimension, for one window or more.

    The windows of pools have neighbours, one of which is no padding.
    """
    while True:
        kernel, stride, dilation = roll.choice((1, 2, 3, 3, 5)), roll.choice((1, 1, 2, 3)), roll.choice((1, 1, 1, 2))
        before, after = roll.choice((0, 1, 1, 2)), roll.choice((0, 1, 1, 2))
        if extent + before + after <= dilation * (kernel - 1):
            continue
        if not pools or (dilation == 1 and max(before, after) <= kernel // 2):
            return kernel, stride, dilation, before, after


def _bias(b: GraphBuilder, name: str, channels: int, roll: random.Random) -> Tensor | None:
    return b.input(name, (channels,), "f32") if roll.random() < 0.5 else None


def _finished(b: GraphBuilder, name: str, value: Tensor, x: Tensor, roll: random.Random) -> Tensor:
    """A result with what follows its sums: perhaps an activation, another tensor of its shape, and an activation."""
    if roll.random() < 0.4:
        added = x if x.shape == value.shape else b.input(name, static_shape(value.shape), "f32")
        value = _activated(value, roll) + added
    return _activated(value, roll)


def _activated(value: Tensor, roll: random.Random) -> Tensor:
    return ACTIVATIONS[roll.choice(("", "", "relu", "relu6"))](value)


def random_windowed_tree(roll: random.Random, tree: ProductsTree, machine: Cpu) -> TileTree:
    """Other register tiles, orders, blocks and programs for the products of a tree with windows."""
    works = [each.work for each in tree.products]
    rows = {number: each.statements for number, each in tree.rows.items()}
    through = windowed(works, rows)
    assert through is not None, "a value is read through windows"
    cuts, cut = through.cuts(), None
    if cuts and roll.random() < 0.9:
        cut = cuts[-1] if roll.random() < 0.8 else roll.choice(cuts)
    alone = [axis.name for axis in through.moved(cut.axis)] if cut is not None else []
    points = tuple(_random_point(roll, work, alone) for work in works)
    blocks: tuple[SpatialLoop, ...] = ()
    if cut is not None:
        unit = lcm(*(point.tile(work).get(cut.axis.name, 1) for point, work in zip(points, works, strict=True)))
        blocks = _random_blocks(roll, cut, unit)
    keep = roll.random() < 0.8 and through.shares(blocks)
    at_a_time = [int(work.has_epilogue and roll.random() < 0.2) for work in works]
    return fused_kernel(works, FusedPoint(points, blocks, keep), at_a_time, rows, machine).tree


def _random_blocks(roll: random.Random, cut: Cut, unit: int) -> tuple[SpatialLoop, ...]:
    """Blocks of whole register tiles; programs walk several steps of the loops around the cut one, or one each."""
    blocks = cut.blocks(unit * roll.randint(1, max(1, cut.axis.size // unit // 2)), roll.choice((1, 1, 2, 3)))
    if roll.random() < 0.6:
        return blocks
    return tuple(replace(loop, blocks=1) if loop.axis in cut.outside else loop for loop in blocks)


def _random_point(roll: random.Random, work: Product, alone: Sequence[str]) -> ProductPoint:
    """A register tile with several rows along the innermost loop only, where that is not one of those `alone`."""
    order = [axis.name for axis in (work.columns, *work.rows)]
    roll.shuffle(order)
    several = [axis for axis in work.rows[-1:] if axis.name not in alone]
    rows = tuple(min(roll.randint(1, 5), axis.size) if axis in several else 1 for axis in work.rows)
    vectors = min(roll.randint(1, 3), -(-work.columns.size // work.lanes))
    return ProductPoint(rows, vectors, tuple(order))
