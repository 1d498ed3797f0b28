"""The times of the launches of a call, as values and as a table: the longest first, beside what the machine reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, overload

from tilewright.dataclass import dataclass
from tilewright.machine.description import Cpu
from tilewright.runtime.calibration_file import stored_rates
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.roofline import Estimate, Roofline

TABLE_COLUMNS = 80
MOST_ROWS = 16


@dataclass(frozen=True)
class KernelTime:
    """One launch of a call: what it does, and the median time it took."""

    name: str
    kernel: str
    programs: int
    flops: int
    bytes: int
    seconds: float

    @property
    def gflops_per_second(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes_per_second(self) -> float:
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class ProfileRow:
    """Launches of one code in a profile: `count` of them, named after the first, and their times added up.

    `share` is their part of the time of a call. The last three are None where rates were not measured or there is no
    model: what bounds them, the seconds predicted for them, and `Estimate.least_seconds` by their time.
    """

    name: str
    count: int
    seconds: float
    share: float
    gflops_per_second: float
    gbytes_per_second: float
    bound: str | None = None
    predicted_seconds: float | None = None
    ceiling_share: float | None = None


class Profile(Sequence[KernelTime]):
    """The launches of a call in their order; `str()` is a table of them, the longest first."""

    def __init__(self, times: Sequence[KernelTime], manifest: Manifest, threads: int) -> None:
        self.times = tuple(times)
        self.manifest, self.threads = manifest, threads

    @overload
    def __getitem__(self, index: int) -> KernelTime: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[KernelTime]: ...
    def __getitem__(self, index: int | slice) -> KernelTime | Sequence[KernelTime]:
        return self.times[index]

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[KernelTime]:
        return iter(self.times)

    @property
    def seconds(self) -> float:
        """Of all launches."""
        return sum(time.seconds for time in self.times)

    def rows(self, machine: Cpu | None = None) -> list[ProfileRow]:
        """Launches that run one code as one row, the longest first, with estimates where rates were measured."""
        roofline = measured_roofline(machine, self.manifest, self.threads)
        groups: dict[str, list[int]] = {}
        for number, time in enumerate(self.times):
            groups.setdefault(time.kernel, []).append(number)
        rows = [self._row(numbers, roofline) for numbers in groups.values()]
        return sorted(rows, key=lambda row: -row.seconds)

    def _row(self, numbers: Sequence[int], roofline: Roofline | None) -> ProfileRow:
        times = [self.times[number] for number in numbers]
        seconds = sum(time.seconds for time in times)
        flops, moved = (sum(getattr(time, name) for time in times) for name in ("flops", "bytes"))
        rate = 1e-9 / seconds if seconds else 0.0
        share = seconds / self.seconds if self.seconds else 0.0
        found: list[Estimate | None] = [
            roofline.estimate(self.manifest.launches[number]) if roofline else None for number in numbers
        ]
        known = [each for each in found if each is not None]
        row = ProfileRow(times[0].name, len(times), seconds, share, flops * rate, moved * rate)
        if not known or len(known) < len(found):
            return row
        least = [each.least_seconds for each in known if each.least_seconds is not None]
        return replace(
            row,
            bound=known[0].bound,
            predicted_seconds=sum(each.seconds for each in known),
            ceiling_share=sum(least) / seconds if len(least) == len(known) and seconds else None,
        )

    def table(self, machine: Cpu | None = None, most: int = MOST_ROWS, columns: int = TABLE_COLUMNS) -> str:
        """At most so many rows, the others added up, in lines of at most so many characters.

        `machine`: by default the host with the rates that `tilewright calibrate` measured, if it ever did.
        """
        rows = self.rows(machine)
        room = max(16, columns - 57)
        head = f"{'kernel':{room}}  times        µs     %  GFLOP/s   GB/s  bound    of peak"
        lines = [head, *(_line(row, room) for row in rows[:most])]
        if rest := rows[most:]:
            seconds, count = sum(row.seconds for row in rest), sum(row.count for row in rest)
            lines.append(_cells(f"{len(rest)} others", room, count, seconds, sum(row.share for row in rest)))
        lines.append(_cells("all", room, len(self), self.seconds, 1.0))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def to_json(self, machine: Cpu | None = None) -> dict[str, Any]:
        """All rows, and all launches."""
        return {
            "seconds": self.seconds,
            "threads": self.threads,
            "rows": [asdict(row) for row in self.rows(machine)],
            "launches": [asdict(time) for time in self.times],
        }


def measured_roofline(machine: Cpu | None, manifest: Manifest, threads: int) -> Roofline | None:
    """The roofline of a machine, by default the host, if its rates were measured and the code is for a CPU."""
    if manifest.code != "object":
        return None
    found = machine or stored_rates()
    return Roofline(found, manifest, threads) if found is not None and found.is_measured else None


def shortened(name: str, room: int) -> str:
    """A name of at most `room` characters: its middle is left out."""
    if len(name) <= room:
        return name
    end = (room - 1) // 2
    return f"{name[: room - 1 - end]}…{name[len(name) - end :]}"


def _cells(name: str, room: int, count: int, seconds: float, share: float) -> str:
    return f"{shortened(name, room):{room}} {count:6} {1e6 * seconds:9.1f} {100 * share:5.1f}"


def _line(row: ProfileRow, room: int) -> str:
    cells = _cells(row.name, room, row.count, row.seconds, row.share)
    ceiling = "" if row.ceiling_share is None else f"{100 * row.ceiling_share:.0f} %"
    rates = f"{row.gflops_per_second:8.1f} {row.gbytes_per_second:6.1f}"
    return f"{cells} {rates}  {row.bound or '':7}  {ceiling:>7}".rstrip()
