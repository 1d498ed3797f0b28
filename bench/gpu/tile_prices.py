"""Prices of tiles beside their times: which tile the model would take of those that were timed, and what that costs.

    python -m bench.gpu.tile_prices          (no GPU needed)

Times are of `results/tiles-*.json` and of the tuned products in `results/run-*.json`; prices are those of this code.
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
from tilewright.compiler.compile import plan_graph
from tilewright.compiler.planning import ChooseProduct
from tilewright.instruction.block_tiles import Ranking
from tilewright.machine.registry import resolve
from tilewright.options import Options

FOLDER = Path(__file__).parent / "results"
MACHINE = "sm_90a"  # of the devices that the files are of
LEAST_TILES = 3  # of a product, for an order

Times = dict[str, float]  # seconds of tiles by their names


@dataclass(frozen=True)
class Prices:
    """Of one product: predicted cycles and measured seconds of its tiles."""

    case: str
    dtype: str
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
        print(f"{each.case:24}{each.dtype:6}{len(each.cycles):4} tiles   τ {each.tau:5.2f}   loss {each.loss:5.1%}")
    tau, loss = (sum(getattr(each, name) for each in found) / len(found) for name in ("tau", "loss"))
    print(f"mean{'':37}τ {tau:5.2f}   loss {loss:5.1%}")
    return 0


def timed(folder: Path = FOLDER) -> dict[tuple[str, str], Times]:
    """By case and type, the tiles that were timed; of a tile that several files have the last one, by name."""
    found: dict[tuple[str, str], Times] = {}
    for path in (*sorted(folder.glob("run-*.json")), *sorted(folder.glob("tiles-*.json"))):
        for row in json.loads(path.read_text())["rows"]:
            times = found.setdefault((row["case"], row["dtype"]), {})
            if "tile" in row:
                times[row["tile"]] = row["seconds"]
            elif row["contender"] == TUNED:
                times |= {tile["name"]: tile["seconds"] for tile in row.get("tiles", [])}
    return {key: times for key, times in found.items() if len(times) >= LEAST_TILES}


def prices(times: dict[tuple[str, str], Times]) -> Iterator[Prices]:
    """Of each product, the tiles that are candidates today."""
    for (name, dtype), tiles in times.items():
        candidates = _cycles(_case(name, dtype))
        known = [(candidates[tile], seconds) for tile, seconds in tiles.items() if tile in candidates]
        if len(known) >= LEAST_TILES:
            cycles, seconds = zip(*known, strict=True)
            yield Prices(name, dtype, cycles, seconds)


def _case(name: str, dtype: str) -> Case:
    """The product of a name such as "512x4096x4096 nt"."""
    sizes, layout = name.split()
    m, n, k = map(int, sizes.split("x"))
    return gemm(m, n, k, dtype, layout)


def _cycles(case: Case) -> dict[str, float]:
    """Predicted cycles of all tiles of a product, by their names."""
    found: dict[str, float] = {}

    def look(ranking: Ranking, node: str) -> Any:
        found.update({str(each): each.cycles for each in ranking.candidates})

    plan_graph(case.graph(), resolve(MACHINE), 1, Options(), ChooseProduct(tile=look))
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
