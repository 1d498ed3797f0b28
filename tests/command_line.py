"""Commands of `tilewright` in the process of a test: typer's runner, for which the commands are made once.

typer makes all commands and their options anew for each call, from the signatures of their functions: 50 ms each time.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest import mock

import typer.main
import typer.testing

_made = cache(typer.main.get_command)


class CliRunner(typer.testing.CliRunner):
    """As typer's, but that commands are made by the first call, and that the terminal has 400 columns."""

    def invoke(self, app: typer.Typer, *arguments: Any, **options: Any) -> typer.testing.Result:
        options["env"] = {"COLUMNS": "400"} | dict(options.get("env") or {})
        with mock.patch("typer.testing._get_command", _made):
            return super().invoke(app, *arguments, **options)
