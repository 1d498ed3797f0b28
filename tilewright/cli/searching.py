"""What `search` does with models and workloads alike: what was asked for, and a line on a terminal for its progress."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.dataclass import dataclass

if TYPE_CHECKING:
    from tilewright.expr.dtypes import DType
    from tilewright.graph.search_options import SearchOptions
    from tilewright.machine import Machine
    from tilewright.search.trace import Step

_EVERY_SECONDS = 0.2  # a progress line


@dataclass(frozen=True)
class Settings:
    """What `search` was asked for, of a workload or of a model. `dtype` is what floating-point elements count as.

    `plot`, `csv_prefix` and `workers` are of a workload.
    """

    target: Machine
    options: SearchOptions
    dtype: DType
    output: Path | None = None
    plot: Path | None = None
    csv_prefix: Path | None = None
    workers: int | None = None
    sweep: str | None = None
    as_json: bool = False


class Progress:
    """Gets every evaluation, with the name of what is searched."""

    def __init__(self) -> None:
        self._shown, self._count, self._next = False, 0, time.monotonic() + _EVERY_SECONDS

    def __call__(self, name: str, step: Step) -> None:
        self._count += 1
        if sys.stderr.isatty() and time.monotonic() >= self._next:
            best = "none yet" if step.best is None else f"{step.best:,.0f}"
            line = f"\r{name}: {self._count:,} evaluations, best {best}\033[K"
            print(line, end="", file=sys.stderr, flush=True)
            self._shown, self._next = True, time.monotonic() + _EVERY_SECONDS

    def end(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
