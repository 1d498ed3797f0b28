"""ONNX element types and tensors as ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import InvalidModel, Unsupported
from tilewright.expr import dtypes
from tilewright.expr.dtypes import DType
from tilewright.frontend.onnx.content import Content

Array = np.ndarray[Any, Any]

_NAMES: dict[str, DType] = {
    "FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "BOOL": "bool",
    "INT8": "i8", "INT16": "i16", "INT32": "i32", "INT64": "i64",
    "UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "UINT64": "u64",
}  # fmt: skip


def dtype_of(code: int) -> DType:
    """The dtype of an ONNX element type number; raises Unsupported where there is none."""
    import onnx

    known = onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(code) if code in known else str(code)
    if name not in _NAMES:
        raise Unsupported(f"element type {name}", help=f"one of {', '.join(_NAMES)}")
    return _NAMES[name]


def code_of(dtype: DType) -> int:
    """The ONNX element type number of `dtype`."""
    import onnx

    names = {ours: theirs for theirs, ours in _NAMES.items()}
    return int(onnx.TensorProto.DataType.Value(names[dtype]))


def array_of(tensor: Any, raw: Content | None = None) -> Array:
    """The contents of a TensorProto, or `raw`, its little-endian elements, where it is without them.

    Raises InvalidModel where they do not fit its shape.
    """
    dtype = dtypes.numpy_dtype(dtype_of(tensor.data_type))
    try:
        if raw is None:
            from onnx import numpy_helper

            return np.asarray(numpy_helper.to_array(tensor), dtype)
        elements = np.frombuffer(bytes(raw), dtype.newbyteorder("<"))  # aligned, as the file is not
        return elements.reshape(tuple(tensor.dims)).astype(dtype, copy=False)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise InvalidModel(
            f"tensor {tensor.name!r} of shape {list(tensor.dims)}: {error}", help="as many elements as its shape has"
        ) from error
