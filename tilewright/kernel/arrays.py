"""What each operation on whole tiles computes, in NumPy; `elements` has those that work element by element.

Arrays may have axes of a batch before those of the tile: the threads of the distributed form. Constants and counts
have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.ir import Operation

from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import BroadcastOp, ConvertOp, DotOp, IotaOp, ReduceOp, ReshapeOp, ScanOp, shape
from tilewright.kernel.elements import Array, cast, dtype_of, unsigned
from tilewright.kernel.simt import JoinOp, PartOp


def _constant(op: arith.ConstantOp) -> Array:
    attribute, dtype = op.value, dtype_of(op.result.type)
    if isinstance(attribute, IntegerAttr | FloatAttr):
        return np.asarray(attribute.value.data).astype(dtype)
    if not isinstance(attribute, DenseIntOrFPElementsAttr):
        raise InvalidProgram(f"constant {attribute} is neither a number nor dense")
    if dtype == np.bool_:  # xDSL stores true as 0xFF, which is no bool of NumPy
        return np.frombuffer(attribute.data.data, np.int8).astype(np.bool_).reshape(shape(op.result))
    return np.frombuffer(attribute.data.data, dtype).reshape(shape(op.result))


def _iota(op: IotaOp) -> Array:
    extents, axis = shape(op.result), op.axis.value.data
    along = [1] * len(extents)
    along[axis] = extents[axis]
    return np.broadcast_to(np.arange(extents[axis]).reshape(along), extents)


def _broadcast(op: BroadcastOp, value: Array) -> Array:
    batch = value.shape[: value.ndim - len(shape(op.value))]
    extents = shape(op.result)
    aligned = value if shape(op.value) else value.reshape((*batch, *[1] * len(extents)))
    return np.broadcast_to(aligned, (*batch, *extents))


def _reshape(op: ReshapeOp, value: Array) -> Array:
    return value.reshape((*value.shape[: value.ndim - len(shape(op.value))], *shape(op.result)))


_REDUCERS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _reduce(op: ReduceOp, value: Array) -> Array:
    function = _REDUCERS[op.kind.data]
    work = unsigned(value) if op.unsigned else value
    if value.dtype == np.bool_:  # counts as 0 and 1 and wraps to one bit
        work = value.astype(np.uint8)
    axis = op.axis.value.data - len(shape(op.value))
    with np.errstate(all="ignore"):
        result = np.asarray(function.reduce(work, axis=axis, keepdims=True, dtype=work.dtype))
    return (result & 1).astype(np.bool_) if value.dtype == np.bool_ else result.view(value.dtype)


def scanned(op: ScanOp, value: Array) -> tuple[Array, Array]:
    """The prefixes of a tile, and the last of them; combined as one vector register is, in doubling distances."""
    prefix = (unsigned(value) if op.unsigned else value)[:: -1 if op.reverse else 1]
    distance = 1
    with np.errstate(all="ignore"):
        while distance < len(prefix):
            combined = _REDUCERS[op.kind.data](prefix[:-distance], prefix[distance:])
            prefix = np.concatenate([prefix[:distance], combined])
            distance *= 2
    prefix = prefix.view(value.dtype)
    return prefix[:: -1 if op.reverse else 1], np.asarray(prefix[-1])


def _dot(op: DotOp, a: Array, b: Array, c: Array) -> Array:
    wide_a, wide_b = (cast(x, c.dtype, name in op.unsigned.data) for x, name in ((a, "a"), (b, "b")))
    (_, depth), columns = shape(op.a), shape(op.c)[1]
    if len(shape(op.b)) == 3:  # b[k // g, n, k % g]
        wide_b = np.swapaxes(wide_b, -1, -2)
        wide_b = wide_b.reshape((*wide_b.shape[:-3], depth, columns))
    with np.errstate(all="ignore"):
        if c.dtype in (np.float32, np.float64) or c.dtype.kind == "i":
            return np.asarray(c + wide_a @ wide_b)
        total = c
        for k in range(depth):
            total = total + wide_a[..., :, k : k + 1] * wide_b[..., k : k + 1, :]
        return total


def _convert(op: ConvertOp, value: Array) -> Array:
    return value


def _join(op: JoinOp, *parts: Array) -> Array:
    batch = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return np.concatenate([np.broadcast_to(part, (*batch, part.shape[-1])) for part in parts], axis=-1)


def _part(op: PartOp, value: Array) -> Array:
    start = op.start.value.data
    return value[..., start : start + shape(op.result)[0]]


WHOLE: dict[type[Operation], Callable[..., Array]] = {
    arith.ConstantOp: _constant,
    IotaOp: _iota,
    BroadcastOp: _broadcast,
    ReshapeOp: _reshape,
    ReduceOp: _reduce,
    DotOp: _dot,
    ConvertOp: _convert,
    JoinOp: _join,
    PartOp: _part,
}
