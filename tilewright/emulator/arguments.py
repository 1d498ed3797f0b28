"""Arguments of a launch: buffers get addresses, scalars become the bytes of their parameters."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.link import Linked, Storage
from tilewright.emulator.memory import GlobalMemory
from tilewright.emulator.scalars import WIDTHS, Array
from tilewright.emulator.tensor_maps import TensorMap
from tilewright.errors import InvalidArgument


@dataclass(frozen=True)
class Uninitialised:
    """A buffer whose contents nothing has written yet: reading it before a store is a diagnostic."""

    array: Array


Argument = Any  # an array, a scalar, an Uninitialised, a TensorMap, or None for a null pointer


@dataclass
class Placed:
    """Where the parameters are, and which buffers belong to which arguments."""

    address: int
    buffers: dict[int, tuple[int, Array]] = field(default_factory=dict)

    def write_back(self, memory: GlobalMemory) -> dict[int, Array]:
        """Copy the buffers back into the arrays; returns them by the number of the argument."""
        found = {}
        for argument, (number, array) in self.buffers.items():
            contents = memory.contents(number).view(array.dtype.newbyteorder("<")).reshape(array.shape)
            if array.flags.writeable:
                array[...] = contents
                found[argument] = array
            else:
                found[argument] = contents.copy()
        return found


def place_arguments(memory: GlobalMemory, linked: Linked, args: Any) -> Placed:
    """Raises InvalidArgument where an argument does not fit its parameter."""
    if len(args) > len(linked.parameters):
        raise InvalidArgument(
            f"{len(args)} arguments, {linked.entry.name} has {len(linked.parameters)} parameters", where="arguments"
        )
    views: dict[int, Argument] = {}  # by what was given: one that is given twice is one buffer
    for number, argument in enumerate(args):
        if id(argument) not in views:
            views[id(argument)] = _viewed(argument, f"p{number}")
    args = [views[id(argument)] for argument in args]
    placed = Placed(0)
    block = np.zeros(max(1, linked.parameter_bytes), np.uint8)
    for number, parameter in enumerate(linked.parameters):
        argument = args[number] if number < len(args) else None
        raw = _bytes_of(memory, placed, number, parameter, argument)
        block[parameter.offset : parameter.offset + len(raw)] = raw
    placed.address = memory.add("the parameters", block, constant=True)
    return placed


def _viewed(argument: Argument, where: str) -> Argument:
    """A tensor of another library as an array of NumPy on the same memory; other arguments as they are."""
    if isinstance(argument, np.ndarray | np.generic) or not hasattr(argument, "__array__"):
        return argument
    try:
        return np.asarray(argument)
    except (TypeError, ValueError, RuntimeError) as error:
        help = "a tensor on the CPU; for types that NumPy lacks, a view as integers of their size"
        raise InvalidArgument(f"a {type(argument).__name__} is no array: {error}", where=where, help=help) from error


def _bytes_of(memory: GlobalMemory, placed: Placed, number: int, parameter: Storage, argument: Argument) -> Array:
    where, length = f"p{number}", parameter.bytes
    if argument is None:
        if length != 8 or parameter.variable.type in ("f64", "f32"):
            raise InvalidArgument("is missing", where=where, help=f"{parameter.variable.name} is a {_kind(parameter)}; "
                                  "only pointers may be left out")  # fmt: skip
        return np.zeros(length, np.uint8)
    if isinstance(argument, TensorMap):
        return _tensor_map(memory, placed, number, parameter, argument)
    fresh = isinstance(argument, Uninitialised)
    if fresh:
        argument = argument.array
    if np.asarray(argument).dtype.kind in "OUMm":
        raise InvalidArgument(f"elements of type {np.asarray(argument).dtype}", where=where,
                              help="numbers, or raw bytes as uint8")  # fmt: skip
    if isinstance(argument, np.ndarray) and argument.ndim > 0:
        array = _raw(argument)
        contents = array.view(np.uint8)
        if length != 8 or (parameter.variable.count or 0) != 1:
            if len(contents) != length:
                raise InvalidArgument(f"{len(contents)} bytes for a {_kind(parameter)} of {length}", where=where)
            return contents
        address = _buffer(memory, placed, number, argument, fresh=fresh)
        return np.frombuffer(address.to_bytes(8, "little"), np.uint8)
    return scalar_bytes(np.asarray(argument), parameter, where)


def _tensor_map(memory: GlobalMemory, placed: Placed, number: int, parameter: Storage, argument: TensorMap) -> Array:
    """The 128 bytes of a map, or the address of a buffer that holds them."""
    raw = argument.encode(_buffer(memory, placed, number, argument.array, fresh=False))
    if parameter.bytes == len(raw):
        return raw
    if parameter.bytes != 8:
        raise InvalidArgument(f"a tensor map for a parameter of {parameter.bytes} bytes", where=f"p{number}",
                              help="128 bytes, or a pointer")  # fmt: skip
    address = memory.add(f"the tensor map p{number}", raw, constant=True)
    return np.frombuffer(address.to_bytes(8, "little"), np.uint8)


def _buffer(memory: GlobalMemory, placed: Placed, number: int, array: Array, *, fresh: bool) -> int:
    """The address of a buffer; an array that is there already is not placed again."""
    for known, other in placed.buffers.values():
        if other is array:
            return memory.address(known)
    address = memory.add(f"p{number}", _raw(array), undefined=fresh)
    placed.buffers[number] = (len(memory.names) - 1, array)
    return address


def _raw(array: Array) -> Array:
    """The bytes of an array in memory order of a device: rows first, lowest byte first."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def _kind(parameter: Storage) -> str:
    count, kind = parameter.variable.count or 0, parameter.variable.type
    return f"scalar .{kind}" if count == 1 else f"structure of {parameter.bytes} bytes"


def scalar_bytes(value: Array, parameter: Storage, where: str) -> Array:
    """A scalar in the size of its parameter: the same bytes, or a conversion within its kind."""
    length = parameter.bytes
    kind = parameter.variable.type
    value = value.astype(value.dtype.newbyteorder("<"))
    if value.dtype.kind == "f" and kind[0] in "us":
        message = f"{value.dtype} {value} for a parameter .{kind}"
        raise InvalidArgument(message, where=where, help="an integer, or an array for a pointer")
    if value.dtype.kind in "iub" and kind in ("f32", "f64", "f16"):
        value = value.astype(np.float64)
    if value.dtype.itemsize != length:
        if value.dtype.kind in "iub":
            width = 8 * length
            if not -(1 << (width - 1)) <= int(value) < 1 << width or width not in (8, 16, 32, 64):
                raise InvalidArgument(f"{int(value)} does not fit .{kind}", where=where)
            return np.frombuffer((int(value) & ((1 << width) - 1)).to_bytes(length, "little"), np.uint8)
        if value.dtype.kind != "f" or length not in (2, 4, 8):
            raise InvalidArgument(f"{value.dtype} for a parameter .{kind} of {length} bytes", where=where,
                                  help=f"a scalar of {WIDTHS[kind]} bits")  # fmt: skip
        value = value.astype({2: np.float16, 4: np.float32, 8: np.float64}[length])
    return np.frombuffer(value.tobytes(), np.uint8)
