"""Sequences of tensors that are taken apart again within the model, and optionals that are known to be there."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidModel, Unsupported
from tilewright.expr.core import Tensor
from tilewright.expr.ops import shape as ops
from tilewright.expr.ops.nodes import normal_axis
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import Value, op

_MOST_PARTS = 1024


@op("SequenceConstruct")
def construct(node: Node) -> Value:
    return node.tensors()


@op("SequenceEmpty")
def empty(node: Node) -> Value:
    return []


def _position(node: Node, position: int, length: int, *, last: int) -> int:
    index = node.integer(position, "the position in the sequence")
    if not -length <= index <= last:
        raise InvalidModel(f"position {index} in a sequence of {length}")
    return index + length if index < 0 else index


@op("SequenceAt")
def at(node: Node) -> Value:
    items = node.sequence(0)
    return items[_position(node, 1, len(items), last=len(items) - 1)]


@op("SequenceErase")
def erase(node: Node) -> Value:
    items = node.sequence(0)
    place = _position(node, 1, len(items), last=len(items) - 1) if node.has(1) else len(items) - 1
    return items[:place] + items[place + 1 :]


@op("SequenceInsert")
def insert(node: Node) -> Value:
    items = node.sequence(0)
    place = _position(node, 2, len(items), last=len(items)) if node.has(2) else len(items)
    return [*items[:place], node.input(1), *items[place:]]


@op("SequenceLength")
def length(node: Node) -> Tensor:
    return node.constant(np.asarray(len(node.sequence(0)), np.int64))


@op("SplitToSequence")
def split(node: Node) -> Value:
    x = node.input()
    axis = normal_axis(node.get_int("axis", 0), x.rank, where=node.name)
    extent = node.shape()[axis]
    if extent > _MOST_PARTS:
        raise Unsupported(f"a sequence of parts of {extent} elements", help=f"up to {_MOST_PARTS}")
    sizes, keep = [1] * extent, bool(node.get_int("keepdims", 1))
    if node.has(1):
        known = node.array(1, "the sizes of the parts")
        keep = True
        each = int(known.reshape(-1)[0]) if known.ndim == 0 else 0
        if known.ndim == 0 and each < 1:
            raise InvalidModel(f"parts of {each} elements")
        sizes = [min(each, extent - i) for i in range(0, extent, each)] if each else [int(v) for v in known]
    parts = ops.split(x, sizes, axis=axis, name=node.name)
    return parts if keep else [ops.squeeze(part, [axis], name=node.name) for part in parts]


@op("ConcatFromSequence")
def concat(node: Node) -> Tensor:
    items = node.sequence(0)
    join = ops.stack if node.get_int("new_axis", 0) else ops.concat
    return join(items, axis=node.get_int("axis"), name=node.name)


@op("Optional")
def optional(node: Node) -> Value:
    return node.inputs[0] if node.inputs else None


@op("OptionalGetElement")
def get_element(node: Node) -> Value:
    if node.inputs[0] is None:
        raise InvalidModel("the optional is empty")
    return node.inputs[0]


@op("OptionalHasElement")
def has_element(node: Node) -> Tensor:
    return node.constant(np.asarray(bool(node.inputs) and node.inputs[0] is not None))
