"""Tiles in shared memory: swizzled by XOR, padded, and in the form that copy engines and warp groups read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import ClassVar

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.bits import is_power_of_two, log2, powers_around
from tilewright.layouts.copy_engine import SPANS, widest_span
from tilewright.layouts.form import InShared, checked_order
from tilewright.layouts.linear import Array, LinearLayout, dims, named


class _Swizzled(InShared):
    """Offsets are a linear map of the bits of the index, whose inverse is the linear layout."""

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """The index of the element at every offset."""
        return _indices(self, self.shaped(shape, self.rank))

    def elements(self, shape: Sequence[int]) -> int:
        return prod(shape)

    @property
    def rank(self) -> int:
        raise NotImplementedError


@lru_cache(4096)
def _indices(form: InShared, shape: tuple[int, ...]) -> LinearLayout:
    places, units = form.offsets(shape), np.eye(len(shape), dtype=np.int64)
    bases = {
        name: [(int(places[tuple(units[d] << bit)]),) for bit in range(log2(shape[d]))]
        for d, name in reversed(list(enumerate(dims(len(shape)))))  # the inverse lists them from the last to the first
    }
    return named(bases, {"offset": prod(shape)}).inverse()


@dataclass(frozen=True)
class Shared(_Swizzled):
    """Rows of which groups of `vec` elements change places: group number XOR phase.

    ``phase = (row / per_phase) mod max_phase``: `per_phase` consecutive rows share one of `max_phase` phases. Columns
    run along the first dimension of `order`, rows along the second. ``(1, 1, 1)`` is plain storage.
    """

    FORM: ClassVar[str] = "shared"
    KEYS: ClassVar[dict[str, str]] = {"vec": "vec", "perPhase": "per_phase", "maxPhase": "max_phase", "O": "order"}

    vec: int
    per_phase: int
    max_phase: int
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        for key in ("vec", "perPhase", "maxPhase"):
            self.powers(key)
        checked_order(self.order, self.rank, self)

    @property
    def rank(self) -> int:
        return len(self.order)

    def offsets(self, shape: Sequence[int]) -> Array:
        self.shaped(shape, self.rank)
        plain, _ = _row_major(shape, self.order)
        if self.rank < 2:
            return plain
        row = np.indices(tuple(shape))[self.order[1]]
        groups = max(1, shape[self.order[0]] // self.vec)
        phase = (row // self.per_phase) % self.max_phase % groups
        return np.asarray(plain ^ (phase * self.vec))


@dataclass(frozen=True)
class Padded(InShared):
    """Plain rows with `pad` elements behind each: extents need not be powers of two, and it is no linear map."""

    FORM: ClassVar[str] = "padded"
    KEYS: ClassVar[dict[str, str]] = {"pad": "pad", "O": "order"}

    pad: int
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise self.refuse(f"pad={self.pad}", help="0 or more elements")
        checked_order(self.order, len(self.order), self)

    def offsets(self, shape: Sequence[int]) -> Array:
        if len(shape) != len(self.order):
            raise self.refuse(f"a layout of {len(self.order)} dimensions for a tile of rank {len(shape)}")
        plain, row = _row_major(shape, self.order)
        return np.asarray(plain + row * self.pad)

    def elements(self, shape: Sequence[int]) -> int:
        rows = prod(shape[d] for d in self.order[1:])
        return rows * (shape[self.order[0]] + self.pad)

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Raises InvalidArgument unless there is no padding."""
        if self.pad:
            raise self.refuse("rows with padding are no linear map over bits", help="#shared<...>, or pad=0")
        return Shared(1, 1, 1, self.order).to_linear(shape)


