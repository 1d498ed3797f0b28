"""Uni-pipe: scores, softmax and output are a pipeline over whole heads, one head at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.attention import Attention
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import Kind, Scope, TileTree


def uni_pipe(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``@DRAM for b,h { pipe[ [QK], [SM], [PV] ] }``: rows and keys of a head are whole, units are not shared out."""
    roles = Attention.of(problem, levels)
    return roles.nests.dram(roles.batches, Scope(Kind.PIPE, roles.parts(roles.batches)))
