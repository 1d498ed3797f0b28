"""Where a search keeps its evaluations: a file (`trace.TraceFile`), or what a caller has, such as a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilewright.search.trace import Step


class Records(Protocol):
    """The evaluations of one search, which `minimise.header_of` tells from others. `path` names the place in errors."""

    @property
    def path(self) -> str: ...

    @property
    def stored(self) -> Sequence[Step]:
        """Those that were there when the search began, in the order in which they were made."""
        ...

    def append(self, step: Step) -> None:
        """Keep one more; it is there when this returns."""
        ...
