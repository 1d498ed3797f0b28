"""Points of a block's tile along the loops of a contraction."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Axis, Const, Read, Tensor
from tilewright.operator.block_tree import block_tree
from tilewright.operator.rules.gpu_product import BlockShape, loaded, schedule_blocks
from tilewright.tiles.legality import check
from tilewright.tiles.notation import print_tree
from tilewright.tiles.problem import problem_of
from tilewright.tiles.product import Operand, Product, flat_product

SHAPE = BlockShape(64, 32, 16, (2, 2), "mma_m16n8k16_f16_f32", 3)


def convolution(rows: int, columns: int, channels: int, window: int, filters: int) -> Product:
    """Channels last, stride 1."""
    i, j, f = Axis("i", rows), Axis("j", columns), Axis("f", filters)
    c, r, s = Axis("c", channels), Axis("r", window), Axis("s", window)
    width = columns + window - 1
    image = Tensor("x", ((rows + window - 1) * width * channels,), "f16")
    weights = Tensor("w", (filters * window * window * channels,), "f16")
    total = Tensor("sum", (), "f16")
    return flat_product(
        outer=(), rows=(i, j), columns=f, depth=(r, s, c),
        a=Operand(image, ((i + r) * width + j + s) * channels + c),
        b=Operand(weights, ((f * window + r) * window + s) * channels + c),
        total=total, epilogue=Read(total, ()), output=Tensor("y", (rows * columns * filters,), "f16"),
        index=(i * columns + j) * filters + f + Const(0, "i64"), intrinsic=SHAPE.intrinsic,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("extents", "tile"),
    [
        ((8, 8, 16, 3, 32), {"i": 8, "j": 8, "r": 1, "s": 1, "c": 16, "f": 32}),
        ((7, 7, 64, 3, 32), {"i": 8, "j": 8, "r": 1, "s": 1, "c": 16, "f": 32}),
        ((1, 100, 16, 1, 8), {"i": 1, "j": 64, "r": 1, "s": 1, "c": 16, "f": 32}),
        ((30, 4, 16, 1, 8), {"i": 16, "j": 4, "r": 1, "s": 1, "c": 16, "f": 32}),
        ((16, 16, 3, 3, 32), {"i": 4, "j": 16, "r": 1, "s": 4, "c": 4, "f": 32}),
    ],
)
def test_the_fewest_tiles_are_taken(extents: tuple[int, int, int, int, int], tile: dict[str, int]) -> None:
    kernel, decision = schedule_blocks(convolution(*extents), SHAPE, "y")
    assert block_tree(kernel).points == tile
    check(kernel.tree, problem_of(kernel), imperfect=True)
    assert "blocks" in decision.reason


def test_the_tree_is_blocks_around_slices_around_a_micro_kernel() -> None:
    work = convolution(16, 16, 32, 3, 64)
    kernel, _ = schedule_blocks(work, SHAPE, "y")
    text = print_tree(kernel.tree)
    assert text == (
        "@DRAM par i:4, j:1, f:2 with warps(2, 2) { stage x in SHARED slots 3 { stage w in SHARED slots 3 { "
        "@L1 for r:3, s:3, c:2 { op y as mma_m16n8k16_f16_f32_64x32x16 } } } }"
    )


@pytest.mark.parametrize(
    ("channels", "element_bytes", "both"), [(3, 2, True), (4, 2, False), (3, 4, False), (3, 8, False)]
)
def test_rows_of_an_odd_number_of_f16_pass_registers(channels: int, element_bytes: int, both: bool) -> None:
    """Three channels of f16 are 6 bytes, no multiple of the 4 that an asynchronous copy brings."""
    assert loaded(convolution(16, 16, channels, 3, 32), element_bytes) == (both, both)
