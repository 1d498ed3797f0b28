"""TileFlow's dataflow for attention: all operators are a pipeline over tiles of rows and keys."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.attention import Attention
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import Kind, Scope, TileTree


def tileflow(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``@DRAM for b,h,m,l { pipe[ par b,h,m { [QK] }, par b,h,m { [SM] }, par b,h,m { [PV] } ] }``.

    Rule L5 keeps l whole in the shared tile where a softmax stands between the products whose sums are not rescaled.
    """
    roles = Attention.of(problem, levels)
    units = (*roles.batches, roles.m)
    turns = (*units, roles.l)
    stages = tuple(roles.nests.units(units, part) for part in roles.parts(turns))
    return roles.nests.dram(turns, Scope(Kind.PIPE, stages))
