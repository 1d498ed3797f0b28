"""What level 1 asks of the levels below, before it decides: what fusing gains, and how small tiles may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilewright.expr.core import Compute


class GroupCost(Protocol):
    """The profit of a fusion; level 2 answers."""

    def profit_seconds(self, group: Sequence[Compute]) -> float:
        """Seconds that one kernel for `group`, in topological order, saves over a kernel each; negative: it loses."""
        ...


class Quanta(Protocol):
    """The smallest tiles that the instructions of a machine execute; level 3 answers."""

    def quanta(self, compute: Compute) -> Mapping[str, int]:
        """The least useful tile extent per loop name of `compute`; loops that are not listed may be tiled by 1."""
        ...
