"""Chains of two products on this CPU, one kernel beside two, and beside today's libraries (claims E1 to E3, and E9).

The batch GEMM chains G1 to G12, plain and around a softmax, in f32 on one thread. Ours is what `compile` chooses by
itself: one kernel, or a kernel each. Processor time of one core: that of other programs does not count. What is
compared takes turns, once with its data in the caches and once after other memory was written; medians are reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import exp, log
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tilewright.compiler.chains import FUSED, fusions
from tilewright.compiler.compile import plan_graph, resolve_target
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.graph import Graph
from tilewright.fields import Readable, choice, flag, optional, rate, record, required, several, string
from tilewright.graph.chain.workloads import GEMM_CHAINS, workload
from tilewright.machine.description import Cpu
from tilewright.options import Options
from tilewright.reproduce.chimera.contenders import (
    APART,
    ATTENTION,
    NAMES,
    ONE,
    ONNX,
    TORCH,
    Contender,
    contenders,
    one_thread,
)
from tilewright.reproduce.claim import NOT_STATED, Claim
from tilewright.reproduce.experiment import Table, pinned
from tilewright.reproduce.pictures import Bars, Picture

CHAINS = tuple(f"G{number}" for number in range(1, len(GEMM_CHAINS) + 1))
TURNS = 10
CALLS = 3  # of a turn that count, after one that does not
MOST_FLUSHED = 2**28  # bytes written to make caches cold, or twice the last one
RIGHT = 0.95  # of the faster way's rate that the choice reaches at least
LIBRARIES = (TORCH, ATTENTION, ONNX)


class Group(NamedTuple):
    """Chains of one kind, and the published gains over other programs."""

    claim: str
    softmax: bool
    title: str
    published: Mapping[str, float]


GROUPS = (
    Group("spec1-E1", False, "batch GEMM chains", {TORCH: 2.62, "Relay": 4.78, "Ansor": 1.40, "oneDNN": 3.28}),
    Group("spec1-E2", True, "batch GEMM chains, softmax", {TORCH: 1.62, "Relay": 7.89, "Ansor": 2.29}),
)
CONVOLUTIONS = {
    "convolution chains": {"Relay": 2.38, "Ansor": 1.94},
    "convolution chains, ReLU": {TORCH: 2.87, "Relay": 2.30, "Ansor": 1.71},
}
HEADLINE = {TORCH: 2.87, "Ansor": 2.29}  # E9, of the libraries and of the compilers


@dataclass(frozen=True, kw_only=True)
class Timing(Readable):
    """Median processor time of a program, with its data in the caches and with other data there."""

    name: str = required(choice(*NAMES))
    seconds: float = required(rate)
    cold_seconds: float = required(rate)


@dataclass(frozen=True, kw_only=True)
class Chain(Readable):
    """The timings of a chain; whether `compile` makes one kernel of it, and the gain of that by its prediction."""

    name: str = required(choice(*CHAINS))
    softmax: bool = required(flag)
    fused: bool = required(flag)
    timings: tuple[Timing, ...] = required(several(record(Timing), 1))
    predicted: float | None = optional(rate)

    @classmethod
    def prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        names = [each.get("name") for each in value.get("timings", ()) if isinstance(each, dict)]
        if APART not in names or (value.get("fused") and ONE not in names):
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
class Report(Readable):
    """All chains on one machine."""

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
        return tuple(group for group in GROUPS if self.of(group))

    def measured(self, group: Group) -> list[str]:
        """The programs that ran all chains of a group, in the order of `NAMES`."""
        return [name for name in NAMES if all(name in chain.by_name for chain in self.of(group))]

    def gain(self, group: Group, over: str) -> float:
        """The geometric mean of the gains over a program, data in the caches."""
        return _mean([chain.gain(over) for chain in self.of(group)])

    # Shown ------------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(self._table(group, cold) for group in self.groups for cold in (False, True))

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
        title = f"{group.claim.removeprefix('spec1-')}: microseconds of {group.title} on {self.machine}, {data}"
        return Table(title, columns, tuple(rows), f"processor time of one thread, f32; {self.versions}")

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(
            Bars(f"{group.title} on {self.machine}", "time over ours", tuple(chain.name for chain in self.of(group)),
                 {name: tuple(chain.gain(name) for chain in self.of(group)) for name in self.measured(group)},
                 ratios=True)
            for group in self.groups
        )  # fmt: skip

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (*self._claims_of_libraries(), *self._claims_of_fusion(), *_claims_of_convolutions(), *self._headline())

    def _claims_of_libraries(self) -> Iterator[Claim]:
        for group in self.groups:
            measured = self.measured(group)
            for name in dict.fromkeys((*group.published, *LIBRARIES)):
                published = group.published.get(name)
                ours = self.gain(group, name) if name in measured else None
                if published is None and ours is None:
                    continue
                reason = f"{name} is not installed" if name in LIBRARIES else f"{name} is not run here"
                if ours is not None:
                    apart = _mean([chain.gain(name) / chain.gain(APART) for chain in self.of(group)])
                    reason = (
                        f"{name} of today on one thread of {self.machine}, published of its time on a Xeon Gold 6240; "
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

    def _headline(self) -> Iterator[Claim]:
        found = [(self.gain(group, TORCH), group.title) for group in self.groups if TORCH in self.measured(group)]
        gain, title = max(found, default=(None, f"{TORCH} is not installed"))
        reason = f"{title}; published of convolution chains with ReLU, which are a kernel each here"
        yield _times("spec1-E9", f"most gain over {TORCH}", HEADLINE[TORCH], gain, HEADLINE[TORCH], reason)
        reason = "Ansor is not run here"
        yield _times("spec1-E9", "most gain over a compiler", HEADLINE["Ansor"], None, HEADLINE["Ansor"], reason)


def report(layers: Sequence[str] = CHAINS, turns: int = TURNS) -> Report:
    """Time chains on this machine; `layers` are names of chains, G1 to G12, in `turns` of `CALLS` calls.

    Raises InvalidArgument for another name.
    """
    for name in layers:
        if name not in CHAINS:
            raise InvalidArgument(f"there is no chain {name!r}", where="--layers", help="G1 to G12")
    machine = resolve_target("host")
    assert isinstance(machine, Cpu), "bug: this program runs on no CPU"
    with pinned(), one_thread():
        chains = [_timed(name, group.softmax, machine, turns) for group in GROUPS for name in layers]
    return Report(machine=machine.llvm.cpu or machine.name, versions=_versions(), chains=tuple(chains))


def _timed(name: str, softmax: bool, machine: Cpu, turns: int) -> Chain:
    graph = Graph.of(workload(f"gemm-chain-{name}{'-softmax' if softmax else ''}", "f32"))
    (decision,) = fusions(plan_graph(graph, machine, 1, Options()).decisions)
    fused, costs = decision.chosen.startswith(FUSED), (decision.cost, decision.runner_up_cost)
    predicted = None
    if costs[0] is not None and costs[1] is not None and costs[0].cycles and costs[1].cycles:
        gain = costs[1].cycles / costs[0].cycles
        predicted = gain if fused else 1 / gain
    found = contenders(graph, softmax, machine, fused=not decision.refused)
    timings = _in_turns(found, turns, min(MOST_FLUSHED, 2 * machine.caches[-1].bytes))
    return Chain(name=name, softmax=softmax, fused=fused, predicted=predicted, timings=timings)


def _in_turns(found: Sequence[Contender], turns: int, flushed_bytes: int) -> tuple[Timing, ...]:
    """Median processor times of contenders that take turns."""
    other = np.zeros(flushed_bytes, np.uint8)
    warm: dict[str, list[float]] = {each.name: [] for each in found}
    cold: dict[str, list[float]] = {each.name: [] for each in found}
    for _ in range(turns):
        for each in found:
            each.call()
            warm[each.name] += [_processor_seconds(each) for _ in range(CALLS)]
            other += 1  # what the caches had is gone
            cold[each.name].append(_processor_seconds(each))
    return tuple(
        Timing(name=each.name, seconds=median(warm[each.name]), cold_seconds=median(cold[each.name]))
        for each in found
    )  # fmt: skip


def _processor_seconds(contender: Contender) -> float:
    begin = time.process_time_ns()
    contender.call()
    return (time.process_time_ns() - begin) / 1e9


def _versions() -> str:
    from importlib import metadata

    found = []
    for name in ("torch", "onnxruntime"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def _claims_of_convolutions() -> Iterator[Claim]:
    for title, published in CONVOLUTIONS.items():
        for name, gain in published.items():
            reason = "both convolutions of a chain are a kernel each here, in blocks that one kernel could not share"
            yield _times("spec1-E3", f"{title}: gain over {name}", gain, None, gain, reason)


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
