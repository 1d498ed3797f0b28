"""A GPU through NVIDIA's driver, by way of cuda-bindings; imported only when such a device is opened.

Works in the device's primary context, which torch and CuPy use too, so that addresses and streams are theirs as well.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tilewright.codegen.host_program import Kernel, TensorMap
from tilewright.codegen.nvptx import ptxas
from tilewright.dataclass import dataclass
from tilewright.errors import DeviceError, InvalidArgument, MissingExtra
from tilewright.runtime.cuda.driver import Argument, DriverFault, MappedSlot, Resources, Slot

_log = logging.getLogger(__name__)
_DEFAULT_SHARED_BYTES = 48 << 10  # what a block may have without asking
_LOG_BYTES = 8 << 10
_ELEMENTS = {
    "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "s32": "INT32", "u64": "UINT64", "s64": "INT64", "f16": "FLOAT16",
    "f32": "FLOAT32", "f32.ftz": "FLOAT32_FTZ", "f64": "FLOAT64", "bf16": "BFLOAT16", "tf32": "TFLOAT32",
    "tf32.ftz": "TFLOAT32_FTZ",
}  # fmt: skip
MAP_BYTES = 128
_MAP_ALIGN = 128  # of a map: 64 by the text of cuda.h, 128 by its type since CUDA 13
_MAPS_SINCE, _TIMES_SINCE = 12000, 2000  # the version of the driver, in its own way
_OVERLAP_SINCE = 12030  # recorded launches keep what they say of the kernel before them
_WORDS, _HALF_WORDS = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
_ENCODE = ctypes.CFUNCTYPE(  # cuTensorMapEncodeTiled of cuda.h
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, _WORDS, _WORDS, _HALF_WORDS,
    _HALF_WORDS, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
)  # fmt: skip
_ELAPSED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p)


@dataclass
class _Prepared:
    """The words that `cuLaunchKernel` takes, and what they point to.

    A kernel that may start before the previous kernels end has a `config`, which `cuLaunchKernelEx` takes in place of
    the words. `stream` is the stream that `config` names now.
    """

    function: Any
    words: tuple[int, ...]  # grid, block, bytes of shared memory
    pointers: int
    alive: tuple[Any, ...]
    maps: tuple[EncodedMap, ...]
    config: Any = None
    stream: int = 0


class CudaDriver:
    """GPU number `ordinal`. Raises MissingExtra without cuda-bindings, DeviceError without a driver or such a GPU."""

    emulated = False

    def __init__(self, ordinal: int = 0) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise MissingExtra("cuda-bindings", "cuda") from error
        self.ordinal = ordinal
        self._api = driver
        self._functions: dict[bytes, Any] = {}
        try:
            self._call(driver.cuInit, 0)
            count = self._call(driver.cuDeviceGetCount)
            if ordinal >= count:
                raise InvalidArgument(f"there is no GPU {ordinal}", where="device", help=f"there are {count}")
            device = self._call(driver.cuDeviceGet, ordinal)
            self._context = self._call(driver.cuDevicePrimaryCtxRetain, device)
        except (DriverFault, RuntimeError) as error:  # the bindings raise RuntimeError where they find no driver
            help_ = "TILEWRIGHT_DEVICE=emulator runs GPU code on the CPU"
            raise DeviceError(f"no GPU can be used: {error}", where="device", help=help_) from error
        kinds = driver.CUdevice_attribute
        self._alone = count == 1
        self._overlaps = int(self._call(driver.cuDriverGetVersion)) >= _OVERLAP_SINCE
        self.cache_bytes = int(self._call(driver.cuDeviceGetAttribute, kinds.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device))
        name = self._call(driver.cuDeviceGetName, 256, device)
        self.name = name.split(b"\0")[0].decode()

    def visiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self._alone else self._returning()

    def allocate(self, size: int) -> int:
        with self._relaxed():
            return int(self._call(self._api.cuMemAlloc, size))

    def free(self, address: int) -> None:
        with self._relaxed():
            self._call(self._api.cuMemFree, address)  # waits for what the device is doing

    def upload(self, address: int, host: int, size: int, stream: int) -> None:
        self._enter()
        self._call(self._api.cuMemcpyHtoDAsync, address, host, size, stream)

    def download(self, host: int, address: int, size: int, stream: int) -> None:
        self._enter()
        self._call(self._api.cuMemcpyDtoHAsync, host, address, size, stream)

    def fill(self, address: int, size: int, stream: int) -> None:
        self._enter()
        self._call(self._api.cuMemsetD8Async, address, 0, size, stream)

    def zero(self, address: int, size: int) -> None:
        stream = self.new_stream()
        try:
            with self._relaxed():
                self._call(self._api.cuMemsetD8Async, address, 0, size, stream)
                self._call(self._api.cuStreamSynchronize, stream)
        finally:
            self.drop_stream(stream)

    def forget(self, address: int, size: int) -> None:
        pass  # nobody looks

    def load(self, code: bytes) -> Any:
        errors, remarks = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
        option = self._api.CUjit_option
        names = [
            option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, option.CU_JIT_INFO_LOG_BUFFER,
            option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        ]  # fmt: skip
        values = [errors, len(errors), remarks, len(remarks)]
        try:
            with self._relaxed():
                library = self._call(self._api.cuModuleLoadDataEx, code + b"\0", len(names), names, values)
        except DriverFault as fault:
            raise DriverFault(fault.code, _text(errors) or str(fault)) from fault
        for warning in ptxas.warnings(_text(remarks)):
            _log.warning("%s: %s", self.name, warning)
        return library

    def unload(self, library: Any) -> None:
        with self._relaxed():
            self._call(self._api.cuModuleUnload, library)

    def prepare(self, library: Any, kernel: Kernel, arguments: Sequence[Argument]) -> _Prepared:
        with self._relaxed():
            function = self._call(self._api.cuModuleGetFunction, library, kernel.entry.encode())
            if kernel.launched_shared_bytes > _DEFAULT_SHARED_BYTES:
                kind = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._call(self._api.cuFuncSetAttribute, function, kind, kernel.launched_shared_bytes)
        maps = tuple(EncodedMap(self, argument) for argument in arguments if isinstance(argument, MappedSlot))
        encoded = iter(maps)
        words = [argument.word if isinstance(argument, Slot) else next(encoded).place for argument in arguments]
        pointers = (ctypes.c_void_p * max(1, len(words)))(*map(ctypes.addressof, words))
        shape = (*kernel.grid, *kernel.block, kernel.launched_shared_bytes)
        config = self._overlapping(shape) if kernel.waits and self._overlaps else None
        return _Prepared(function, shape, ctypes.addressof(pointers), (pointers, *words), maps, config)

    def _overlapping(self, shape: tuple[int, ...]) -> Any:
        """What `cuLaunchKernelEx` takes for a kernel that waits itself for those before it, in the default stream."""
        config, attribute = self._api.CUlaunchConfig(), self._api.CUlaunchAttribute()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = shape[3:6]
        config.sharedMemBytes, config.hStream = shape[6], 0
        attribute.id = self._api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def resources(self, library: Any, kernel: Kernel) -> Resources:
        kinds = self._api.CUfunction_attribute
        wanted = (
            kinds.CU_FUNC_ATTRIBUTE_NUM_REGS, kinds.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        )  # fmt: skip
        with self._relaxed():
            function = self._call(self._api.cuModuleGetFunction, library, kernel.entry.encode())
            registers, local, shared = (
                int(self._call(self._api.cuFuncGetAttribute, kind, function)) for kind in wanted
            )
        return Resources(registers, local, shared)

    def launch(self, prepared: _Prepared, stream: int) -> None:
        self._enter()
        for each in prepared.maps:
            each.encode()
        api, config = self._api, prepared.config
        if config is None:
            (status,) = api.cuLaunchKernel(prepared.function, *prepared.words, stream, prepared.pointers, 0)
        else:
            if stream != prepared.stream:  # setting it takes a quarter of a microsecond
                config.hStream = prepared.stream = stream
            (status,) = api.cuLaunchKernelEx(config, prepared.function, prepared.pointers, 0)
        if status:
            raise self._fault(status)

    def new_stream(self) -> int:
        self._enter()
        flag = self._api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(self._call(self._api.cuStreamCreate, int(flag)))

    def drop_stream(self, stream: int) -> None:
        with self._relaxed():
            self._call(self._api.cuStreamDestroy, stream)

    def synchronize(self, stream: int) -> None:
        self._enter()
        self._call(self._api.cuStreamSynchronize, stream)

    def capturing(self, stream: int) -> bool:
        self._enter()
        status = self._call(self._api.cuStreamIsCapturing, stream)
        return bool(status != self._api.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def begin_capture(self) -> int:
        stream = self.new_stream()
        # Only launches are recorded; what else this thread does meanwhile, as garbage is collected, is no part of it.
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._call(self._api.cuStreamBeginCapture, stream, mode)
        return stream

    def end_capture(self, stream: int) -> Any:
        self._enter()
        try:
            graph = self._call(self._api.cuStreamEndCapture, stream)
        finally:
            self._call(self._api.cuStreamDestroy, stream)
        try:
            return self._call(self._api.cuGraphInstantiate, graph, 0)
        finally:
            self._call(self._api.cuGraphDestroy, graph)

    def launch_graph(self, graph: Any, stream: int) -> None:
        self._enter()
        self._call(self._api.cuGraphLaunch, graph, stream)

    def drop_graph(self, graph: Any) -> None:
        with self._relaxed():
            self._call(self._api.cuGraphExecDestroy, graph)

    def new_event(self) -> _Event:
        self._enter()
        return _Event(self._api, self._call(self._api.cuEventCreate, 0))

    def record(self, event: _Event, stream: int) -> None:
        self._enter()
        self._call(self._api.cuEventRecord, event.handle, stream)

    def seconds(self, start: _Event, end: _Event) -> float:
        """By the function of the first drivers: bindings want that of CUDA 12.8, which others do not have."""
        self._enter()
        elapsed = self._function(b"cuEventElapsedTime", _TIMES_SINCE, _ELAPSED)
        milliseconds = ctypes.c_float()
        self._check(elapsed(ctypes.byref(milliseconds), int(start.handle), int(end.handle)))
        return milliseconds.value * 1e-3

    def encode(self, place: int, address: int, seen: TensorMap) -> None:
        """Write the tensor map of a tensor at an address to a place; the driver counts axes from the innermost.

        Not by the function of the bindings, which writes to a Python object: the driver wants maps aligned.
        """
        encode = self._function(b"cuTensorMapEncodeTiled", _MAPS_SINCE, _ENCODE)
        api, rank = self._api, len(seen.extents)
        status = encode(
            place,
            int(getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[seen.element]}")),
            rank,
            address,
            (ctypes.c_uint64 * rank)(*reversed(seen.extents)),
            (ctypes.c_uint64 * rank)(*reversed(seen.strides[:-1])),
            (ctypes.c_uint32 * rank)(*reversed(seen.box)),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            int(api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_span(seen)}")),
            int(api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
            int(api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
        self._check(status)

    def _function(self, name: bytes, version: int, form: Any) -> Any:
        """A function of the driver as it was in a version."""
        if name not in self._functions:
            found, _ = self._call(self._api.cuGetProcAddress, name, version, 0)
            if not found:
                raise DriverFault("CUDA_ERROR_NOT_FOUND", f"this driver has no {name.decode()}")
            self._functions[name] = form(int(found))
        return self._functions[name]

    def _check(self, status: int) -> None:
        if status:
            raise self._fault(self._api.CUresult(status))

    @contextmanager
    def _returning(self) -> Iterator[None]:
        """CUDA's libraries, torch's among them, take the device of the current context for the one in use."""
        before = self._call(self._api.cuCtxGetCurrent)
        try:
            yield
        finally:
            self._api.cuCtxSetCurrent(before)

    @contextmanager
    def _relaxed(self) -> Iterator[None]:
        """Allow what recording by the caller forbids: first allocations of a module, and giving things back as garbage
        is collected.
        """
        self._enter()
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self._call(self._api.cuThreadExchangeStreamCaptureMode, mode)
        try:
            yield
        finally:
            self._call(self._api.cuThreadExchangeStreamCaptureMode, before)

    def _enter(self) -> None:
        """Make the context current in this thread; another library may have put its own there."""
        (status,) = self._api.cuCtxSetCurrent(self._context)
        if status:
            raise self._fault(status)

    def _call(self, function: Any, *arguments: Any) -> Any:
        status, *values = function(*arguments)
        if status:
            raise self._fault(status)
        return values[0] if len(values) == 1 else tuple(values)

    def _fault(self, status: Any) -> DriverFault:
        texts = []
        for ask in (self._api.cuGetErrorName, self._api.cuGetErrorString):
            failed, text = ask(status)
            texts.append(str(status) if failed or text is None else text.decode())
        return DriverFault(*texts)


def _text(log: bytearray) -> str:
    return log.split(b"\0")[0].decode(errors="replace").strip()


class _Event:
    """An event, destroyed with this object."""

    def __init__(self, api: Any, handle: Any) -> None:
        self._api, self.handle = api, handle

    def __del__(self) -> None:
        self._api.cuEventDestroy(self.handle)


class EncodedMap:
    """128 bytes of an argument that describe a tensor, made anew when the tensor is elsewhere."""

    def __init__(self, driver: CudaDriver, argument: MappedSlot) -> None:
        self._driver, self._argument = driver, argument
        self._raw = (ctypes.c_uint8 * (MAP_BYTES + _MAP_ALIGN))()
        start = -ctypes.addressof(self._raw) % _MAP_ALIGN
        self.place = (ctypes.c_uint8 * MAP_BYTES).from_buffer(self._raw, start)
        self._address = 0

    def encode(self) -> None:
        address = self._argument.slot.word.value
        if address != self._address:
            self._driver.encode(ctypes.addressof(self.place), address, self._argument.map)
            self._address = address


def _span(seen: TensorMap) -> str:
    return f"{seen.swizzle}B" if seen.swizzle else "NONE"
