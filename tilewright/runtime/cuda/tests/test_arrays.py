"""Arrays of users on a device: DLPack capsules are read as their libraries mean them, tensors of torch as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.runtime.cuda.arrays import described, device_view, empty_like, on_device, stream_of
from tilewright.runtime.cuda.tests.made import OnDevice, Recorder
from tilewright.runtime.manifest import TensorSpec


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


@pytest.fixture
def cuda_tensor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A maker of tensors that say that they are on GPU 0; they are not."""
    torch = pytest.importorskip("torch")

    class Tensor(torch.Tensor):  # type: ignore[misc, name-defined]
        is_cuda = True
        device = torch.device("cuda:0")

    stream = type("Stream", (), {"cuda_stream": 77})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: torch.ones(shape, dtype=dtype))

    def make(values: Any, gap: int = 0) -> Any:
        """A copy with the same strides, `gap` bytes behind an address such as a GPU's memory begins at."""
        size = values.element_size() * values.untyped_storage().size()
        memory = torch.zeros(size + 512, dtype=torch.uint8)
        start = -memory.data_ptr() % 256 + gap
        typed = memory[start : start + size].view(values.dtype)
        made = typed.as_strided(values.shape, values.stride())
        made.copy_(values)
        return made.as_subclass(Tensor)

    return make


def test_tensors_on_a_gpu_are_used_where_they_are(cuda_tensor: Any) -> None:
    torch = pytest.importorskip("torch")
    spec = TensorSpec("x", "bf16", (2, 3))
    tensor = cuda_tensor(torch.zeros(2, 3, dtype=torch.bfloat16))
    assert on_device(tensor)
    assert stream_of(tensor) == 77
    assert device_view(tensor, spec, "x", 77, 0)[:2] == (tensor.data_ptr(), 12)
    made = empty_like(tensor, spec, "y")
    assert (made.address, made.bytes, made.owner.dtype) == (made.owner.data_ptr(), 12, torch.bfloat16)


def test_tensors_with_gaps_are_copied_where_they_are_read(cuda_tensor: Any) -> None:
    torch = pytest.importorskip("torch")
    spec, values = TensorSpec("x", "f32", (2, 3)), torch.arange(6.0).reshape(3, 2).t()
    tensor = cuda_tensor(values)
    view = device_view(tensor, spec, "x", 0, 0)
    assert view.address == view.owner.data_ptr() != tensor.data_ptr()
    assert view.owner.flatten().tolist() == [0, 2, 4, 1, 3, 5]
    with pytest.raises(InvalidArgument, match="not contiguous"):
        device_view(cuda_tensor(values), spec, "y", 0, 0, writes=True)


def test_tensors_that_begin_at_odd_places_are_copied_where_they_are_read(cuda_tensor: Any) -> None:
    torch = pytest.importorskip("torch")
    spec, tensor = TensorSpec("x", "f32", (2, 3)), cuda_tensor(torch.arange(6.0).reshape(2, 3), gap=4)
    view = device_view(tensor, spec, "x", 0, 0)
    assert view.address == view.owner.data_ptr() != tensor.data_ptr()
    assert view.owner.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InvalidArgument, match=r"begins at 0x[0-9a-f]+, no multiple of 256 bytes[\s\S]*a copy"):
        device_view(tensor, spec, "y", 0, 0, writes=True)


def test_arrays_of_others_that_begin_at_odd_places_are_refused(recorder: Recorder) -> None:
    array = OnDevice(recorder, np.zeros(6, np.float32))
    array.address += 4
    with pytest.raises(InvalidArgument, match="no multiple of 256 bytes"):
        device_view(array, TensorSpec("x", "f32", (6,)), "x", 0, 0)


def test_tensors_that_do_not_fit_are_refused(cuda_tensor: Any) -> None:
    torch = pytest.importorskip("torch")
    spec = TensorSpec("x", "f32", (2, 3))
    for values, message in (
        (torch.zeros(2, 3, dtype=torch.float64), r"got f64\[2, 3\], expected f32\[2, 3\][\s\S]*convert it to f32"),
        (torch.zeros(3, 2), r"got f32\[3, 2\][\s\S]*transpose it"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            device_view(cuda_tensor(values), spec, "x", 0, 0)
    with pytest.raises(InvalidArgument, match=r"got a tensor on cuda:0[\s\S]*cuda:1"):
        device_view(cuda_tensor(torch.zeros(2, 3)), spec, "x", 0, 1)
