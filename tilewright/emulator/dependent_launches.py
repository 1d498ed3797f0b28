"""Kernels that may start before the previous kernels end: which threads have executed ``griddepcontrol.wait``.

The emulator runs kernels one after the other, so that the instruction waits for nothing. In kernels that have it, an
access to global memory by a thread that has not executed it is a diagnostic; in other kernels nothing is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulator.scalars import Array

if TYPE_CHECKING:
    from tilewright.emulator.lanes import Lanes

WAIT = "griddepcontrol.wait"


class DependentLaunch:
    """Which of the `threads` of a chunk have waited for the kernels before theirs."""

    def __init__(self, threads: int) -> None:
        self._waited = np.zeros(threads, np.bool_)

    def wait(self, lanes: Lanes) -> None:
        self._waited[lanes.index] = True

    def early(self, lanes: Lanes) -> Array:
        """Which of these threads have not waited."""
        return np.asarray(~self._waited[lanes.index])
