"""Boxes of threads: what is loaded along one dimension has runs of the other one."""

from __future__ import annotations

import pytest

from tilewright.intrinsics.registry import standard
from tilewright.kernel.passes.gpu.distribution.layout import canonical
from tilewright.kernel.passes.gpu.distribution.matrix import dot_layouts
from tilewright.kernel.passes.gpu.distribution.register_tiles import thread_tiles, transposed_registers
from tilewright.layouts.blocked import coalesced_blocked
from tilewright.layouts.linear import LinearLayout

CASES = [
    ("wmmar3_16x16x16_f16_f32", 32, (64, 128), 2, (8, 8)),
    ("wmmar4_16x16x16_f16_f32", 32, (32, 64), 2, (4, 4)),
    ("mfma_16x16x32_s8_s32", 64, (64, 64), 1, (4, 4)),
    ("mfma_16x16x4_f32_f32", 64, (32, 64), 4, (2, 4)),
]


def loaded(extents: tuple[int, int], size: int, lanes: int) -> LinearLayout:
    return canonical(coalesced_blocked(extents, (1, 0), 16 // size, 4, lanes).to_linear(extents))


@pytest.mark.parametrize(("intrinsic", "lanes", "extents", "size", "tile"), CASES, ids=lambda value: str(value))
def test_boxes_have_runs_of_both_dimensions(
    intrinsic: str, lanes: int, extents: tuple[int, int], size: int, tile: tuple[int, int]
) -> None:
    """Operand b, k x n, whose rows of n lie in memory."""
    k, n = extents
    wanted = dot_layouts(standard().find(intrinsic), (64, n, k), 4, lanes)[1]
    layout = thread_tiles(loaded(extents, size, lanes), wanted, 1, size, 4, lanes)
    assert layout is not None
    assert layout.is_surjective
    assert layout.in_size("register") == max(1, k * n // (4 * lanes))
    rows, columns = (coordinates[0, 0] for coordinates in layout.coordinates())
    held = set(zip(rows.tolist(), columns.tolist(), strict=True))
    assert held >= {(row, column) for row in range(tile[0]) for column in range(tile[1])}
    assert columns[: tile[1]].tolist() == list(range(tile[1]))
    other = transposed_registers(layout, wanted, 8 * size)
    assert other is not None
    source, order = other
    assert (source.table() == layout.table()[..., list(order)]).all()
    rows = source.coordinates()[0][0, 0]
    assert rows[: tile[0]].tolist() == list(range(tile[0]))


def test_what_lies_along_the_fragment_stays() -> None:
    a = dot_layouts(standard().find("mfma_16x16x16_f16_f32"), (64, 64, 32), 4, 64)[0]
    layout = loaded((64, 32), 2, 64)
    assert thread_tiles(layout, a, 1, 2, 4, 64) is None
    assert transposed_registers(layout, a, 16) is None


def test_one_element_per_thread_has_no_box() -> None:
    b = dot_layouts(standard().find("mfma_16x16x16_f16_f32"), (16, 16, 16), 4, 64)[1]
    assert thread_tiles(loaded((16, 16), 2, 64), b, 1, 2, 4, 64) is None
