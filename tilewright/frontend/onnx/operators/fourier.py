"""Discrete Fourier transforms. Complex numbers are pairs in the last dimension, real ones single elements there."""

from __future__ import annotations

from tilewright.errors import InvalidModel, Unsupported
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.expr.ops import fourier
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.nodes import cast_node, normal_axis
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


@op("DFT")
def dft(node: Node) -> Tensor:
    """The signal is cut, or padded with zeros, to the length; the inverse is divided by the length."""
    shape = node.shape()
    if not shape or shape[-1] not in (1, 2):
        raise InvalidModel(f"a signal of shape {list(shape)}", help="a last dimension of 1 (real) or 2 (complex)")
    if node.version >= 20:
        axis = node.integer(2, "the axis") if node.has(2) else -2
    else:
        axis = node.get_int("axis", 1)
    d = normal_axis(axis, len(shape), where=node.name)
    if d == len(shape) - 1:
        raise InvalidModel(f"axis {axis} holds the parts of complex numbers", help="one of the dimensions before")
    inverse, onesided = bool(node.get_int("inverse", 0)), bool(node.get_int("onesided", 0))
    if onesided and inverse:
        return _real_signal(node, d)
    if onesided and shape[-1] == 2:
        raise Unsupported("a one-sided transform of complex numbers", help="onesided=0")
    length = node.integer(1, "the length") if node.has(1) else shape[d]
    if length < 1:
        raise InvalidModel(f"a length of {length}", help="1 or more")
    parts = [_signal(node, label, p, d, length) for p, label in zip(range(shape[-1]), ("re", "im"), strict=False)]
    found = fourier.dft(
        *parts, axis=d, inverse=inverse, scale=1 / length if inverse else 1.0,
        bins=length // 2 + 1 if onesided else None, name=node.name,
    )  # fmt: skip
    joined = shapes.stack(found, axis=len(shape) - 1, name=f"{node.name}.joined")
    return cast_node(node.b, joined, node.input().dtype, name=node.name)


def _real_signal(node: Node, d: int) -> Tensor:
    """The inverse of a one-sided transform: real numbers, twice as many as there are steps between the bins."""
    shape = node.shape()
    if shape[-1] != 2:
        raise InvalidModel(f"bins of shape {list(shape)}", help="complex numbers: a last dimension of 2")
    length = node.integer(1, "the length") if node.has(1) else 2 * (shape[d] - 1)
    if length < 1:
        raise InvalidModel(f"a length of {length}", help="1 or more")
    bins = [_signal(node, label, part, d, shape[d]) for part, label in enumerate(("re", "im"))]
    whole = fourier.from_half(bins[0], bins[1], length, axis=d, name=f"{node.name}.bins")
    real, _ = fourier.dft(*whole, axis=d, inverse=True, scale=1 / length, name=f"{node.name}.dft")
    found = shapes.unsqueeze(real, [len(shape) - 1], name=f"{node.name}.real")
    return cast_node(node.b, found, node.input().dtype, name=node.name)


def _signal(node: Node, label: str, part: int, d: int, length: int) -> Tensor:
    """One part of the signal, in f32 at least, without the last dimension and `length` long."""
    name, shape = f"{node.name}.{label}", node.shape()
    signal = shapes.narrow(node.input(), len(shape) - 1, part, 1, name=name)
    signal = shapes.squeeze(signal, [len(shape) - 1], name=name)
    signal = cast_node(node.b, signal, dtypes.wide(signal.dtype), name=name)
    if length <= shape[d]:
        return shapes.narrow(signal, d, 0, length, name=name)
    behind = [length - shape[d] if p == d else 0 for p in range(len(shape) - 1)]
    return shapes.pad(signal, [0] * len(behind), behind, name=name)
