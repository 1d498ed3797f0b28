"""Layerwise: no operator of attention is fused; every result goes through DRAM."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.attention import Attention
from tilewright.graph.dataflows.nests import in_turn
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import TileTree


def layerwise(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``seq[ @DRAM for b,h,m,l { par b,h,m { [QK] } }, a nest per operator of the softmax, the same with [PV] ]``."""
    roles = Attention.of(problem, levels)
    nests, trees = roles.nests, []
    for op in (roles.scores, *roles.weights, roles.output):
        own = nests.loops(op)
        units = [name for name in (*roles.batches, roles.m) if name in own]
        turns = [name for name in (*roles.batches, roles.m, roles.l) if name in own]
        trees.append(nests.dram(turns, nests.units(units, nests.nest(op, turns))))
    return in_turn(trees)
