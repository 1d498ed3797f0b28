"""Dataflows searched on one machine by one budget, and how a figure of one stands to that of the baseline.

All dataflows of a study run operators with the same results on the same machine and model; factors are searched for
cycles. Means over shapes are geometric for ratios, arithmetic for percentages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import Any, Final

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.graph.dataflow_search import Searched, dram_words, search_dataflow
from tilewright.graph.dataflows.table import Dataflow
from tilewright.graph.search_options import SearchOptions
from tilewright.machine.registry import resolve
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Bars, Picture
from tilewright.search.cost import Budget
from tilewright.tiles.analysis import Analysis, LevelUse
from tilewright.tiles.machines import resources
from tilewright.tiles.problem import Problem

BASELINE: Final = "Layerwise"
TOLERANCE_PERCENT: Final = 15  # of a published ratio, within which ours counts as the same
TOLERANCE_POINTS: Final = 5  # of a published percentage
SHARED: Final = "All operators run on the same units, which children of a pipeline share, and factors divide extents"
OWN: Final = (
    "Products and other operators have units of their own, which work at the same time in a pipeline only, and factors "
    "divide extents"
)


@dataclass(frozen=True)
class Study:
    """The best tree of every dataflow, by shape, on a machine.

    `title` says of what, `trials` how many trees of each were analysed.
    """

    title: str
    machine: str
    trials: int
    found: Mapping[str, Mapping[str, Searched]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(next(iter(self.found.values())))

    @property
    def fused(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != BASELINE)

    def analysis(self, shape: str, name: str) -> Analysis:
        found = self.found[shape][name].analysis
        assert found is not None, "a study has legal trees only"
        return found

    def level(self, shape: str, name: str, level: str) -> LevelUse:
        return next(use for use in self.analysis(shape, name).levels if use.level.name == level)

    def ratio(self, name: str, other: str, value: Callable[[str, str], float]) -> float:
        """How many times that of another dataflow a value is, by shape and dataflow: the mean over the shapes."""
        ratios = [value(shape, name) / value(shape, other) for shape in self.found]
        return exp(sum(map(log, ratios)) / len(ratios))

    def speedup(self, name: str, over: str = BASELINE) -> float:
        return self.ratio(over, name, self.cycles)

    def less(self, name: str, value: Callable[[str, str], float]) -> float:
        """Percent of the baseline's value that are saved."""
        parts = [1 - value(shape, name) / value(shape, BASELINE) for shape in self.found]
        return 100 * sum(parts) / len(parts)

    # Values

    def cycles(self, shape: str, name: str) -> float:
        return float(self.analysis(shape, name).cycles)

    def dram_words(self, shape: str, name: str) -> float:
        return dram_words(self.analysis(shape, name))

    def energy(self, shape: str, name: str) -> float:
        return float(self.analysis(shape, name).energy)

    def utilisation(self, shape: str, name: str) -> float:
        """The part of their peak that the units for products reach."""
        return float(self.analysis(shape, name).classes[0].utilisation)

    def accesses(self, level: str) -> Callable[[str, str], float]:
        return lambda shape, name: float(self.level(shape, name, level).accesses)

    # What is shown

    @property
    def tables(self) -> tuple[Table, ...]:
        columns = {"dataflow": "left", "cycles": "right", "speed-up": "right", "DRAM words": "right", "less": "right",
                   "energy": "right", "utilisation": "right", "bound by": "left"}  # fmt: skip
        note = f"best of {self.trials} trees each; speed-up and DRAM words less than {BASELINE}'s"
        return tuple(
            Table(
                f"{self.title} {shape} on {self.machine}", columns, tuple(self._row(shape, name) for name in each), note
            )
            for shape, each in self.found.items()
        )

    def pictures(
        self, speedups: Mapping[str, float] | None = None, saved: Mapping[str, float] | None = None
    ) -> tuple[Picture, ...]:
        """Speed and words of DRAM of the fused dataflows beside the baseline's, with the published figures of all."""
        groups = self.fused
        faster = {shape: self._of(shape).speedup for shape in self.found}
        less = {shape: self._of(shape).saved for shape in self.found}
        return tuple(
            Bars(f"{self.title.removesuffix(' of')} on {self.machine}: {title}", unit, groups, {
                **({} if published is None else {"published": tuple(published[name] for name in groups)}),
                **{shape: tuple(value(name) for name in groups) for shape, value in ours.items()},
            }, ratios=ratios)
            for title, unit, ours, published, ratios in (
                (f"speed over {BASELINE}", "times", faster, speedups, True),
                (f"words of DRAM less than {BASELINE}'s", "percent", less, saved, False),
            )
        )  # fmt: skip

    def saved(self, name: str) -> float:
        """Percent of the baseline's words of DRAM that are saved."""
        return self.less(name, self.dram_words)

    def _of(self, shape: str) -> Study:
        """One shape of the study."""
        return Study(self.title, self.machine, self.trials, {shape: self.found[shape]})

    def to_json(self) -> dict[str, Any]:
        keys = ("cycles", "speedup", "dram_words", "less_percent", "energy", "utilisation")
        shapes = {
            shape: {name: dict(zip(keys, self._numbers(shape, name), strict=True)) for name in each}
            for shape, each in self.found.items()
        }
        return {"machine": self.machine, "shapes": shapes}

    def order(self, claim: str, published: Sequence[str]) -> Claim:
        """A claim about which dataflows are the fastest."""
        ours = sorted(published, key=lambda name: -self.speedup(name))
        texts = [", ".join(names) for names in (published, ours)]
        return Claim(claim, f"on {self.machine}, the fastest first", texts[0], texts[1], texts[0], "=",
                     self.why(published[0]))  # fmt: skip

    def times(self, claim: str, name: str, published: float, over: str = BASELINE, note: str = "") -> Claim:
        """A claim about a speed-up."""
        ours = self.speedup(name, over)
        reason = f"{self.why(name, published, over)}{note}"
        return ratio(claim, f"{name} over {over} on {self.machine}", ours, published, reason)

    def saves(self, claim: str, name: str, published: float, note: str = "") -> Claim:
        """A claim about the words of DRAM that are saved."""
        ours = self.saved(name)
        subject = f"DRAM words of {name} on {self.machine}, less"
        return points(claim, subject, ours, published, f"{self.why(name)}{note}")

    def bandwidth(self, percent: float) -> str:
        """What DRAM allows on the first shape where so many of the baseline's words are saved, as a sentence."""
        shape = next(iter(self.found))
        outer = self.analysis(shape, BASELINE).levels[0].level
        if outer.read_words_per_cycle is None:
            return ""
        left = (1 - percent / 100) * self.dram_words(shape, BASELINE)
        cycles = left / outer.read_words_per_cycle
        return (
            f" With the {percent:g} % of DRAM words that are published to be saved, {left:,.0f} are left; to read them "
            f"takes {cycles:,.0f} cycles, {self.cycles(shape, BASELINE) / cycles:.2f} times as fast."
        )

    def why(self, name: str, published: float | None = None, over: str = BASELINE) -> str:
        """What bounds two dataflows on the first shape, and what the published ratio would take."""
        shape = next(iter(self.found))
        parts = [self._bound(shape, each) for each in dict.fromkeys((name, over))]
        implied = ""
        if published is not None:
            own = self.analysis(shape, name).classes[0]
            wanted = 100 * float(own.utilisation) * published * self.cycles(shape, name) / self.cycles(shape, over)
            implied = f" {published:g} times as fast as ours of {over} would be {wanted:.0f} % of what the "
            implied += f"{own.units.name} can."
        several = len(self.analysis(shape, name).classes) > 1
        return f"On {shape}, {'; '.join(parts)}.{implied} {OWN if several else SHARED}."

    def _bound(self, shape: str, name: str) -> str:
        analysis = self.analysis(shape, name)
        outer = analysis.levels[0]
        rate = outer.level.read_words_per_cycle
        words = f"{float(outer.demand_words_per_cycle):.1f}" + (f" of {rate:g} + {rate:g}" if rate else "")
        spread = " and ".join(
            f"{int(each.used):,} of {each.units.count:,} {each.units.name}" for each in analysis.classes
        )
        done = " and ".join(f"{100 * float(each.utilisation):.1f} %" for each in analysis.classes)
        return (
            f"{name} spreads over {spread}, does {done} of what they can, moves {words} words of DRAM a cycle and is "
            f"bound by {analysis.bottleneck}"
        )

    def _row(self, shape: str, name: str) -> tuple[str, ...]:
        cycles, speedup, words, less, energy, used = self._numbers(shape, name)
        return (name, f"{cycles:,.0f}", f"{speedup:.2f}", f"{words:,.0f}", f"{less:.1f} %", f"{energy:.4g}",
                f"{100 * used:.1f} %", str(self.analysis(shape, name).bottleneck))  # fmt: skip

    def _numbers(self, shape: str, name: str) -> tuple[float, ...]:
        one = self._of(shape)
        return (
            self.cycles(shape, name),
            one.speedup(name),
            self.dram_words(shape, name),
            one.saved(name),
            self.energy(shape, name),
            self.utilisation(shape, name),
        )


