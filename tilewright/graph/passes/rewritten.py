"""What the passes hand to each other: a graph, the borders its tensors are stored with, and the choices made so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.decision import Decision
from tilewright.expr.core import Const
from tilewright.expr.graph import Graph


@dataclass(frozen=True)
class Border:
    """Elements stored before and after each dimension of a tensor, all of one value."""

    widths: tuple[tuple[int, int], ...]
    value: Const


@dataclass(frozen=True)
class Rewritten:
    """A graph between two passes. A tensor with a border may be read outside its shape, as far as the border goes."""

    graph: Graph
    borders: Mapping[str, Border] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()


class GraphPass(Protocol):
    """A rewrite that keeps what every output holds. Each is a frozen dataclass with its options and runs alone."""

    @property
    def name(self) -> str: ...

    def apply(self, state: Rewritten) -> Rewritten: ...
