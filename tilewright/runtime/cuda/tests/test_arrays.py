"""DLPack capsules are read as their libraries mean them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.runtime.cuda.arrays import described, on_device


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float32", "f32"), ("float16", "f16"), ("float64", "f64"), ("int8", "i8"), ("uint16", "u16"), ("bool", "bool")],
)
def test_numpy(dtype: str, name: str) -> None:
    array = np.zeros((3, 4, 5), dtype)[:, 1:3]
    found = described(array.__dlpack__())
    assert (found.address, found.dtype, found.shape) == (array.ctypes.data, name, (3, 2, 5))
    assert found.strides == (20, 5, 1)
    assert not found.contiguous
    assert found.device == (1, 0)
    assert not on_device(array)


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, 6, dtype=torch.bfloat16).t()
    found = described(tensor.__dlpack__())
    assert (found.address, found.dtype, found.shape, found.strides) == (tensor.data_ptr(), "bf16", (6, 4), (1, 6))
    assert not found.contiguous
    assert not on_device(tensor)


@pytest.mark.parametrize(
    ("array", "contiguous"),
    [
        (np.zeros((2, 3)), True), (np.zeros((2, 3)).T, False), (np.zeros((3, 1)).T, True), (np.zeros((0, 3)).T, True),
        (np.zeros(()), True), (np.zeros(6)[::2], False), (np.zeros((4, 1, 6))[:, :, :3], False),
    ],
)  # fmt: skip
def test_contiguity(array: np.ndarray[Any, Any], contiguous: bool) -> None:
    assert described(array.__dlpack__()).contiguous == contiguous
