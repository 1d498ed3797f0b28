"""Prices of tiles beside their times: which tile the model would take of those that were timed, and what that costs.

    python -m bench.gpu.tile_prices          (no GPU needed)

Times are of the tuned products in `results/run-*.json`, and of `tiles-*.json` and `ablation-*.json` there; prices are
those of this code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.cases import Case, gemm
from bench.gpu.contenders import TUNED
from bench.gpu.runs import stored
from tilewright.compiler.compile import plan_graph
from tilewright.compiler.plan import ChooseProduct
from tilewright.instruction.block_tiles import Ranking
from tilewright.machine.registry import resolve
from tilewright.options import Options

FOLDER = Path(__file__).parent / "results"
MACHINE = "sm_90a"  # of the devices that the files are of
LEAST_TILES = 3  # of a product, for an order

Times = dict[str, float]  # seconds of tiles by their names
Product = tuple[str, str, str]  # a case, its type, and which instructions it may take: a value of `Options.mma`


@dataclass(frozen=True)
class Prices:
    """Of one product: predicted cycles and measured seconds of its tiles."""

    case: str
    dtype: str
    mma: str
    cycles: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def tau(self) -> float:
        return kendall(self.cycles, self.seconds)

    @property
    def loss(self) -> float:
        """The time of the tile with the lowest price over that of the fastest, less 1."""
        cheapest = min(range(len(self.cycles)), key=self.cycles.__getitem__)
        return self.seconds[cheapest] / min(self.seconds) - 1


def main() -> int:
    found = list(prices(timed()))
    for each in found:
        what = f"{each.case:24}{each.dtype:6}{each.mma:10}{len(each.cycles):4} tiles"
        print(f"{what}   τ {each.tau:5.2f}   loss {each.loss:5.1%}")
    tau, loss = (sum(getattr(each, name) for each in found) / len(found) for name in ("tau", "loss"))
    print(f"mean{'':49}τ {tau:5.2f}   loss {loss:5.1%}")
    return 0


def timed(folder: Path = FOLDER) -> dict[Product, Times]:
    """The tiles of products that were timed; of a tile that several files have, the last one by name."""
    found: dict[Product, Times] = {}
    for kind in ("run", "ablation", "tiles"):
        for path in stored(folder, kind):
            for row in json.loads(path.read_text())["rows"]:
                if row.get("family", "gemm") == "gemm":
                    key = row["case"], row["dtype"], row.get("mma", "auto")
                    found.setdefault(key, {}).update(_times(row))
    return {key: times for key, times in found.items() if len(times) >= LEAST_TILES}


def _times(row: dict[str, Any]) -> Times:
    """The tiles of a row."""
    if row.get("contender") == TUNED:
        return {tile["name"]: tile["seconds"] for tile in row.get("tiles", [])}
    name = row.get("tile") or row.get("what")  # of what an ablation has besides, no tile has the name
    return {name: row["seconds"]} if name and "seconds" in row else {}


def prices(times: dict[Product, Times]) -> Iterator[Prices]:
    """Of each product, the tiles that are candidates today."""
    for (name, dtype, mma), tiles in times.items():
        candidates = _cycles(_case(name, dtype), mma)
        known = [(candidates[tile], seconds) for tile, seconds in tiles.items() if tile in candidates]
        if len(known) >= LEAST_TILES:
            cycles, seconds = zip(*known, strict=True)
            yield Prices(name, dtype, mma, cycles, seconds)


def _case(name: str, dtype: str) -> Case:
    """The product of a name such as "512x4096x4096 nt"."""
    sizes, layout = name.split()
    m, n, k = map(int, sizes.split("x"))
    return gemm(m, n, k, dtype, layout)


def _cycles(case: Case, mma: str) -> dict[str, float]:
    """Predicted cycles of all tiles of a product, by their names."""
    found: dict[str, float] = {}

    def look(ranking: Ranking, node: str) -> Any:
        found.update({str(each): each.cycles for each in ranking.candidates})

    plan_graph(case.graph(), resolve(MACHINE), 1, Options(mma=mma), ChooseProduct(tile=look))
    return found


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Pairs in the same order less pairs in the opposite one, over all pairs.

    >>> kendall([1, 2, 3], [10, 30, 20])
    0.3333333333333333
    """
    pairs = [(one[a] - one[b]) * (other[a] - other[b]) for a in range(len(one)) for b in range(a)]
    return sum((each > 0) - (each < 0) for each in pairs) / max(1, len(pairs))


if __name__ == "__main__":
    sys.exit(main())
