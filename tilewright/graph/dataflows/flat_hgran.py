"""FLAT at the granularity of heads: scores, softmax and output share the memory of the chip, head by head."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.attention import Attention
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import TileTree


def flat_hgran(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``@DRAM for b,h { par b,h { shar[ [QK], [SM], [PV] ] } }``: all scores of a head are staged."""
    roles = Attention.of(problem, levels)
    return roles.sharing(roles.batches)
