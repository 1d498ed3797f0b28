"""`tilewright reproduce`: what publications report, computed or measured anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson, Device, machine_option
from tilewright.cli.completion import among
from tilewright.cli.console import NEGATIVE, fail, progress, show_json
from tilewright.cli.printing import say, table
from tilewright.errors import CompileError, InvalidArgument
from tilewright.files import require_writable, write_file

if TYPE_CHECKING:
    from tilewright.reproduce.claim import Claim

EPILOG = """\
\b
example: tilewright reproduce
         tilewright reproduce amos-mappings
         tilewright reproduce amos-cpu --layers C0,C6 --trials 96 \\
             --json > cpu.json
         tilewright reproduce chimera-orders --layers G2,C6
         tilewright reproduce mlir-matmul --without padding,swizzle
         tilewright reproduce mlir-matmul --mma wmma
         tilewright reproduce mlir-matmul --device cuda \\
             --sizes 1024,4096 --json > gpu.json
         tilewright reproduce worked-cases --case 16x8x16 --document case.md
         tilewright reproduce amos-cpu --from cpu.json --plot cpu.svg
verdicts:    met or differs, by the bar that is printed; open: not measured
             here, for the reason that is printed below the table
exit status: 0 no claim differs, 1 one does, 2 bad usage or file,
             3 no matplotlib for --plot
"""

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="the experiment to run", show_default=False, autocompletion=among(completion.experiments)
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        "--layers",
        metavar="NAME,…",
        help="layers of ResNet-18, C0 to C11 (default: all); of tileflow-… networks, as bert-base, and chains, as C1; "
        "of chimera-… chains, as G2 or C6",
        autocompletion=among(completion.experiment_layers, several=True),
    ),
]
Trials = Annotated[int | None, typer.Option("--trials", metavar="N", min=1, help="schedules, trees or tilings drawn")]
Points = Annotated[int | None, typer.Option("--points", metavar="N", min=1, help="schedules timed per layer")]
Batch = Annotated[int | None, typer.Option("--batch", metavar="N", min=1, help="images at a time (default: 1)")]
Without = Annotated[
    str | None,
    typer.Option(
        "--without",
        metavar="NAME,…",
        help="optimisations to leave out, and what needs them; the report says what each is",
        autocompletion=among(completion.optimisations, several=True),
    ),
]
Sizes = Annotated[
    str | None, typer.Option("--sizes", metavar="N,…", help="extents, multiples of 256 (default: 1024 to 16384)")
]
MachineName = Annotated[
    str | None,
    machine_option(
        "whose time to predict (default: nvidia-rtx-3090; chimera-gpu: an A100); amos-model: the host with "
        "its features only"
    ),
]
MmaOption = Annotated[
    str | None,
    typer.Option(
        "--mma",
        metavar="NAME",
        help="the matrix instruction: mma.sync (the default) or wmma",
        autocompletion=among(completion.matrix_instructions),
    ),
]
Case = Annotated[
    str | None,
    typer.Option(
        "--case",
        metavar="NAME",
        help="one of the worked cases (default: all)",
        autocompletion=among(completion.worked_cases),
    ),
]
Document = Annotated[
    Path | None, typer.Option("--document", metavar="FILE.md", help="write the worked case there, pass by pass")
]
Stored = Annotated[
    Path | None, typer.Option("--from", metavar="FILE.json", help="show what --json printed, without running it again")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="draw it too: a .svg, .png or .pdf")]


def reproduce(
    name: Name = None,
    layers: Layers = None,
    trials: Trials = None,
    points: Points = None,
    batch: Batch = None,
    without: Without = None,
    sizes: Sizes = None,
    machine: MachineName = None,
    device: Device = None,
    mma: MmaOption = None,
    case: Case = None,
    document: Document = None,
    stored: Stored = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """List the experiments, or run one: its tables, and every reported result beside ours."""
    from tilewright.report import plot as plots
    from tilewright.reproduce.experiment import EXPERIMENTS, find

    given = {
        option: value
        for option, value in (
            ("layers", None if layers is None else layers.split(",")), ("trials", trials), ("points", points),
            ("batch", batch), ("without", None if without is None else without.split(",")),
            ("sizes", None if sizes is None else _numbers(sizes)),
            ("machine", machine), ("device", device), ("mma", mma), ("case", case),
        )
        if value is not None
    }  # fmt: skip
    if name is None:
        if given or stored or plot or document:
            raise InvalidArgument("options without the NAME of an experiment", where="reproduce",
                                  help=f"one of {', '.join(each.name for each in EXPERIMENTS)}")  # fmt: skip
        if as_json:
            show_json([{"name": each.name, "title": each.title, "duration": each.duration} for each in EXPERIMENTS])
        else:
            rows = [[each.name, each.duration, each.title] for each in EXPERIMENTS]
            table({"name": "left", "takes": "left", "shows": "left"}, rows)
        return
    experiment = find(name)
    require_writable(document, "--document")
    if plot is not None:
        experiment.require_pictures()
        plots.check(plot)
    if document is not None and ("case" not in experiment.options or case is None):
        raise InvalidArgument("a document is of one worked case", where="--document",
                              help="worked-cases --case NAME --document FILE.md")  # fmt: skip
    if stored is not None:
        if given:
            raise InvalidArgument(f"--{next(iter(given))} is for a run, not for stored results", where="--from")
        report = experiment.stored(stored)
    else:
        with progress(experiment.title):
            report = experiment.run(**given)
    if document is not None:
        from tilewright.reproduce.matmul import worked_cases

        assert isinstance(report, worked_cases.Report)
        write_file(document, report.documents[0].encode(), where="--document")
    if as_json:
        show_json(report.to_json())
    else:
        for each in report.tables:
            say(f"{each.title}\n")
            table(each.columns, [list(row) for row in each.rows])
            say(f"\n{each.note}\n" if each.note else "")
        _show_claims(report.claims)
    if plot is not None:
        try:
            plots.draw(report.pictures, plot)
        except CompileError as error:
            fail(error)  # on standard error only: the results are printed already
    if any(claim.verdict == "differs" for claim in report.claims):
        raise typer.Exit(NEGATIVE)


def _show_claims(claims: Sequence[Claim]) -> None:
    """A line for each claim; below, why figures differ or are open."""
    heads = {
        "claim": "left",
        "figure": "left",
        "published": "right",
        "ours": "right",
        "bar": "right",
        "verdict": "left",
    }
    rows = [
        [each.name.removeprefix("spec3-"), each.subject, each.published, each.shown_ours, each.shown_bar, each.verdict]
        for each in claims
    ]
    table(heads, rows)
    for verdict in ("differs", "open"):
        for each in claims:
            if each.verdict == verdict:
                say(f"\n{each.name.removeprefix('spec3-')}, {each.subject}, {verdict}: {each.reason}")


def _numbers(text: str) -> list[int]:
    """The numbers of a list; raises InvalidArgument for anything else."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise InvalidArgument(f"{text!r} is no list of numbers", where="--sizes", help="like 1024,2048")
    return [int(part) for part in parts]
