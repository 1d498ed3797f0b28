"""Process-wide singletons that own native memory (loaded code, devices, thread pools).

Creation is serialised by one lock. A holder of an address must also hold its owner.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_Value = TypeVar("_Value")

# One lock for all, since making one may need another. Reentrant: the handler of a signal may call a module.
_lock = threading.RLock()


def creation_lock() -> threading.RLock:
    """The lock to hold while a singleton is looked up and, if it is missing, created."""
    return _lock


def once(make: Callable[..., _Value]) -> Callable[..., _Value]:
    """`functools.cache` for such values: `make` runs once for the same arguments, whatever threads ask at a time."""
    made = functools.cache(make)

    @functools.wraps(made)
    def value(*key: Any) -> _Value:
        with creation_lock():
            return made(*key)

    value.cache_info, value.cache_clear = made.cache_info, made.cache_clear  # type: ignore[attr-defined]
    return value


def _after_fork_in_child() -> None:
    """The thread that held the lock is not in the child."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
