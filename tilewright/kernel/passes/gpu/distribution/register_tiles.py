"""Tiles that are read along one dimension and wanted along another: threads hold tiles, and transpose them in
registers.

Where lanes load what they hold, as matrix loads are not there, shared memory is read and written in runs of the
dimension along which fragments lie. A thread that has loaded runs of the other dimension has such runs too if what it
holds is a tile of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from tilewright.kernel.passes.gpu.distribution.layout import canonical
from tilewright.layouts.bits import log2
from tilewright.layouts.blocked import default_blocked
from tilewright.layouts.linear import LinearLayout

RUN_BYTES = 16  # of the widest access to shared memory


def thread_tiles(
    layout: LinearLayout, wanted: LinearLayout, fastest: int, size: int, warps: int, lanes: int
) -> LinearLayout | None:
    """A layout for the load of a tile whose threads hold tiles; None where `layout` is as good.

    `fastest` is the dimension of neighbours in memory and `size` the bytes of an element.
    """
    first = wanted.of("register")[:1]
    across = next((dim for dim, part in enumerate(first[0]) if part == 1), None) if first else None
    held = log2(prod(layout.shape) // (warps * lanes) or 1)
    if across in (None, fastest) or len(layout.shape) != 2 or held < 2:
        return None
    assert across is not None
    run = log2(RUN_BYTES // size)
    loaded = len([base for base in layout.of("register")[:run] if base[fastest]])
    along = min(loaded, (held + 1) // 2, log2(layout.shape[fastest]))
    up = min(run, held - along, log2(layout.shape[across]))
    if along < 1 or up < 1:
        return None
    sizes, order = [1, 1], (fastest, across)
    sizes[fastest], sizes[across] = 1 << along, 1 << up
    return canonical(default_blocked(layout.shape, sizes, order, warps, lanes).to_linear(layout.shape))


@lru_cache(maxsize=1024)
def transposed_registers(
    source: LinearLayout, target: LinearLayout, bits: int
) -> tuple[LinearLayout, Sequence[int]] | None:
    """`source` with the registers first that follow each other in `target`, and the order that makes it so.

    None where they are first already, or in other threads.
    """
    have = source.columns_of("register")
    wanted: list[int] = []
    for column in target.columns_of("register")[: log2(RUN_BYTES * 8 // bits)]:
        if column not in have or have.count(column) > 1:
            break
        wanted.append(have.index(column))
    if wanted == list(range(len(wanted))):
        return None
    order = [*wanted, *(bit for bit in range(len(have)) if bit not in wanted)]
    registers = source.of("register")
    bases = tuple(
        (name, tuple(registers[bit] for bit in order) if name == "register" else vectors)
        for name, vectors in source.bases
    )
    places = [0]
    for bit in order:
        places += [place | 1 << bit for place in places]
    return LinearLayout(bases, source.outs), places
