"""Options that several commands have, and the reading of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli import completion
from tilewright.cli.completion import among
from tilewright.errors import InvalidArgument
from tilewright.options import Options

LARGEST_EXTENT = 1 << 31  #: of a loop on the command line


class Mma(StrEnum):
    """The values of `Options.mma`."""

    AUTO = "auto"
    MMA_SYNC = "mma.sync"
    WMMA = "wmma"


class InputPrecision(StrEnum):
    """The values of `Options.input_precision`."""

    IEEE = "ieee"
    TF32 = "tf32"
    TF32X3 = "tf32x3"


class Search(StrEnum):
    """The values of `Options.search`."""

    RULES = "rules"
    JOINT = "joint"


def machine_option(help: str, **more: Any) -> Any:
    """The option `--machine`, whose names the shell completes."""
    return typer.Option("--machine", metavar="NAME|FILE", help=help, autocompletion=among(completion.machines), **more)


Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="N=16,K=64,…", help="extents of loops, or sizes of --op; repeatable"),
]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="a model.onnx or model.twm", show_default=False)]
Machine = Annotated[
    str,
    machine_option("what to compile for; `tilewright machines` lists them"),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="where code for a GPU runs: cuda, emulator (default: cuda if it can)",
        autocompletion=among(completion.devices),
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", help="threads to run on (default: OMP_NUM_THREADS, else the cores)"),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=N,N,…", help="shape of an input, or extent, that the model leaves open; repeatable"
    ),
]
Disable = Annotated[
    list[str] | None,
    typer.Option(
        "--disable",
        metavar="PASS",
        help="optimisation to leave out; repeatable",
        autocompletion=among(completion.optional_passes),
    ),
]
MmaOption = Annotated[
    Mma,
    typer.Option("--mma", help="matrix instructions of products on an NVIDIA GPU: all, or those of one family"),
]
InputPrecisionName = Annotated[
    InputPrecision,
    typer.Option(
        "--input-precision",
        help="what products may read f32 as: itself, tf32, or sums of two tf32, which take three products",
    ),
]
Cluster = Annotated[
    int | None,
    typer.Option(
        "--cluster",
        metavar="N",
        help="blocks of a cluster, which share loads by multicast: 1, 2 or 4; else 1 or 2, as predicted to be faster",
        autocompletion=among(completion.clusters),
    ),
]
Fuse = Annotated[
    str,
    typer.Option("--fuse", metavar="auto|always|never|FILE", help="run products of which one reads the other as one "
                 "kernel; FILE: those of which it has a tree, a saved plan or a .tile",
                 autocompletion=among(completion.fusions)),
]  # fmt: skip
NoCache = Annotated[bool, typer.Option("--no-cache", help="compile again, and keep nothing in the compile cache")]
SearchName = Annotated[
    Search, typer.Option("--search", help="how products are mapped and tiled: by rules, or jointly, timed here")
]
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        min=1,
        help=f"schedules that --search joint times per product (default: {Options.trials})",
    ),
]
Rebuild = Annotated[
    bool, typer.Option("--rebuild", help="of a .twm: compile the program that is stored in it, for this machine")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="same seed, same random inputs")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON value instead of text")]


def shapes_of(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Read `--shape` values.

    >>> shapes_of(["x=1,3,224,224", "scale="])
    {'x': (1, 3, 224, 224), 'scale': ()}
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts or []:
        name, equals, extents = text.rpartition("=")  # names of tensors may have an = of their own
        parts = [part.strip() for part in extents.split(",")] if extents.strip() else []
        if not name or not equals or not all(part.isascii() and part.isdigit() for part in parts):
            raise InvalidArgument(f"{text!r} is not a shape", where="--shape", help="write --shape x=1,3,224,224")
        if name in found:
            raise InvalidArgument(f"two shapes for {name!r}", where="--shape", help="give one")
        if any(len(part) > 18 for part in parts):
            raise InvalidArgument(f"{text!r} is larger than any memory", where="--shape")
        found[name] = tuple(int(part) for part in parts)
    return found


def options_of(disable: list[str] | None = None, no_cache: bool = False, **given: Any) -> Options:
    """The options that a command line asks for; what it does not mention keeps its default."""
    options = Options(disable=tuple(disable or ()), **given)
    return replace(options, cache=False) if no_cache else options


def given_decisions(
    machine: str,
    threads: int | None,
    disable: list[str] | None,
    mma: Mma,
    input_precision: InputPrecision,
    cluster: int | None,
    fuse: str,
) -> dict[str, bool]:
    """The options by which both `compile` and `explain` are told decisions, and whether each is given."""
    return {
        "--machine": machine != "host", "--threads": threads is not None, "--disable": bool(disable),
        "--mma": mma is not Mma.AUTO, "--input-precision": input_precision is not InputPrecision.IEEE,
        "--cluster": cluster != Options.cluster, "--fuse": fuse != Options.fuse,
    }  # fmt: skip


def refuse(given: Mapping[str, bool], message: str, help: str) -> None:
    """Raise InvalidArgument about the first option that is given: what has no effect is not left aside in silence."""
    for option, is_given in given.items():
        if is_given:
            raise InvalidArgument(message, where=option, help=help)


def refuse_for_stored(path: Path, given: Mapping[str, bool], rebuild: str = "") -> None:
    """Raise InvalidArgument about the first option that is given for a `.twm`, whose decisions are made.

    `rebuild` says how to make them anew; its shapes stay what they are.
    """
    message, help = f"{path} is compiled already: its decisions are made", "give the model file"
    refuse({"--shape": given.get("--shape", False)}, message, help)
    refuse(given, message, f"{help}, or {rebuild}" if rebuild else help)


def is_stored(path: Path) -> bool:
    """Whether the file is a `.twm`, by its name."""
    return path.suffix == ".twm"


def sizes_of(texts: list[str] | None) -> dict[str, int]:
    """Read `--size` values.

    >>> sizes_of(["n=16,k=64", "c=3"])
    {'n': 16, 'k': 64, 'c': 3}
    """
    found: dict[str, int] = {}
    for item in (item.strip() for text in texts or [] for item in text.split(",")):
        parts = re.fullmatch(r"([^\s=]+)\s*=\s*([0-9]+)", item, re.ASCII)
        if parts is None:
            raise InvalidArgument(f"{item!r} is not a size", where="--size", help="write n=16,k=64")
        name, digits = parts.groups()
        if name in found:
            raise InvalidArgument(f"two sizes for {name!r}", where="--size", help="give one")
        if len(digits) > 10 or not 0 < int(digits) <= LARGEST_EXTENT:
            raise InvalidArgument(f"{name} = {digits[:40]}", where="--size", help=f"from 1 to {LARGEST_EXTENT}")
        found[name] = int(digits)
    return found
