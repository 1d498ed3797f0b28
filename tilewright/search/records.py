"""Where the outcomes of searches are kept between processes: what a search asks of a tuning database."""

from __future__ import annotations

from typing import Any, Protocol


class Records(Protocol):
    """JSON values by text. `compiler` passes an implementation; what is kept may be forgotten at any time."""

    def find(self, key: str) -> Any:
        """What was kept under `key`, or None."""
        ...

    def keep(self, key: str, value: Any) -> None:
        """Keep `value` under `key`, in place of what was there."""
        ...
