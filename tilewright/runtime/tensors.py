"""Users' arrays: where their elements are, and whether they fit; NumPy, torch, and anything with `__dlpack__`.

torch is never imported here before the user has done so.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import InvalidArgument, InvalidExpression
from tilewright.expr.dtypes import from_numpy, numpy_dtype
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.outputs import OUTPUTS, pooled

_TORCH_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool",
}  # fmt: skip
_OUR_NAMES = {torch: ours for ours, torch in _TORCH_NAMES.items()}
_DLPACK_CPU = (1, 3)  # kDLCPU, kDLCUDAHost: dlpack.h


class View(NamedTuple):
    """Contiguous elements in memory, the array that owns them, and what else has to live as long as this."""

    address: int
    bytes: int
    owner: Any
    alive: Any = None

    @property
    def end(self) -> int:
        return self.address + self.bytes


def ready_input(array: Any, spec: TensorSpec) -> View:
    """The elements of an input, copied if they are not contiguous. Raises InvalidArgument if it does not fit."""
    if is_torch(array) and (address := address_reader(spec)(array)) >= 0:
        return View(address, spec.bytes, array)
    where = f"input {spec.name!r}"
    array = _as_array(array, spec, where)
    _check(array, spec, where)
    _check_memory(array, where)
    if is_torch(array):
        contiguous = array.resolve_neg().contiguous()
        return View(contiguous.data_ptr(), spec.bytes, contiguous)
    contiguous = np.require(array, numpy_dtype(spec.dtype), ("C", "A"))
    return View(contiguous.ctypes.data, spec.bytes, contiguous)


def ready_output(array: Any, spec: TensorSpec) -> View:
    """The elements of an array that receives an output. Raises InvalidArgument if it does not fit."""
    if is_torch(array) and (address := address_reader(spec)(array)) >= 0:
        return View(address, spec.bytes, array)
    where = f"output {spec.name!r}"
    if isinstance(array, np.generic):  # a value: NumPy would view a copy of it
        raise InvalidArgument(f"out is a {_type(array)}, which cannot be written", where=where, help=f"an array {spec}")
    given, array = array, _as_array(array, spec, where)
    _check(array, spec, where)
    _check_memory(array, where)
    if is_torch(array):
        address = address_reader(spec)(array)
        fits = address >= 0
    else:
        fits, address = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative, array.ctypes.data
        if not array.flags.writeable:
            raise InvalidArgument("out is read-only", where=where, help="give an array that can be written, or no out")
    if not fits:
        raise InvalidArgument("out is not contiguous", where=where, help=f"give a contiguous {spec}, or no out")
    return View(address, spec.bytes, given, array)


def written(arrays: Iterable[Any]) -> None:
    """Tell torch that its tensors among arrays given as `out` have been written to, as its own functions do."""
    for tensor in arrays:
        if is_torch(tensor) and not tensor.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(tensor)


def empty(spec: TensorSpec, torch: bool, limit_bytes: int) -> View:
    """A new array for an output, of torch or of NumPy, in the pool of outputs (`limit_bytes`) if it is large.

    Raises InvalidArgument where torch is in a mode in which new tensors have no memory.
    """
    if not torch:
        array = OUTPUTS.empty(spec.shape, numpy_dtype(spec.dtype), limit_bytes)
        return View(array.ctypes.data, spec.bytes, array)
    library, dtype = sys.modules["torch"], torch_dtype(spec.dtype)
    if pooled(spec.bytes, limit_bytes):
        bits = np.dtype(f"i{spec.bytes // math.prod(spec.shape)}")  # NumPy lacks some types
        tensor = library.from_numpy(OUTPUTS.empty(spec.shape, bits, limit_bytes)).view(dtype)
    else:
        tensor = library.empty(spec.shape, dtype=dtype, device=cpu_device())  # faster than the name of the device
    address = tensor.data_ptr()
    if not address and spec.bytes:
        message = f"torch makes a {type(tensor).__name__} without memory for it in the mode it is in"
        raise InvalidArgument(message, where=f"output {spec.name!r}", help="call the module outside of this mode")
    return View(address, spec.bytes, tensor)


def is_torch(array: Any) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # another thread may still be importing it
    return tensor is not None and isinstance(array, tensor)


def is_recording() -> bool:
    """Whether `torch.jit.trace` or `make_fx` records the operations of this thread; torch is loaded.

    A call of a module is no operation of torch: the recorded program would return the memory of its outputs unwritten.
    """
    core = sys.modules["torch"]._C
    if core._get_tracing_state() is not None:
        return True
    if not core._len_torch_dispatch_stack():
        return False
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")  # what records with proxies has imported it
    return proxies is not None and proxies.get_proxy_mode() is not None


@lru_cache(maxsize=1024)
def address_reader(spec: TensorSpec) -> Callable[[Any], int]:
    """A function that gives the address of the elements of a tensor of torch; torch is loaded.

    It is -1 for what cannot be used as it is: another dtype, shape or storage than `spec` wants, a subclass, a tensor
    without memory for all of its elements, and what is no tensor.
    """
    strided, kinds = sys.modules["torch"].strided, _plain_types()
    dtype, shape, size = torch_dtype(spec.dtype), spec.shape, spec.bytes

    def address(tensor: Any) -> int:
        if type(tensor) not in kinds:
            return -1
        try:
            fits = (
                tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.is_cpu
                and tensor.layout is strided
                and tensor.is_contiguous()
                and not tensor.is_neg()
                and tensor.storage_offset() * tensor.element_size() + size <= tensor.untyped_storage().nbytes()
            )
            place: int = tensor.data_ptr() if fits else 0
        except RuntimeError:  # wrappers of transformations, nested tensors: they have no such thing as this memory
            return -1
        return place if fits and (place or not size) else -1

    return address


@cache
def _plain_types() -> tuple[type, ...]:
    """The classes of torch that override nothing; torch is loaded."""
    torch = sys.modules["torch"]
    return (torch.Tensor, torch.nn.Parameter)


@cache
def cpu_device() -> Any:
    """torch's device of that name; torch is loaded."""
    return sys.modules["torch"].device("cpu")


