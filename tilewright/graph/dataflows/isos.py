"""ISOS: two convolutions are a pipeline over rows of the image."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.convolutions import Convolutions
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import TileTree


def isos(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``@DRAM for b,h { pipe[ par h { [CONV1] }, par h { [CONV2] } ] }``: whole rows of the intermediate are staged."""
    roles = Convolutions.of(problem, levels)
    return roles.pipeline(roles.image[:1])
