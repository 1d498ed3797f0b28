"""Storage that `Packed.pack` writes: fresh, or into memory that is there."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.layouts.packed import Packed, permuted, row_major

LAYOUTS = {
    "row major": row_major((3, 5)),
    "columns first, with a border": permuted((3, 5), (1, 0), ((1, 2), (0, 1))),
    "panels with padding": Packed((3, 5), ((1, 2), (0, 3), (1, 4)), ((0, 0), (0, 0))),
    "nothing": row_major((0, 5)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_packing_into_memory_is_packing(name: str) -> None:
    layout = LAYOUTS[name]
    values = np.arange(1, 1 + np.prod(layout.shape), dtype=np.float32).reshape(layout.shape)
    memory = np.full(layout.size, np.nan, np.float32)
    assert layout.pack(values, memory) is memory
    np.testing.assert_array_equal(memory, layout.pack(values))
    np.testing.assert_array_equal(layout.unpack(memory), values)
