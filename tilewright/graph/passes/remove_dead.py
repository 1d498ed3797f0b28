"""Dead nodes, loops and constants."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.expr.live import live
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class RemoveDead:
    """Keep the nodes, loops and constants that some output depends on; of a loop what it carries and stacks for them.

    Before:  a[i] = x[i] + 1.0    b[i] = x[i] * 2.0    output b
    After:   b[i] = x[i] * 2.0    output b
    Always legal. Needs nothing before it. Afterwards every node and constant has a reader or is an output.
    """

    name: ClassVar[str] = "remove-dead"

    def apply(self, state: Rewritten) -> Rewritten:
        return replace(state, graph=live(state.graph))
