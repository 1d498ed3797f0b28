"""`tilewright opt`: passes on the text of a tile program, one at a time."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson
from tilewright.cli.completion import among
from tilewright.cli.console import show_json
from tilewright.cli.printing import table
from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.files import read_input, read_text

EPILOG = """\
\b
example: tilewright compile model.onnx --emit tile \\
             | tilewright opt -p canonicalise -p dce -
         tilewright opt --list
exit status: 0 done,
             2 bad usage, no such pass, a program that is none
"""

Passes = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--pass",
        metavar="NAME",
        help="pass to run; repeatable, in this order",
        autocompletion=among(completion.tile_passes),
    ),
]
File = Annotated[str | None, typer.Argument(metavar="FILE|-", help="a tile program", show_default=False)]
Listed = Annotated[bool, typer.Option("--list", help="list the passes, in the order of the pipeline, and stop")]


def opt(file: File = None, passes: Passes = None, listed: Listed = False, as_json: AsJson = False) -> None:
    """Run passes on a tile program and print the result; without -p only parse, verify and print it."""
    if listed:
        _list_passes(as_json)
        return
    if file is None:
        raise InvalidArgument("no program", where="FILE", help="name a file, or - for standard input")
    from tilewright.kernel.opt import opt as run_passes

    name = "<stdin>" if file == "-" else file
    result = run_passes(_read(file), passes or [], name=name)
    if as_json:
        show_json({"passes": passes or [], "program": result})
    else:
        sys.stdout.write(result)


def _list_passes(as_json: bool) -> None:
    from tilewright.kernel.passes.table import PIPELINES

    if as_json:
        show_json({target: [each.name for each in pipeline] for target, pipeline in PIPELINES.items()})
        return
    rows = [
        [target, each.name, (type(each).__doc__ or "").strip().partition("\n")[0]]
        for target, pipeline in PIPELINES.items()
        for each in pipeline
    ]
    table({"target": "left", "pass": "left", "does": "left"}, rows)


def _read(file: str) -> str:
    return read_input("<stdin>", sys.stdin, InvalidProgram) if file == "-" else read_text(file, InvalidProgram)
