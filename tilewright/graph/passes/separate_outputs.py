"""A node of its own for every output."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.expr.core import Tensor
from tilewright.expr.rewrite import copy_of
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class SeparateOutputs:
    """Copy inputs, constants and repeated outputs, so that each output is written by a node of its own.

    Before:  input x    output x    output x
    After:   x.output0[i] = x[i]    x.output1[i] = x[i]    output x.output0    output x.output1
    Always legal, and required: what follows takes it that an output is memory that one kernel writes. Needs nothing
    before it.
    Afterwards no output is an input, a constant, or another output.
    """

    name: ClassVar[str] = "separate-outputs"

    def apply(self, state: Rewritten) -> Rewritten:
        graph = state.graph
        free = {node.name for node in graph.nodes}
        nodes, outputs = list(graph.nodes), []
        for place, tensor in enumerate(graph.outputs):
            if tensor.name in free:
                outputs.append(tensor)
                free.discard(tensor.name)
                continue
            copied = Tensor(f"{tensor.name}.output{place}", tensor.shape, tensor.dtype)
            nodes.append(copy_of(tensor, copied))
            outputs.append(copied)
        return replace(state, graph=replace(graph, nodes=tuple(nodes), outputs=tuple(outputs)))
