"""Scalar types of PTX: their widths, their NumPy types, and which are signed or floating."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

WIDTHS: dict[str, int] = {
    "pred": 1, "b1": 1,
    "b8": 8, "u8": 8, "s8": 8, "e4m3": 8, "e5m2": 8,
    "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "e4m3x2": 16, "e5m2x2": 16,
    "b32": 32, "u32": 32, "s32": 32, "f32": 32, "tf32": 32, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32,
    "b64": 64, "u64": 64, "s64": 64, "f64": 64, "f32x2": 64,
    "b128": 128,
}  # fmt: skip
SIGNED = frozenset({"s8", "s16", "s32", "s64"})
FLOATS = frozenset({"f16", "bf16", "f32", "tf32", "f64"})

#: The NumPy type of a register of so many bits.
CONTAINERS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.bool_), 8: np.dtype(np.uint8), 16: np.dtype(np.uint16), 32: np.dtype(np.uint32),
    64: np.dtype(np.uint64),
}  # fmt: skip

_NUMPY: dict[str, np.dtype[Any]] = {
    "s8": np.dtype(np.int8), "s16": np.dtype(np.int16), "s32": np.dtype(np.int32), "s64": np.dtype(np.int64),
    "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    "tf32": np.dtype(np.float32),
}  # fmt: skip


def numpy_type(name: str) -> np.dtype[Any]:
    """How arithmetic sees a value of this type; types that NumPy lacks stay raw bits."""
    return _NUMPY.get(name) or CONTAINERS[WIDTHS[name]]


def popcount(values: Array) -> Array:
    """How many bits are set in each value, as u32."""
    raw = np.ascontiguousarray(np.atleast_1d(values))
    counts = _ONES[raw.view(np.uint8).reshape(raw.size, -1)].sum(axis=1, dtype=np.uint32)
    return np.asarray(counts.reshape(np.shape(values)))


_ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint32)


def size(name: str) -> int:
    """Bytes of one value in memory."""
    return max(1, WIDTHS[name] // 8)
