"""Dataflows of attention on TileFlow's Edge accelerator (MICRO 2023), each with factors searched by one budget.

All dataflows run the same expressions, a softmax of five operators between two products, on the same machine and
model. Published figures are means over nine networks (spec 1, section 6.4, E17 and E18); ours are of the shapes named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import exp, log
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.graph.chain.workloads import NETWORKS, shaped, workload
from tilewright.graph.dataflow_search import Searched, dram_words, search_dataflow
from tilewright.graph.dataflows.table import ATTENTION
from tilewright.machine.registry import resolve
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Picture
from tilewright.search.cost import Budget
from tilewright.tiles.machines import resources
from tilewright.tiles.problem import Problem

MACHINE = "edge"
BASELINE = "Layerwise"
SHAPES = ("bert-base",)
EVALUATIONS = 3000
SPEEDUPS = {"Uni-pipe": 1.62, "FLAT-HGran": 3.59, "FLAT-RGran": 2.89, "Chimera": 2.91, "TileFlow": 6.65}  # E17
DRAM_REDUCTIONS = {"Uni-pipe": 90.4, "FLAT-HGran": 90.4, "FLAT-RGran": 81.5, "Chimera": 75.1, "TileFlow": 87.1}  # E18
TOLERANCE_PERCENT = 15  # of a published ratio, within which ours counts as the same
TOLERANCE_POINTS = 5  # of a published percentage


@dataclass(frozen=True)
class Report:
    """The best tree of every dataflow, by shape."""

    found: Mapping[str, Mapping[str, Searched]]

    @property
    def tables(self) -> tuple[Table, ...]:
        columns = {"dataflow": "left", "cycles": "right", "speed-up": "right", "DRAM words": "right", "less": "right",
                   "energy": "right", "utilisation": "right", "bound by": "left"}  # fmt: skip
        note = f"best of {EVALUATIONS} trees each at the default; speed-up and DRAM words less than {BASELINE}'s"
        return tuple(
            Table(f"attention of {shape} on {MACHINE}", columns, tuple(self._row(shape, name) for name in each), note)
            for shape, each in self.found.items()
        )

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return ()

    @cached_property
    def speedups(self) -> dict[str, float]:
        """Geometric means over the shapes."""
        return {name: self._mean([self._speedup(shape, name) for shape in self.found]) for name in SPEEDUPS}

    @cached_property
    def reductions(self) -> dict[str, float]:
        """Percent of the baseline's DRAM words that are saved, means over the shapes."""
        return {name: sum(self._less(s, name) for s in self.found) / len(self.found) for name in DRAM_REDUCTIONS}

    @property
    def claims(self) -> tuple[Claim, ...]:
        order = ", ".join(sorted(SPEEDUPS, key=lambda name: -SPEEDUPS[name]))
        ours = ", ".join(sorted(self.speedups, key=lambda name: -self.speedups[name]))
        return (
            Claim("spec1-E17", "dataflows, the fastest first", order, ours, order, "=", self._why("TileFlow")),
            *(
                Claim("spec1-E17", f"{name} over {BASELINE}: {self.speedups[name]:.2f}x, off by", f"{published:g}x",
                      100 * abs(self.speedups[name] / published - 1), TOLERANCE_PERCENT, "<=", self._why(name), " %",
                      ".0f")
                for name, published in SPEEDUPS.items()
            ),
            *(
                Claim("spec1-E18", f"DRAM words of {name}: {self.reductions[name]:.1f} % less, off by",
                      f"{published:g} %", abs(self.reductions[name] - published), TOLERANCE_POINTS, "<=",
                      self._why(name), " points", ".1f")
                for name, published in DRAM_REDUCTIONS.items()
            ),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        shapes = {
            shape: {name: dict(zip(("cycles", "speedup", "dram_words", "less_percent"), self._numbers(shape, name),
                                   strict=True)) for name in each}
            for shape, each in self.found.items()
        }  # fmt: skip
        return {"machine": MACHINE, "shapes": shapes, "claims": [claim.to_json() for claim in self.claims]}

    def _why(self, name: str) -> str:
        """What bounds a dataflow, and how far from the units' peak it is, on the first shape."""
        shape = next(iter(self.found))
        analyses = {each: self.found[shape][each].analysis for each in (name, BASELINE)}
        parts = [
            f"{each} spreads over {int(analysis.units):,} of {analysis.resources.units:,} units, does "
            f"{100 * float(analysis.utilisation):.0f} % of what they can, and is bound by {analysis.bottleneck}"
            for each, analysis in analyses.items()
            if analysis is not None
        ]
        return (
            f"on {shape}, {'; '.join(parts)}. Factors divide extents, children of a pipeline share the units of a "
            "core, and every operator of the softmax is a nest of its own here"
        )

    def _row(self, shape: str, name: str) -> tuple[str, ...]:
        analysis = self.found[shape][name].analysis
        assert analysis is not None, "a report has legal trees only"
        cycles, speedup, words, less = self._numbers(shape, name)
        return (name, f"{cycles:,.0f}", f"{speedup:.2f}", f"{words:,.0f}", f"{less:.1f} %",
                f"{float(analysis.energy):.4g}", f"{100 * float(analysis.utilisation):.1f} %",
                str(analysis.bottleneck))  # fmt: skip

    def _numbers(self, shape: str, name: str) -> tuple[float, float, float, float]:
        analysis = self.found[shape][name].analysis
        assert analysis is not None, "a report has legal trees only"
        return float(analysis.cycles), self._speedup(shape, name), dram_words(analysis), self._less(shape, name)

    def _speedup(self, shape: str, name: str) -> float:
        base, own = (self.found[shape][each].analysis for each in (BASELINE, name))
        assert base is not None
        assert own is not None
        return float(base.cycles / own.cycles)

    def _less(self, shape: str, name: str) -> float:
        base, own = (self.found[shape][each].analysis for each in (BASELINE, name))
        assert base is not None
        assert own is not None
        return 100 * (1 - dram_words(own) / dram_words(base))

    @staticmethod
    def _mean(values: Sequence[float]) -> float:
        return exp(sum(map(log, values)) / len(values))


def report(layers: Sequence[str] = SHAPES, trials: int = EVALUATIONS) -> Report:
    """Search every dataflow of attention; `layers` are networks, `trials` the trees of one search.

    Raises InvalidArgument for another network, or where a dataflow has no legal factors on the machine.
    """
    available = resources(resolve(MACHINE))
    found: dict[str, dict[str, Searched]] = {}
    for shape in layers:
        if shape not in NETWORKS:
            raise InvalidArgument(f"there is no network {shape!r}", where="--layers",
                                  help=f"some of {', '.join(NETWORKS)}")  # fmt: skip
        problem = Problem.of(workload(shaped("attention", shape), "f16"))
        found[shape] = {
            name: search_dataflow(name, dataflow, problem, available, Budget(trials))
            for name, dataflow in ATTENTION.items()
        }
        for name, each in found[shape].items():
            if each.analysis is None:
                raise InvalidArgument(f"{name} has no legal factors for {shape}", where="--trials", help="more trials")
    return Report(found)
