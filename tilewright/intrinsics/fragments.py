"""Fragments as arrays: which element lanes hold, scattering tiles into registers and gathering them back.

Also the ways in which shared memory feeds them: `ldmatrix`, swizzled tiles and matrix descriptors.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument, InvalidIntrinsic
from tilewright.intrinsics.elements import Array
from tilewright.intrinsics.formula import formula
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic, Operand

_LARGEST = 1 << 20  # elements of one fragment, over all lanes


@cache
def places(fragment: Fragment) -> tuple[Array, ...]:
    """Per operand loop the index that element `e` of lane `lane` holds: arrays of shape (lanes, elements).

    Raises InvalidIntrinsic where an index is not a formula of `lane` and `e`.
    """
    lanes, elements = fragment.lanes, fragment.elements
    if lanes < 1 or elements < 1 or lanes * elements > _LARGEST:
        raise InvalidIntrinsic(f"a fragment of {lanes} lanes x {elements} elements", help=f"1 to {_LARGEST} in all")
    values = {"lane": np.arange(lanes)[:, None], "e": np.arange(elements)[None, :]}
    found = []
    for text in fragment.indices:
        index = formula(text)
        if unknown := index.names - set(values):
            raise InvalidIntrinsic(f"{sorted(unknown)[0]!r} is unknown in index {text!r}", help="use lane and e")
        found.append(np.broadcast_to(np.asarray(index(values), np.int64), (lanes, elements)))
    return tuple(found)


def fragment_of(record: Intrinsic, role: str) -> tuple[Operand, Fragment]:
    """An operand with its fragment; raises InvalidArgument where its layout is another."""
    operand = record.operand(role)
    if not isinstance(operand.layout, Fragment):
        raise InvalidArgument(f"{role} has layout {operand.layout!r}, not a fragment of lanes", where=record.name)
    return operand, operand.layout


def to_registers(fragment: Fragment, tile: Array) -> Array:
    """Registers (..., lanes, elements) that hold a tile (..., loops of the operand)."""
    where: Any = (..., *places(fragment))
    return np.asarray(tile[where])


def from_registers(fragment: Fragment, registers: Array, shape: tuple[int, ...]) -> Array:
    """The tile that registers (..., lanes, elements) hold.

    Raises InvalidArgument where lanes that hold the same element differ: hardware reads any of them.
    """
    tile = np.zeros((*registers.shape[:-2], *shape), registers.dtype)
    where: Any = (..., *places(fragment))
    tile[where] = registers
    if fragment.replicated:
        one, other = (np.ascontiguousarray(each).view(np.uint8) for each in (to_registers(fragment, tile), registers))
        differs = one != other
        if differs.any():
            *_, lane, byte = (int(number) for number in np.argwhere(differs)[0])
            element = byte // registers.dtype.itemsize
            raise InvalidArgument(f"lane {lane}, element {element} differs from another lane with the same element")
    return tile


def execute_registers(record: Intrinsic, dst: Array, *sources: Array) -> Array:
    """As `execute`, on registers (..., lanes, elements): gathers tiles, executes, scatters the result."""
    from tilewright.intrinsics.execute import execute

    tiles = []
    for operand, registers in zip(record.operands, (*sources, dst), strict=True):
        _, fragment = fragment_of(record, operand.role)
        tiles.append(from_registers(fragment, registers, record.shape(operand)))
    return to_registers(fragment_of(record, record.destination.role)[1], execute(record, tiles[-1], *tiles[:-1]))


def ldmatrix(shared: Array, row_bytes: Array, count: int, *, transposed: bool = False) -> Array:
    """Registers (32 lanes, 4 * `count` bytes) that ``ldmatrix.m8n8.x<count>[.trans].b16`` loads.

    `shared` is shared memory as bytes; `row_bytes[8 * m + row]` is the address of a row of matrix m, eight 16-bit
    elements. Raises InvalidArgument for a count other than 1, 2, 4 and for rows that are not 16-byte aligned.
    """
    rows = np.asarray(row_bytes, np.int64)[: 8 * count]
    if count not in (1, 2, 4) or len(rows) != 8 * count or (rows % 16).any():
        raise InvalidArgument(f"ldmatrix.x{count} with rows at {rows.tolist()}", help="x1, x2, x4; 16-byte aligned")
    matrices = shared[rows[:, None] + np.arange(16)].view(np.uint16).reshape(count, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    lane, half = np.arange(32)[:, None], np.arange(2)[None, :]
    registers = matrices[:, lane // 4, 2 * (lane % 4) + half]  # matrix, lane, half
    return np.ascontiguousarray(registers.transpose(1, 0, 2)).reshape(32, -1).view(np.uint8)


_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}  # span in bytes -> bits 62-63 of a descriptor


def swizzle(address: Array | int, span_bytes: int) -> Array:
    """The byte address in shared memory of a byte address in a tile whose rows are `span_bytes` long: an involution.

    16-byte chunks change places within their row of 32, 64 or 128 bytes, by the number of the 128-byte line.

    >>> hex(swizzle(0x3A0, 128))
    '0x3d0'
    """
    if span_bytes not in _SWIZZLES:
        raise InvalidArgument(f"no swizzle of {span_bytes} bytes", help="0 (none), 32, 64 or 128")
    mask = span_bytes // 16 - 1 if span_bytes else 0
    at = np.asarray(address, np.int64)
    return np.asarray(at ^ (((at >> 7) & mask) << 4))[()]


@dataclass(frozen=True)
class Descriptor:
    """A matrix descriptor of shared memory: where a tile starts, how its core matrices lie, how it is swizzled.

    Offsets are bytes, multiples of 16 below 256 KiB. `leading` is the distance of neighbouring core matrices along K,
    `stride` that of groups of 8 rows; swizzled K-major tiles do not use `leading` (16 is encoded).
    """

    start: int
    leading: int
    stride: int
    swizzle_bytes: int = 0
    base_offset: int = 0

    def encode(self) -> int:
        """The 64 bits: start 0-13, leading 16-29, stride 32-45 (each / 16), base offset 49-51, swizzle 62-63."""
        for name in ("start", "leading", "stride"):
            value = getattr(self, name)
            if value % 16 or not 0 <= value < 1 << 18:
                raise InvalidArgument(f"descriptor with {name} {value}", help="a multiple of 16 below 262144")
        if self.swizzle_bytes not in _SWIZZLES or not 0 <= self.base_offset < 8:
            raise InvalidArgument(f"descriptor with swizzle {self.swizzle_bytes}, base offset {self.base_offset}",
                                  help="swizzle 0, 32, 64 or 128; base offset 0 to 7")  # fmt: skip
        fields = self.start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        return fields | self.base_offset << 49 | _SWIZZLES[self.swizzle_bytes] << 62
