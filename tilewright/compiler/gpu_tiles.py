"""The few best tiles of the products of a graph on a GPU, each as a module of its own: what a tuner measures."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.compiler.compile import build
from tilewright.compiler.planning import ChooseProduct
from tilewright.expr.graph import Graph
from tilewright.instruction.block_tiles import Candidate, Ranking
from tilewright.machine.description import Gpu
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact

TRIED = 4  # tiles of a product


def variants(graph: Graph, machine: Gpu, options: Options, count: int = TRIED) -> Iterator[tuple[str, Artifact]]:
    """Modules in which every product has its first, second, ... best tile, and what it is called.

    Tiles differ in extents, record or parts of k; of those that differ in stages or warps alone the best is taken. The
    first one is what `compile` makes, with the same plan; there are fewer than `count` where no product has more.
    """
    for number in range(count):
        names: list[str] = []

        def nth(ranking: Ranking, node: str, number: int = number, names: list[str] = names) -> Candidate | None:
            found = distinct(ranking)
            if not found:
                return None
            names.append(str(found[number]) if number < len(found) else "")
            return found[min(number, len(found) - 1)] if number else None

        artifact = build(graph, machine, 1, options, choose=ChooseProduct(tile=nth))
        if number and not any(names):
            return
        yield "; ".join(name for name in names if name), artifact


def distinct(ranking: Ranking) -> list[Candidate]:
    """The best candidate of every tile, record and number of parts, cheapest first."""
    found: dict[tuple[int, int, int, str, int], Candidate] = {}
    for each in ranking.candidates:
        shape = each.shape
        found.setdefault((shape.m, shape.n, shape.k, shape.intrinsic, shape.splits), each)
    return list(found.values())
