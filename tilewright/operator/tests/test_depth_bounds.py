"""Steps of a sum that add zeros to whole tiles: bounds of loops over the taps of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.expr.core import Axis, Expr, Read, Tensor, walk
from tilewright.machine import resolve_cpu
from tilewright.operator.cycles import tiled_cycles
from tilewright.operator.depth_bounds import DepthBound, _mean_steps, bounded_loops, depth_bounds, steps_left
from tilewright.operator.product_loops import merge_product_loops
from tilewright.operator.rules import cpu_product
from tilewright.operator.rules.cpu_product import choose_point
from tilewright.tiles.product import Operand, Product, flat_product

MACHINE = resolve_cpu("znver3")


def convolution(size: int, taps: int, dilation: int, channels: int, filters: int = 64) -> Product:
    """y[i, j, k] over an image with a border of zeros, as wide as keeps its size."""
    pad = dilation * (taps // 2)
    wide = size + 2 * pad
    i, j, k, r, s, c = (Axis(*each) for each in zip("ijkrsc", (size, size, filters, taps, taps, channels), strict=True))
    image = Tensor("x", (wide * wide * channels,), "f32")
    a = Operand(image, ((i + r * dilation) * wide + j + s * dilation) * channels + c)
    b = Operand(Tensor("w", (taps * taps * channels * filters,), "f32"), ((r * taps + s) * channels + c) * filters + k)
    total, y = Tensor("t", (), "f32"), Tensor("y", (size * size * filters,), "f32")
    support: tuple[tuple[Expr, int], ...] = ((i + r * dilation - pad, size), (j + s * dilation - pad, size))
    return flat_product(
        (), (i, j), k, (r, s, c), a, b, total, Read(total, ()), y, (i * size + j) * filters + k,
        intrinsic="fma_8_f32_f32", lanes=8, shapes=((6, 2),), support=support,
    )  # fmt: skip


@given(
    factor=st.integers(1, 13), stride=st.sampled_from([-2, -1, 1, 2, 3]), start=st.integers(-40, 20),
    extent=st.integers(1, 30), taps=st.integers(1, 7), first=st.integers(0, 20), points=st.integers(1, 9),
)  # fmt: skip
def test_no_step_that_adds_something_is_left_out(
    factor: int, stride: int, start: int, extent: int, taps: int, first: int, points: int
) -> None:
    bound = DepthBound(Axis("r", taps), factor, Axis("i", 30), stride, start, extent)
    needed = [
        step
        for step in range(taps)
        if any(0 <= factor * step + stride * at + start < extent for at in range(first, first + points))
    ]
    run = bound.steps(first, points)
    assert run >= (needed[-1] - needed[0] + 1 if needed else 0)
    if points == 1:
        assert run == len(needed)


@pytest.mark.parametrize(
    ("size", "dilation", "tile", "part"),
    [
        (65, 12, {}, (171 / 195) ** 2),  # 24 of 65 rows, and of 65 columns, need two of three taps
        (65, 12, {"i": 65}, 171 / 195),
        (7, 1, {"j": 7}, 19 / 21),
        (7, 1, {"i": 2, "j": 3}, 11 / 12 * 8 / 9),  # the last tiles have one point, and need two taps
        (8, 1, {"i": 2, "j": 2}, 1.0),
        (112, 1, {}, 1.0),  # 2 of 336 taps are not worth bounds
        (1, 1, {}, 1 / 9),
        (5, 9, {}, 1 / 9),
    ],
)
def test_part_of_the_steps_that_are_left(size: int, dilation: int, tile: dict[str, int], part: float) -> None:
    work = convolution(size, 3, dilation, 16)
    assert steps_left(work, tile) == pytest.approx(part)
    assert bool(bounded_loops(work, tile)) == (part < 1)


def test_innermost_loops_have_no_bounds() -> None:
    work = convolution(7, 3, 1, 16)
    i, j = work.rows
    r, s, c = work.depth
    assert [each.depth for each in depth_bounds(work)] == [r, s]
    assert [each.spatial for each in depth_bounds(work)] == [i, j]
    outside = replace(work, mapping=replace(work.mapping, depth=("c", "r", "s")))
    assert outside.depth == (c, r, s)
    assert [each.depth for each in depth_bounds(outside)] == [r]


def test_long_loops_are_not_followed_tile_by_tile() -> None:
    bound = DepthBound(Axis("r", 3), 1, Axis("i", 10**9), 1, -1, 10**9)
    assert _mean_steps(bound, 1) == pytest.approx(3 - 2e-9, abs=1e-12)


@given(
    factor=st.integers(1, 5), stride=st.sampled_from([-2, -1, 1, 2]), start=st.integers(-40, 40),
    extent=st.integers(1, 60), taps=st.integers(1, 5), size=st.integers(1, 30), points=st.integers(1, 9),
)  # fmt: skip
def test_the_mean_is_that_of_all_tiles(
    factor: int, stride: int, start: int, extent: int, taps: int, size: int, points: int
) -> None:
    bound = DepthBound(Axis("r", taps), factor, Axis("i", size), stride, start, extent)
    starts = range(0, size, points)
    steps = [bound.steps(first, min(points, size - first)) for first in starts]
    assert _mean_steps(bound, points) == pytest.approx(sum(steps) / len(steps))


def test_a_loop_that_is_merged_loses_its_bound() -> None:
    """Taps along a row and channels lie behind each other, as one loop, unless the taps are to stay a loop."""
    work = convolution(7, 3, 1, 16)
    _, s, _ = work.depth
    assert names(merge_product_loops(work)) == [["r", "s_c"], ["r"]]
    assert names(merge_product_loops(work, single=(s,))) == [["r", "s", "c"], ["r", "s"]]


def names(work: Product) -> list[list[str]]:
    """Its depth loops, and those with bounds."""
    found: Sequence[DepthBound] = depth_bounds(work)
    return [[axis.name for axis in work.depth], [each.depth.name for each in found]]


@pytest.mark.parametrize(("size", "tile"), [(7, {"j": 3}), (7, {}), (8, {"i": 2, "j": 2}), (65, {"i": 2, "j": 2})])
def test_cycles_are_those_of_the_steps_that_are_left(size: int, tile: dict[str, int]) -> None:
    work = convolution(size, 3, 1, 64)
    rows = [tile.get(axis.name, 1) for axis in work.rows]
    whole = tiled_cycles(work.without_support_along(work.depth), rows, 2, MACHINE)
    assert tiled_cycles(work, rows, 2, MACHINE) == pytest.approx(whole * steps_left(work, tile), rel=0.02)


def test_merged_loops_leave_no_support_behind() -> None:
    """An index of one of two loops says nothing of the loop that stands for both."""
    work = convolution(7, 3, 1, 16)
    r, s, _ = work.depth
    kept = [merge_product_loops(work, single=single).statements[0].support for single in ((r, s), (r,))]
    assert [len(support) for support in kept] == [2, 1]
    assert r in walk(kept[1][0][0])


def test_another_tile_must_leave_out_much_more_than_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 28 x 28 points, tiles of 3 by 1 leave out 0.03 more of the steps than those of 6 by 1."""
    work = replace(convolution(28, 3, 1, 256, 512), shapes=((4, 3), (6, 2), (2, 5), (14, 1), (1, 7)))
    znver1 = resolve_cpu("znver1")
    usual, _, _ = choose_point(work.without_support_along(work.depth), znver1, 1, 0, "y")
    assert choose_point(work, znver1, 1, 0, "y")[0] == usual
    monkeypatch.setattr(cpu_product, "WORTH_ANOTHER", 1.0)
    assert choose_point(work, znver1, 1, 0, "y")[0] != usual
