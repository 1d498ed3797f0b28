"""Element types of intrinsics: those of `expr`, and the narrow ones that only matrix units know.

`tf32` is stored as f32; arithmetic reads its top 10 mantissa bits. `b1` is stored as bool, `i4` and the 8-bit floats as
the types of `ml_dtypes`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import InvalidIntrinsic
from tilewright.expr import dtypes

Array = np.ndarray[Any, np.dtype[Any]]

_MORE = {
    "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz", "i4": "int4", "u4": "uint4",
}  # fmt: skip
_BITS = {"b1": 1, "i4": 4, "u4": 4, "tf32": 32} | {name: 8 for name in _MORE if name.startswith("f8")}
KNOWN: tuple[str, ...] = (*dtypes.DTYPES, *_MORE, "tf32", "b1")


@cache
def storage(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype that holds one element; raises InvalidIntrinsic for an unknown name."""
    _require_known(dtype)
    if dtype in _MORE:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _MORE[dtype]))
        return found
    return dtypes.numpy_dtype({"tf32": "f32", "b1": "bool"}.get(dtype, dtype))


def _require_known(dtype: str) -> None:
    if dtype not in KNOWN:
        raise InvalidIntrinsic(f"unknown element type {dtype!r}", help=f"one of {', '.join(KNOWN)}")


def bits(dtype: str) -> int:
    """Bits of an element in registers and memory."""
    _require_known(dtype)
    return _BITS[dtype] if dtype in _BITS else dtypes.bits(dtype)


def is_float(dtype: str) -> bool:
    return dtypes.is_float(dtype) or dtype == "tf32" or dtype.startswith("f8")


def tag(dtype: str) -> str:
    """How names of records write a type: ``s8`` for i8; others as they are."""
    return "s" + dtype[1:] if dtype in ("i4", *dtypes.SIGNED) else dtype


def widen(values: Array, dtype: str, *, integer: bool) -> Array:
    """Elements as i64 or f64, exactly; tf32 loses the mantissa bits that arithmetic does not read."""
    if dtype == "tf32":
        values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return values.astype(np.int64 if integer else np.float64)
