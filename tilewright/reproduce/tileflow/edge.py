"""Dataflows of attention on TileFlow's Edge accelerator (MICRO 2023), each with factors searched by one budget.

Published figures are means over nine networks (spec 1, section 6.4, E17 to E20); ours are of the shapes named. The
publication's accelerators have vector units beside their arrays (section 3.6.5.1); how many Edge has is not stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tilewright.dataclass import dataclass
from tilewright.graph.chain.workloads import NETWORKS, shaped, workload
from tilewright.graph.dataflows.table import ATTENTION
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Picture
from tilewright.reproduce.tileflow.study import BASELINE, Study, chosen, points, ratio, study

MACHINE: Final = "edge-vector"
SHAPES: Final = ("bert-base",)
EVALUATIONS: Final = 3000
SPEEDUPS: Final = {  # E17
    "TileFlow": 6.65, "FLAT-HGran": 3.59, "Chimera": 2.91, "FLAT-RGran": 2.89, "Uni-pipe": 1.62,
}  # fmt: skip
DRAM_REDUCTIONS: Final = {  # E18
    "TileFlow": 87.1, "FLAT-HGran": 90.4, "Chimera": 75.1, "FLAT-RGran": 81.5, "Uni-pipe": 90.4,
}  # fmt: skip
L1_LEAST, L1_MOST = 2.01, 6.45  # E19: words of L1, of all fused dataflows, over those of the baseline
L1_READ, L1_UPDATE = 80.9, 14.7  # E19: percent of the words of L1; of which dataflow is not stated
OCCUPANCIES: Final = {"FLAT-RGran": 28.4, "Chimera": 14.8}  # E20: percent of what FLAT-HGran holds in L1
UTILISATION: Final = 50  # E20: percent of TileFlow's that FLAT-HGran has, "about"


@dataclass(frozen=True)
class Report:
    """The best tree of every dataflow, by shape."""

    study: Study

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.study.tables

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return self.study.pictures(SPEEDUPS, DRAM_REDUCTIONS)

    @property
    def claims(self) -> tuple[Claim, ...]:
        each = self.study
        return (
            each.order("spec1-E17", tuple(SPEEDUPS)),
            *(each.times("spec1-E17", name, published, note=each.bandwidth(DRAM_REDUCTIONS[name]))
              for name, published in SPEEDUPS.items()),
            *(each.saves("spec1-E18", name, published) for name, published in DRAM_REDUCTIONS.items()),
            *self._traffic(),
            *self._occupancy(),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {**self.study.to_json(), "claims": [claim.to_json() for claim in self.claims]}

    def _traffic(self) -> tuple[Claim, ...]:
        each = self.study
        over = {name: each.ratio(name, BASELINE, each.accesses("L1")) for name in each.fused}
        listed = ", ".join(f"{name} {value:.2f}x" for name, value in over.items())
        reason = (
            f"words that L1 gives, takes and is filled with over {BASELINE}'s: {listed}. Ours of {BASELINE} goes "
            "through L1 as well; how often operands are read again is free where it costs no cycles"
        )
        shape = next(iter(each.found))
        use = each.level(shape, "TileFlow", "L1")
        parts = [sum(map(float, kind.values())) for kind in (use.read, use.update, use.fill)]
        read, update, _ = (100 * part / sum(parts) for part in parts)
        which = f"of TileFlow on {shape}; the publication does not say of which dataflow its parts are"
        return (
            ratio("spec1-E19", "least words of L1", min(over.values()), L1_LEAST, reason),
            ratio("spec1-E19", "most words of L1", max(over.values()), L1_MOST, reason),
            points("spec1-E19", "reads of L1, of its words", read, L1_READ, which),
            points("spec1-E19", "updates of L1, of its words", update, L1_UPDATE, which),
        )

    def _occupancy(self) -> tuple[Claim, ...]:
        each = self.study

        def held(shape: str, name: str) -> float:
            return float(each.level(shape, name, "L1").footprint_bytes)

        reason = "factors are searched for cycles, and what fits in L1 costs none: nothing keeps blocks small"
        utilisation = 100 * each.ratio("FLAT-HGran", "TileFlow", each.utilisation)
        subject = "use of units by FLAT-HGran, of TileFlow's"
        return (
            *(points("spec1-E20", f"bytes in L1 of {name}, of FLAT-HGran's", 100 * each.ratio(name, "FLAT-HGran", held),
                     published, reason)
              for name, published in OCCUPANCIES.items()),
            points("spec1-E20", subject, utilisation, UTILISATION, each.why("FLAT-HGran", over="TileFlow")),
        )  # fmt: skip


def report(layers: Sequence[str] = SHAPES, trials: int = EVALUATIONS, machine: str = MACHINE) -> Report:
    """Search every dataflow of attention; `layers` are networks, `trials` the trees of one search.

    `machine` is any with a level L1, such as `edge`, whose units all run every operator.
    Raises InvalidArgument for another network, or where a dataflow has no legal factors on the machine.
    """
    shapes = {layer: workload(shaped("attention", layer), "f16") for layer in chosen(layers, NETWORKS)}
    return Report(study("attention of", machine, ATTENTION, shapes, trials))
