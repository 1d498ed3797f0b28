"""What an experiment hands to those who show it: tables, pictures, and claims."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import inf
from typing import Any, NoReturn, Protocol

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.files import read_bytes
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.pictures import Picture


@dataclass(frozen=True)
class Table:
    """A titled table; `columns` maps headings to "left" or "right", a note stands below."""

    title: str
    columns: Mapping[str, str]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


class Report(Protocol):
    """The outcome of an experiment."""

    @property
    def tables(self) -> tuple[Table, ...]: ...

    @property
    def pictures(self) -> tuple[Picture, ...]: ...

    @property
    def claims(self) -> tuple[Claim, ...]: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Experiment:
    """An experiment by name: the module with its function `report`, what it shows, and how long it takes.

    `options` are the arguments of `report` that a user may give. What is `drawn` or `measured` has pictures. Of what is
    `measured`, the class `Report` reads back, with `from_json`, what `to_json` gave.
    """

    name: str
    module: str
    title: str
    duration: str
    options: tuple[str, ...] = ()
    measured: bool = False
    drawn: bool = False

    def run(self, **given: Any) -> Report:
        """Raises InvalidArgument for an option that the experiment does not have."""
        for name in given:
            if name not in self.options:
                known = ", ".join(f"--{each}" for each in self.options) or "no options"
                raise InvalidArgument(f"{self.name} has no option --{name}", where="reproduce", help=f"it has {known}")
        function: Callable[..., Report] = import_module(self.module).report
        return function(**given)

    def stored(self, path: str | os.PathLike[str]) -> Report:
        """The outcome that a file has as JSON. Raises InvalidFile if it has none that can be shown."""
        if not self.measured:
            self._lacks("stored results to show", [each.name for each in EXPERIMENTS if each.measured])
        content = read_bytes(path)
        try:
            report: Report = import_module(self.module).Report.from_json(json.loads(content))
            _ = report.tables, report.claims, report.pictures  # what is missing shows here, not while it is printed
        except (
            InvalidFile, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError
        ) as error:  # fmt: skip
            reason = f"there is no {error}" if isinstance(error, KeyError) else getattr(error, "message", str(error))
            raise InvalidFile(f"this is no result of {self.name}: {reason}", where=os.fspath(path),
                              help=f"tilewright reproduce {self.name} --json > FILE") from error  # fmt: skip
        return report

    def require_pictures(self) -> None:
        """Raises InvalidArgument for an experiment without pictures."""
        if not (self.measured or self.drawn):
            self._lacks("plot", [each.name for each in EXPERIMENTS if each.measured or each.drawn])

    def _lacks(self, what: str, having: Sequence[str]) -> NoReturn:
        raise InvalidArgument(f"{self.name} has no {what}: its tables say it all", where="reproduce",
                              help=f"those of {', '.join(having)} can be shown so")  # fmt: skip


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "amos-mappings", "tilewright.reproduce.amos.mappings",
        "how many mappings operators, layers and networks have: Tables 5.1, 5.3, 5.4, claims E1 to E4", "10 s",
    ),
    Experiment(
        "amos-model", "tilewright.reproduce.amos.ranking",
        "whether the model orders schedules of ResNet-18's layers as this CPU does: claims E5, E6", "5 min",
        ("points", "layers", "machine"), measured=True,
    ),
    Experiment(
        "amos-cpu", "tilewright.reproduce.amos.cpu",
        "what the joint choice of mapping and tiling is worth on ResNet-18's layers: claims E9 to E13", "5 min",
        ("layers", "trials", "batch"), measured=True,
    ),
    Experiment(
        "chimera-orders", "tilewright.reproduce.chimera.orders",
        "block orders of chains, what they move, and what the solver chooses for published chains on three machines: "
        "Table 3.4, Eq. 3.18 and 3.19, claims E1 to E4, E6 to E8, E12", "30 s", ("layers",), measured=True,
    ),
    Experiment(
        "chimera-traffic", "tilewright.reproduce.chimera.traffic",
        "predicted data movement beside counts of simulated caches, and what fusion saves: claims E5, E10, E11",
        "3 min", ("trials",), measured=True,
    ),
    Experiment(
        "chimera-cpu", "tilewright.reproduce.chimera.cpu",
        "chains of two products on this CPU as one kernel and as two, beside PyTorch and onnxruntime where they are "
        "installed: claims E1 to E3, E9", "3 min", ("layers",), measured=True,
    ),
    Experiment(
        "chimera-gpu", "tilewright.reproduce.chimera.gpu",
        "the same chains on a GPU, beside PyTorch; without one, what the compiler predicts: claims E4, E6, E7, E9, E13",
        "30 s, with a GPU 2 min", ("layers", "machine", "device"), measured=True,
    ),
    Experiment(
        "mlir-matmul", "tilewright.reproduce.matmul.ablation",
        "products on a GPU, optimisation by optimisation: counts of the emulator, times that the model predicts, and "
        "times beside cuBLAS where there is a GPU",
        "10 s, with a GPU about 1 h", ("without", "sizes", "machine", "device", "mma"), measured=True,
    ),
    Experiment(
        "tileflow-edge", "tilewright.reproduce.tileflow.edge",
        "dataflows of attention on TileFlow's Edge accelerator, factors searched by the analysis: claims E17 to E20",
        "1 min", ("layers", "trials", "machine"), drawn=True,
    ),
    Experiment(
        "tileflow-cloud", "tilewright.reproduce.tileflow.cloud",
        "the same on its Cloud accelerator, and dataflows of convolution chains on both: claims E21 to E24",
        "3 min", ("layers", "trials"), drawn=True,
    ),
    Experiment(
        "tileflow-accuracy", "tilewright.reproduce.tileflow.accuracy",
        "predicted cycles and energy against RTL simulations of TileFlow's accelerator: claims E14, E15", "20 s",
        drawn=True,
    ),
    Experiment(
        "tileflow-search", "tilewright.reproduce.tileflow.search",
        "how long searches of factors and of whole trees take and how soon they converge: claim E16", "1 min",
        ("layers", "trials"), drawn=True,
    ),
    Experiment(
        "worked-cases", "tilewright.reproduce.matmul.worked_cases",
        "products on GPUs worked out pass by pass: 512x512x128, 128x256x512, 16x8x16", "5 s", ("case",),
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


def positive(value: Any) -> float:
    """A stored number above 0, such as seconds; raises ValueError or TypeError for anything else."""
    number = float(value)
    if not 0 < number < inf:
        raise ValueError(f"{value} where a positive number belongs")
    return number
