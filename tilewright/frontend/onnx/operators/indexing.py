"""Gather, scatter, one-hot, and selection by constants."""

from __future__ import annotations

import numpy as np

from tilewright.errors import InvalidModel
from tilewright.expr.core import Tensor
from tilewright.expr.ops import indexing as ops
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.nodes import normal_axis
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


@op("Gather")
def gather(node: Node) -> Tensor:
    """Known indices in equal steps (a slice, a single element) become an affine read."""
    x, axis = node.input(0), node.get_int("axis", 0)
    known = node.known(1)
    if known is not None and known.ndim <= 1 and known.size:
        extent = node.shape()[normal_axis(axis, x.rank, where=node.name)]
        picks = [int(v) + extent if v < 0 else int(v) for v in known.reshape(-1).tolist()]
        if any(not 0 <= pick < extent for pick in picks):
            raise InvalidModel(f"index {known.tolist()} into an extent of {extent}")
        step = picks[1] - picks[0] if len(picks) > 1 else 0
        if all(pick == picks[0] + step * i for i, pick in enumerate(picks)):
            count = known.size if known.ndim else None
            return ops.gather_at(x, picks[0], step, count, axis=axis, name=node.name)
    return ops.gather(x, node.input(1), axis=axis, name=node.name)


@op("GatherElements")
def gather_elements(node: Node) -> Tensor:
    return ops.gather_elements(node.input(0), node.input(1), axis=node.get_int("axis", 0), name=node.name)


@op("GatherND")
def gather_nd(node: Node) -> Tensor:
    return ops.gather_nd(node.input(0), node.input(1), batch=node.get_int("batch_dims", 0), name=node.name)


@op("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> Tensor:
    return ops.scatter_elements(
        node.input(0),
        node.input(1),
        node.input(2),
        axis=node.get_int("axis", 0),
        reduction=node.get_string("reduction", "none"),
        name=node.name,
    )


@op("ScatterND")
def scatter_nd(node: Node) -> Tensor:
    return ops.scatter_nd(
        node.input(0),
        node.input(1),
        node.input(2),
        reduction=node.get_string("reduction", "none"),
        name=node.name,
    )


@op("OneHot")
def one_hot(node: Node) -> Tensor:
    depth = int(node.array(1, "the depth").reshape(()))
    return ops.one_hot(node.input(0), depth, node.input(2), axis=node.get_int("axis", -1), name=node.name)


@op("Compress")
def compress(node: Node) -> Tensor:
    """The condition decides the shape, so it must be a constant."""
    x = node.input()
    chosen = np.flatnonzero(node.array(1, "the condition")).tolist()
    if "axis" in node.attributes:
        return ops.compress(x, chosen, axis=node.get_int("axis"), name=node.name)
    flat = shapes.reshape(x, [x.size], name=f"{node.name}.flat")
    return ops.compress(flat, chosen, axis=0, name=node.name)


@op("NonZero")
def non_zero(node: Node) -> Tensor:
    """The values decide the shape, so they must be a constant."""
    return node.constant(np.asarray(np.nonzero(np.atleast_1d(node.array(0, "the values"))), np.int64))


@op("TensorScatter")
def tensor_scatter(node: Node) -> Tensor:
    """A cache with `update` written along `axis` from the position that each batch has in `write_indices`."""
    return ops.update_cache(
        node.input(0),
        node.input(1),
        node.optional(2),
        axis=node.get_int("axis", -2),
        circular=node.get_string("mode", "linear") == "circular",
        name=node.name,
    )


@op("Unique")
def unique(node: Node) -> tuple[Tensor, ...]:
    """The values decide the shape, so they must be a constant."""
    values = node.array(0, "the values")
    axis = node.get_int("axis") if "axis" in node.attributes else None
    found, first, inverse, counts = np.unique(
        values, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    order = np.arange(len(first)) if node.get_int("sorted", 1) else np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    found = np.take(found, order, axis=axis or 0)
    others = (first[order], rank[inverse.reshape(-1)], counts[order])
    return node.constant(found), *(node.constant(each.astype(np.int64), at) for at, each in enumerate(others, start=1))
