"""Arrays on their way between processes and libraries; bfloat16, which NumPy's files don't know, travels as uint16."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]
BF16 = np.dtype(ml_dtypes.bfloat16)


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    np.savez(path, allow_pickle=False, **{f"{name}|{array.dtype.name}": _bits(array) for name, array in arrays.items()})


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a file by name, in the order in which they were saved."""
    loaded = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            name, _, dtype = key.rpartition("|")
            loaded[name] = aligned(file[key].view(BF16) if dtype == BF16.name else file[key])
    return loaded


def aligned(array: Array) -> Array:
    """A copy of `array` in pages of its own that starts on a cache line, like any allocator made for vectors gives."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def to_torch(array: Array) -> torch.Tensor:
    """A tensor over the memory of `array`."""
    import torch

    tensor: torch.Tensor = torch.from_numpy(_bits(array))
    return tensor.view(torch.bfloat16) if array.dtype == BF16 else tensor


def from_torch(tensor: torch.Tensor) -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.uint16).numpy()).view(BF16)
    return np.asarray(tensor.numpy())


def _bits(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype == BF16 else array
