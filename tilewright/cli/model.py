"""`tilewright model`: what a tile tree costs on a machine, predicted without running it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.arguments import AsJson, machine_option
from tilewright.cli.console import NEGATIVE, show_json, table
from tilewright.cli.sweep import SweepText, csv_text, refuse_beside_sweep, swept
from tilewright.errors import InvalidArgument
from tilewright.files import require_writable, write_file

if TYPE_CHECKING:
    from tilewright.machine.description import Machine
    from tilewright.tiles.analysis import Analysis
    from tilewright.tiles.file import TileFile

EPILOG = """\
\b
example: tilewright model chain.tile --machine edge
         tilewright model chain.tile --machine edge --json
         tilewright model chain.tile --machine edge --csv out --svg out.svg
         tilewright model chain.tile --machine edge \\
             --sweep L1.capacity_bytes=65536,4194304
         tilewright model run.yaml chip.yaml --compat-evict
exit status: 0 analysed, 1 the tree is too large for the machine,
             2 a file, a tree or a field that is not legal
"""


class Latency(StrEnum):
    """How times of loads, computation and stores are put together."""

    PHASES = "phases"
    STEPWISE = "stepwise"


Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE…", help="a .tile file with expressions and a tile tree, or the .yaml files of a run "
                   "of TileFlow's artifact", show_default=False),
]  # fmt: skip
MachineName = Annotated[
    str | None, machine_option("what runs the tree (default: the architecture in the files, else the host)")
]
CompatEvict = Annotated[
    bool, typer.Option("--compat-evict", help="pipe gives up what it has loaded, as TileFlow's artifact counts")
]
LatencyName = Annotated[
    Latency,
    typer.Option("--latency", help="phases that overlap as wholes, or every step by itself, with the ports it takes"),
]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", metavar="PREFIX", help="write PREFIX.csv (metric, value) and PREFIX.mapping.txt, the tree"),
]
Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="draw the tree there: loops, what stays, bytes of levels")
]
Imperfect = Annotated[bool, typer.Option("--imperfect", help="factors may exceed an extent: clipped edges")]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="loops may run an expression again that they do not advance")
]


def model(
    files: Files,
    machine: MachineName = None,
    latency: LatencyName = Latency.PHASES,
    csv_prefix: Csv = None,
    svg: Svg = None,
    sweep: SweepText = None,
    imperfect: Imperfect = False,
    recompute: Recompute = False,
    compat_evict: CompatEvict = False,
    as_json: AsJson = False,
) -> None:
    """Predict cycles, energy, and what every memory level holds, loads and stores."""
    from tilewright.tiles.analysis import analyse
    from tilewright.tiles.legality import TooLarge, violations
    from tilewright.tiles.machines import resources
    from tilewright.tiles.notation import print_tree
    from tilewright.tiles.summary import facts

    outputs = [] if csv_prefix is None else [Path(f"{csv_prefix}{end}") for end in (".csv", ".mapping.txt")]
    for path in outputs:
        require_writable(path, "--csv")
    require_writable(svg, "--svg")
    given, target = _given(files, machine)
    problem, tree = given.problem, given.tree
    available = resources(target)
    refused = list(violations(tree, problem, imperfect=imperfect, recompute=recompute, resources=available))
    for each in refused:
        if not isinstance(each, TooLarge):
            raise each
    if sweep is not None:
        refuse_beside_sweep({"--json": as_json, "--csv": csv_prefix is not None, "--svg": svg is not None})
        lines = []
        for field, value, changed in swept(sweep, target):
            found = analyse(tree, problem, resources(changed), mode=latency.value, compat_evict=compat_evict)
            lines.append({field: value, **found.metrics()})
        print(csv_text(lines), end="")
        return
    found = analyse(tree, problem, available, mode=latency.value, compat_evict=compat_evict)
    shown = {**facts(found, problem.tensors()), "too_large": [each.message for each in refused]}
    if csv_prefix is not None:
        write_file(outputs[0], _metrics(found).encode(), where="--csv")
        write_file(outputs[1], print_tree(tree, indented=True).encode(), where="--csv")
    if svg is not None:
        from tilewright.report import tile_trees

        title = f"{files[0].stem} on {target.name}: {shown['cycles']:,.0f} cycles, bounded by {shown['bottleneck']}"
        picture = tile_trees.TreePicture(title, tree, problem, tile_trees.level_lines(shown))
        write_file(svg, tile_trees.svg([picture]).encode(), where="--svg")
    if as_json:
        show_json(shown)
    else:
        _show(shown)
    if refused:
        raise typer.Exit(NEGATIVE)


def _given(files: list[Path], machine: str | None) -> tuple[TileFile, Machine]:
    """The problem with its tree, and the machine that is named, or that the files have, or the host."""
    from tilewright.machine.registry import resolve
    from tilewright.tiles.file import read_tile_file
    from tilewright.tiles.tileflow.read import read_run

    if all(path.suffix in (".yaml", ".yml") for path in files):
        run = read_run(files)
        return run.file, run.machine if machine is None and run.machine is not None else resolve(machine or "host")
    if len(files) > 1:
        raise InvalidArgument(f"{len(files)} files, not all of them .yaml", where="FILE",
                              help="one .tile file, or the .yaml files of one run")  # fmt: skip
    return read_tile_file(files[0]), resolve(machine or "host")


def _show(shown: dict[str, Any]) -> None:
    from tilewright.tiles.summary import rows, units_text

    for message in shown["too_large"]:
        print(f"too large: {message}")
    print(f"{shown['cycles']:,.0f} cycles, bounded by {shown['bottleneck']}; {units_text(shown)}")
    print(f"{shown['energy']:.4g} {shown['energy_unit']}\n")
    heads = ("level", "holds", "capacity", "fill", "read", "update", "instances", "slowdown", "energy")
    table({name: "left" if name == "level" else "right" for name in heads}, rows(shown))


def _metrics(found: Analysis) -> str:
    return csv_text([{"metric": name, "value": value} for name, value in found.metrics().items()])