def study(
    title: str, machine: str, dataflows: Mapping[str, Dataflow], shapes: Mapping[str, Sequence[Compute]], trials: int
) -> Study:
    """Search every dataflow for every shape. Raises InvalidArgument where a dataflow has no legal factors."""
    available = resources(resolve(machine))
    found: dict[str, dict[str, Searched]] = {}
    for shape, computes in shapes.items():
        problem = Problem.of(computes)
        found[shape] = {
            name: search_dataflow(name, dataflow, problem, available, SearchOptions(Budget(trials)))
            for name, dataflow in dataflows.items()
        }
        for name, each in found[shape].items():
            if each.analysis is None:
                raise InvalidArgument(f"{name} has no legal factors for {shape} on {machine}", where="--trials",
                                      help="more trials")  # fmt: skip
    return Study(title, machine, trials, found)


def chosen(layers: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The shapes that are asked for; raises InvalidArgument for another than the known ones."""
    for layer in layers:
        if layer not in known:
            raise InvalidArgument(f"there is no shape {layer!r}", where="--layers", help=f"some of {', '.join(known)}")
    return tuple(layers)


def ratio(claim: str, subject: str, ours: float, published: float, reason: str) -> Claim:
    """A claim about a ratio, which counts as the same within `TOLERANCE_PERCENT`."""
    tolerance = TOLERANCE_PERCENT / 100 * published
    return Claim(claim, subject, f"{published:g}x", ours, published, "±", reason, "x", ".2f", tolerance)


def points(claim: str, subject: str, ours: float, published: float, reason: str) -> Claim:
    """A claim about a percentage, which counts as the same within `TOLERANCE_POINTS`."""
    return Claim(claim, subject, f"{published:g} %", ours, published, "±", reason, " %", ".1f", TOLERANCE_POINTS)
