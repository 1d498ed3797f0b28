"""A launch as the emulator takes it, run by the emulator and by a device, whose results have to agree."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.agreement import arithmetic, mismatch
from tilewright import emulator
from tilewright.codegen.host_program import Kernel, TensorMap
from tilewright.emulator.arguments import scalar_bytes
from tilewright.emulator.link import Storage, link
from tilewright.emulator.run import run as emulate
from tilewright.runtime.cuda import devices
from tilewright.runtime.cuda.bindings import MAP_BYTES, CudaDriver, EncodedMap
from tilewright.runtime.cuda.driver import Argument, Driver, DriverFault, MappedSlot, Slot

Extents = tuple[int, int, int]
_NEWER_TARGET = re.compile(r"SM version specified by \.target is higher|no kernel image is available")
_SOURCE_LINE = re.compile(r"\s*\.loc\b")


def on_both(
    driver: Driver,
    module: emulator.Module,
    entry: str,
    grid: Extents,
    block: Extents,
    args: Sequence[Any],
    shared_bytes: int = 0,
    **options: Any,
) -> emulator.Result:
    """Diagnostics and counts of the emulator; in the arrays, what the device computed from the same contents.

    Raises AssertionError where the two disagree (`agreement`). A kernel with diagnostics stays off the device, as does
    one of another compiler that is no module yet.
    """
    if not isinstance(module, emulator.Module):
        return emulate(module, entry, grid, block, args, shared_bytes, **options)
    arrays = {id(array): array for array in map(_array, args) if array is not None}
    before = {key: np.ascontiguousarray(array).copy() for key, array in arrays.items()}
    result = emulate(module, entry, grid, block, args, shared_bytes, **options)
    if result.diagnostics:  # a kernel that is known to fault would take the device with it
        return result
    code = _text(module, entry, options.get("cluster", ()))
    after = on_device(driver, module, code, Kernel(entry, entry, grid, block, shared_bytes), args, before)
    allowed = arithmetic(module, entry)
    for number, array in enumerate(map(_array, args)):
        if array is not None:
            text = mismatch(np.asarray(array), after[id(array)], allowed)
            assert not text, f"emulator and device disagree about argument {number} of {entry}: {text}"
    for key, array in arrays.items():
        if np.asarray(array).flags.writeable:
            array[...] = after[key]
    return result


def on_device(
    driver: Driver, module: emulator.Module, code: bytes, kernel: Kernel, args: Sequence[Any], contents: dict[int, Any]
) -> dict[int, Any]:
    """The contents of every array after the launch of a kernel of `code`, by the identity of the argument's array.

    A tensor map is a parameter of 128 bytes, or lies in memory behind a pointer. `module` is the code as the emulator
    has it.
    """
    parameters = link(module, kernel.entry).parameters
    given = [_argument(each, args[n] if n < len(args) else None, n) for n, each in enumerate(parameters)]
    library = skipping_newer_targets(type(driver).load)(driver, code)
    addresses = {key: driver.allocate(max(1, array.nbytes)) for key, array in contents.items()}
    for argument, slot in zip(args, given, strict=False):
        if (array := _array(argument)) is not None:
            inner = slot.slot if isinstance(slot, MappedSlot) else slot
            inner.word.value = addresses[id(array)]
    maps: list[int] = []
    try:
        for key, array in contents.items():
            driver.upload(addresses[key], array.ctypes.data, array.nbytes, 0)
        for number, slot in enumerate(given):  # the emulator puts maps in memory itself
            if isinstance(slot, MappedSlot) and parameters[number].bytes == 8 and isinstance(driver, CudaDriver):
                maps.append(driver.allocate(MAP_BYTES))
                given[number] = _map_in_memory(driver, slot, maps[-1])
        with pytest.MonkeyPatch.context() as patch:  # what an imitation of a device runs is not sent to it again
            patch.setattr(emulator, "run", emulate)
            driver.launch(driver.prepare(library, kernel, given), 0)
            driver.synchronize(0)
        found = {key: np.empty_like(array) for key, array in contents.items()}
        for key, array in found.items():
            driver.download(array.ctypes.data, addresses[key], array.nbytes, 0)
        return found
    finally:
        driver.unload(library)
        for address in (*addresses.values(), *maps):
            driver.free(address)


def end_if_lost(test: str, replaced: bool) -> None:
    """After a fault of a kernel no other runs in this process: end the run, or the process if another replaces it."""
    if not devices._cuda.cache_info().currsize:
        return
    try:
        devices.open_driver("cuda").synchronize(0)
    except DriverFault as fault:
        if replaced:
            os._exit(1)
        pytest.exit(f"{test} has lost the device: {fault}", returncode=1)


def skipping_newer_targets(load: Callable[[Any, bytes], Any]) -> Callable[[Any, bytes], Any]:
    """`CudaDriver.load` that skips the test where the code is for a later GPU or driver than the one at hand."""

    def loaded(driver: Any, code: bytes) -> Any:
        try:
            return load(driver, code)
        except DriverFault as fault:
            if "UNSUPPORTED_PTX_VERSION" in fault.code or _NEWER_TARGET.search(str(fault)):
                pytest.skip(f"--device=cuda: {fault}")
            raise

    return loaded


def _text(module: emulator.Module, entry: str, cluster: Sequence[int]) -> bytes:
    """The text without lines of sources, which name debug sections that stored kernels have no more.

    It names the clusters of the launch, which the emulator takes as an argument: a device makes the same of both (PTX
    ISA, ".reqnctapercluster").
    """
    text = "\n".join(line for line in module.lines if not _SOURCE_LINE.match(line))
    if cluster and "reqnctapercluster" not in link(module, entry).entry.limits:
        start = re.compile(rf"(\.entry\s+{re.escape(entry)}(?![\w$])[^{{]*){{")
        text = start.sub(rf"\1.reqnctapercluster {', '.join(map(str, cluster))} {{", text, count=1)
    return text.encode()


def _array(argument: Any) -> Any:
    """The array of an argument that is memory."""
    if isinstance(argument, emulator.Uninitialised | emulator.TensorMap):
        return argument.array
    return argument if isinstance(argument, np.ndarray) and argument.ndim else None


def _argument(parameter: Storage, argument: Any, number: int) -> Argument:
    """A pointer to an array whose address is not known yet, a null pointer, a scalar, or a tensor map."""
    array = _array(argument)
    if array is None:
        bits = b"" if argument is None else scalar_bytes(np.asarray(argument), parameter, f"p{number}").tobytes()
        return Slot("scalar", 0, int.from_bytes(bits, "little"))
    slot = Slot("argument", array.nbytes)
    if isinstance(argument, emulator.TensorMap):
        extents = argument.extents or array.shape
        strides = argument.strides or array.strides
        return MappedSlot(slot, TensorMap(0, argument.kind, extents, strides, argument.box, argument.swizzle))
    if parameter.bytes != 8 or (parameter.variable.count or 0) != 1:
        pytest.skip("--device=cuda: structures are not given to a device here")
    return slot


def _map_in_memory(driver: CudaDriver, seen: MappedSlot, address: int) -> Slot:
    """A pointer to a tensor map that is put at an address of the device's memory.

    A kernel acquires such a map before it uses it: ``fence.proxy.tensormap::generic.acquire.sys``.
    """
    encoded = EncodedMap(driver, seen)
    encoded.encode()
    driver.upload(address, ctypes.addressof(encoded.place), MAP_BYTES, 0)
    driver.synchronize(0)  # the bytes on the host go with this function
    return Slot("tensor map", MAP_BYTES, address)
