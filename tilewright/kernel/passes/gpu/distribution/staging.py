"""How a tile passes through shared memory from one layout to another: where its elements lie, and how they are read."""

from __future__ import annotations

from functools import lru_cache

from tilewright.kernel.passes.gpu.distribution.layout import INPUTS
from tilewright.layouts.access import MatrixLoad, contiguity, matrix_load, row_major_memory
from tilewright.layouts.linear import LinearLayout, dims
from tilewright.layouts.shared import swizzle_for_dot
from tilewright.layouts.swizzle import shared_for_pair
from tilewright.layouts.text import parse


@lru_cache(maxsize=1024)
def staging(source: LinearLayout, target: LinearLayout, bits: int) -> tuple[LinearLayout, MatrixLoad | None]:
    """Offset to index, and the matrix loads that read it; without them, threads read their registers.

    Matrix loads from a swizzled tile where the lanes of `target` hold 8 x 8 matrices and the writes stay wide; else
    memory in which neither side has bank conflicts.
    """
    pair = shared_for_pair(source, target, bits)
    if len(source.shape) != 2 or bits not in (8, 16, 32) or not source.of("register"):
        return pair, None
    fastest = 1 if source.of("register")[0][1] else 0
    wide = contiguity(source, pair)
    for index in range(2):
        memory = swizzle_for_dot(index, source.shape, (fastest, 1 - fastest), bits).to_linear(source.shape)
        load = matrix_load(target, memory, bits)
        if load is not None and not load.access.conflicts and contiguity(source, memory) >= wide:
            return memory, load
    return pair, None


@lru_cache(maxsize=1024)
def places(layout: LinearLayout, memory: LinearLayout) -> LinearLayout:
    """Place in registers to offset in memory, as the layout of a tile of one dimension."""
    found = layout.invert_and_compose(memory)
    return LinearLayout(tuple((name, found.of(name)) for name in INPUTS), ((dims(1)[0], found.shape[0]),))


@lru_cache(maxsize=1024)
def memory_of(text: str, extents: tuple[int, ...]) -> LinearLayout:
    """The layout of a tile in shared memory, from offsets to elements; row-major without a text."""
    return parse(text).to_linear(extents) if text else row_major_memory(extents)
