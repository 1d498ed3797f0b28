"""`--csv PREFIX`: what an analysis and a search found, as files with the names of spec 1, section 5.10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.sweep import csv_text
from tilewright.files import require_writable, write_file

if TYPE_CHECKING:
    from tilewright.report.tree_shapes import TreePicture
    from tilewright.search.trace import Trace
    from tilewright.tiles.analysis import Analysis

ANALYSIS = (".csv", ".mapping.txt")  #: ends of the files of one analysis
TUNING = ".tuning.csv"  #: of a search

CsvPrefix = Annotated[
    Path | None,
    typer.Option("--csv", metavar="PREFIX", help="write PREFIX.csv (metric, value) and PREFIX.mapping.txt, the tree"),
]


def require_files(prefix: Path | None, ends: Sequence[str]) -> None:
    """Raise InvalidArgument where one of the files could not be written."""
    for end in ends if prefix is not None else ():
        require_writable(Path(f"{prefix}{end}"), "--csv")


def write_analysis(prefix: Path, analysis: Analysis, picture: TreePicture) -> None:
    """Write every metric with its value, and the tree with what it holds as comments."""
    metrics = csv_text([{"metric": name, "value": value} for name, value in analysis.metrics().items()])
    for end, text in zip(ANALYSIS, (metrics, annotated(picture)), strict=True):
        write_file(Path(f"{prefix}{end}"), text.encode(), where="--csv")


def annotated(picture: TreePicture) -> str:
    """The tree with comments: what levels hold and move, and what a step of each tile has in the next level."""
    from tilewright.report.tree_shapes import step_notes
    from tilewright.tiles.notation import comment, print_tree

    head = [picture.title, *(f"{level}: {line}" for level, line in picture.levels.items())]
    comments = "".join(f"{comment(line)}\n" for line in head)
    return comments + print_tree(picture.tree, indented=True, notes=step_notes(picture))


def write_tuning(prefix: Path, trace: Trace) -> None:
    """Write a line per evaluation of a search: seconds since it began, its batch, reward, value, the best so far."""
    from tilewright.search.tree_search import reward

    rows = [
        {
            "index": number, "time": step.time, "iter": step.iteration,
            "reward": reward(step.evaluation) if step.evaluation.valid else "",
            "value": step.evaluation.value if step.evaluation.valid else "",
            "best": "" if step.best is None else step.best,
        }
        for number, step in enumerate(trace.steps, 1)
    ]  # fmt: skip
    text = csv_text(rows) if rows else "index,time,iter,reward,value,best\n"
    write_file(Path(f"{prefix}{TUNING}"), text.encode(), where="--csv")
