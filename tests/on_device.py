"""A launch as the emulator takes it, run by the emulator and by a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tilewright import emulator
from tilewright.emulator.run import run as emulate
from tilewright.runtime.cuda.driver import Argument, Driver, MappedSlot, Slot
from tilewright.runtime.manifest import Kernel, TensorMap

Extents = tuple[int, int, int]


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
    """Findings and counts of the emulator; in the arrays, what the device computed from the same contents."""
    arrays = {id(array): array for array in map(_array, args) if array is not None}
    before = {key: np.ascontiguousarray(array).copy() for key, array in arrays.items()}
    result = emulate(module, entry, grid, block, args, shared_bytes, **options)
    if not result.findings:  # a kernel that is known to fault would take the device with it
        after = on_device(driver, module, Kernel(entry, entry, grid, block, shared_bytes), args, before)
        for key, array in arrays.items():
            array[...] = after[key]
    return result


def on_device(
    driver: Driver, module: emulator.Module, kernel: Kernel, args: Sequence[Any], contents: dict[int, Any]
) -> dict[int, Any]:
    """The contents of every array after the launch, by the identity of the argument's array."""
    addresses = {key: driver.allocate(max(1, array.nbytes)) for key, array in contents.items()}
    library = driver.load("\n".join(module.lines).encode())
    try:
        for key, array in contents.items():
            driver.upload(addresses[key], array.ctypes.data, array.nbytes, 0)
        launch = driver.prepare(library, kernel, [_argument(argument, addresses, contents) for argument in args])
        driver.launch(launch, 0)
        driver.synchronize(0)
        found = {key: np.empty_like(array) for key, array in contents.items()}
        for key, array in found.items():
            driver.download(array.ctypes.data, addresses[key], array.nbytes, 0)
        return found
    finally:
        driver.unload(library)
        for address in addresses.values():
            driver.free(address)


def _array(argument: Any) -> Any:
    """The array of an argument that is memory."""
    if isinstance(argument, emulator.Uninitialised | emulator.TensorMap):
        return argument.array
    return argument if isinstance(argument, np.ndarray) and argument.ndim else None


def _argument(argument: Any, addresses: dict[int, int], contents: dict[int, Any]) -> Argument:
    array = _array(argument)
    if array is None:
        pytest.skip("--device=cuda: only arrays are given to a device here")
    slot = Slot("argument", contents[id(array)].nbytes, addresses[id(array)])
    if not isinstance(argument, emulator.TensorMap):
        return slot
    extents = argument.extents or array.shape
    strides = argument.strides or array.strides
    return MappedSlot(slot, TensorMap(0, argument.element, extents, strides, argument.box, argument.swizzle))
