"""`tilewright validate mma-schedule`: schedules of matrix products beside those recorded from another compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson
from tilewright.cli.completion import among
from tilewright.cli.console import NEGATIVE, show_json
from tilewright.cli.printing import say

EPILOG = """\
\b
example: tilewright validate mma-schedule --data configs.csv
         tilewright validate mma-schedule --data configs.csv \\
             --policy tilewright --json
exit status: 0 every row matches, 1 some do not,
             2 bad usage or a file that cannot be read
"""

SHOWN = 20  # mismatches printed as text


Data = Annotated[
    Path,
    typer.Option("--data", metavar="FILE.csv", help="one matmul and its recorded configuration per row",
                 show_default=False),
]  # fmt: skip
PolicyName = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="iree-3.6, tilewright or size-classes: the rules to deduce by",
        autocompletion=among(completion.schedule_policies),
    ),
]


def validate(data: Data, policy: PolicyName = "iree-3.6", as_json: AsJson = False) -> None:
    """Deduce every row of a table again and list the rows and columns that differ.

    The columns are target, M, N, K, a, b, c (the matmul) and pipeline, workgroup_size, subgroup_size, mma, workgroup,
    reduction, subgroup_m, subgroup_n, subgroup, padding, promote (the answer; empty where the path has none).
    """
    from tilewright.instruction.mma.policy import switches_of
    from tilewright.instruction.mma.reference import mismatches, read_recorded

    switches = switches_of(policy)
    rows = read_recorded(data)
    found = list(mismatches(rows, switches))
    matched = len(rows) - len(found)
    if as_json:
        show_json({"rows": len(rows), "match": matched, "mismatches": found})
    else:
        say(f"{matched} of {len(rows)} rows match")
        for each in found[:SHOWN]:
            differences = ", ".join(
                f"{name} {json.dumps(pair['deduced'])} instead of {json.dumps(pair['recorded'])}"
                for name, pair in each["columns"].items()
            )
            say(f"line {each['line']}: {each['problem']} on {each['target']}: {differences}")
        if len(found) > SHOWN:
            say(f"… and {len(found) - SHOWN} more; --json lists all")
    if found:
        raise typer.Exit(NEGATIVE)
