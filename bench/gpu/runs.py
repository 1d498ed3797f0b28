"""What a run on a GPU found: the machine, rows in the order in which they came, and the seconds that it took."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


@dataclass
class Run(Generic[Row]):
    """Rows are dataclasses: one per contender and case."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> str:
        """The run as JSON, in which infinities and NaN are null."""
        return json.dumps(_finite(asdict(self)), indent=1, allow_nan=False) + "\n"


def keeper(out: Path | None, table: Path | None, text: Callable[[Run[Row]], str]) -> Callable[[Run[Row], str], None]:
    """A function that writes what is done so far as JSON and as a table: whoever ends a run loses nothing."""
    from tilewright.files import write_file

    def keep(run: Run[Row], message: str = "") -> None:
        if message:
            print(message, file=sys.stderr, flush=True)
        if out:
            write_file(out, run.to_json().encode())
        if table:
            write_file(table, text(run).encode())

    return keep


def stored(folder: Path, kind: str) -> list[Path]:
    """The files of a kind, `run-h200-2.json` before `run-h200-10.json`."""

    def key(path: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]

    return sorted(folder.glob(f"{kind}-*.json"), key=key)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
