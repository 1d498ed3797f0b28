"""Chains of two products that were timed: one kernel beside two, and beside other programs; claims that follow.

What every machine shares. What is timed, and how, is in `cpu` and `gpu`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import exp, log
from typing import Any, ClassVar, NamedTuple

from tilewright.compiler.chains import fusions
from tilewright.dataclass import dataclass
from tilewright.decision import FUSED, Decision
from tilewright.errors import InvalidArgument
from tilewright.fields import Readable, choice, flag, optional, rate, record, required, several, string
from tilewright.graph.chain.workloads import GEMM_CHAINS
from tilewright.reproduce.chimera.contenders import APART, ATTENTION, NAMES, ONE, ONNX, TORCH
from tilewright.reproduce.claim import NOT_STATED, Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Bars, Picture

CHAINS = tuple(f"G{number}" for number in range(1, len(GEMM_CHAINS) + 1))
RIGHT = 0.95  # of the faster way's rate that the choice reaches at least
LIBRARIES = (TORCH, ATTENTION, ONNX)


class Group(NamedTuple):
    """Chains of one kind, and the published gains over other programs."""

    claim: str
    softmax: bool
    title: str
    published: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Timing(Readable):
    """Median time of a program, with its data in the caches and with other data there."""

    name: str = required(choice(*NAMES))
    seconds: float = required(rate)
    cold_seconds: float = required(rate)


@dataclass(frozen=True, kw_only=True)
class Chain(Readable):
    """The timings of a chain, none where there was no device; whether `compile` makes one kernel of it, and the gain
    of that by its prediction.
    """

    name: str = required(choice(*CHAINS))
    softmax: bool = required(flag)
    fused: bool = required(flag)
    timings: tuple[Timing, ...] = required(several(record(Timing), 0))
    predicted: float | None = optional(rate)

    @classmethod
    def prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        names = [each.get("name") for each in value.get("timings", ()) if isinstance(each, dict)]
        if names and (APART not in names or (value.get("fused") and ONE not in names)):
            raise ValueError(f"{value.get('name')} is without a time of ours")
        return value

    @cached_property
    def by_name(self) -> dict[str, Timing]:
        return {each.name: each for each in self.timings}

    @property
    def ours(self) -> Timing:
        return self.by_name[ONE if self.fused else APART]

    def gain(self, over: str, cold: bool = False) -> float:
        """How many times longer a program takes than ours."""
        return _seconds(self.by_name[over], cold) / _seconds(self.ours, cold)

    def of_fusion(self, cold: bool = False) -> float:
        """How many times longer two kernels take than one; of a chain that can be one."""
        return _seconds(self.by_name[APART], cold) / _seconds(self.by_name[ONE], cold)


@dataclass(frozen=True, kw_only=True)
class TimedChains(Readable):
    """All chains on one machine."""

    GROUPS: ClassVar[tuple[Group, ...]]
    CONVOLUTIONS: ClassVar[tuple[str, Mapping[str, Mapping[str, float]]]]  # the claim, and gains of chains of them
    HEADLINE: ClassVar[Mapping[str, float]]  # the most gain over a program of each kind (E9)
    NOTE: ClassVar[str]  # what the times are of
    PUBLISHED_ON: ClassVar[str]  # the machine of the publication

    machine: str = required(string)
    versions: str = required(string)
    chains: tuple[Chain, ...] = required(several(record(Chain), 1))

    @classmethod
    def prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Claims follow from the times."""
        return {name: each for name, each in value.items() if name != "claims"}

    def to_json(self) -> dict[str, Any]:
        return {**Readable.to_json(self), "claims": [claim.to_json() for claim in self.claims]}

    def of(self, group: Group) -> tuple[Chain, ...]:
        return tuple(chain for chain in self.chains if chain.softmax is group.softmax)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Those that have chains here."""
        return tuple(group for group in self.GROUPS if self.of(group))

    def measured(self, group: Group) -> list[str]:
        """The programs that ran all chains of a group, in the order of `NAMES`."""
        return [name for name in NAMES if all(name in chain.by_name for chain in self.of(group))]

    def gain(self, group: Group, over: str) -> float:
        """The geometric mean of the gains over a program, data in the caches."""
        return _mean([chain.gain(over) for chain in self.of(group)])

    # Shown ------------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[Table, ...]:
        found = []
        for group in self.groups:
            found += [self._table(group, cold) for cold in ((False, True) if self._is_timed(group) else (False,))]
        return tuple(found)

    def _is_timed(self, group: Group) -> bool:
        return any(chain.timings for chain in self.of(group))

    def _table(self, group: Group, cold: bool) -> Table:
        names = [name for name in NAMES if any(name in chain.by_name for chain in self.of(group))]
        columns = {"chain": "left", "chosen": "left", **dict.fromkeys(names, "right"), "gain of one": "right",
                   "predicted": "right"}  # fmt: skip
        rows = []
        for chain in self.of(group):
            times = {name: _seconds(timing, cold) for name, timing in chain.by_name.items()}
            of_fusion = f"{chain.of_fusion(cold):.2f}x" if ONE in times else "-"
            predicted = "-" if chain.predicted is None else f"{chain.predicted:.2f}x"
            rows.append((chain.name, ONE if chain.fused else APART,
                         *(f"{1e6 * times[name]:.0f}" if name in times else "-" for name in names), of_fusion,
                         predicted))  # fmt: skip
        data = "other data in the caches" if cold else "data in the caches"
        what = f"microseconds of {group.title} on {self.machine}, {data}"
        if not self._is_timed(group):
            what = f"{group.title} on {self.machine}, predicted"
        title = f"{group.claim.removeprefix('spec1-')}: {what}"
        return Table(title, columns, tuple(rows), f"{self.NOTE}; {self.versions}")

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(
            Bars(f"{group.title} on {self.machine}", "time over ours", tuple(chain.name for chain in self.of(group)),
                 {name: tuple(chain.gain(name) for chain in self.of(group)) for name in self.measured(group)},
                 ratios=True)
            for group in self.groups if self._is_timed(group)
        )  # fmt: skip

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (
            *self._claims_of_libraries(), *self._claims_of_fusion(), *self._claims_of_convolutions(), *self._headline(),
        )  # fmt: skip

    def _claims_of_libraries(self) -> Iterator[Claim]:
        for group in self.groups:
            measured = self.measured(group)
            for name in dict.fromkeys((*group.published, *LIBRARIES)):
                published = group.published.get(name)
                ours = self.gain(group, name) if name in measured else None
                if published is None and ours is None:
                    continue
                reason = self.missing(name)
                if ours is not None:
                    apart = _mean([chain.gain(name) / chain.gain(APART) for chain in self.of(group)])
                    reason = (
                        f"{name} of today on {self.machine}, published of its time on {self.PUBLISHED_ON}; "
                        f"{apart:.2f}x by a kernel each"
                    )
                yield _times(group.claim, f"{group.title}: gain over {name}", published, ours, published or 1.0, reason)

    def _claims_of_fusion(self) -> Iterator[Claim]:
        """What fusing itself is worth: the same register tiles and instructions, one kernel and two."""
        for group in self.groups:
            chains = [chain for chain in self.of(group) if ONE in chain.by_name]
            if not chains:
                continue
            gains = {chain.name: chain.of_fusion() for chain in chains}
            least, most = min(gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
            reason = f"geometric mean; {gains[least]:.2f}x on {least}, {gains[most]:.2f}x on {most}"
            mean = _mean([*gains.values()])
            yield _times(group.claim, f"{group.title}: gain of one kernel over two", None, mean, 1.0, reason)
            rates = {chain.name: _seconds(_faster(chain)) / _seconds(chain.ours) for chain in chains}
            worst = min(rates, key=rates.__getitem__)
            reason = f"of the faster of both; least on {worst}. The choice is by predicted cycles"
            yield _times(group.claim, f"{group.title}: least rate of the choice", None, rates[worst], RIGHT, reason)

    def _claims_of_convolutions(self) -> Iterator[Claim]:
        claim, groups = self.CONVOLUTIONS
        for title, published in groups.items():
            for name, gain in published.items():
                reason = (
                    "both convolutions of a chain are a kernel each here, in blocks that one kernel could not share"
                )
                yield _times(claim, f"{title}: gain over {name}", gain, None, gain, reason)

    def _headline(self) -> Iterator[Claim]:
        for name, published in self.HEADLINE.items():
            found = [(self.gain(group, name), group.title) for group in self.groups if name in self.measured(group)]
            gain, reason = max(found, default=(None, self.missing(name)))
            if found:
                reason = f"{reason}; published of convolution chains with ReLU, which are a kernel each here"
            yield _times("spec1-E9", f"most gain over {name}", published, gain, published, reason)

    def missing(self, name: str) -> str:
        """Why there is no time of a program."""
        return f"{name} is not installed" if name in LIBRARIES else f"{name} is not run here"


def choice_of(decisions: Sequence[Decision]) -> tuple[bool, float | None, bool]:
    """What `compile` decided of a chain: one kernel, the predicted gain of that, and whether one kernel can be."""
    (decision,) = fusions(decisions)
    fused, costs = decision.chosen.startswith(FUSED), (decision.cost, decision.runner_up_cost)
    predicted = None
    if costs[0] is not None and costs[1] is not None and costs[0].cycles and costs[1].cycles:
        gain = costs[1].cycles / costs[0].cycles
        predicted = gain if fused else 1 / gain
    return fused, predicted, costs[1] is not None


def known_chains(names: Sequence[str]) -> None:
    """Raises InvalidArgument for a name that no chain has."""
    for name in names:
        if name not in CHAINS:
            raise InvalidArgument(f"there is no chain {name!r}", where="--layers", help="G1 to G12")


def _times(
    name: str, subject: str, published: float | None, ours: float | None, bar: float, reason: str
) -> Claim:  # fmt: skip
    shown = NOT_STATED if published is None else f"{published:.2f}x"
    return Claim(name, subject, shown, ours, bar, ">=", reason, "x", ".2f")


def _faster(chain: Chain) -> Timing:
    return min((chain.by_name[name] for name in (ONE, APART)), key=_seconds)


def _seconds(timing: Timing, cold: bool = False) -> float:
    return timing.cold_seconds if cold else timing.seconds


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(log(value) for value in values) / len(values))
