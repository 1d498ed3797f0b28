"""`tilewright model`: what a tile tree costs on a machine, predicted without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.arguments import AsJson, machine_option, refuse
from tilewright.cli.console import NEGATIVE, show_json
from tilewright.cli.metric_files import ANALYSIS, CsvPrefix, require_files, write_analysis
from tilewright.cli.printing import say, table, terminal_columns
from tilewright.cli.sweep import SweepText, csv_text, refuse_beside_sweep, swept
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.files import require_writable, write_file

if TYPE_CHECKING:
    from tilewright.machine.description import Machine
    from tilewright.report.tree_shapes import TreePicture
    from tilewright.tiles.analysis import Analysis, Mode
    from tilewright.tiles.file import TileFile
    from tilewright.tiles.problem import Problem
    from tilewright.tiles.resources import Resources
    from tilewright.tiles.tree import TileTree

EPILOG = """\
\b
example: tilewright model chain.tile --machine edge
         tilewright model chain.tile --machine edge --draw
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
    Latency | None,
    typer.Option("--latency", help="phases that overlap as wholes, or every step by itself, with the ports it takes "
                 "(default: stepwise where the machine file states latencies)"),
]  # fmt: skip
Svg = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="draw the tree there: loops, what stays, bytes of levels")
]
Draw = Annotated[bool, typer.Option("--draw", help="draw the tree in the terminal")]
Imperfect = Annotated[bool, typer.Option("--imperfect", help="factors may exceed an extent: clipped edges")]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="loops may run an expression again that they do not advance")
]
DoubleBuffer = Annotated[
    bool, typer.Option("--double-buffer", help="memory holds what a step streams twice, but for that of the units")
]


@dataclass(frozen=True)
class _Task:
    """A tree, and how it is analysed. `latency` is None where the machine decides."""

    problem: Problem
    tree: TileTree
    latency: Latency | None
    compat_evict: bool
    double_buffer: bool

    def resources(self, machine: Machine) -> Resources:
        from tilewright.tiles.machines import resources

        return replace(resources(machine), double_buffer=self.double_buffer)

    def mode(self, machine: Machine) -> Mode:
        """How times are put together on a machine."""
        if self.latency is not None:
            return self.latency.value
        return "stepwise" if self.resources(machine).has_latencies else "phases"

    def analysis(self, machine: Machine) -> Analysis:
        from tilewright.tiles.analysis import analyse

        return analyse(
            self.tree, self.problem, self.resources(machine), mode=self.mode(machine), compat_evict=self.compat_evict
        )


def model(
    files: Files,
    machine: MachineName = None,
    latency: LatencyName = None,
    csv_prefix: CsvPrefix = None,
    svg: Svg = None,
    draw: Draw = False,
    sweep: SweepText = None,
    imperfect: Imperfect = False,
    recompute: Recompute = False,
    compat_evict: CompatEvict = False,
    double_buffer: DoubleBuffer = False,
    as_json: AsJson = False,
) -> None:
    """Predict cycles, energy, and what every memory level holds, loads and stores."""
    from tilewright.tiles.legality import TooLarge, violations
    from tilewright.tiles.summary import facts
    from tilewright.tiles.tree import about

    require_files(csv_prefix, ANALYSIS)
    require_writable(svg, "--svg")
    refuse({"--draw": draw and as_json}, "JSON has no picture", "leave it out")
    if sweep is not None:
        options = {"--json": as_json, "--csv": csv_prefix is not None, "--svg": svg is not None, "--draw": draw}
        refuse_beside_sweep(options)
    given, target = _given(files, machine)
    task = _Task(given.problem, given.tree, latency, compat_evict, double_buffer)
    with about(files[0].name):
        refused = list(violations(
            task.tree, task.problem, imperfect=imperfect, recompute=recompute, resources=task.resources(target)
        ))  # fmt: skip
        for each in refused:
            if not isinstance(each, TooLarge):
                raise each
        if sweep is not None:
            rows = [
                {field: value, **task.analysis(changed).metrics()} for field, value, changed in swept(sweep, target)
            ]  # fmt: skip
            print(csv_text(rows), end="")
            return
        found = task.analysis(target)
    shown = {
        **facts(found, task.problem.tensors()), "latency": task.mode(target),
        "too_large": [each.message for each in refused],
    }  # fmt: skip
    picture = _picture(task, target, shown, files[0].stem)
    if csv_prefix is not None:
        write_analysis(csv_prefix, found, picture)
    if svg is not None:
        from tilewright.report import tile_trees

        write_file(svg, tile_trees.svg([picture]).encode(), where="--svg")
    if as_json:
        show_json(shown)
    else:
        _show(shown)
    if draw:
        from tilewright.report.tree_boxes import drawn

        print(f"\n{drawn(picture, terminal_columns())}", end="")
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


def _picture(task: _Task, machine: Machine, shown: Mapping[str, Any], name: str) -> TreePicture:
    from tilewright.report.tree_shapes import TreePicture, level_lines

    title = f"{name} on {machine.name}: {shown['cycles']:,.0f} cycles, bounded by {shown['bottleneck']}"
    return TreePicture(title, task.tree, task.problem, level_lines(shown))


def _show(shown: Mapping[str, Any]) -> None:
    from tilewright.tiles.summary import rows, units_text

    for message in shown["too_large"]:
        say(f"too large: {message}")
    how = " step by step" if shown["latency"] == "stepwise" else ""
    say(f"{shown['cycles']:,.0f} cycles{how}, bounded by {shown['bottleneck']}; {units_text(shown)}")
    say(f"{shown['energy']:.4g} {shown['energy_unit']}\n")
    heads = ("level", "holds", "capacity", "fill", "read", "update", "instances", "slowdown", "energy")
    table({name: "left" if name == "level" else "right" for name in heads}, rows(shown))
