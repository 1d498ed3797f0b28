"""A module of GPU code that can be called: on arrays of the host, which are copied, or of the device, which are not.

What a stream needs is made once (`_Context`): one arena, one block for copies of host arrays, and every launch with its
arguments in place, so that a call writes the addresses of inputs and outputs and enqueues. A call whose arrays are
where those of a recent call were replays a graph.
"""

from __future__ import annotations

import hashlib
import statistics
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from tilewright.codegen.host_program import Buffer, Launch
from tilewright.errors import DeviceError, InvalidArgument
from tilewright.expr.dtypes import numpy_dtype
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.cuda import arrays as device_arrays
from tilewright.runtime.cuda.devices import open_driver
from tilewright.runtime.cuda.driver import Argument, Driver, DriverFault, MappedSlot, Resources, Slot
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.memory import align
from tilewright.runtime.module import Module, check_repeats
from tilewright.runtime.named_inputs import in_order
from tilewright.runtime.once import creation_lock
from tilewright.runtime.pool import Pool
from tilewright.runtime.profile import KernelTime, Profile
from tilewright.runtime.tensors import View, empty, is_torch, ready_input, ready_output

ALIGN = device_arrays.ALIGN
GRAPH_LAUNCHES = 3  # a call of fewer enqueues them one by one: a graph saves nothing
GRAPHS = 8  # kept per stream, those used last; and calls that are remembered until one with the same arrays
STREAMS = 4  # whose memory is kept, those used last; more where the caller has recorded calls


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _visiting(method: Callable[Concatenate[DeviceModule, _P], _R]) -> Callable[Concatenate[DeviceModule, _P], _R]:
    """A method that uses the device: it leaves the caller on its own one, and a fault is a DeviceError."""

    @wraps(method)
    def wrapped(self: DeviceModule, /, *args: _P.args, **named: _P.kwargs) -> _R:
        try:
            with self.driver.visiting():
                return method(self, *args, **named)
        except DriverFault as fault:
            raise DeviceError(str(fault), where=self.manifest.name, help=_advice(self.driver)) from fault

    return wrapped


