"""Commands of `tilewright` in the process of a test: typer's runner, for which the commands are made once.

typer makes all commands and their options anew for each call, from the signatures of their functions: 50 ms each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest import mock

import typer.main
import typer.testing

from tilewright.cli.main import USAGE_ERROR

_made = cache(typer.main.get_command)


class CliRunner(typer.testing.CliRunner):
    """As typer's, but that commands are made by the first call, and that the terminal has 400 columns."""

    def invoke(self, app: typer.Typer, *arguments: Any, **options: Any) -> typer.testing.Result:
        options["env"] = {"COLUMNS": "400"} | dict(options.get("env") or {})
        with mock.patch("typer.testing._get_command", _made):
            return super().invoke(app, *arguments, **options)


def parse(app: typer.Typer, words: Sequence[str]) -> None:
    """Parse a command line without running it; an AssertionError says why it does not parse."""
    command: Any = _made(app)
    name, rest = "tilewright", list(words)
    try:
        while hasattr(command, "commands"):
            with command.make_context(name, rest) as context:
                name, command, rest = command.resolve_command(context, rest)
        command.make_context(name, rest).close()
    except USAGE_ERROR as error:
        raise AssertionError(f"{' '.join(words)}: {error}") from error
