"""What `lower` is asked for: the launches of a program and its loops, and where the tensors that they touch live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.expr.core import Tensor
from tilewright.operator.blocks import BlockSchedule
from tilewright.operator.contraction import Contraction, ContractionSchedule
from tilewright.operator.nest import Nest, NestSchedule
from tilewright.operator.nest_blocks import NestBlocks
from tilewright.operator.ordered import OrderedSchedule, OrderedWork


@dataclass(frozen=True)
class Step:
    """One launch: what to lower, under which decisions, on which tensors (name to its place in `places`)."""

    name: str
    work: Nest | Contraction | OrderedWork
    schedule: NestSchedule | NestBlocks | ContractionSchedule | BlockSchedule | OrderedSchedule
    arguments: tuple[tuple[Tensor, int], ...]  # tensors with the size of their storage in elements
    flops: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Moving:
    """A tensor that is another part of `whole`, a name, in every trip: from element ``start + stride * trip``.

    With a `period` that is ``trip % period``; in the first trip it is the tensor `first`, where that is a name.
    """

    whole: str
    start: int
    stride: int
    period: int = 0
    first: str = ""


@dataclass(frozen=True)
class Repeated:
    """Launches and loops that run `trips` times; `moving` are tensors by name whose place depends on the trip."""

    trips: int
    steps: Sequence[Step | Repeated]
    moving: Mapping[str, Moving]


@dataclass(frozen=True)
class Place:
    """Where a tensor lives: ("input" | "output", its number), ("constant" | "arena", its offset in bytes)."""

    space: str
    index: int
