"""`tilewright reproduce`: what publications report, computed or measured anew."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.arguments import AsJson
from tilewright.cli.console import NEGATIVE, progress, show_json, table

EPILOG = """\
\b
example: tilewright reproduce
         tilewright reproduce amos-mappings
exit status: 0 every claim is met, 1 one is not, 2 no such experiment
"""

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="the experiment to run", show_default=False)]


def reproduce(name: Name = None, as_json: AsJson = False) -> None:
    """List the experiments, or run one: its tables, and every reported result beside ours."""
    from tilewright.reproduce.experiment import EXPERIMENTS, find

    if name is None:
        if as_json:
            show_json([{"name": each.name, "title": each.title, "duration": each.duration} for each in EXPERIMENTS])
        else:
            rows = [[each.name, each.duration, each.title] for each in EXPERIMENTS]
            table({"name": "left", "takes": "right", "shows": "left"}, rows)
        return
    experiment = find(name)
    with progress(experiment.title):
        report = experiment.run()
    if as_json:
        show_json(report.to_json())
    else:
        for each in report.tables:
            print(f"{each.title}\n")
            table(each.columns, [list(row) for row in each.rows])
            print(f"\n{each.note}\n" if each.note else "")
        for claim in report.claims:
            print(f"{claim.name}: {claim.claim}: {'met' if claim.ok else 'NOT MET'}")
            print(f"  reported  {claim.reported}\n  found     {claim.found}")
    if not all(claim.ok for claim in report.claims):
        raise typer.Exit(NEGATIVE)
