"""What was decided about a module, kernel by kernel: the most expensive first, then every decision on request."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from tilewright.codegen.host_program import OF_PARTS, Launch
from tilewright.dataclass import dataclass
from tilewright.decision import APART, FUSED, Cost, Decision
from tilewright.errors import InvalidArgument
from tilewright.machine.description import Cpu
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.peak_rates import PeakRates, machine_of
from tilewright.runtime.profile import TABLE_COLUMNS, Profile, measured_roofline, shortened

TOP = 3
_NOT_ONE = "not with "  # begins the line about a chain that is several kernels; a long reason is cut
_REFUSED = "; refused: "
_NAME_ROOM = 24  # for the name of a tensor in a summary
#: What a summary says of a kernel, and how the subjects of the decisions that say it begin.
_ASPECTS = {
    "fused": ("fusion of ",),
    "mapping": ("instruction of ", "product of "),
    "tile": ("register tile of ", "block of ", "tile of ", "vector of ", "order of "),
    "layout": ("layout of ",),
}


@dataclass(frozen=True)
class KernelSummary:
    """Launches that do the same, `names` in the order of a call; operations, bytes and times are those of all of them.

    `cycles` are 0 without a model. Predicted seconds and what bounds them are None where the rates of the machine were
    not measured, measured ones where nothing was run. `peak_seconds` (`PeakRates`) are what kernels are compared by
    where one of them has no model, else None.
    """

    names: tuple[str, ...]
    flops: int
    bytes: int
    cycles: int
    instruction: str
    decisions: tuple[Decision, ...]
    bound: str | None = None
    predicted_seconds: float | None = None
    least_seconds: float | None = None
    measured_seconds: float | None = None
    peak_seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        return self.predicted_seconds if self.measured_seconds is None else self.measured_seconds

    def aspect(self, name: str) -> list[Decision]:
        """Its decisions about one thing: a key of `_ASPECTS`."""
        return [each for each in self.decisions if each.subject.startswith(_ASPECTS[name])]

    def to_json(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if name != "decisions"}
        return {**found, "decisions": [decision.to_json() for decision in self.decisions]}


@dataclass(frozen=True)
class Explanation:
    """The decisions of a plan and its launches; `machine` has the measured rates of where it runs, if there are any."""

    manifest: Manifest
    decisions: Sequence[Decision]
    threads: int
    machine: Cpu | None = None
    profile: Profile | None = None
    peak: PeakRates | None = field(init=False)
    kernels: tuple[KernelSummary, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak", self._peak())
        object.__setattr__(self, "kernels", tuple(self._summaries()))

    @classmethod
    def of(
        cls, artifact: Artifact, threads: int, machine: Cpu | None = None, profile: Profile | None = None
    ) -> Explanation:
        """Raises InvalidFile where the stored plan is malformed."""
        return cls(artifact.manifest, artifact.stored_plan().decisions, threads, machine, profile)

    def text(self, top: int = TOP, kernel: str = "", all: bool = False, columns: int = TABLE_COLUMNS) -> str:
        """Summaries of the `top` most expensive kernels; of one `kernel` with all its decisions; or `all` decisions.

        Lines of summaries have at most `columns` characters. Raises InvalidArgument for a kernel that there is not.
        """
        if kernel:
            chosen = self._named(kernel)
            said = "\n".join(decision.explain() for decision in chosen.decisions)
            return "\n".join([*self._summary(chosen, "", columns), "", said])
        lines = self._head(columns)
        for number, each in enumerate(self.kernels[:top], 1):
            lines += ["", *self._summary(each, f"{number}. ", columns)]
        if rest := self.kernels[top:]:
            whole = self._total()
            share = f", {sum(each.seconds or 0.0 for each in rest) / whole:.0%} of the time" if whole else ""
            line = f"{len(rest)} other kinds of kernels{share}: --top N, --kernel NAME, --all"
            lines += ["", *textwrap.wrap(line, columns)]
        if all:
            lines += ["", *(decision.explain() for decision in self.decisions)]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.manifest.name,
            "machine": self.manifest.machine,
            "threads": self.threads,
            "kernels": [each.to_json() for each in self.kernels],
            "decisions": [decision.to_json() for decision in self.decisions],
        }

    # Summaries ------------------------------------------------------------------------------------------------

    def _peak(self) -> PeakRates | None:
        """The rates by which all kernels are compared where nothing was measured and one of them has no model."""
        if self.profile is not None or not self._without_model():
            return None
        machine = self.machine or machine_of(self.manifest.machine, self.manifest.triple)
        return None if machine is None else PeakRates(machine, self.threads)

    def _without_model(self) -> list[Launch]:
        """The launches of some work without predicted cycles, of their own or of the kernel whose parts they sum."""
        launches = [each for each in self.manifest.launches if each.cycles or each.flops or each.bytes]
        modelled = {launch.name for launch in launches if launch.cycles}
        return [each for each in launches if each.name not in modelled and f"{each.name}{OF_PARTS}" not in modelled]

    def _summaries(self) -> list[KernelSummary]:
        """One for all launches that do the same, the most expensive first.

        Time is compared: measured, predicted, or at peak rates, but one of these for all kernels. Cycles of a
        model and those at peak rates are of different size.
        """
        about: dict[str, list[Decision]] = {}
        for decision in self.decisions:
            about.setdefault(decision.kernel, []).append(decision)
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number, launch in enumerate(self.manifest.launches):
            alike.setdefault(_likeness(launch, about.get(launch.name, ())), []).append(number)
        found = [self._summary_of(numbers, about) for numbers in alike.values()]
        if self.peak is not None:
            return sorted(found, key=lambda each: (-(each.peak_seconds or 0.0), -each.flops, -each.bytes))
        return sorted(found, key=lambda each: (-(each.seconds or 0.0), -each.cycles, -each.flops, -each.bytes))

    def _summary_of(self, numbers: Sequence[int], about: Mapping[str, Sequence[Decision]]) -> KernelSummary:
        launches = [self.manifest.launches[number] for number in numbers]
        first = launches[0]
        roofline = measured_roofline(self.machine, self.manifest, self.threads) if self.machine else None
        estimate = roofline.estimate(first) if roofline else None
        least = estimate.least_seconds if estimate else None
        parts = (first.name, first.name.partition(".part")[0])  # what is about all parts is about each
        return KernelSummary(
            names=tuple(launch.name for launch in launches),
            flops=sum(launch.flops for launch in launches),
            bytes=sum(launch.bytes for launch in launches),
            cycles=sum(launch.cycles for launch in launches),
            instruction=first.instruction,
            decisions=tuple(decision for name in dict.fromkeys(parts) for decision in about.get(name, ())),
            bound=estimate.bound if estimate else None,
            predicted_seconds=estimate.seconds * len(launches) if estimate else None,
            least_seconds=least * len(launches) if least is not None else None,
            measured_seconds=sum(self.profile[number].seconds for number in numbers) if self.profile else None,
            peak_seconds=sum(map(self.peak.seconds, launches)) if self.peak else None,
        )

    def _total(self) -> float:
        return sum(each.seconds or 0.0 for each in self.kernels)

    def _named(self, kernel: str) -> KernelSummary:
        for each in self.kernels:
            if kernel in each.names:
                return each
        close = [name for each in self.kernels for name in each.names if kernel in name][:5]
        help = f"close: {', '.join(close)}" if close else "`tilewright profile` lists them"
        raise InvalidArgument(f"there is no kernel {kernel!r}", where=self.manifest.name, help=help)

    # Text -----------------------------------------------------------------------------------------------------

    def _head(self, columns: int) -> list[str]:
        count = len(self.manifest.launches)
        line = f"{self.manifest.name} for {self.manifest.machine or self.manifest.triple}: {count} kernels"
        line += f", {self.threads} thread{'s' * (self.threads > 1)}" if self.manifest.code == "object" else ""
        predicted = sum(each.predicted_seconds or 0.0 for each in self.kernels)
        if predicted:
            line += f", {_time(predicted)} predicted"
        elif self.manifest.code == "object":
            line += "; no seconds, for the rates of this machine were not measured (`tilewright calibrate`)"
        if self.profile is not None:
            line += f", {_time(self.profile.seconds)} measured"
        lines = textwrap.wrap(line, columns, break_on_hyphens=False)
        if self.peak is not None:
            without, machine = len(self._without_model()), self.peak.machine.name
            line = (
                f"ranked by an estimate, the larger of operations at the peak of {machine} and of bytes at the rate of "
                f"its memory: {without} of {count} kernels have no model of their time"
            )
            lines += textwrap.wrap(line, columns, break_on_hyphens=False)
        by: dict[str, float] = {}
        for each in self.kernels:
            if each.bound is not None:
                by[each.bound] = by.get(each.bound, 0.0) + (each.seconds or 0.0)
        whole = self._total()
        shares = [
            f"{name} {seconds / whole:.0%}"
            for name, seconds in sorted(by.items(), key=lambda item: -item[1])
            if seconds >= 0.005 * whole
        ]
        return [*lines, f"bound by {', '.join(shares)}"] if shares else lines

    def _summary(self, kernel: KernelSummary, mark: str, columns: int) -> list[str]:
        """Some lines about a kernel: its time, what bounds it, what was fused, mapping, tile, layouts."""
        first, *others = kernel.names
        count = f", {len(others)} more alike" if others else ""
        lines = textwrap.wrap(f"{mark}{first}{count}: {self._times(kernel)}", columns, break_on_hyphens=False)
        for name, text in (("bound by", self._bound(kernel)), *_said(kernel)):
            if text:
                head = f"   {name:9}"
                long = text.startswith(_NOT_ONE) and _REFUSED in text  # all of the reason is in the decision itself
                most = None if not long else 1 if text.index(_REFUSED) < columns // 2 else 2
                lines += textwrap.wrap(
                    text, columns, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False,
                    max_lines=most, placeholder=" …",
                )  # fmt: skip
        return lines

    def _times(self, kernel: KernelSummary) -> str:
        whole, found = self._total(), []
        if kernel.seconds is not None and whole:
            found.append(f"{kernel.seconds / whole:.0%} of the time")
        if kernel.predicted_seconds is not None:
            found.append(f"{_time(kernel.predicted_seconds)} predicted")
        elif kernel.cycles:
            found.append(f"{kernel.cycles:,} cycles predicted")
        if kernel.measured_seconds is not None:
            found.append(f"{_time(kernel.measured_seconds)} measured")
        if not found:
            found = [f"{kernel.flops:,} operations, {kernel.bytes:,} bytes, no model of its time"]
        if kernel.peak_seconds is not None:
            found.append(f"{_time(kernel.peak_seconds)} at peak rates")
        return ", ".join(found)

    def _bound(self, kernel: KernelSummary) -> str:
        """What bounds it and the rate of that, as predicted or measured, with the part of the ceiling that it is."""
        seconds = kernel.seconds
        if kernel.bound is None or not seconds:
            return ""
        rate = f"{kernel.bytes / seconds / 1e9:.3g} GB/s"
        if kernel.bound == "compute":
            rate = f"{kernel.flops / seconds / 1e9:.0f} GFLOP/s" if kernel.flops else rate
        rate += " predicted" if kernel.measured_seconds is None else ""
        if kernel.least_seconds is None:
            return f"{kernel.bound}, {rate}"
        peak = kernel.instruction if kernel.bound == "compute" else f"reading {kernel.bound}"
        return f"{kernel.bound}, {rate}: {kernel.least_seconds / seconds:.0%} of the rate of {peak}"


def _likeness(launch: Launch, decisions: Sequence[Decision]) -> tuple[Any, ...]:
    """What launches that do the same agree in."""
    tiles = tuple(each.chosen for each in decisions if each.subject.startswith(_ASPECTS["tile"]))
    return launch.kernel, launch.flops, launch.bytes, launch.cycles, launch.constant_bytes, launch.instruction, tiles


def _said(kernel: KernelSummary) -> Iterator[tuple[str, str]]:
    """What decisions say, in short: the choice, what came second and by how much it is worse, how many are refused."""
    for name in _ASPECTS:
        for decision in kernel.aspect(name):
            if name == "layout":
                tensor = shortened(decision.subject.partition(" of ")[2], _NAME_ROOM)
                yield name, f"{tensor} as {decision.chosen.partition(' as ')[0]}, {decision.reason.rpartition('; ')[2]}"
                continue
            if name == "fused":
                yield name, _fusion(decision)
                continue
            runner_up = decision.runner_up.partition(" with vectors of ")[0]
            runner_up = decision.runner_up if runner_up == decision.chosen else runner_up
            second = f"; second: {runner_up}{_runner_up_cost(decision)}" if runner_up else ""
            refused = f"; {len(decision.refused)} refused" if decision.refused else ""
            yield name, f"{decision.chosen}{_reason(decision)}{second}{refused}"


def _fusion(decision: Decision) -> str:
    """With what a kernel is fused, or with what it is not and why: the first reason, and how many others there are."""
    head, *tile = decision.chosen.partition(",")
    others = decision.subject.partition(" of ")[2].split(" + ")[:-1]  # a chain: this kernel is that of its last part
    named = " and ".join(shortened(each, _NAME_ROOM) for each in others)
    chosen = f"{FUSED} with {named}{''.join(tile)}" if named and head == FUSED else decision.chosen
    if named and head == APART:
        chosen = f"{_NOT_ONE}{named}"
        if decision.cost is None and decision.refused:
            return f"{chosen}{_first_refused(decision)}"
    second = decision.runner_up.partition(",")[0]  # without tiles and blocks
    second = f"; second: {second}{_runner_up_cost(decision)}" if second else ""
    return f"{chosen}{_reason(decision)}{second or _first_refused(decision)}"


def _first_refused(decision: Decision) -> str:
    """The first candidate that is refused, with what it costs or the rule that it breaks."""
    if not decision.refused:
        return ""
    first, *others = decision.refused
    more = f"; {len(others)} more" if others else ""
    if cost := _worse(decision.cost, first.cost):
        return f"{_REFUSED}{first.candidate.partition(',')[0]}{cost}{more}"
    candidate = "" if first.candidate == FUSED else f"{first.candidate}, "
    return f"{_REFUSED}{candidate}{first.rule}{f': {first.values}' if first.values else ''}{more}"


def _reason(decision: Decision) -> str:
    """What it costs where that decided, else the reason in words."""
    if decision.cost is not None and decision.cost.cycles is not None:
        return f", {decision.cost.cycles:,.0f} cycles"
    return f": {decision.reason}"


def _runner_up_cost(decision: Decision) -> str:
    """How much more what came second costs, else the reason in words."""
    reason = f" ({decision.runner_up_reason})" if decision.runner_up_reason else ""
    return _worse(decision.cost, decision.runner_up_cost) or reason


def _worse(first: Cost | None, second: Cost | None) -> str:
    """How much more the second costs; empty where that is not known."""
    pairs = [] if first is None or second is None else [(second.seconds, first.seconds), (second.cycles, first.cycles)]
    for there, here in pairs:
        if there is not None and here:
            return f", {there / here - 1:+.1%}" if there != here else ", at the same cost"
    return ""


def _time(seconds: float) -> str:
    """Three digits with a unit.

    >>> _time(0.0123), _time(4.5e-6)
    ('12.3 ms', '4.5 µs')
    """
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
