"""What an experiment hands to those who show it: tables of cells, and reported claims beside what was found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from tilewright.errors import InvalidArgument


@dataclass(frozen=True)
class Table:
    """A titled table; `columns` maps headings to "left" or "right", a note stands below."""

    title: str
    columns: Mapping[str, str]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A reported result beside ours; `ok` by the acceptance that is stated for it."""

    name: str
    claim: str
    reported: str
    found: str
    ok: bool


class Report(Protocol):
    """The outcome of an experiment."""

    @property
    def tables(self) -> tuple[Table, ...]: ...

    @property
    def claims(self) -> tuple[Claim, ...]: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Experiment:
    """An experiment by name: the module with its function `report`, what it shows, and how long it takes.

    `options` are the arguments of `report` that a user may give.
    """

    name: str
    module: str
    title: str
    duration: str
    options: tuple[str, ...] = ()

    def run(self, **given: Any) -> Report:
        """Raises InvalidArgument for an option that the experiment does not have."""
        for name in given:
            if name not in self.options:
                known = ", ".join(f"--{each}" for each in self.options) or "no options"
                raise InvalidArgument(f"{self.name} has no option --{name}", where="reproduce", help=f"it has {known}")
        function: Callable[..., Report] = import_module(self.module).report
        return function(**given)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "amos-mappings", "tilewright.reproduce.amos.mappings",
        "how many mappings operators, layers and networks have: Tables 5.1, 5.3, 5.4, claims E1 to E4", "10 s",
    ),
    Experiment(
        "amos-model", "tilewright.reproduce.amos.ranking",
        "whether the model orders schedules of ResNet-18's layers as this CPU does: claims E5, E6", "5 min",
        ("points", "layers"),
    ),
    Experiment(
        "amos-cpu", "tilewright.reproduce.amos.cpu",
        "what the joint choice of mapping and tiling is worth on ResNet-18's layers: claims E9 to E13", "5 min",
        ("layers", "trials", "batch"),
    ),
)  # fmt: skip


def find(name: str) -> Experiment:
    """The experiment of that name; raises InvalidArgument for another."""
    for each in EXPERIMENTS:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in EXPERIMENTS)
    raise InvalidArgument(f"there is no experiment {name!r}", where="reproduce", help=f"one of {names}")


@contextmanager
def pinned() -> Iterator[None]:
    """This process on one of its cores, where the system can say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
