"""Fused-Layer: two convolutions are a pipeline over blocks of the image."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.convolutions import Convolutions
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import TileTree


def fused_layer(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``@DRAM for b,h,w { pipe[ par h,w { [CONV1] }, par h,w { [CONV2] } ] }``: a block is staged, with its halo."""
    roles = Convolutions.of(problem, levels)
    return roles.pipeline(roles.image)
