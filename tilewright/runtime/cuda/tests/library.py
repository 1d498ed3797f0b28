"""An imitation of the driver's library behind the real bindings: functions of Python with the signatures of cuda.h.

Memory is the host's, streams run in the order of the calls, kernels run in the emulator. What cuda.h forbids is
refused: calls without a context, memory and synchronisation of streams that are recorded, grids, shared memory and
tensor maps beyond their limits. Bindings find it as libcuda.so.1, which `SHIM` becomes; `install` fills it, as does
`pytest -p` with this module.
"""
# ruff: noqa: N802  # names are those of cuda.h

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import emulator
from tilewright.emulator.link import link
from tilewright.emulator.run import run as emulate  # tests replace that of the package

SHIM = r"""
#include <string.h>
static struct { char name[64]; void *function; } table[128];
static int count;
void offer(const char *name, void *function) {
    strncpy(table[count].name, name, 63);
    table[count++].function = function;
}
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    *function = 0;
    if (version > 12040) return 1; /* newer than this driver */
    for (int at = 0; at < count; at++)
        if (!strcmp(name, table[at].name)) {
            if (status) *status = 0;
            *function = table[at].function;
            return 0;
        }
    if (status) *status = 1;
    return 500;
}
"""
INVALID_VALUE, INVALID_CONTEXT, INVALID_PTX, INVALID_HANDLE, NOT_FOUND, FAULT, CAPTURE = 1, 201, 218, 400, 500, 700, 900
NAMES = {
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE", INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
    INVALID_PTX: b"CUDA_ERROR_INVALID_PTX", INVALID_HANDLE: b"CUDA_ERROR_INVALID_HANDLE",
    NOT_FOUND: b"CUDA_ERROR_NOT_FOUND", FAULT: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    CAPTURE: b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
}  # fmt: skip
CONTEXT, RELAXED, MAP_BYTES = 0xC0, 2, 128
MAP_MARK = b"tensor map"  # what the bytes of a tensor map begin with; its number follows
MOST_SHARED, FREE_SHARED = 227 << 10, 48 << 10
ERROR_LOG, INFO_LOG, LOGS = 5, 3, {3, 4, 5, 6}  # CUjit_option: a buffer, and its size behind it
MOST_SHARED_ATTRIBUTE = 8
OVERLAP_ATTRIBUTE = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
VERSION = 12040  # of the driver
ATTRIBUTES = {38: 1 << 16}  # of the device: bytes of the last level
# CUtensorMapDataType: name and bytes
ELEMENTS = (
    ("u8", 1), ("u16", 2), ("u32", 4), ("s32", 4), ("u64", 8), ("s64", 8), ("f16", 2), ("f32", 4), ("f64", 8),
    ("bf16", 2), ("f32.ftz", 4), ("tf32", 4), ("tf32.ftz", 4),
)  # fmt: skip
SPANS = (0, 32, 64, 128)  # CUtensorMapSwizzle
_INT, _UINT, _PLACE, _WORD, _BYTE = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_ubyte
_TABLE: dict[str, tuple[tuple[Any, ...], Callable[..., None]]] = {}
_ANYWHERE = {
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuTensorMapEncodeTiled",
    "cuThreadExchangeStreamCaptureMode", "cuEventDestroy",
}  # fmt: skip


class Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


@dataclass
class State:
    handles: Any = field(default_factory=lambda: itertools.count(0x1000))
    context: int = 0  # tests call from one thread
    mode: int = 0
    memory: dict[int, tuple[np.ndarray[Any, Any], int]] = field(default_factory=dict)  # by address: array, bytes
    modules: dict[int, emulator.Module] = field(default_factory=dict)
    functions: dict[int, tuple[int, str]] = field(default_factory=dict)
    shared: dict[tuple[int, str], int] = field(default_factory=dict)  # bytes that a kernel may have
    recorded: dict[int, list[Callable[[], None]] | None] = field(default_factory=dict)  # by stream
    strict: set[int] = field(default_factory=set)  # streams that were recorded in a mode that forbids something
    graphs: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    events: dict[int, float] = field(default_factory=dict)
    maps: dict[int, tuple[int, emulator.TensorMap]] = field(default_factory=dict)  # by number: address, the rest
    version: int = VERSION
    overlapping: int = 0  # launches that may begin before the kernel before them ends
    alive: list[Any] = field(default_factory=list)

    def enqueue(self, stream: int, work: Callable[[], None]) -> None:
        require(stream == 0 or stream in self.recorded, INVALID_HANDLE)
        recorded = self.recorded.get(stream)
        if recorded is None:
            work()
        else:
            recorded.append(work)

    def view(self, address: int) -> np.ndarray[Any, Any]:
        """The memory from an address to the end of what was allocated."""
        for start, (array, size) in self.memory.items():
            if start <= address < start + size:
                first = start - array.ctypes.data
                return array[first + address - start : first + size]
        raise Refused(FAULT)


