"""Constants and tensors that are computed from shapes alone."""

from __future__ import annotations

import math

import numpy as np

from tilewright.errors import InvalidModel, Unsupported
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.expr.ops import elementwise, shape
from tilewright.frontend.onnx.element_types import dtype_of
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


@op("Constant")
def constant(node: Node) -> Tensor:
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in node.attributes:
            return node.constant(np.asarray(node.attributes[name], dtype))
    if "value" in node.attributes:
        return node.constant(node.get_tensor("value"))
    raise Unsupported(f"a constant given by {', '.join(node.attributes) or 'nothing'}")


@op("ConstantOfShape")
def constant_of_shape(node: Node) -> Tensor:
    extents = node.integers(0, "the shape")
    if any(extent < 0 for extent in extents):
        raise InvalidModel(f"shape {extents}", help="extents of 0 or more")
    value = node.get_tensor("value") if "value" in node.attributes else np.zeros(1, np.float32)
    if value.size != 1:
        raise InvalidModel(f"a value of {value.size} elements", help="one")
    return elementwise.fill(node.b, extents, value.reshape(()).item(), dtypes.from_numpy(value.dtype), name=node.name)


@op("Range")
def range_(node: Node) -> Tensor:
    """The number of elements must be known when compiling; the dtype is that of the inputs."""
    dtype = node.input().dtype
    start, limit, delta = (node.array(i, "a bound of the range").reshape(()).item() for i in range(3))
    if delta == 0:
        raise InvalidModel("a range with step 0")
    if not all(math.isfinite(v) for v in (start, limit, delta)):
        raise InvalidModel(f"a range from {start} to {limit} by {delta}")
    count = max(0, math.ceil((limit - start) / delta))
    return shape.iota(node.b, count, start=start, step=delta, dtype=dtype, name=node.name)


@op("EyeLike")
def eye_like(node: Node) -> Tensor:
    rows, columns = node.shape()
    dtype = dtype_of(node.get_int("dtype")) if "dtype" in node.attributes else node.input().dtype
    return shape.eye(node.b, rows, columns, k=node.get_int("k", 0), dtype=dtype, name=node.name)


@op("HannWindow", "HammingWindow", "BlackmanWindow")
def window(node: Node) -> Tensor:
    """A cosine window of known length."""
    size = node.integer(0, "the size")
    if size > 1 << 24:
        raise Unsupported(f"a window of {size} elements")
    n = np.arange(size, dtype=np.float64) * (2 * np.pi / max(size if node.get_int("periodic", 1) else size - 1, 1))
    terms = {"HannWindow": (0.5, -0.5), "HammingWindow": (25 / 46, -21 / 46), "BlackmanWindow": (0.42, -0.5, 0.08)}
    values = sum(factor * np.cos(k * n) for k, factor in enumerate(terms[node.operator]))
    return node.constant(np.asarray(values).astype(dtypes.numpy_dtype(dtype_of(node.get_int("output_datatype", 1)))))


@op("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
def random(node: Node) -> Tensor:
    raise Unsupported("random numbers")
