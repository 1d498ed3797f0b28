"""Products of tiles without a matrix instruction: every thread has a tile of the result, and its rows and columns.

A thread's tile is as square as its lanes allow, so that it reads the fewest elements of a and b per product. It is made
of blocks of `NEIGHBOURS` rows and columns, one vector access each of a and of b in shared memory; lanes lie between the
blocks, so that the lanes of a group read places side by side.
"""

from __future__ import annotations

from functools import lru_cache

from tilewright.kernel.passes.gpu.distribution.layout import canonical, shares
from tilewright.layouts.bits import log2
from tilewright.layouts.linear import LinearLayout, along, dims, product, repeated

NEIGHBOURS = 4  # rows, and columns, that a thread has side by side: 16 bytes of f32

Layouts = tuple[LinearLayout, LinearLayout, LinearLayout]


@lru_cache(maxsize=1024)
def multiply_add_layouts(extents: tuple[int, int, int], warps: tuple[int, int], lanes: int) -> Layouts:
    """Layouts of a (M x K), b (K x N) and c (M x N).

    Lanes that differ in bit 0 of their number have the same rows, those that differ in bit 1 the same columns. NVIDIA's
    GPUs are said to serve 16 lanes at once, instead of 8, where all lanes read the same 16 bytes as their neighbour by
    one of these two bits.
    """
    m, n, k = extents
    rows, columns = dims(2)
    high, wide = max(1, m // warps[0]), max(1, n // warps[1])
    down, across = lanes_of((high, wide), lanes)
    tall, broad = (min(NEIGHBOURS, max(1, size // count)) for size, count in ((high, down), (wide, across)))
    pair_across, pair_down = min(2, across), min(2, down)

    def factor(name: str, count: int, dim: str, kept: str) -> LinearLayout:
        return along(name, count, dim) if kept in ("", dim) else repeated(name, count)

    def threads(kept: str) -> tuple[list[LinearLayout], list[LinearLayout]]:
        """Lanes and warps, where other dimensions than the one that is kept repeat."""
        lane = ((pair_across, columns), (pair_down, rows), (across // pair_across, columns), (down // pair_down, rows))
        warp = ((warps[1], columns), (warps[0], rows))
        return (
            [factor("lane", count, dim, kept) for count, dim in lane],
            [factor("warp", count, dim, kept) for count, dim in warp],
        )

    def operand(near: int, far: int, own: str, of_k: str, shape: tuple[int, int]) -> LinearLayout:
        lane, warp = threads(own)
        parts = (along("register", near, own), along("register", k, of_k), *lane, along("register", far, own), *warp)
        return canonical(product(2, *parts).fit(shape, (0, 1)))

    more_rows, more_columns = (max(1, size // part) for size, part in ((high, tall * down), (wide, broad * across)))
    lane, warp = threads("")
    near = along("register", broad, columns), along("register", tall, rows)
    far = along("register", more_columns, columns), along("register", more_rows, rows)
    return (
        operand(tall, more_rows, rows, columns, (m, k)),
        operand(broad, more_columns, columns, rows, (k, n)),
        canonical(product(2, *near, *lane, *far, *warp).fit((m, n), (1, 0))),
    )


def lanes_of(tile: tuple[int, int], lanes: int) -> tuple[int, int]:
    """Lanes along the rows and columns of a warp's tile: their own tiles have the fewest rows and columns together.

    Among equals, those with more columns, which lie side by side in memory.

    >>> lanes_of((32, 64), 32)
    (4, 8)
    """
    high, wide = tile
    found = [(1 << bit, lanes >> bit) for bit in range(log2(lanes) + 1)]
    return min(found, key=lambda each: (max(1, high // each[0]) + max(1, wide // each[1]), each[1]))


@lru_cache(maxsize=1024)
def rows_of(layouts: Layouts) -> tuple[tuple[tuple[int, ...], tuple[tuple[int, tuple[int, ...]], ...]], ...]:
    """The registers of c, row by row: for each row its registers, and for every k the register of a and those of b.

    Every second row comes from its end to its start: where rows meet, two products in a row share a factor of b, as
    those of a row share one of a, and read two registers each. Of three, all may lie in one bank.
    """
    a, b, c = (shares(layout) for layout in layouts)
    of_a = {(m, k): register for register, (m, k) in enumerate(zip(a[0].registers, a[1].registers, strict=True))}
    of_b = {(k, n): register for register, (k, n) in enumerate(zip(b[0].registers, b[1].registers, strict=True))}
    rows: dict[int, list[int]] = {}
    for register, row in enumerate(c[0].registers):
        rows.setdefault(row, []).append(register)
    for own in list(rows.values())[1::2]:
        own.reverse()
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