STATE = State()


def install() -> None:
    """Offer the functions to the bindings, which have to be imported afterwards."""
    library = ctypes.CDLL("libcuda.so.1")
    for name, (types, function) in _TABLE.items():
        pointer = ctypes.CFUNCTYPE(_INT, *types)(_guarded(name, function))
        STATE.alive.append(pointer)
        library.offer(name.encode(), ctypes.cast(pointer, _PLACE))


def _guarded(name: str, function: Callable[..., None]) -> Callable[..., int]:
    def call(*arguments: Any) -> int:
        try:
            if name not in _ANYWHERE and STATE.context != CONTEXT:
                raise Refused(INVALID_CONTEXT)
            function(*arguments)
        except Refused as refused:
            return refused.status
        return 0

    return call


def _of_library(*types: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def keep(function: Callable[..., None]) -> Callable[..., None]:
        _TABLE[function.__name__] = types, function
        return function

    return keep


def require(right: bool, status: int = INVALID_VALUE) -> None:
    """Refuse a call unless it is right."""
    if not right:
        raise Refused(status)


def put(place: int, kind: Any, value: Any) -> None:
    ctypes.cast(place, ctypes.POINTER(kind))[0] = value


def array_at(place: int, kind: Any, count: int) -> list[int]:
    return list(ctypes.cast(place, ctypes.POINTER(kind))[:count])


def unsafe() -> None:
    """What a thread may not do while a stream is recorded, unless it has said that it knows."""
    recording = any(STATE.recorded.get(stream) is not None for stream in STATE.strict)
    require(not recording or STATE.mode == RELAXED, CAPTURE)


# The functions --------------------------------------------------------------------------------------------------------


@_of_library(_UINT)
def cuInit(flags: int) -> None:
    require(flags == 0)


@_of_library(_PLACE)
def cuDriverGetVersion(version: int) -> None:
    put(version, _INT, STATE.version)


@_of_library(_PLACE)
def cuDeviceGetCount(count: int) -> None:
    put(count, _INT, 1)


@_of_library(_PLACE, _INT)
def cuDeviceGet(device: int, ordinal: int) -> None:
    put(device, _INT, ordinal)


@_of_library(_PLACE, _INT, _INT)
def cuDeviceGetName(name: int, size: int, device: int) -> None:
    ctypes.memmove(name, b"an imitation\0", 13)


@_of_library(_PLACE, _INT, _INT)
def cuDeviceGetAttribute(found: int, attribute: int, device: int) -> None:
    put(found, _INT, ATTRIBUTES[attribute])


@_of_library(_PLACE, _INT)
def cuDevicePrimaryCtxRetain(context: int, device: int) -> None:
    put(context, _WORD, CONTEXT)


@_of_library(_WORD)
def cuCtxSetCurrent(context: int) -> None:
    require(context == CONTEXT, INVALID_CONTEXT)
    STATE.context = context


@_of_library(_INT, _PLACE)
def cuGetErrorName(status: int, text: int) -> None:
    STATE.alive.append(ctypes.c_char_p(NAMES[status]))
    put(text, _WORD, ctypes.cast(STATE.alive[-1], _PLACE).value)


@_of_library(_INT, _PLACE)
def cuGetErrorString(status: int, text: int) -> None:
    STATE.alive.append(ctypes.c_char_p(b"status %d" % status))
    put(text, _WORD, ctypes.cast(STATE.alive[-1], _PLACE).value)


@_of_library(ctypes.c_char_p, _PLACE, _INT, _WORD, _PLACE)
def cuGetProcAddress(name: bytes, found: int, version: int, flags: int, status: int) -> None:
    types, function = _TABLE[name.decode()]
    pointer = ctypes.CFUNCTYPE(_INT, *types)(_guarded(name.decode(), function))
    STATE.alive.append(pointer)
    put(found, _WORD, ctypes.cast(pointer, _PLACE).value)
    put(status, _INT, 0)


@_of_library(_PLACE)
def cuThreadExchangeStreamCaptureMode(mode: int) -> None:
    (given,) = array_at(mode, _INT, 1)
    require(given in (0, 1, RELAXED))
    put(mode, _INT, STATE.mode)
    STATE.mode = given


@_of_library(_PLACE, ctypes.c_size_t)
def cuMemAlloc(address: int, size: int) -> None:
    unsafe()
    require(size > 0)
    array = np.full(size + 256, 0xFF, np.uint8)
    start = -(-array.ctypes.data // 256) * 256
    STATE.memory[start] = array, size
    put(address, _WORD, start)


@_of_library(_WORD)
def cuMemFree(address: int) -> None:
    unsafe()
    require(address in STATE.memory)
    del STATE.memory[address]


def _copied(device: int, size: int, stream: int, work: Callable[[], Any]) -> None:
    require(STATE.view(device).size >= size)
    STATE.enqueue(stream, work)


@_of_library(_WORD, _PLACE, ctypes.c_size_t, _WORD)
def cuMemcpyHtoDAsync(device: int, host: int, size: int, stream: int) -> None:
    _copied(device, size, stream, lambda: ctypes.memmove(device, host, size))


@_of_library(_PLACE, _WORD, ctypes.c_size_t, _WORD)
def cuMemcpyDtoHAsync(host: int, device: int, size: int, stream: int) -> None:
    _copied(device, size, stream, lambda: ctypes.memmove(host, device, size))


@_of_library(_WORD, _BYTE, ctypes.c_size_t, _WORD)
def cuMemsetD8Async(device: int, value: int, size: int, stream: int) -> None:
    _copied(device, size, stream, lambda: ctypes.memset(device, value, size))


@_of_library(_PLACE, _PLACE, _UINT, _PLACE, _PLACE)
def cuModuleLoadDataEx(module: int, image: int, count: int, options: int, values: int) -> None:
    unsafe()
    given = dict(zip(array_at(options, _INT, count), array_at(values, _WORD, count), strict=True))
    require(set(given) == LOGS)
    try:
        parsed = emulator.parse(ctypes.string_at(image).decode())
    except emulator.InvalidPtx as error:
        text = f"ptxas fatal: {error}".encode()[: given[ERROR_LOG + 1] - 1] + b"\0"
        ctypes.memmove(given[ERROR_LOG], text, len(text))
        raise Refused(INVALID_PTX) from error
    ctypes.memmove(given[INFO_LOG], b"info\0", 5)
    handle = next(STATE.handles)
    STATE.modules[handle] = parsed
    put(module, _WORD, handle)


@_of_library(_WORD)
def cuModuleUnload(module: int) -> None:
    unsafe()
    del STATE.modules[module]


@_of_library(_PLACE, _WORD, ctypes.c_char_p)
def cuModuleGetFunction(function: int, module: int, name: bytes) -> None:
    require(name.decode() in STATE.modules[module].entries, NOT_FOUND)
    handle = next(STATE.handles)
    STATE.functions[handle] = module, name.decode()
    put(function, _WORD, handle)


@_of_library(_WORD, _INT, _INT)
def cuFuncSetAttribute(function: int, attribute: int, value: int) -> None:
    require(attribute == MOST_SHARED_ATTRIBUTE and value <= MOST_SHARED)
    STATE.shared[STATE.functions[function]] = value


@_of_library(_PLACE, _INT, _WORD)
def cuFuncGetAttribute(found: int, attribute: int, function: int) -> None:
    put(found, _INT, attribute)


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = (
        *((name, _UINT) for name in ("gx", "gy", "gz", "x", "y", "z", "shared")),
        ("stream", _WORD), ("attributes", _WORD), ("count", _UINT),
    )  # fmt: skip


class _Attribute(ctypes.Structure):  # CUlaunchAttribute; its value is a union
    _fields_ = (("id", _INT), ("pad", _INT), ("value", _INT), ("rest", _BYTE * 60))


@_of_library(_PLACE, _WORD, _PLACE, _PLACE)
def cuLaunchKernelEx(config: int, function: int, places: int, extra: int) -> None:
    """Only of kernels that wait themselves for those before them, which the one attribute says."""
    given = _Config.from_address(config)
    attributes = (_Attribute * given.count).from_address(given.attributes)
    require([(each.id, each.value) for each in attributes] == [(OVERLAP_ATTRIBUTE, 1)])
    handle, name = STATE.functions[function]
    require(_waits(STATE.modules[handle], name))
    STATE.overlapping += 1
    words = (getattr(given, field) for field, _ in _Config._fields_[:8])
    _launch(function, *words, places, extra)


@_of_library(_WORD, *[_UINT] * 7, _WORD, _PLACE, _PLACE)
def cuLaunchKernel(function: int, *given: Any) -> None:
    _launch(function, *given)


def _waits(module: emulator.Module, name: str) -> bool:
    return any(node.parts == ("griddepcontrol", "wait") for node, _ in link(module, name).instructions)


def _launch(function: int, *given: Any) -> None:
    (gx, gy, gz, *block), (shared, stream, places, extra) = given[:6], given[6:]
    handle, name = STATE.functions[function]
    require(not extra and 0 < gx < 1 << 31 and 0 < gy < 1 << 16 and 0 < gz < 1 << 16)
    require(0 < int(np.prod(block)) <= 1024)
    require(shared <= STATE.shared.get((handle, name), FREE_SHARED))
    module = STATE.modules[handle]
    parameters = link(module, name).parameters
    sizes = zip(array_at(places, _WORD, len(parameters)), parameters, strict=True)
    raw = [(ctypes.string_at(place, each.bytes), each.variable.type) for place, each in sizes]

    def work() -> None:
        buffers: dict[int, np.ndarray[Any, Any]] = {}  # the emulator sees by identity that two arguments are one buffer

        def at(address: int) -> np.ndarray[Any, Any]:
            return buffers.setdefault(address, STATE.view(address))

        arguments = [_argument(each, kind, at) for each, kind in raw]
        if emulate(module, name, (gx, gy, gz), tuple(block), arguments, shared).diagnostics:
            raise Refused(FAULT)

    STATE.enqueue(stream, work)


def _argument(raw: bytes, kind: str, at: Callable[[int], np.ndarray[Any, Any]]) -> Any:
    """What the emulator takes for the bytes of a parameter: a map, a buffer or a scalar.

    A pointer to the bytes of a map is a map for the emulator, whose maps have other bytes.
    """
    number = int.from_bytes(raw, "little")
    pointer = len(raw) == 8 and any(start <= number < start + size for start, (_, size) in STATE.memory.items())
    held = STATE.view(number)[:MAP_BYTES].tobytes() if pointer else raw
    if len(held) == MAP_BYTES and held.startswith(MAP_MARK):
        require(not pointer or number % 64 == 0)
        address, seen = STATE.maps[int.from_bytes(held[len(MAP_MARK) :], "little")]
        return emulator.TensorMap(at(address), seen.box, seen.swizzle, seen.element, seen.extents, seen.strides)
    if pointer:
        return at(number)
    return np.frombuffer(raw, {"f32": "f4", "f64": "f8"}.get(kind, f"u{len(raw)}"))[0]


@_of_library(_PLACE, _INT, _UINT, _PLACE, *[_PLACE] * 4, *[_INT] * 4)
def cuTensorMapEncodeTiled(place: int, kind: int, rank: int, address: int, *given: Any) -> None:
    (dims, strides, box, steps), (interleave, swizzle, promotion, fill) = given[:4], given[4:]
    element, size = ELEMENTS[kind]
    extents, pitches = array_at(dims, _WORD, rank), array_at(strides, _WORD, rank - 1)
    sides, every = array_at(box, _UINT, rank), array_at(steps, _UINT, rank)
    require(place % 64 == 0 and 1 <= rank <= 5 and address % 16 == 0)
    require(all(0 < extent <= 1 << 32 for extent in extents))
    require(all(pitch % 16 == 0 and pitch < 1 << 40 for pitch in pitches))
    require(not pitches or pitches[0] >= extents[0] * size)
    require(all(0 < side <= 256 for side in sides) and every == [1] * rank)
    require(sides[0] * size % 16 == 0 and (not swizzle or sides[0] * size <= SPANS[swizzle]))
    require(interleave == fill == 0 and 0 <= promotion <= 3)
    number = len(STATE.maps)
    outermost_first = (tuple(reversed(each)) for each in (sides, extents, [size, *pitches]))
    form, shape, steps_ = outermost_first
    view = emulator.TensorMap(np.zeros(0, np.uint8), form, SPANS[swizzle], element, shape, steps_)
    STATE.maps[number] = address, view
    ctypes.memmove(place, MAP_MARK + number.to_bytes(MAP_BYTES - len(MAP_MARK), "little"), MAP_BYTES)


@_of_library(_PLACE, _UINT)
def cuStreamCreate(stream: int, flags: int) -> None:
    require(flags in (0, 1))
    handle = next(STATE.handles)
    STATE.recorded[handle] = None
    put(stream, _WORD, handle)


@_of_library(_WORD)
def cuStreamDestroy(stream: int) -> None:
    unsafe()
    del STATE.recorded[stream]


@_of_library(_WORD)
def cuStreamSynchronize(stream: int) -> None:
    require(STATE.recorded.get(stream) is None, CAPTURE)


@_of_library(_WORD, _PLACE)
def cuStreamIsCapturing(stream: int, status: int) -> None:
    put(status, _INT, int(STATE.recorded.get(stream) is not None))


@_of_library(_WORD, _INT)
def cuStreamBeginCapture(stream: int, mode: int) -> None:
    require(stream in STATE.recorded and mode in (0, 1, RELAXED))
    STATE.recorded[stream], STATE.strict = [], STATE.strict | ({stream} if mode != RELAXED else set())


def _kept(place: int, work: list[Callable[[], None]]) -> None:
    handle = next(STATE.handles)
    STATE.graphs[handle] = work
    put(place, _WORD, handle)


@_of_library(_WORD, _PLACE)
def cuStreamEndCapture(stream: int, graph: int) -> None:
    work, STATE.recorded[stream] = STATE.recorded[stream], None
    assert work is not None
    _kept(graph, work)


@_of_library(_PLACE, _WORD, _WORD)
def cuGraphInstantiateWithFlags(executable: int, graph: int, flags: int) -> None:
    require(flags == 0)
    _kept(executable, list(STATE.graphs[graph]))


@_of_library(_WORD)
def cuGraphDestroy(graph: int) -> None:
    del STATE.graphs[graph]


@_of_library(_WORD)
def cuGraphExecDestroy(graph: int) -> None:
    unsafe()
    del STATE.graphs[graph]


@_of_library(_WORD, _WORD)
def cuGraphLaunch(graph: int, stream: int) -> None:
    require(STATE.recorded.get(stream) is None, CAPTURE)
    for work in STATE.graphs[graph]:
        work()


@_of_library(_PLACE, _UINT)
def cuEventCreate(event: int, flags: int) -> None:
    handle = next(STATE.handles)
    STATE.events[handle] = 0.0
    put(event, _WORD, handle)


@_of_library(_WORD)
def cuEventDestroy(event: int) -> None:
    del STATE.events[event]


@_of_library(_WORD, _WORD)
def cuEventRecord(event: int, stream: int) -> None:
    STATE.events[event] = time.perf_counter()


@_of_library(_PLACE, _WORD, _WORD)
def cuEventElapsedTime(milliseconds: int, start: int, end: int) -> None:
    put(milliseconds, ctypes.c_float, (STATE.events[end] - STATE.events[start]) * 1e3)


def pytest_configure() -> None:
    install()
