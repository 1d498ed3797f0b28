"""Operators that move elements, and those that ask for shapes."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.errors import InvalidModel
from tilewright.expr.core import Axis, Expr, Tensor, const, select
from tilewright.expr.ops import shape as ops
from tilewright.expr.ops.elementwise import axes_of, emit
from tilewright.expr.ops.nodes import normal_axis
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


@op("Transpose")
def transpose(node: Node) -> Tensor:
    perm = node.get_ints("perm") if "perm" in node.attributes else None
    return ops.transpose(node.input(), perm, name=node.name)


@op("Reshape")
def reshape(node: Node) -> Tensor:
    """0 keeps the extent of the input unless `allowzero`; one -1 takes what is left."""
    shape, wanted = node.shape(), node.integers(1, "the new shape")
    if not node.get_int("allowzero", 0):
        wanted = [shape[d] if extent == 0 else extent for d, extent in enumerate(wanted)]
    if wanted.count(-1) == 1:
        rest = prod(extent for extent in wanted if extent != -1)
        if rest == 0 or prod(shape) % rest:
            raise InvalidModel(f"{list(shape)} cannot become {wanted}", help=f"a shape of {prod(shape)} elements")
        wanted[wanted.index(-1)] = prod(shape) // rest
    if any(extent < 0 for extent in wanted):
        raise InvalidModel(f"shape {wanted}", help="extents of 0 or more, and at most one -1")
    if tuple(wanted) == shape:
        return node.input()
    return ops.reshape(node.input(), wanted, name=node.name)


@op("Flatten")
def flatten(node: Node) -> Tensor:
    return ops.flatten(node.input(), axis=node.get_int("axis", 1), name=node.name)


@op("Squeeze")
def squeeze(node: Node) -> Tensor:
    return ops.squeeze(node.input(), node.axes(1, since=13), name=node.name)


@op("Unsqueeze")
def unsqueeze(node: Node) -> Tensor:
    axes = node.axes(1, since=13)
    if axes is None:
        raise InvalidModel("axes are missing")
    return ops.unsqueeze(node.input(), axes, name=node.name)


@op("Expand")
def expand(node: Node) -> Tensor:
    wanted = node.integers(1, "the new shape")
    return ops.expand(node.input(), wanted, name=node.name)


@op("Tile")
def tile(node: Node) -> Tensor:
    return ops.tile(node.input(), node.integers(1, "the number of repeats"), name=node.name)


@op("Concat")
def concat(node: Node) -> Tensor:
    return ops.concat(node.tensors(), axis=node.get_int("axis"), name=node.name)


@op("Split")
def split(node: Node) -> tuple[Tensor, ...]:
    axis = normal_axis(node.get_int("axis", 0), node.input().rank, where=node.name)
    extent = node.shape()[axis]
    if node.has(1):
        sizes = node.integers(1, "the sizes of the parts")
    else:
        parts = node.get_int("num_outputs", len(node.proto.output))
        if parts != len(node.proto.output):
            raise InvalidModel(f"num_outputs is {parts} for {len(node.proto.output)} outputs")
        each = -(-extent // parts)
        sizes = [max(0, min(each, extent - each * i)) for i in range(parts)]
    hints = [node.hint(position) for position in range(len(sizes))]
    return tuple(ops.split(node.input(), sizes, axis=axis, names=hints, name=node.name))


@op("Slice")
def slice_(node: Node) -> Tensor:
    x, shape = node.input(), node.shape()
    firsts, stops = node.integers(1, "the starts"), node.integers(2, "the ends")
    axes = node.integers(3, "the axes") if node.has(3) else list(range(len(firsts)))
    steps = node.integers(4, "the steps") if node.has(4) else [1] * len(firsts)
    if not len(firsts) == len(stops) == len(axes) == len(steps):
        raise InvalidModel(f"{len(firsts)} starts, {len(stops)} ends, {len(axes)} axes, {len(steps)} steps")
    starts, extents, strides = [0] * x.rank, list(shape), [1] * x.rank
    for axis, first, stop, step in zip(
        ops.normal_axes(axes, x.rank, where=node.name), firsts, stops, steps, strict=True
    ):
        starts[axis], extents[axis] = ops.slice_bounds(shape[axis], first, stop, step)
        strides[axis] = step
    if tuple(extents) == shape and all(step == 1 for step in strides):
        return x
    return ops.slice_(x, starts, extents, strides, name=node.name)


@op("Pad")
def pad(node: Node) -> Tensor:
    x = node.input()
    pads = node.integers(1, "the padding")
    axes = node.integers(3, "the axes") if node.has(3) else list(range(x.rank))
    if len(pads) != 2 * len(axes):
        raise InvalidModel(f"{len(pads)} paddings for {len(axes)} axes", help="two for each axis")
    before, after = [0] * x.rank, [0] * x.rank
    for position, axis in enumerate(ops.normal_axes(axes, x.rank, where=node.name)):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    value = node.optional(2)
    return ops.pad(
        x,
        before,
        after,
        mode=node.get_string("mode", "constant"),
        value=0 if value is None else value,
        name=node.name,
    )


@op("Trilu")
def trilu(node: Node) -> Tensor:
    known = node.known(1) if node.has(1) else np.asarray(0)
    k = node.input(1) if known is None else int(known.reshape(()))
    return ops.trilu(node.input(), k, upper=bool(node.get_int("upper", 1)), name=node.name)


@op("ReverseSequence")
def reverse_sequence(node: Node) -> Tensor:
    return ops.reverse_sequence(
        node.input(0),
        node.input(1),
        time_axis=node.get_int("time_axis", 0),
        batch_axis=node.get_int("batch_axis", 1),
        name=node.name,
    )


@op("DepthToSpace")
def depth_to_space(node: Node) -> Tensor:
    """[N, C, H, W] to [N, C/b², H*b, W*b]; DCR takes the block from the outer, CRD from the inner channels."""
    n, c, h, w = node.shape()
    size = node.get_int("blocksize")
    if c % (size * size):
        raise InvalidModel(f"{c} channels in blocks of {size}x{size}")
    depth = c // (size * size)
    if node.get_string("mode", "DCR") == "DCR":
        split, order = (n, size, size, depth, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (n, depth, size, size, h, w), (0, 1, 4, 2, 5, 3)
    return _regroup(node, split, order, (n, depth, h * size, w * size))


@op("SpaceToDepth")
def space_to_depth(node: Node) -> Tensor:
    """[N, C, H, W] to [N, C*b², H/b, W/b]."""
    n, c, h, w = node.shape()
    size = node.get_int("blocksize")
    if h % size or w % size:
        raise InvalidModel(f"an image of {h}x{w} in blocks of {size}x{size}")
    split = (n, c, h // size, size, w // size, size)
    if node.get_string("mode", "DCR") == "CRD":
        return _regroup(node, split, (0, 1, 3, 5, 2, 4), (n, c * size * size, h // size, w // size))
    return _regroup(node, split, (0, 3, 5, 1, 2, 4), (n, c * size * size, h // size, w // size))


def _regroup(node: Node, split: tuple[int, ...], order: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    x = ops.reshape(node.input(), split, name=f"{node.name}.split")
    x = ops.transpose(x, order, name=f"{node.name}.order")
    return ops.reshape(x, shape, name=node.name)


@op("Shape")
def shape_of(node: Node) -> Tensor:
    shape = node.shape()
    start, end = node.get_int("start", 0), node.get_int("end", len(shape))
    return node.constant(np.asarray(shape[slice(*_clipped(start, end, len(shape)))], np.int64))


def _clipped(start: int, end: int, rank: int) -> tuple[int, int]:
    first, last = (min(max(v + rank if v < 0 else v, 0), rank) for v in (start, end))
    return first, last


@op("Size")
def size_of(node: Node) -> Tensor:
    return node.constant(np.asarray(prod(node.shape()), np.int64))


@op("CenterCropPad")
def center_crop_pad(node: Node) -> Tensor:
    x, shape = node.input(), node.shape()
    wanted = node.integers(1, "the new shape")
    axes = ops.normal_axes(node.get_ints("axes", list(range(x.rank))), x.rank, where=node.name)
    before, after = [0] * x.rank, [0] * x.rank
    for axis, extent in zip(axes, wanted, strict=True):
        change = extent - shape[axis]
        before[axis] = change // 2 if change >= 0 else -((-change) // 2)
        after[axis] = change - before[axis]
    return ops.pad(x, before, after, name=node.name)


@op("Col2Im")
def overlapping_blocks(node: Node) -> Tensor:
    """Sum of overlapping blocks: out[n, c, y…] = sum over kernel positions of the column that covers it there."""
    image = node.integers(1, "the image shape")
    block = node.integers(2, "the block shape")
    dims = len(image)
    dilations, strides = node.get_ints("dilations", [1] * dims), node.get_ints("strides", [1] * dims)
    pads = node.get_ints("pads", [0] * (2 * dims))
    n, rows, columns = node.shape()
    channels = rows // prod(block)
    blocks = [
        (image[d] + pads[d] + pads[d + dims] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1 for d in range(dims)
    ]
    if prod(blocks) != columns or channels * prod(block) != rows:
        raise InvalidModel(f"{rows}x{columns} columns for {blocks} blocks of {block}")
    axes = axes_of((n, channels, *image))
    ranges = tuple(Axis(f"r{d}", block[d]) for d in range(dims))
    inside: Expr = const(True, "bool")
    row: Expr = axes[1]
    column: Expr = const(0, "i64")
    for d in range(dims):
        offset = axes[2 + d] + pads[d] - ranges[d] * dilations[d]
        inside = inside & (offset >= 0) & (offset < blocks[d] * strides[d]) & (offset % strides[d]).eq(0)
        row = row * block[d] + ranges[d]
        column = column * blocks[d] + offset // strides[d]
    body = select(inside, node.input()[axes[0], row, column], 0)
    return emit(node.b, axes, body, reduce=ranges, accum="sum", name=node.name)
