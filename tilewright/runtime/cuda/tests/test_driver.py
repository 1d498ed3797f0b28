"""Opening a device: the emulator, and what happens where there is no GPU or no bindings."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.host_program import Kernel, TensorMap
from tilewright.errors import DeviceError, InvalidArgument, MissingExtra
from tilewright.runtime.cuda import bindings, devices
from tilewright.runtime.cuda.bindings import CudaDriver
from tilewright.runtime.cuda.devices import open_driver
from tilewright.runtime.cuda.driver import DriverFault, MappedSlot, Resources, Slot
from tilewright.runtime.cuda.emulated import EmulatedDriver


@pytest.fixture
def without_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    devices._cuda.cache_clear()
    devices._say_slow.cache_clear()


@pytest.mark.usefixtures("without_bindings")
def test_without_bindings_the_error_names_the_package() -> None:
    with pytest.raises(MissingExtra, match=r"cuda-bindings[\s\S]*pip install 'tilewright\[cuda\]'"):
        open_driver("cuda")


@pytest.mark.usefixtures("without_bindings")
def test_without_a_gpu_the_emulator_says_once_that_it_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_driver() is open_driver("auto") is open_driver("emulator")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "GPU code runs in the emulator, on the CPU, which is slow"
    ]


@pytest.mark.parametrize("name", ["quda", "cuda:", "cuda:x", "cuda1", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="there is no device"):
        open_driver(name)


class Api(ModuleType):
    """A driver that notes what it is asked; `fails` has the status of calls that fail."""

    def __init__(self, fails: dict[str, int] | None = None, devices: int = 1, version: int = 12030) -> None:
        super().__init__("cuda.bindings.driver")
        self.devices, self.version = devices, version
        self.CUlaunchConfig = SimpleNamespace
        self.CUlaunchAttribute = lambda: SimpleNamespace(value=SimpleNamespace())
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails or {}
        self.own: dict[bytes, Any] = {
            b"cuTensorMapEncodeTiled": bindings._ENCODE(self._encode),
            b"cuEventElapsedTime": bindings._ELAPSED(self._elapsed),
        }
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cuuint"):
            return int
        if not name.startswith("cu"):
            return SimpleNamespace() if name.startswith("__") else _Names(name)
        values: dict[str, Sequence[Any]] = {
            "cuDeviceGetCount": [self.devices], "cuDeviceGetName": [b"A GPU\0\0"], "cuDeviceGetAttribute": [1 << 20],
            "cuGetErrorName": [b"CUDA_ERROR_ILLEGAL_ADDRESS"], "cuGetErrorString": [b"an illegal memory access"],
            "cuGetProcAddress": [0, 0], "cuLaunchKernel": [], "cuLaunchKernelEx": [],
            "cuDriverGetVersion": [self.version],
            "cuCtxSetCurrent": [], "cuFuncSetAttribute": [], "cuInit": [],
        }  # fmt: skip

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name == "cuGetProcAddress" and arguments[0] in self.own:
                return 0, ctypes.cast(self.own[arguments[0]], ctypes.c_void_p).value, 0
            if name == "cuFuncGetAttribute":
                return 0, ATTRIBUTES[arguments[0]]
            return (self.fails.get(name, 0), *values.get(name, [7]))

        return call

    def _encode(self, place: int, element: int, rank: int, address: int, extents: Any, strides: Any, box: Any,
                steps: Any, *modes: int) -> int:  # fmt: skip
        """What the driver does, which wants maps aligned."""
        lists = [given[:count] for given, count in ((extents, rank), (strides, rank - 1), (box, rank), (steps, rank))]
        self.calls.append(("cuTensorMapEncodeTiled", place, element, rank, address, *lists, *modes))
        ctypes.memset(place, len(self.calls) % 256, 128)
        return 1 if place % 128 else self.fails.get("cuTensorMapEncodeTiled", 0)

    def _elapsed(self, milliseconds: Any, start: int, end: int) -> int:
        milliseconds[0] = end - start
        return self.fails.get("cuEventElapsedTime", 0)

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, *arguments in self.calls if called == name]  # type: ignore[misc]


class _Names:
    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return NUMBERS.get(name, name)

    def __call__(self, number: int) -> int:
        return number


ATTRIBUTES = {
    "CU_FUNC_ATTRIBUTE_NUM_REGS": 7, "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": 8, "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 9,
}  # fmt: skip
# cuda.h
NUMBERS = {
    "CU_STREAM_NON_BLOCKING": 1, "CU_TENSOR_MAP_DATA_TYPE_FLOAT16": 6, "CU_TENSOR_MAP_SWIZZLE_64B": 2,
    "CU_TENSOR_MAP_INTERLEAVE_NONE": 0, "CU_TENSOR_MAP_L2_PROMOTION_L2_128B": 2, "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE": 0,
}  # fmt: skip


def opened(monkeypatch: pytest.MonkeyPatch, api: Api) -> CudaDriver:
    parents = {"cuda": ModuleType("cuda"), "cuda.bindings": ModuleType("cuda.bindings")}
    parents["cuda.bindings"].driver = api  # type: ignore[attr-defined]
    for name, module in {**parents, "cuda.bindings.driver": api}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return CudaDriver()


def test_launches_pass_words_that_were_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    device = opened(monkeypatch, api)
    assert (device.name, device.cache_bytes) == ("A GPU", 1 << 20)
    slots = [Slot("x", 64, 0x1000), Slot("y", 64, 0x2000)]
    prepared = device.prepare("library", Kernel("k", "k_1", (2, 3, 4), (32, 2, 1), 96 << 10), slots)
    assert api.named("cuModuleGetFunction") == [["library", b"k_1"]]
    assert [each[1:] for each in api.named("cuFuncSetAttribute")] == [
        ["CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 96 << 10]
    ]
    slots[1].word.value = 0x3000
    device.launch(prepared, 5)
    ((function, *words, pointers, extra),) = api.named("cuLaunchKernel")
    assert (function, words, extra) == (7, [2, 3, 4, 32, 2, 1, 96 << 10, 5], 0)
    places = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))[:2]
    assert [ctypes.c_uint64.from_address(place).value for place in places] == [0x1000, 0x3000]


@pytest.mark.parametrize(("waits", "version"), [(True, 12030), (True, 13000), (True, 12020), (False, 13000)])
def test_kernels_that_wait_may_start_early_where_recording_keeps_that(
    waits: bool, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(version=version)
    device = opened(monkeypatch, api)
    slot = Slot("x", 64, 0x1000)
    kernel = Kernel("k", "k", (2, 3, 4), (32, 2, 1), 40 << 10, waits=waits, spare_shared_bytes=56 << 10)
    prepared = device.prepare("library", kernel, [slot])
    assert [given[-1] for given in api.named("cuFuncSetAttribute")] == [96 << 10]
    streams = []
    for stream in (0, 5, 5, 6):
        device.launch(prepared, stream)
        streams += [config.hStream for config, *_ in api.named("cuLaunchKernelEx")[-1:]]
    if not waits or version < 12030:
        assert api.named("cuLaunchKernelEx") == []
        assert [each[-3] for each in api.named("cuLaunchKernel")] == [0, 5, 5, 6]
        return
    assert api.named("cuLaunchKernel") == []
    assert streams == [0, 5, 5, 6]
    config, function, pointers, extra = api.named("cuLaunchKernelEx")[-1]
    assert (function, extra) == (7, 0)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (2, 3, 4)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (32, 2, 1)
    assert (config.sharedMemBytes, config.numAttrs) == (96 << 10, 1)
    (attribute,) = config.attrs
    assert attribute.id == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert attribute.value.programmaticStreamSerializationAllowed == 1
    (place,) = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))[:1]
    assert ctypes.c_uint64.from_address(place).value == 0x1000
    api.fails["cuLaunchKernelEx"] = 700
    with pytest.raises(DriverFault, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        device.launch(prepared, 0)


def test_what_the_assembler_warns_of_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Assembling(Api):
        def __getattr__(self, name: str) -> Any:
            def load(code: bytes, count: int, names: Sequence[str], values: Sequence[Any]) -> tuple[int, int]:
                remarks = b"info    : 0 bytes gmem\ninfo    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored"
                values[names.index("CU_JIT_INFO_LOG_BUFFER")][: len(remarks)] = remarks
                return 0, 7

            return load if name == "cuModuleLoadDataEx" else super().__getattr__(name)

    with caplog.at_level(logging.WARNING):
        assert opened(monkeypatch, Assembling()).load(b"code") == 7
    said = [record.getMessage() for record in caplog.records]
    assert said == ["A GPU: (C7508) Potential Performance Loss: 'setmaxnreg' ignored"]


def test_tensor_maps_are_encoded_again_where_the_tensor_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    device = opened(monkeypatch, api)
    slot, seen = Slot("x", 1024, 0x1000), TensorMap(0, "f16", (16, 32), (64, 2), (8, 16), 64)
    prepared = device.prepare(
        "library", Kernel("k", "k", (1, 1, 1), (32, 1, 1), 0, (seen,)), [slot, MappedSlot(slot, seen)]
    )
    for address in (0x1000, 0x1000, 0x4000):
        slot.word.value = address
        device.launch(prepared, 0)
    encoded = api.named("cuTensorMapEncodeTiled")
    assert [each[3] for each in encoded] == [0x1000, 0x4000]
    assert encoded[0][1:3] == [6, 2]
    assert encoded[0][4:] == [[32, 16], [64], [16, 8], [1, 1], 0, 2, 2, 0]
    pointers = api.named("cuLaunchKernel")[-1][-2]
    place = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))[1]
    assert place is not None
    assert place == encoded[-1][0]
    latest = max(number for number, call in enumerate(api.calls, 1) if call[0] == "cuTensorMapEncodeTiled")
    assert set(ctypes.string_at(place, 128)) == {latest}
    api.fails["cuTensorMapEncodeTiled"] = 1
    slot.word.value = 0x5000
    with pytest.raises(DriverFault):
        device.launch(prepared, 0)


def test_the_driver_says_what_kernels_take(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    device = opened(monkeypatch, api)
    kernel = Kernel("k", "k_1", (1, 1, 1), (32, 1, 1), 0)
    assert device.resources("library", kernel) == Resources(7, 8, 9)
    assert api.named("cuModuleGetFunction") == [["library", b"k_1"]]
    assert EmulatedDriver().resources(None, kernel) is None  # type: ignore[func-returns-value, arg-type]


def test_allocations_are_allowed_while_the_caller_records(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    device = opened(monkeypatch, api)
    api.calls.clear()
    device.allocate(64)
    exchange = "cuThreadExchangeStreamCaptureMode"
    assert [call[:2] for call in api.calls if call[0] != "cuCtxSetCurrent"] == [
        (exchange, "CU_STREAM_CAPTURE_MODE_RELAXED"), ("cuMemAlloc", 64), (exchange, 7),
    ]  # fmt: skip


def test_zeros_are_written_while_the_caller_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stream of their own, which is given back where that fails too."""
    api = Api()
    device = opened(monkeypatch, api)
    api.calls.clear()
    device.zero(4096, 64)
    exchange = "cuThreadExchangeStreamCaptureMode"
    made = [call for call in api.calls if call[0] not in ("cuCtxSetCurrent", "cuStreamCreate")]
    assert made[:4] == [
        (exchange, "CU_STREAM_CAPTURE_MODE_RELAXED"), ("cuMemsetD8Async", 4096, 0, 64, 7), ("cuStreamSynchronize", 7),
        (exchange, 7),
    ]  # fmt: skip
    api.fails["cuMemsetD8Async"] = 700
    api.calls.clear()
    with pytest.raises(DriverFault):
        device.zero(4096, 64)
    assert api.named("cuStreamDestroy") == [[7]]


