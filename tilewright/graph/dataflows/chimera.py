"""Chimera: both products of attention are fused tile by tile; their depths run over data in DRAM."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.attention import Attention
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import Kind, Scope, TileTree


def chimera(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``@DRAM for b,h,m,l { par b,h,m { seq[ @DRAM for a { [QK] }, [SM], @DRAM for n { [PV] } ] } }``.

    Rule L5 keeps l whole in the shared tile where a softmax stands between the products whose sums are not rescaled.
    """
    roles = Attention.of(problem, levels)
    nests, units = roles.nests, (*roles.batches, roles.m)
    turns = (*units, roles.l)
    scores, *softmax, output = roles.parts(turns)
    children = (nests.dram((roles.a,), scores), *softmax, nests.dram((roles.n,), output))
    return nests.dram(turns, nests.units(units, Scope(Kind.SEQ, children)))
