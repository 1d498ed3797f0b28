"""Which matrix element a lane's registers hold: the emulator's own tables, from the formulas of the PTX ISA.

A lane is in group ``g = lane // 4`` with number ``t = lane % 4``. A register of 32 bits holds ``w = 32 / bits``
elements side by side along K (one, if an element has 32 bits or more). Rows 0-7 and 8-15 of A, and the halves of K,
are in registers of their own.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.scalars import Array


@dataclass(frozen=True)
class Fragment:
    """Row and column of element `e` of lane `lane`: arrays (lanes, elements), for a matrix of `shape`."""

    rows: Array
    columns: Array
    shape: tuple[int, int]

    @property
    def elements(self) -> int:
        return int(self.rows.shape[1])

    def gather(self, registers: Array) -> Array:
        """The matrices (n, rows, columns) that registers (n, lanes, elements) hold."""
        found = np.zeros((len(registers), *self.shape), registers.dtype)
        found[:, self.rows, self.columns] = registers
        return found

    def scatter(self, matrices: Array) -> Array:
        """The registers (n, lanes, elements) of matrices."""
        return np.asarray(matrices[:, self.rows, self.columns])


def _grid(elements: int, lanes: int = 32) -> tuple[Array, Array]:
    lane, element = np.indices((lanes, elements))
    return lane, element


@cache
def mma_a(m: int, k: int, bits: int) -> Fragment:
    """A of ``mma``: M x K, M 8 or 16."""
    lane, e = _grid(m * k // 32)
    wide = max(1, 32 // bits)
    register, part = e // wide, e % wide
    if m == 8:
        return Fragment(lane // 4, wide * (lane % 4) + part + 4 * wide * register, (m, k))
    rows = lane // 4 + 8 * (register % 2)
    return Fragment(rows, wide * (lane % 4) + part + 4 * wide * (register // 2), (m, k))


@cache
def mma_b(k: int, n: int, bits: int) -> Fragment:
    """B of ``mma``: K x 8."""
    lane, e = _grid(k * n // 32)
    wide = max(1, 32 // bits)
    register, part = e // wide, e % wide
    return Fragment(wide * (lane % 4) + part + 4 * wide * register, lane // 4, (k, n))


@cache
def mma_c(m: int, n: int) -> Fragment:
    """C and D of ``mma``: M x 8, two neighbours in a row, then the row 8 below."""
    lane, e = _grid(m * n // 32)
    return Fragment(lane // 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2, (m, n))


@cache
def wgmma_a(k: int, bits: int) -> Fragment:
    """A of ``wgmma`` in registers: 16 rows per warp, each as in ``mma``."""
    lane, e = _grid(64 * k // 128, 128)
    one = mma_a(16, k, bits)
    return Fragment(16 * (lane // 32) + one.rows[lane % 32, e], one.columns[lane % 32, e], (64, k))


@cache
def wgmma_d(n: int) -> Fragment:
    """D of ``wgmma``: 64 x N, blocks of 8 columns one after the other."""
    lane, e = _grid(n // 2, 128)
    rows = 16 * (lane // 32) + lane % 32 // 4 + 8 * (e // 2 % 2)
    return Fragment(rows, 2 * (lane % 4) + e % 2 + 8 * (e // 4), (64, n))


@cache
def wmma(rows: int, columns: int, elements: int) -> Fragment:
    """Fragments of ``wmma``, whose layout PTX leaves open: lane by lane in row-major order, repeated if it fits."""
    lane, e = _grid(elements)
    place = (lane * elements + e) % (rows * columns)
    return Fragment(place // columns, place % columns, (rows, columns))


@cache
def wmma_passes(rows: int, columns: int, element_bytes: int, column_major: bool) -> tuple[Fragment, ...]:
    """What the lanes of a warp touch in each pass as a fragment of ``wmma`` is loaded or stored.

    PTX leaves that open, too: here 8 lanes take 16 bytes each of 8 rows (columns, if those lie side by side), so that
    fragments want of memory what ``ldmatrix`` does; lanes share the 16 bytes where there are few.
    """
    major, minor = (columns, rows) if column_major else (rows, columns)
    chunk = min(minor, 16 // element_bytes)
    wide = min(chunk, max(1, rows * columns // 32))
    shares = chunk // wide
    lane, e = _grid(wide)
    found = []
    for first in range(0, rows * columns // wide, 32):
        piece = first + lane
        along = piece // (shares * major) * chunk + piece % shares * wide + e
        across = piece // shares % major
        row, column = (along, across) if column_major else (across, along)
        found.append(Fragment(row, column, (rows, columns)))
    return tuple(found)


@cache
def matrix_8x8(transposed: bool) -> tuple[Array, Array]:
    """``ldmatrix``: row and column (32 lanes, 2 halves) of an 8 x 8 matrix of 16 bits that a register holds."""
    lane, half = _grid(2)
    across, along = lane // 4, 2 * (lane % 4) + half
    return (along, across) if transposed else (across, along)
