"""A tile in shared memory row by row, without swizzle: plain, or with padding behind every row."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataclass import dataclass
from tilewright.layouts.access import MatrixLoad, matrix_load, row_major_memory
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.shared import Padded, padding_for
from tilewright.layouts.text import parse

MEMORIES = ("swizzled", "padded", "plain")
"""How tiles lie in shared memory between two layouts."""


@dataclass(frozen=True)
class Rows:
    """Rows of `columns` elements along the first dimension of `order`, `pad` elements behind each."""

    extents: tuple[int, int]
    order: tuple[int, int]
    pad: int

    def __str__(self) -> str:
        return str(Padded(self.pad, self.order))

    @property
    def columns(self) -> int:
        return self.extents[self.order[0]]

    @property
    def line(self) -> int:
        """Elements from one row to the next."""
        return self.columns + self.pad

    @property
    def elements(self) -> int:
        return self.extents[self.order[1]] * self.line

    @property
    def strides(self) -> Sequence[int]:
        return [1 if dim == self.order[0] else self.line for dim in range(2)]

    def matrix_load(self, layout: LinearLayout, bits: int) -> MatrixLoad | None:
        """How matrices of the rows fill a layout, with offsets as if there were no padding."""
        return matrix_load(layout, row_major_memory(self.extents, self.order), bits)


def padded_rows(memory: str, extents: Sequence[int]) -> Rows | None:
    """The rows that the text of a memory says; None where it is another layout.

    >>> padded_rows("#padded<pad=8, O=[1,0]>", (32, 16))
    Rows(extents=(32, 16), order=(1, 0), pad=8)
    """
    layout = parse(memory) if memory else None
    if not isinstance(layout, Padded):
        return None
    (rows, columns), (first, second) = extents, layout.order
    return Rows((rows, columns), (first, second), layout.pad)


def rows_between(source: LinearLayout, bits: int, memory: str) -> Rows | None:
    """Rows in the order in which `source` is written; None where a tile is swizzled, or has no rows of 16 bytes."""
    if memory == "swizzled" or len(source.shape) != 2:
        return None
    fastest = 1 if not source.of("register") or source.of("register")[0][1] else 0
    columns, group = source.shape[fastest], max(1, 128 // bits)
    if columns % group:
        return None
    extents = (source.shape[0], source.shape[1])
    return Rows(extents, (fastest, 1 - fastest), padding_for(columns, bits) if memory == "padded" else 0)
