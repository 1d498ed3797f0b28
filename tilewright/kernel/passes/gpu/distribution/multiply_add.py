"""Products of tiles without a matrix instruction: every thread has a tile of the result, and its rows and columns.

A lane holds neighbouring columns of c, all of k of its rows of a and of its columns of b; lanes in a row of lanes hold
the same rows, lanes in a column the same columns.
"""

from __future__ import annotations

from functools import lru_cache

from tilewright.kernel.passes.gpu.distribution.layout import canonical, shares
from tilewright.layouts.blocked import Blocked
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.mma import DotOperand

NEIGHBOURS = 4  # columns that a thread has side by side: 16 bytes of f32

Layouts = tuple[LinearLayout, LinearLayout, LinearLayout]


@lru_cache(maxsize=1024)
def multiply_add_layouts(extents: tuple[int, int, int], warps: tuple[int, int], lanes: int) -> Layouts:
    """Layouts of a (M x K), b (K x N) and c (M x N)."""
    m, n, k = extents
    rows, columns = max(1, m // warps[0]), max(1, n // warps[1])
    wide = min(NEIGHBOURS, columns)
    across = 1
    while across * across < lanes and across * wide < columns:
        across *= 2
    down = lanes // across
    parent = Blocked((max(1, rows // down), wide), (down, across), warps, (1, 0))
    a, b = (DotOperand(index, parent) for index in range(2))
    return (
        canonical(a.to_linear((m, k))), canonical(b.to_linear((k, n))), canonical(parent.to_linear((m, n))),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def rows_of(layouts: Layouts) -> tuple[tuple[tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]], ...]:
    """The registers of c, row by row: for each row its registers, and for every k the register of a and those of b."""
    a, b, c = (shares(layout) for layout in layouts)
    of_a = {(m, k): register for register, (m, k) in enumerate(zip(a[0].registers, a[1].registers, strict=True))}
    of_b = {(k, n): register for register, (k, n) in enumerate(zip(b[0].registers, b[1].registers, strict=True))}
    rows: dict[int, list[int]] = {}
    for register, row in enumerate(c[0].registers):
        rows.setdefault(row, []).append(register)
    return tuple(
        (
            tuple(registers),
            tuple(
                (of_a[row, k], tuple(of_b[k, c[1].registers[register]] for register in registers))
                for k in sorted(set(a[1].registers))
            ),
        )
        for row, registers in rows.items()
    )
