"""Dataflows of attention on TileFlow's Cloud accelerator, and of convolution chains on Edge and Cloud (MICRO 2023).

Published figures are means over networks or chains (spec 1, section 6.4, E21 to E24); ours are of the shapes named.
Some of them contradict each other, which reasons say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tilewright.dataclass import dataclass
from tilewright.graph.chain.workloads import CONV_CHAINS, NETWORKS, shaped, unpadded_convolutions, workload
from tilewright.graph.dataflows.table import ATTENTION, CONVOLUTIONS
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Picture
from tilewright.reproduce.tileflow.study import BASELINE, Study, chosen, points, ratio, study

MACHINE: Final = "cloud"
CHAINS: Final = tuple(f"C{number}" for number in range(1, len(CONV_CHAINS) + 1))
SHAPES: Final = ("bert-base", "C1", "C3", "C4")
EVALUATIONS: Final = 8000
FASTER: Final = ("TileFlow", "FLAT-HGran", "FLAT-RGran", "Chimera")
SPEEDUP, UNI_PIPE = 12.63, 1.37  # E21
DRAM_REDUCTION: Final = 86.6  # E21, percent, of all fused dataflows
L1_EACH, L1_TOTAL = (52.1, 108.5), (7.01, 33.27)  # E22: percent in a sub-core, times in total, of the baseline's words
SUB_CORES: Final = {"TileFlow": 34.58, "Chimera": 32.02, "FLAT-RGran": 28.34, "FLAT-HGran": 13.46}  # E23
EDGE_TILEFLOW: Final = {BASELINE: 1.31, "Fused-Layer": 1.28}  # E24, section 3.6.5.2: TileFlow over others
CLOUD_FUSED: Final = 1.01  # E24, section 3.6.5.3: Fused-Layer over Layerwise
CLOUD_TILEFLOW: Final = 1.59  # over "Layerwise and Fused-Layer"
CLOUD_DRAM, CLOUD_ENERGY = 73.0, 30.1  # percent that Fused-Layer saves

_DRAM_BOUND: Final = (
    " The published figures contradict each other if DRAM bounds both: 86.6 % less words are 7.5 times the speed, and "
    "12.63 times the speed 92.1 % less."
)
_TWO_SETS: Final = (
    " The two published sets contradict each other: TileFlow over Fused-Layer would take Fused-Layer to 1.02 times "
    "Layerwise by the one, and 1.57 times Fused-Layer by the other; they are read as of Edge and of Cloud."
)
_COMPULSORY: Final = (
    " No fusion of these chains can save 73 % of the words that each convolution has to move once (at most 60.5 % in "
    "the mean, by the artifact's shapes): the published Layerwise reads words again, ours hardly does."
)


@dataclass(frozen=True)
class Report:
    """The best trees of attention on Cloud, and of convolution chains on both machines; None without such shapes."""

    attention: Study | None
    convolutions: tuple[Study, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(table for each in self._studies for table in each.tables)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        found: list[Picture] = []
        if self.attention is not None:
            speedups = {**dict.fromkeys(FASTER, SPEEDUP), "Uni-pipe": UNI_PIPE}
            found += self.attention.pictures(speedups, dict.fromkeys(self.attention.fused, DRAM_REDUCTION))
        return (*found, *(picture for each in self.convolutions for picture in each.pictures()))

    @property
    def claims(self) -> tuple[Claim, ...]:
        found: list[Claim] = []
        if self.attention is not None:
            found += [*_speed(self.attention), *_traffic(self.attention), *_sub_cores(self.attention)]
        if self.convolutions:
            edge, cloud = self.convolutions
            found += [*_edge_chains(edge), *_cloud_chains(cloud)]
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        return {"studies": [each.to_json() for each in self._studies],
                "claims": [claim.to_json() for claim in self.claims]}  # fmt: skip

    @property
    def _studies(self) -> tuple[Study, ...]:
        return (*(() if self.attention is None else (self.attention,)), *self.convolutions)


def _speed(each: Study) -> tuple[Claim, ...]:
    return (
        *(each.times("spec1-E21", name, SPEEDUP, note=_DRAM_BOUND) for name in FASTER),
        each.times("spec1-E21", "Uni-pipe", UNI_PIPE),
        *(each.saves("spec1-E21", name, DRAM_REDUCTION, _DRAM_BOUND) for name in each.fused),
    )


def _traffic(each: Study) -> tuple[Claim, ...]:
    def in_one(shape: str, name: str) -> float:
        use = each.level(shape, name, "L1")
        return float(use.accesses / use.instances)

    own = {name: 100 * each.ratio(name, BASELINE, in_one) for name in each.fused}
    total = {name: each.ratio(name, BASELINE, each.accesses("L1")) for name in each.fused}
    l2 = {name: each.ratio(name, BASELINE, each.accesses("L2")) for name in each.fused}
    shown = [", ".join(f"{name} {value:.{digits}f}{unit}" for name, value in values.items())
             for values, digits, unit in ((own, 0, " %"), (total, 2, "x"), (l2, 2, "x"))]  # fmt: skip
    reason = (
        f"words of L1 in a sub-core over {BASELINE}'s: {shown[0]}; in total: {shown[1]}. Ours of {BASELINE} spreads "
        "over the sub-cores too"
    )
    higher = ", ".join(name for name in each.fused if l2[name] > 1) or "none"
    published = ", ".join(name for name in each.fused if name != "Uni-pipe")
    return (
        points("spec1-E22", "least words of L1 in a sub-core", min(own.values()), L1_EACH[0], reason),
        points("spec1-E22", "most words of L1 in a sub-core", max(own.values()), L1_EACH[1], reason),
        ratio("spec1-E22", "least words of L1", min(total.values()), L1_TOTAL[0], reason),
        ratio("spec1-E22", "most words of L1", max(total.values()), L1_TOTAL[1], reason),
        Claim("spec1-E22", "dataflows with more words of L2", published, higher, published, "=",
              f"words of L2 over {BASELINE}'s: {shown[2]}"),
    )  # fmt: skip


def _sub_cores(each: Study) -> tuple[Claim, ...]:
    def used(shape: str, name: str) -> float:
        return float(each.level(shape, name, "L1").instances)

    shape = next(iter(each.found))
    counts = ", ".join(f"{name} {int(each.level(shape, name, 'L1').instances)}" for name in each.names)
    reason = (
        f"sub-cores in use on {shape}, of {each.level(shape, BASELINE, 'L1').level.instances}: {counts}. The published "
        f"ratios leave {BASELINE} fewer than two of 64; ours, which DRAM bounds, may use all of them at no cost"
    )
    return tuple(
        ratio(
            "spec1-E23", f"sub-cores of {name} over {BASELINE}'s", each.ratio(name, BASELINE, used), published, reason
        )
        for name, published in SUB_CORES.items()
    )


def _edge_chains(each: Study) -> tuple[Claim, ...]:
    return tuple(
        each.times("spec1-E24", "TileFlow", published, over, _TWO_SETS) for over, published in EDGE_TILEFLOW.items()
    )


def _cloud_chains(each: Study) -> tuple[Claim, ...]:
    energy = each.less("Fused-Layer", each.energy)
    return (
        each.order("spec1-E24", ("TileFlow", "Fused-Layer", BASELINE)),
        each.times("spec1-E24", "Fused-Layer", CLOUD_FUSED, note=_TWO_SETS),
        each.saves("spec1-E24", "Fused-Layer", CLOUD_DRAM, _COMPULSORY),
        points("spec1-E24", f"energy of Fused-Layer on {each.machine}, less", energy, CLOUD_ENERGY,
               f"factors are searched for cycles. {each.why('Fused-Layer')}"),
        *(each.times("spec1-E24", "TileFlow", CLOUD_TILEFLOW, over, _TWO_SETS) for over in (BASELINE, "Fused-Layer")),
    )  # fmt: skip


def report(layers: Sequence[str] = SHAPES, trials: int = EVALUATIONS) -> Report:
    """Search every dataflow; `layers` are networks and convolution chains, `trials` the trees of one search.

    Raises InvalidArgument for another shape, or where a dataflow has no legal factors on a machine.
    """
    known = chosen(layers, (*NETWORKS, *CHAINS))
    networks = {name: workload(shaped("attention", name), "f16") for name in known if name in NETWORKS}
    chains = {name: unpadded_convolutions(CONV_CHAINS[CHAINS.index(name)], "f16") for name in known if name in CHAINS}
    attention = study("attention of", MACHINE, ATTENTION, networks, trials) if networks else None
    machines = ("edge", MACHINE) if chains else ()
    return Report(attention, tuple(study("convolutions", each, CONVOLUTIONS, chains, trials // 4) for each in machines))