@dataclass(frozen=True)
class NvmmaShared(_Swizzled):
    """Rows of `swizzle` bytes whose 16-byte groups change places: what copy engines write and warp groups read.

    The tile is cut into column tiles that are one row wide; `transposed` stores columns along dimension rank - 2.
    """

    FORM: ClassVar[str] = "nvmma"
    KEYS: ClassVar[dict[str, str]] = {"swizzle": "swizzle", "bits": "bits", "transposed": "transposed"}

    swizzle: int
    bits: int
    transposed: bool = False

    def __post_init__(self) -> None:
        if self.swizzle not in SPANS:
            raise self.refuse(f"rows of {self.swizzle} bytes", help="swizzle=32, 64 or 128")
        if self.bits not in (8, 16, 32):
            raise self.refuse(f"elements of {self.bits} bits", help="bits=8, 16 or 32")

    @property
    def rank(self) -> int:
        return 2

    @property
    def columns(self) -> int:
        """Elements of a row of a column tile."""
        return self.swizzle * 8 // self.bits

    def offsets(self, shape: Sequence[int]) -> Array:
        rows, width = self.shaped(shape, 2) if not self.transposed else reversed(self.shaped(shape, 2))
        if width < self.columns:
            raise self.refuse(
                f"rows of {width} elements", help=f"at least {self.columns}, or swizzle={width * self.bits // 8}"
            )
        row, column = np.indices((rows, width))
        vec, per_phase, max_phase = 128 // self.bits, 128 // self.swizzle, self.swizzle // 16
        phase = (row // per_phase) % max_phase
        within = (column % self.columns) ^ (vec * phase)
        found = column // self.columns * (rows * self.columns) + row * self.columns + within
        return np.asarray(found.T if self.transposed else found)


def swizzle_for_dot(index: int, shape: Sequence[int], order: Sequence[int], bits: int) -> Shared:
    """The swizzle of a dot operand that ``ldmatrix`` reads: 128-bit groups, phases of 128-byte lines.

    >>> str(swizzle_for_dot(0, (16, 16), (1, 0), bits=16))
    '#shared<vec=8, perPhase=4, maxPhase=2, O=[1,0]>'
    """
    if index not in (0, 1) or bits not in (8, 16, 32, 64):
        raise InvalidArgument(f"operand {index} of {bits} bits", help="operand 0 or 1 of 8, 16, 32 or 64 bits")
    checked_order(order, len(shape))
    if min(shape, default=0) < 1:
        raise InvalidArgument(f"an operand of {'x'.join(map(str, shape))}", help="extents of 1 and more")
    inner = order[0]
    group = 128 // bits
    per_phase = max(1, 1024 // (bits * shape[inner]))
    k = len(shape) - 1 - index
    vec, stride = (group, 8) if inner == k else (8, group)
    return Shared(vec, per_phase, max(1, stride // per_phase), tuple(order))


def nvmma_for(shape: Sequence[int], bits: int, transposed: bool = False) -> NvmmaShared:
    """The widest swizzle that rows of a tile fill; raises InvalidArgument for rows below 32 bytes."""
    checked_bits(bits)
    if len(shape) < 2:
        raise InvalidArgument(f"a swizzled tile of {len(shape)} dimensions", help="two or more")
    width = shape[-2] if transposed else shape[-1]
    row_bytes = width * bits // 8
    swizzle = widest_span(row_bytes)
    if swizzle is None:
        raise InvalidArgument(f"rows of {row_bytes} bytes for a swizzled tile", help=f"at least {256 // bits} elements")
    return NvmmaShared(swizzle, bits, transposed)


def padding_for(columns: int, bits: int) -> int:
    """Elements to pad rows with so that 16-byte groups of 8 consecutive rows lie in different banks: 0 or one group.

    >>> [padding_for(columns, 16) for columns in (8, 16, 64, 72)]
    [0, 8, 8, 0]
    """
    checked_bits(bits)
    group = 128 // bits
    if columns < 1 or columns % group:
        raise InvalidArgument(f"rows of {columns} elements of {bits} bits", help=f"a multiple of {group}: 16 bytes")
    return 0 if columns // group % 2 else group


def row_degree(columns: int, bits: int) -> int:
    """In how many accesses 8 consecutive rows of 16 bytes are read: ``gcd(row stride in 16 bytes, 8)``.

    >>> [row_degree(columns, 16) for columns in (16, 32, 64, 72)]
    [2, 4, 8, 1]
    """
    checked_bits(bits)
    units = columns * bits // 128
    if units * 128 != columns * bits or units < 1:
        raise InvalidArgument(f"rows of {columns * bits} bits", help="multiples of 128 bits")
    return int(np.gcd(units, 8))


def _row_major(shape: Sequence[int], order: Sequence[int]) -> tuple[Array, Array]:
    """Per element: its offset without swizzle, and the number of its row."""
    if not shape:
        zero = np.zeros((), np.int64)
        return zero, zero
    index = np.indices(tuple(shape))
    offset, stride = np.zeros(tuple(shape), np.int64), 1
    for d in order:
        offset += index[d] * stride
        stride *= shape[d]
    return offset, offset // shape[order[0]]


def checked_bits(bits: int) -> None:
    """Raise InvalidArgument for a width of elements that no layout has."""
    if not is_power_of_two(bits) or not 1 <= bits <= 128:
        raise InvalidArgument(f"elements of {bits} bits", help=f"a power of two up to 128: {powers_around(bits)}")
