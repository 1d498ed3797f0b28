"""All named dataflows by the names that papers give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.dataclass import dataclass
from tilewright.graph.chain.softmax import running, simplified
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


@dataclass(frozen=True)
class Dataflow:
    """`tree` makes the tree of operators over memory levels, DRAM first, with open factors.

    `rewrite` gives the operators that the dataflow runs instead of those of a problem, the same results.
    """

    tree: Callable[[Problem, Sequence[str]], TileTree]
    rewrite: Callable[[Problem], Problem] = lambda problem: problem


ATTENTION: Mapping[str, Dataflow] = {
    "Layerwise": Dataflow(layerwise),
    "Uni-pipe": Dataflow(uni_pipe),
    "FLAT-HGran": Dataflow(flat_hgran),
    "FLAT-RGran": Dataflow(flat_rgran),
    "Chimera": Dataflow(chimera, simplified),
    "TileFlow": Dataflow(tileflow, running),
}
CONVOLUTIONS: Mapping[str, Dataflow] = {
    "Layerwise": Dataflow(conv_layerwise),
    "Fused-Layer": Dataflow(fused_layer),
    "ISOS": Dataflow(isos),
    "TileFlow": Dataflow(conv_tileflow),
}
