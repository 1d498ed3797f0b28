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
    """As typer's, but that the commands of an application are made by its first call."""

    def invoke(self, app: typer.Typer, *arguments: Any, **options: Any) -> typer.testing.Result:
        with mock.patch("typer.testing._get_command", _made):
            return super().invoke(app, *arguments, **options)