def test_times_come_from_the_function_that_every_driver_has(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    device = opened(monkeypatch, api)
    start, end = (bindings._Event(api, number) for number in (3, 8))
    assert device.seconds(start, end) == 5e-3
    assert device.seconds(start, end) == 5e-3
    assert api.named("cuGetProcAddress") == [[b"cuEventElapsedTime", 2000, 0]]
    api.fails["cuEventElapsedTime"] = 600
    with pytest.raises(DriverFault):
        device.seconds(start, end)
    del api.own[b"cuTensorMapEncodeTiled"]
    with pytest.raises(DriverFault, match="this driver has no cuTensorMapEncodeTiled"):
        device.encode(0, 0, TensorMap(0, "f16", (16, 32), (64, 2), (8, 16), 64))


@pytest.mark.parametrize("devices", [1, 2])
def test_the_caller_stays_on_its_device(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(devices=devices)
    device = opened(monkeypatch, api)
    api.calls.clear()
    with device.visiting():
        api.calls.append(("inside",))
    around = [("cuCtxGetCurrent",), ("inside",), ("cuCtxSetCurrent", 7)]
    assert api.calls == (around if devices == 2 else [("inside",)])


def test_failures_have_the_drivers_name_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    device = opened(monkeypatch, api)
    prepared = device.prepare("library", Kernel("k", "k", (1, 1, 1), (32, 1, 1), 0), [])
    assert api.named("cuFuncSetAttribute") == []
    api.fails["cuLaunchKernel"] = 700
    with pytest.raises(DriverFault, match="CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"):
        device.launch(prepared, 0)


def test_a_driver_without_a_gpu_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"no GPU can be used[\s\S]*TILEWRIGHT_DEVICE=emulator"):
        opened(monkeypatch, Api({"cuInit": 100}))


def test_the_bindings_have_every_function_that_is_called() -> None:
    api = pytest.importorskip("cuda.bindings.driver")
    import inspect
    import re

    names = set(re.findall(r"(?:_api|api|driver)\.(cu\w+|CU\w+)", inspect.getsource(bindings)))
    assert len(names) > 20
    assert [name for name in sorted(names) if not hasattr(api, name)] == []


def test_memory_of_the_emulator_has_bounds() -> None:
    device = EmulatedDriver()
    address, values = device.allocate(64), np.zeros(64, np.uint8)
    device.upload(address, values.ctypes.data, 64, 0)
    for start, size in ((address, 65), (address + 1, 64), (address - 1, 1), (0, 1), (address + 64, 1)):
        with pytest.raises(DriverFault, match="illegal-address"):
            device.download(values.ctypes.data, start, size, 0)
    device.free(address)
    with pytest.raises(DriverFault, match="illegal-address"):
        device.download(values.ctypes.data, address, 1, 0)
    with pytest.raises(DriverFault, match="illegal-address"):
        device.free(address)
