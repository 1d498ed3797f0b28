"""Python's cyclic garbage collector, paused while much is allocated that stays."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the collector of the process, if it is on; what is garbage by then is collected later.

    Imports and compilations make many objects, of which nearly all live to the end. The collector would look at them
    over and over, which takes a tenth of the time and finds little. Threads may overlap: the one that paused the
    collector turns it on again.
    """
    global _paused
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _paused = True
    try:
        yield
    finally:
        _paused = False
        gc.enable()


@contextmanager
def imports() -> Iterator[None]:
    """Pause the collector while modules are imported, and count what they are made of among the oldest objects.

    Else the first collection after a pause would look at all of it, which takes a twentieth of the time of a first
    compilation. Nothing is done to a collector that is off, or to one whose user has frozen objects.
    """
    before = len(sys.modules)
    with paused_collection():
        yield
        if _paused and len(sys.modules) > before and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # to the oldest generation, all that `freeze` set aside


def collect_new() -> None:
    """Collect the garbage among what was made in a pause: for work that makes much of it, such as a search."""
    if _paused:
        gc.collect(1)


def _after_fork_in_child() -> None:
    """The thread that paused the collector may not be in the child."""
    if _paused:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
