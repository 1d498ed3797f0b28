"""Users' arrays on the device: where their elements are, and whether they fit; torch, CuPy, anything with DLPack.

Nothing is copied but an input of torch that has gaps or begins at an odd place. torch and CuPy are never imported here
before the user has.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

from tilewright.errors import InvalidArgument
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.tensors import View, dtype_of, is_torch, nearest_fix, torch_dtype

ALIGN = 256  # of every buffer on the device: generated code relies on it
_ON_DEVICE = (2, 13)  # kDLCUDA, kDLCUDAManaged: dlpack.h
_CODES = {0: "i", 1: "u", 2: "f", 4: "bf", 6: "bool"}  # DLDataTypeCode


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, the first field of the managed tensor that a capsule holds."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("dtype_code", ctypes.c_uint8), ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Described(NamedTuple):
    """What a capsule says: address, dtype and shape in our words, strides in elements, and the device."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: tuple[int, int]

    @property
    def contiguous(self) -> bool:
        expected, found = 1, True
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            found = found and (stride == expected or extent == 1)
            expected *= extent
        return found or expected == 0


def on_device(array: Any) -> bool:
    """Whether the elements of an array are in the memory of a GPU."""
    if is_torch(array):
        return bool(array.is_cuda)
    return hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] in _ON_DEVICE


def stream_of(array: Any) -> int:
    """The stream on which the array's library works at present."""
    if is_torch(array):
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(cupy.cuda.get_current_stream().ptr)
    return 0


def device_view(array: Any, spec: TensorSpec, where: str, stream: int, ordinal: int, writes: bool = False) -> View:
    """The elements of an array on the device. Raises InvalidArgument if it does not fit."""
    if is_torch(array):
        return _torch_view(array, spec, where, ordinal, writes)
    try:
        capsule = array.__dlpack__(stream=stream or 1)  # DLPack's name for the default stream
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"its DLPack view fails: {error}", where=where, help="give a plain array") from error
    found = described(capsule)
    _check(found.dtype, found.shape, spec, where)
    if found.device[1] != ordinal:
        raise InvalidArgument(f"got an array on GPU {found.device[1]}", where=where, help=f"one on GPU {ordinal}")
    if not found.contiguous:
        raise InvalidArgument("the array is not contiguous", where=where, help=f"a contiguous {spec}")
    if found.address % ALIGN:
        raise _misaligned(found.address, where)
    return View(found.address, spec.bytes, (array, capsule))


def empty_like(example: Any, spec: TensorSpec, where: str) -> View:
    """A new array for an output, beside an input of the same library."""
    if is_torch(example):
        tensor = sys.modules["torch"].empty(spec.shape, dtype=torch_dtype(spec.dtype), device=example.device)
        return View(tensor.data_ptr(), spec.bytes, tensor)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(example, cupy.ndarray) and spec.dtype != "bf16":
        from tilewright.expr.dtypes import numpy_dtype

        array = cupy.empty(spec.shape, numpy_dtype(spec.dtype))
        return View(int(array.data.ptr), spec.bytes, array)
    kind = type(example).__name__
    raise InvalidArgument(f"no {spec.dtype} arrays are made for a {kind}", where=where, help=f"out: an array {spec}")


def described(capsule: Any) -> Described:
    """Read a DLPack capsule, which stays as it is: whoever made it keeps its elements alive."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _row_major(shape)
    code = _CODES.get(tensor.dtype_code, f"code {tensor.dtype_code} of ")
    dtype = code if code == "bool" else f"{code}{tensor.dtype_bits}"
    if tensor.dtype_lanes != 1:
        dtype += f" x {tensor.dtype_lanes}"
    address = (tensor.data or 0) + tensor.byte_offset
    return Described(address, dtype, shape, strides, (tensor.device_type, tensor.device_id))


def _torch_view(tensor: Any, spec: TensorSpec, where: str, ordinal: int, writes: bool) -> View:
    if tensor.dtype is not torch_dtype(spec.dtype) or tensor.shape != spec.shape:
        _check(dtype_of(tensor), tuple(tensor.shape), spec, where)
    if tensor.device.index != ordinal:
        raise InvalidArgument(f"got a tensor on {tensor.device}", where=where, help=f".to('cuda:{ordinal}')")
    if not tensor.is_contiguous() or tensor.is_neg():
        if writes:
            raise InvalidArgument("out is not contiguous", where=where, help=f"give a contiguous {spec}, or no out")
        tensor = tensor.resolve_neg().contiguous()
    elif tensor.data_ptr() % ALIGN:
        if writes:
            raise _misaligned(tensor.data_ptr(), where)
        tensor = tensor.clone()
    return View(tensor.data_ptr(), spec.bytes, tensor)


def _misaligned(address: int, where: str) -> InvalidArgument:
    fact = f"the array begins at {address:#x}, no multiple of {ALIGN} bytes"
    return InvalidArgument(fact, where=where, help="an array that is no part of another, or a copy")


def _check(dtype: str, shape: tuple[int, ...], spec: TensorSpec, where: str) -> None:
    if dtype != spec.dtype or shape != spec.shape:
        got = f"{dtype}[{', '.join(map(str, shape))}]"
        raise InvalidArgument(f"got {got}, expected {spec}", where=where, help=nearest_fix(shape, spec))


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
