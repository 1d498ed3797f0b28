"""Dimensions from linear addresses."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Axis, Compute, Expr, Read, Tensor
from tilewright.expr.text.printing import print_expr
from tilewright.tiles.dimensions import with_dimensions
from tilewright.tiles.problem import Problem

C, H, W, R, S, K = (Axis(name, size) for name, size in zip("chwrsk", (3, 5, 6, 3, 3, 14), strict=True))


def shaped(size: int, *indices: Expr) -> list[tuple[tuple[int, ...], list[str]]]:
    """Shape and indices of each read of a tensor of so many elements, behind `with_dimensions`."""
    tensor = Tensor("X", (size,), "f32")
    body: Expr = Read(tensor, (indices[0],))
    for index in indices[1:]:
        body = body + Read(tensor, (index,))
    axes = (C, H, W, R, S, K)
    problem = Problem.of([Compute(Tensor("Y", tuple(axis.size for axis in axes), "f32"), axes, body)])
    reads = list(dict.fromkeys(with_dimensions(problem).computes[0].reads()))
    return [(tuple(map(int, r.tensor.shape)), [print_expr(index) for index in r.indices]) for r in reads]


@pytest.mark.parametrize(
    ("size", "index", "shape", "indices"),
    [
        (90, C * 30 + H * 6 + W, (3, 5, 6), ["c", "h", "w"]),
        (168, C * 56 + H * 8 + R * 8 + W + S, (3, 7, 8), ["c", "h + r", "w + s"]),  # a window
        (3 * 11 * 8, C * 88 + H * 16 + R * 8 + W + S, (3, 11, 8), ["c", "h * 2 + r", "w + s"]),  # of every second row
        (90, C * 30 + H * 6 + 2, (3, 5, 6), ["c", "h", "2_i64"]),  # a column of it
        (16 * 32, K // 4 * 128 + W * 4 + K % 4, (16, 32), ["k", "w"]),  # groups of four
        (17, H + R + 10, (17,), ["h + r + 10"]),  # one dimension is one
        (36, C * 10 + R * 3 + S, (4, 10), ["c", "r * 3 + s"]),  # parts of a row that are no whole number of them
    ],
)
def test_loops_whose_strides_do_not_overlap_are_dimensions(
    size: int, index: Expr, shape: tuple[int, ...], indices: list[str]
) -> None:
    assert shaped(size, index) == [(shape, indices)]


def test_all_reads_of_a_tensor_have_its_dimensions() -> None:
    assert shaped(90, C * 30 + H * 6 + W, C * 30 + W) == [
        ((3, 5, 6), ["c", "h", "w"]),
        ((3, 5, 6), ["c", "0_i64", "w"]),
    ]


def test_columns_of_a_tensor_are_not_taken_for_one() -> None:
    found = shaped(90, C * 30 + H * 6 + 2, C * 30 + H * 6 + 3)
    assert found == [((3, 5, 6), ["c", "h", "2_i64"]), ((3, 5, 6), ["c", "h", "3_i64"])]


@pytest.mark.parametrize(
    "index",
    [
        C * 56 + H * 6 + W + S,  # a window that reaches into the next row
        C * 56 + H * 8 + W - 9,  # a border that is not stored
        89 - C * 30 - W,  # backwards
        K // 4 * 128 + K // 3 * 4,  # groups of two sizes
    ],
)
def test_other_addresses_stay_one_dimension(index: Expr) -> None:
    ((shape, _),) = shaped(600, index)
    assert len(shape) < 3
    if len(shape) == 2:
        assert shape[1] > 50  # rows and windows together
