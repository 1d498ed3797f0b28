"""Layouts as the tables that people draw: for every element, which thread and register holds it, or at which offset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.form import Distributed, InShared
from tilewright.layouts.linear import SHORT, LinearLayout

_MOST = 1 << 14  # elements of a drawing


@dataclass(frozen=True)
class Cell:
    """An element: its text, and the numbers by which it is coloured (warp and lane, or offset)."""

    text: str
    warp: int = 0
    lane: int = 0
    offset: int = -1


def cells(layout: LinearLayout | Distributed | InShared, shape: Sequence[int]) -> list[Cell]:
    """What to draw for every element of a tile, in row-major order.

    ``T5:1`` is register 1 of thread 5 (32 * warp + lane for warps of 32), ``+3`` that three more places hold it.
    Raises InvalidArgument for tiles of more than 16384 elements.
    """
    if prod(shape) > _MOST:
        raise InvalidArgument(f"a drawing of {prod(shape)} elements", help=f"at most {_MOST}: draw a part, as 64x64")
    if isinstance(layout, InShared):
        return [Cell(str(offset), offset=offset) for offset in map(int, layout.offsets(shape).reshape(-1))]
    linear = layout.to_linear(shape)
    first, count = _first_places(linear)
    coordinates = dict(zip(reversed(linear.in_names), np.unravel_index(first, linear.table().shape), strict=True))
    zero = np.zeros_like(first)
    if "offset" in coordinates:
        return [Cell(f"{at}{_more(n)}" if n else "-", offset=int(at)) for at, n in zip(first, count, strict=True)]
    warp, lane, register = (coordinates.get(name, zero) for name in ("warp", "lane", "register"))
    threads = linear.in_size("lane")
    return [
        Cell(f"T{w * threads + x}:{r}{_more(n)}" if n else "-", int(w), int(x))
        for w, x, r, n in zip(warp, lane, register, count, strict=True)
    ]


def table(layout: LinearLayout | Distributed | InShared, shape: Sequence[int]) -> str:
    """The tile as text: one line per row; tiles of three and more dimensions matrix by matrix.

    >>> from tilewright.layouts.blocked import Blocked
    >>> print(table(Blocked((1, 2), (2, 2), (1, 1), (1, 0)), (2, 4)))
          0     1     2     3
    0  T0:0  T0:1  T1:0  T1:1
    1  T2:0  T2:1  T3:0  T3:1
    """
    found = [cell.text for cell in cells(layout, shape)]
    rows, columns = matrix_of(shape)
    width = max(len(text) for text in [*found, str(columns)])
    margin = len(str(rows - 1))
    lines = []
    for number, where in enumerate(slices(shape)):
        if where:
            lines.append(where)
        lines.append(" " * margin + "".join(f"  {column:>{width}}" for column in range(columns)))
        for row in range(rows):
            start = (number * rows + row) * columns
            lines.append(f"{row:>{margin}}" + "".join(f"  {text:>{width}}" for text in found[start : start + columns]))
    return "\n".join(lines)


def bases(layout: LinearLayout) -> str:
    """The bases, one input per line."""
    lines = []
    for name, vectors in layout.bases:
        texts = "  ".join(f"({','.join(map(str, base))})" for base in vectors)
        lines.append(f"{SHORT.get(name, name)}  {texts}".rstrip())
    return "\n".join(lines)


def matrix_of(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the matrices that a tile is drawn as."""
    return (shape[-2] if len(shape) > 1 else 1), (shape[-1] if shape else 1)


def slices(shape: Sequence[int]) -> list[str]:
    """A heading for every matrix of a tile: empty where there is only one."""
    outer = list(product(*(range(extent) for extent in shape[:-2])))
    return [f"[{', '.join(map(str, index))}]" if index else "" for index in outer]


def _first_places(layout: LinearLayout) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[int]]:
    """For every element the first place that holds it, and how many do."""
    flat = layout.table().reshape(-1)
    count = np.bincount(flat, minlength=1 << layout.out_bits)
    first = np.zeros(len(count), np.int64)
    first[flat[::-1]] = np.arange(len(flat))[::-1]  # the last write is that of the first place
    return first, [int(n) for n in count]


def _more(count: int) -> str:
    return f"+{count - 1}" if count > 1 else ""
