"""All named dataflows by the names that papers give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tilewright.graph.dataflows.chimera import chimera
from tilewright.graph.dataflows.conv_layerwise import conv_layerwise
from tilewright.graph.dataflows.conv_tileflow import conv_tileflow
from tilewright.graph.dataflows.flat_hgran import flat_hgran
from tilewright.graph.dataflows.flat_rgran import flat_rgran
from tilewright.graph.dataflows.fused_layer import fused_layer
from tilewright.graph.dataflows.isos import isos
from tilewright.graph.dataflows.layerwise import layerwise
from tilewright.graph.dataflows.tileflow import tileflow
from tilewright.graph.dataflows.uni_pipe import uni_pipe
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import TileTree

#: Makes the tree of operators over memory levels, DRAM first, with open factors.
Dataflow: TypeAlias = Callable[[Problem, Sequence[str]], TileTree]

ATTENTION: Mapping[str, Dataflow] = {
    "Layerwise": layerwise,
    "Uni-pipe": uni_pipe,
    "FLAT-HGran": flat_hgran,
    "FLAT-RGran": flat_rgran,
    "Chimera": chimera,
    "TileFlow": tileflow,
}
CONVOLUTIONS: Mapping[str, Dataflow] = {
    "Layerwise": conv_layerwise,
    "Fused-Layer": fused_layer,
    "ISOS": isos,
    "TileFlow": conv_tileflow,
}
