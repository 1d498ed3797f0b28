"""The machine code that modules share, made on a thread while the first of them is compiled or read from the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tilewright.codegen.workers import Workers
from tilewright.runtime.fastcall import available, call_code
from tilewright.runtime.loader import Code
from tilewright.runtime.pool import default_threads, pool_code


@contextmanager
def shared_code_ahead(threads: int) -> Iterator[None]:
    """Make the code of pools and fast calls beside the body of the `with` statement, for modules of `threads` threads.

    What has not begun when the body ends, or has failed, is made where it is needed, and fails there.
    """
    with Workers(_made, default_threads()) as workers:
        if not pool_code.cache_info().currsize:  # type: ignore[attr-defined]
            workers.give(partial(pool_code, threads == 1))
            if available():
                workers.give(call_code)
        yield


def _made(make: Callable[[], Code]) -> Code:
    return make()
