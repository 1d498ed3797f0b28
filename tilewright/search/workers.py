"""Worker processes for a search: Ctrl-C at a terminal reaches all processes, and only the search itself answers it."""

from __future__ import annotations

import signal
from concurrent.futures import ProcessPoolExecutor


def processes(count: int) -> ProcessPoolExecutor:
    """A pool of worker processes that go on with their point when Ctrl-C is pressed; the search cancels the rest.

    A worker that the signal interrupts between two points may leave the pool's queue locked for good.
    """
    return ProcessPoolExecutor(count, initializer=_ignore_interrupts)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
