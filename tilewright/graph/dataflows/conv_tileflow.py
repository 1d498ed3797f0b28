"""TileFlow's dataflow for convolutions: a pipeline over blocks of the image and of the channels between the two."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.dataflows.convolutions import Convolutions
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import Kind, Scope, TileTree


def conv_tileflow(problem: Problem, levels: Sequence[str]) -> TileTree:
    """``@DRAM for b,h,w,l { pipe[ par h,w { [CONV1] }, par h,w { @DRAM for k { [CONV2] } } ] }``."""
    roles = Convolutions.of(problem, levels)
    nests = roles.nests
    turns = (*roles.batches, *roles.image, *roles.l)
    consumer = nests.dram(roles.k, roles.nest(roles.last, turns))
    stages = tuple(nests.units(roles.image, stage) for stage in (roles.producer(turns), consumer))
    return nests.dram(turns, Scope(Kind.PIPE, stages))