class DeviceModule(Module):
    """An artifact of GPU code, loaded: the same interface as a module for the CPU.

    Inputs on the device (torch, CuPy, DLPack) are used where they are, on the stream that their library is using;
    results are then on the device too, and the call returns before they are computed. Inputs on the host are copied,
    and the call waits for its results.
    """

    def __init__(self, artifact: Artifact, device: str | Driver | None = None, options: Options | None = None) -> None:
        """Load the code on "cuda", "cuda:1", "emulator", or where `options.device` says.

        Raises DeviceError where there is no such device, or it cannot run the code.
        """
        options = options or Options()
        self.artifact = artifact
        chosen = device or options.device
        self.driver: Driver = open_driver(chosen) if isinstance(chosen, str) else chosen
        self._single = len(self.manifest.outputs) == 1
        self._limit_bytes = options.output_pool_bytes
        self._streams: OrderedDict[int, _Context] = OrderedDict()  # the stream used last comes last
        self._lock = threading.Lock()
        try:
            with self.driver.visiting():
                self._library = _loaded(self.driver, artifact.code)
                self._stream = self.driver.new_stream()
                weakref.finalize(self, _quietly, self.driver, self.driver.drop_stream, self._stream)
                self._held = _Memory(self.driver, self.manifest.constants_bytes)
                if artifact.constants.size:
                    constants = np.ascontiguousarray(artifact.constants)
                    self.driver.upload(self._held.address, constants.ctypes.data, constants.size, self._stream)
                    self.driver.synchronize(self._stream)
        except DriverFault as fault:
            advice = f"compile for this device ({self.driver.name}); this code is for {self.manifest.machine}"
            raise DeviceError(str(fault), where=self.manifest.name, help=advice) from fault

    @property
    def device(self) -> str:
        """Where calls run: a GPU's name, or "emulator"."""
        return self.driver.name

    @property
    def threads(self) -> int:
        """Threads of the host that a call uses."""
        return 1

    @property
    def pool(self) -> Pool:
        raise InvalidArgument("code of a GPU runs on no threads of the host", where=self.manifest.name)

    @_visiting
    def __call__(self, /, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run the module. `out`: an array, or a sequence with one array per output, that receives the results.

        Raises InvalidArgument for arrays that do not fit, DeviceError where the device reports a fault; a fault of a
        call on device arrays may be reported by a later call, as by everything on a GPU.
        """
        if named:
            arrays = in_order(self.manifest, arrays, named)
        example = next((array for array in arrays if device_arrays.on_device(array)), None)
        stream = self._stream if example is None else device_arrays.stream_of(example)
        inputs = self._inputs(arrays, stream)
        outputs = self._outputs(arrays, inputs, out, example, stream)
        context = self._context(stream)
        with context.lock:
            waits = context.run(inputs, outputs)
            if waits or example is None:
                context.finish(outputs)
        owners = [view.owner if host else view.owner[0] for view, host in outputs]
        return owners[0] if self._single else tuple(owners)

    @_visiting
    def profile(self, /, *arrays: Any, repeats: int = 10, **named: Any) -> Profile:
        """Time every launch by events: run once to warm up, then `repeats` times, and take the median.

        No arrays: zeros. In the emulator the times are those that the emulator took.
        """
        check_repeats(repeats)
        if named:
            arrays = in_order(self.manifest, arrays, named)
        elif not arrays:
            arrays = tuple(np.zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in self.manifest.inputs)
        inputs = self._inputs(arrays, self._stream)
        outputs = self._outputs(arrays, inputs, None, None, self._stream)
        context = self._context(self._stream)
        with context.lock:
            samples = [context.timed(inputs, outputs) for _ in range(repeats + 1)][1:]
        times = [
            KernelTime(
                launch.name, launch.kernel, launch.programs, launch.flops, launch.bytes,
                statistics.median(sample[number] for sample in samples),
            )
            for number, launch in enumerate(self.manifest.launches)
        ]  # fmt: skip
        return Profile(times, self.manifest, self.threads)

    @_visiting
    def samples(self, *arrays: Any, repeats: int = 20, flush: bool = True, calls: int = 1) -> list[float]:
        """Seconds of a whole call by events, without copies from and to the host: a list of `repeats` means.

        Each is the mean of `calls` calls in a row, which one CUDA graph holds, so that the host is not timed. The graph
        is launched once before, untimed. With `flush`, other memory is written before each launch of the graph, as much
        as evicts the last cache. Raises InvalidArgument where `repeats` or `calls` is no number of 1 or more.
        """
        check_repeats(repeats)
        check_repeats(calls, "calls")
        inputs = self._inputs(arrays, self._stream)
        outputs = self._outputs(arrays, inputs, None, None, self._stream)
        rubbish = _Memory(self.driver, 2 * self.driver.cache_bytes if flush else 0)
        context = self._context(self._stream)
        with context.lock:
            return context.samples(inputs, outputs, repeats, rubbish, calls)

    @_visiting
    def resources(self) -> dict[str, Resources | None]:
        """What every kernel takes on the device, by its name; None in the emulator."""
        return {kernel.name: self.driver.resources(self._library.handle, kernel) for kernel in self.manifest.kernels}

    def __repr__(self) -> str:
        inputs, outputs = (
            ", ".join(f"{spec.name}: {spec}" for spec in specs)
            for specs in (self.manifest.inputs, self.manifest.outputs)
        )
        return f"<Module {self.manifest.name} ({inputs}) -> ({outputs}), {self.manifest.machine} on {self.device}>"

    def _inputs(self, arrays: Sequence[Any], stream: int) -> list[_Placed]:
        """Where the inputs are, and whether that is the host."""
        specs = self.manifest.inputs
        if len(arrays) != len(specs) or not any(map(device_arrays.on_device, arrays)):
            return [(view, True) for view in self._ready_inputs(arrays)]
        found = []
        for array, spec in zip(arrays, specs, strict=True):
            if device_arrays.on_device(array):
                where = f"input {spec.name!r}"
                view = device_arrays.device_view(array, spec, where, stream, self._ordinal)
                found.append((View(view.address, view.bytes, (array, view.owner)), False))
            else:
                found.append((ready_input(array, spec), True))
        return found

    def _outputs(
        self, arrays: Sequence[Any], inputs: Sequence[_Placed], out: Any, example: Any, stream: int
    ) -> list[_Placed]:
        specs = self.manifest.outputs
        if out is None and example is None:
            torch = any(is_torch(array) for array in arrays)
            return [(empty(spec, torch, self._limit_bytes), True) for spec in specs]
        if out is None:
            made = [device_arrays.empty_like(example, spec, f"output {spec.name!r}") for spec in specs]
            return [(View(view.address, view.bytes, (view.owner, None)), False) for view in made]
        given = list(out) if isinstance(out, (tuple, list)) else [out]
        if example is None and not any(map(device_arrays.on_device, given)):
            return [(view, True) for view in self._ready_outputs([view for view, _ in inputs], out)]
        if len(given) != len(specs):
            raise InvalidArgument(f"out has {len(given)} arrays, the module has {len(specs)} outputs", where="out")
        found: list[_Placed] = []
        for array, spec in zip(given, specs, strict=True):
            if device_arrays.on_device(array):
                where = f"output {spec.name!r}"
                view = device_arrays.device_view(array, spec, where, stream, self._ordinal, writes=True)
                found.append((View(view.address, view.bytes, (array, view.owner)), False))
            else:
                found.append((ready_output(array, spec), True))
        _check_apart(inputs, found)
        return found

    @property
    def _ordinal(self) -> int:
        return int(getattr(self.driver, "ordinal", 0))

    def _context(self, stream: int) -> _Context:
        """Memory and launches of calls on a stream.

        A stream that was not used for long gives its memory back, which waits for its calls. Not where the caller
        has recorded some: they may run again at any time.
        """
        recording = stream != self._stream and self.driver.capturing(stream)
        with self._lock:
            found = self._streams.get(stream)
            if found is None:
                found = _Context(self.manifest, self.driver, self._library.handle, self._held, stream)
                self._streams[stream] = found
            self._streams.move_to_end(stream)
            found.recorded = found.recorded or recording
            idle = [] if recording else [each for each, context in self._streams.items() if not context.recorded]
            for each in idle[:-STREAMS]:
                del self._streams[each]
            return found


_Placed = tuple[View, bool]  # where an array is, and whether that is on the host


class _Memory:
    """Memory of the device that is freed with this object; the first `zeroed_bytes` are zeros."""

    def __init__(self, driver: Driver, size: int, zeroed_bytes: int = 0) -> None:
        self.bytes = size
        self.address = driver.allocate(size) if size else 0
        if size:
            weakref.finalize(self, _quietly, driver, driver.free, self.address)
        if zeroed_bytes:
            driver.zero(self.address, zeroed_bytes)


class _Library:
    """Loaded code, unloaded with this object."""

    def __init__(self, driver: Driver, code: bytes) -> None:
        self.handle = driver.load(code)
        weakref.finalize(self, _quietly, driver, driver.unload, self.handle)


_LIBRARIES: weakref.WeakValueDictionary[tuple[int, str], _Library] = weakref.WeakValueDictionary()


def _loaded(driver: Driver, code: bytes) -> _Library:
    """The code on a device; the same bytes are loaded once for all modules that are alive."""
    key = (id(driver), hashlib.sha256(code).hexdigest())
    with creation_lock():
        library = _LIBRARIES.get(key)
        if library is None:
            library = _LIBRARIES[key] = _Library(driver, code)
        return library


def _quietly(driver: Driver, release: Callable[[Any], object], handle: Any) -> None:
    """Give something back; a device that has failed has given up everything already."""
    with suppress(DriverFault), driver.visiting():
        release(handle)


class _Context:
    """What the calls on one stream share: arena, copies of host arrays, prepared launches, graphs."""

    def __init__(self, manifest: Manifest, driver: Driver, library: Any, constants: _Memory, stream: int) -> None:
        self.manifest, self.driver, self.stream = manifest, driver, stream
        self.lock = threading.Lock()
        self.recorded = False  # whether graphs of the caller launch from here
        self._constants, self._arena = constants, _Memory(driver, manifest.arena_bytes, manifest.zeroed_bytes)
        self.slots = [Slot(f"input {spec.name}", spec.bytes) for spec in manifest.inputs]
        self.slots += [Slot(f"output {spec.name}", spec.bytes) for spec in manifest.outputs]
        self._parts: list[tuple[Slot, Slot, int]] = []  # of inputs and outputs: what begins so many bytes into what
        self._copies: _Memory | None = None
        self._places: list[int] = []
        self._launches: list[tuple[Launch, Any, list[Argument]]] = []
        self._graphs: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._seen: OrderedDict[tuple[int, ...], None] = OrderedDict()  # addresses of the last calls without a graph
        for launch in manifest.launches:
            kernel = manifest.kernel(launch.kernel)
            slots = [self._slot(operand) for operand in launch.operands]
            arguments: list[Argument] = [
                *slots,
                *(MappedSlot(slots[seen.argument], seen) for seen in kernel.tensor_maps),
            ]
            try:
                prepared = driver.prepare(library, kernel, arguments)
            except DriverFault as fault:
                raise self._error(fault, launch, arguments) from fault
            self._launches.append((launch, prepared, arguments))
        weakref.finalize(self, _drop_graphs, driver, self._graphs)

    def run(self, inputs: Sequence[_Placed], outputs: Sequence[_Placed]) -> bool:
        """Enqueue a call; whether results have to be copied to the host."""
        waits = self._place(inputs, outputs)
        self._enqueue()
        return waits

    def _enqueue(self) -> None:
        if len(self._launches) >= GRAPH_LAUNCHES:
            try:
                graph = self._graph()
                if graph is not None:
                    self.driver.launch_graph(graph, self.stream)
                    return
            except DriverFault as fault:
                raise self._fault(fault) from fault
        self._launch_all(self.stream)

    def _launch_all(self, stream: int) -> None:
        enqueue = self.driver.launch
        for launch, prepared, arguments in self._launches:
            try:
                enqueue(prepared, stream)
            except DriverFault as fault:
                raise self._error(fault, launch, arguments) from fault

    def finish(self, outputs: Sequence[_Placed]) -> None:
        """Copy the results that belong on the host, and wait."""
        try:
            for (view, host), slot in zip(outputs, self.slots[len(self.manifest.inputs) :], strict=True):
                if host and view.bytes:
                    self.driver.download(view.address, slot.word.value, view.bytes, self.stream)
            self.driver.synchronize(self.stream)
        except DriverFault as fault:
            raise self._fault(fault) from fault

    def timed(self, inputs: Sequence[_Placed], outputs: Sequence[_Placed]) -> list[float]:
        """Run every launch between two events, and give the seconds of each."""
        self._place(inputs, outputs)
        driver, marks = self.driver, []
        for launch, prepared, arguments in self._launches:
            start, end = driver.new_event(), driver.new_event()
            try:
                driver.record(start, self.stream)
                driver.launch(prepared, self.stream)
                driver.record(end, self.stream)
            except DriverFault as fault:
                raise self._error(fault, launch, arguments) from fault
            marks.append((start, end))
        self.finish(outputs)
        return [driver.seconds(start, end) for start, end in marks]

    def samples(
        self, inputs: Sequence[_Placed], outputs: Sequence[_Placed], repeats: int, rubbish: _Memory, calls: int
    ) -> list[float]:
        """Seconds of a whole call, by graphs of `calls`; before each, `rubbish` evicts the inputs from the cache."""
        self._place(inputs, outputs)
        driver, marks = self.driver, []
        graph = self._record(calls)
        try:
            driver.launch_graph(graph, self.stream)
            for _ in range(repeats):
                start, end = driver.new_event(), driver.new_event()
                if rubbish.bytes:
                    driver.fill(rubbish.address, rubbish.bytes, self.stream)
                driver.record(start, self.stream)
                driver.launch_graph(graph, self.stream)
                driver.record(end, self.stream)
                marks.append((start, end))
            self.finish(outputs)
        except DriverFault as fault:
            raise self._fault(fault) from fault
        finally:
            _quietly(driver, driver.drop_graph, graph)
        return [driver.seconds(start, end) / calls for start, end in marks]

    def _place(self, inputs: Sequence[_Placed], outputs: Sequence[_Placed]) -> bool:
        """Write the addresses of a call into the slots; host inputs are copied first. Whether any array is there."""
        waits = False
        for number, (slot, (view, host)) in enumerate(zip(self.slots, (*inputs, *outputs), strict=True)):
            slot.word.value = self._copy(number) if host else view.address
            waits = waits or host
            if host and number < len(inputs) and view.bytes:
                try:
                    self.driver.upload(slot.word.value, view.address, view.bytes, self.stream)
                except DriverFault as fault:
                    raise self._fault(fault) from fault
        for part, whole, offset in self._parts:
            part.word.value = whole.word.value + offset
        if self.driver.emulated:
            self._forget(outputs)
        return waits

    def _forget(self, outputs: Sequence[_Placed]) -> None:
        kept = self.manifest.zeroed_bytes
        if self._arena.bytes > kept:
            self.driver.forget(self._arena.address + kept, self._arena.bytes - kept)
        for slot in self.slots[len(self.slots) - len(outputs) :]:
            if slot.bytes:
                self.driver.forget(slot.word.value, slot.bytes)

    def _copy(self, number: int) -> int:
        """Where the copy of a host array lives on the device: all of them in one block, made when first needed."""
        if self._copies is None:
            sizes = [align(slot.bytes, ALIGN) for slot in self.slots]
            self._places = [sum(sizes[:index]) for index in range(len(sizes))]
            self._copies = _Memory(self.driver, sum(sizes))
        return self._copies.address + self._places[number]

    def _graph(self) -> Any:
        """The graph of the launches with the addresses that the slots hold; recorded when they come a second time,
        unless that is `GRAPHS` others later.

        None while the caller records: graphs are not launched on a stream that is being recorded.
        """
        if self.recorded and self.driver.capturing(self.stream):
            return None
        addresses = tuple(slot.word.value for slot in self.slots)
        found = self._graphs.get(addresses)
        if found is not None:
            self._graphs.move_to_end(addresses)
            return found
        if addresses not in self._seen:  # a caller that keeps a result while the next is computed has two in turn
            self._seen[addresses] = None
            if len(self._seen) > GRAPHS:
                self._seen.popitem(last=False)
            return None
        del self._seen[addresses]
        graph = self._graphs[addresses] = self._record()
        while len(self._graphs) > GRAPHS:
            self.driver.drop_graph(self._graphs.popitem(last=False)[1])
        return graph

    def _record(self, calls: int = 1) -> Any:
        """A graph of so many calls with the addresses that the slots hold."""
        recording = self.driver.begin_capture()
        try:
            for _ in range(calls):
                self._launch_all(recording)
        except BaseException:
            _quietly(self.driver, self.driver.end_capture, recording)
            raise
        return self.driver.end_capture(recording)

    def _slot(self, operand: Buffer) -> Slot:
        if operand.space in ("input", "output"):
            whole = self.slots[operand.index + (len(self.manifest.inputs) if operand.space == "output" else 0)]
            if operand.bytes == whole.bytes:
                return whole
            part = Slot(f"{whole.name}+{operand.offset}", operand.bytes)
            self._parts.append((part, whole, operand.offset))
            return part
        start = (self._arena if operand.space == "arena" else self._constants).address
        return Slot(f"{operand.space}+{operand.index}", operand.bytes, start + operand.index)

    def _error(self, fault: DriverFault, launch: Launch, arguments: Sequence[Argument]) -> DeviceError:
        kernel = self.manifest.kernel(launch.kernel)
        how = f"grid {kernel.grid}, block {kernel.block}, {kernel.launched_shared_bytes} bytes of shared memory"
        given = ", ".join(map(str, arguments)) or "no arguments"
        message = f"{fault}\n  in kernel {kernel.name} ({how})\n  on {given}"
        return DeviceError(message, where=self.manifest.name, help=_advice(self.driver))

    def _fault(self, fault: DriverFault) -> DeviceError:
        kernels = ", ".join(launch.kernel for launch, _, _ in self._launches)
        message = f"{fault}\n  in one of the kernels {kernels}" if kernels else str(fault)
        return DeviceError(message, where=self.manifest.name, help=_advice(self.driver))


def _advice(driver: Driver) -> str:
    if driver.emulated:
        return "this may be a bug of tilewright: please report it"
    return "CUDA_LAUNCH_BLOCKING=1 names the kernel, TILEWRIGHT_DEVICE=emulator the instruction"


def _drop_graphs(driver: Driver, graphs: OrderedDict[tuple[int, ...], Any]) -> None:
    for graph in graphs.values():
        _quietly(driver, driver.drop_graph, graph)
    graphs.clear()


def _check_apart(inputs: Sequence[_Placed], outputs: Sequence[_Placed]) -> None:
    """Raise if an output shares memory with an input or with another output."""
    others = list(inputs)
    for number, (view, host) in enumerate(outputs):
        for other, elsewhere in others:
            if host == elsewhere and view.address < other.end and other.address < view.end:
                raise InvalidArgument("out shares memory with another array", where=f"output {number}",
                                      help="give an array of its own as out")  # fmt: skip
        others.append((view, host))
