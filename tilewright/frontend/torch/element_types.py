"""torch's element types and tensors as ours."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import Unsupported
from tilewright.expr import dtypes
from tilewright.expr.dtypes import DType

Array = np.ndarray[Any, Any]

_NAMES: dict[str, DType] = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "bool",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip


def dtype_of(dtype: Any) -> DType:
    """The dtype of a `torch.dtype`; raises Unsupported where there is none."""
    name = str(dtype).removeprefix("torch.")
    if name not in _NAMES:
        raise Unsupported(f"element type {name}", help=f"one of {', '.join(_NAMES)}")
    return _NAMES[name]


@cache
def torch_dtype(dtype: DType) -> Any:
    """The `torch.dtype` of `dtype`."""
    import torch

    return getattr(torch, next(theirs for theirs, ours in _NAMES.items() if ours == dtype))


def check_tensor(tensor: Any) -> DType:
    """The dtype of a tensor whose elements can be used; raises Unsupported for other dtypes and storage."""
    import torch

    dtype = dtype_of(tensor.dtype)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise Unsupported(f"a tensor with layout {tensor.layout}, {tensor.dtype}", help="a dense one: `.to_dense()`")
    if any(not isinstance(extent, int) for extent in tensor.shape):
        raise Unsupported(f"a tensor of open shape {list(tensor.shape)}", help="fixed extents: dynamic=False")
    return dtype


def array_of(tensor: Any) -> Array:
    """The elements as a read-only NumPy array, shared with `tensor` if that is contiguous and on the CPU."""
    import torch

    dtype = check_tensor(tensor)
    dense = tensor.detach().cpu().resolve_neg().contiguous()
    found: Array = dense.view(torch.int16).numpy() if dtype == "bf16" else dense.numpy()
    view = found.view(dtypes.numpy_dtype(dtype))
    view.flags.writeable = False
    return view
