"""Reductions by layout: spec 6, section 10.1 and golden case 41, and their steps run on arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.layouts import Blocked, LinearLayout, Mma, Slice, linear, reduction


def test_spec6_g41_reduction_over_4_warps() -> None:
    found = reduction(Blocked((1,), (32,), (4,), (0,)).to_linear((128,)), 0)
    assert found.lane_bits == (4, 3, 2, 1, 0)
    assert found.scratch == 4
    assert len(found.warp_bits) == 2  # shuffles more
    assert found.shuffles == 7
    assert found.registers == ((0,),)


@pytest.mark.parametrize(
    "layout", [Mma(2, (2, 2)), Mma(3, (4, 1), (16, 32, 16)), Blocked((2, 4), (4, 8), (2, 2), (0, 1))], ids=str
)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(64, 64), (64, 8), (4, 128)])
def test_spec6_10_1_steps_on_arrays(layout: Mma | Blocked, dim: int, shape: tuple[int, int]) -> None:
    tile = np.random.default_rng(0).integers(0, 1000, shape)
    whole = layout.to_linear(shape)
    found = reduction(whole, dim)
    assert found.result == Slice(dim, layout).to_linear((shape[1 - dim],))
    values = tile.reshape(-1)[whole.table()]
    partial = np.stack([values[..., list(group)].sum(axis=-1) for group in found.registers], axis=-1)
    for bit in found.lane_bits:
        partial = partial + partial[:, np.arange(32) ^ 1 << bit]
    for bit in found.warp_bits:
        partial = partial + partial[np.arange(len(partial)) ^ 1 << bit]
    assert (partial == tile.sum(axis=dim)[found.result.table()]).all()
    rows = found.scratch // max(1, tile.sum(axis=dim).size)
    assert rows == (1 << len(found.warp_bits) if found.warp_bits else 0)


def test_bases_along_two_dimensions_are_refused() -> None:
    swizzled: LinearLayout = linear((2, 2), register=[(1, 1), (0, 1)], lane=[], warp=[])
    with pytest.raises(InvalidArgument, match="lies along dimension 0 and another"):
        reduction(swizzled, 0)
    with pytest.raises(InvalidArgument, match="dimension 2"):
        reduction(swizzled, 2)
