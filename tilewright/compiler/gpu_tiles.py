"""The few best tiles of the products of a graph on a GPU, each as a module of its own: what a tuner measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.compiler.compile import build
from tilewright.compiler.plan import ChooseProduct
from tilewright.dataclass import dataclass
from tilewright.expr.graph import Graph
from tilewright.instruction.block_tiles import Candidate, Ranking
from tilewright.machine.description import Gpu
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact

TRIED = 4  # tiles of a product


@dataclass(frozen=True)
class Variant:
    """A module whose products have other tiles than the best ones: what they are called, their predicted cycles."""

    tile: str
    cycles: float
    artifact: Artifact


def variants(graph: Graph, machine: Gpu, options: Options, ranks: Sequence[int] = range(TRIED)) -> Iterator[Variant]:
    """Modules in which every product has the tile of a rank, for each of `ranks`; rank 0 is the best by prediction.

    Tiles differ in extents, record or parts of k; of those that differ in stages or warps alone the best is taken. The
    module of rank 0 is what `compile` makes, with the same plan. A rank that no product has is left out.
    """
    for rank in ranks:
        taken: list[Candidate | None] = []

        def choose(ranking: Ranking, node: str, rank: int = rank, taken: list[Candidate | None] = taken) -> Any:
            found = distinct(ranking)
            taken.append(found[rank] if rank < len(found) else None)
            return found[min(rank, len(found) - 1)] if rank and found else None

        artifact = build(graph, machine, 1, options, choose=ChooseProduct(tile=choose))
        tiles = [each for each in taken if each is not None]
        if tiles or not rank:
            yield Variant("; ".join(map(str, tiles)), sum(each.cycles for each in tiles), artifact)


def distinct(ranking: Ranking) -> list[Candidate]:
    """The best candidate of every tile, record and number of parts, cheapest first."""
    found: dict[tuple[int, int, int, str, int], Candidate] = {}
    for each in ranking.candidates:
        shape = each.shape
        found.setdefault((shape.m, shape.n, shape.k, shape.intrinsic, shape.splits), each)
    return list(found.values())