@cache
def torch_dtype(dtype: str) -> Any:
    """torch's type of that name of ours; torch is loaded."""
    return getattr(sys.modules["torch"], _TORCH_NAMES[dtype])


def _as_array(array: Any, spec: TensorSpec, where: str) -> Any:
    """`array` itself if it is of NumPy or torch, else NumPy's view of it."""
    if is_torch(array):
        return _plain(array, where)
    if isinstance(array, (np.ndarray, np.generic)):
        return np.asarray(array)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        try:
            if array.__dlpack_device__()[0] not in _DLPACK_CPU:
                raise InvalidArgument(f"got a {_type(array)} on another device", where=where, help="move it to the CPU")
            return np.from_dlpack(array)
        except InvalidArgument:
            raise
        except Exception as error:  # the array's own code may raise anything
            message = f"NumPy cannot view this {_type(array)}: {error or type(error).__name__}"
            raise InvalidArgument(message, where=where, help="convert it to a NumPy array") from error
    raise InvalidArgument(
        f"got a {_type(array)}, expected {spec}",
        where=where,
        help=f"numpy.asarray(..., dtype={_numpy_name(spec.dtype)}), or a torch tensor",
    )


def _plain(tensor: Any, where: str) -> Any:
    """A dense tensor of torch on the CPU as torch sees it, whatever its class overrides."""
    torch = sys.modules["torch"]
    try:
        with torch._C.DisableTorchFunctionSubclass():
            plain = tensor if type(tensor) is torch.Tensor else torch.Tensor.as_subclass(tensor, torch.Tensor)
            kind = f"a {plain.layout} tensor on {plain.device}" if not plain.is_nested else "a nested tensor"
            dense = plain.is_cpu and plain.layout is torch.strided and not plain.is_nested
    except Exception as error:  # of the code of a subclass
        message = f"this {_type(tensor)} cannot be viewed as a plain tensor: {error}"
        raise InvalidArgument(message, where=where, help="give a torch.Tensor with elements in memory") from error
    if not dense:
        raise InvalidArgument(f"got {kind}", where=where, help="a dense tensor on the CPU: `.cpu()`, `.to_dense()`")
    return plain


def _check_memory(array: Any, where: str) -> None:
    """Raise InvalidArgument unless all elements of a tensor of torch lie in memory that it has; NumPy's always do."""
    if not is_torch(array) or not all(array.shape):
        return
    try:
        address, available = array.data_ptr(), array.untyped_storage().nbytes()
    except RuntimeError as error:
        message, advice = f"this tensor has no memory: {error}", "call the module outside of torch's transformations"
        raise InvalidArgument(message, where=where, help=advice) from error
    last = sum((extent - 1) * stride for extent, stride in zip(array.shape, array.stride(), strict=True))
    needed = (array.storage_offset() + last + 1) * array.element_size()
    if not address:
        raise InvalidArgument("this tensor has no memory", where=where, help="give one whose elements are there")
    if available < needed:
        fact = f"the tensor takes {needed} bytes of a storage of {available}"
        raise InvalidArgument(fact, where=where, help="do not resize the storage of a tensor that is in use")


def _check(array: Any, spec: TensorSpec, where: str) -> None:
    """Raise InvalidArgument unless dtype and shape are those of `spec`."""
    dtype, shape = dtype_of(array), tuple(array.shape)
    if dtype == spec.dtype and shape == spec.shape:
        return
    got = f"{dtype}[{', '.join(map(str, shape))}]"
    raise InvalidArgument(f"got {got}, expected {spec}", where=where, help=_nearest_fix(array, shape, dtype, spec))


def _nearest_fix(array: Any, shape: tuple[int, ...], dtype: str, spec: TensorSpec) -> str:
    if shape == spec.shape:
        return f".to(torch.{_TORCH_NAMES[spec.dtype]})" if is_torch(array) else f".astype({_numpy_name(spec.dtype)})"
    fix = nearest_fix(shape, spec)
    return fix if dtype == spec.dtype else f"{fix}; and the dtype has to be {spec.dtype}"


def nearest_fix(shape: tuple[int, ...], spec: TensorSpec) -> str:
    """What to do about an array that does not fit, where no method of its library does all of it."""
    same_size = int(np.prod(shape, dtype=object)) == int(np.prod(spec.shape, dtype=object))
    if shape == spec.shape:
        return f"convert it to {spec.dtype}"
    if len(shape) == 2 and shape == spec.shape[::-1]:
        return "transpose it: `.T`"
    if same_size:
        return f"`.reshape{spec.shape}` has the same number of elements"
    return "give an array of that shape, or compile for this one: shapes are fixed at compile time"


def dtype_of(array: Any) -> str:
    """The element type of an array of torch or NumPy, in our words where we have one."""
    if is_torch(array):
        name = str(array.dtype).removeprefix("torch.")
        return _OUR_NAMES.get(name, name)
    try:
        return from_numpy(array.dtype.newbyteorder("="))
    except InvalidExpression:
        return str(array.dtype)


def _numpy_name(dtype: str) -> str:
    if dtype == "bf16":
        return "ml_dtypes.bfloat16"
    return f"numpy.{numpy_dtype(dtype).name}" if dtype != "bool" else "bool"


def _type(array: Any) -> str:
    return type(array).__name__
