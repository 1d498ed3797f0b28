"""FLAT at the granularity of rows: scores, softmax and output share the memory of the chip for a block of rows."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.attention import Attention
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import TileTree


def flat_rgran(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``@DRAM for b,h,m { par b,h,m { shar[ [QK], [SM], [PV] ] } }``: rows of scores are staged with all their keys."""
    roles = Attention.of(problem, levels)
    return roles.sharing((*roles.batches, roles.m))
