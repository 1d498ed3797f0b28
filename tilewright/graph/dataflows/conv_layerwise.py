"""Layerwise, for convolutions: every result goes through DRAM."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.convolutions import Convolutions
from tilewright.graph.dataflows.nests import in_turn
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import TileTree


def conv_layerwise(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``seq[ @DRAM for b,h,w { par h,w { [CONV1] } }, @DRAM for b,h,w { par h,w { [CONV2] } } ]``; maps too."""
    roles = Convolutions.of(problem, levels)
    nests, trees = roles.nests, []
    channels = {*roles.k, *roles.l}
    for op in (roles.first, *roles.maps, roles.last):
        axes = [problem.names[op, axis.name] for axis in problem.compute(op).axes]
        turns = [name for name in axes if name not in channels]
        units = [name for name in turns if name not in roles.batches]
        trees.append(nests.dram(turns, nests.units(units, roles.nest(op, turns))))
    return in_turn(trees)
