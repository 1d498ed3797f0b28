"""Accesses of a running program as `touched` counts them, many runs of each together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.tiles.topology import LoopAt

Array = np.ndarray[Any, Any]

PADDING = " (padding)"  #: behind the name of a tensor: elements of its memory that no point of the loops has


@dataclass(frozen=True, slots=True)
class Touch:
    """Runs of one access by a program of the grid: elements of a tensor, for the expression `op`.

    Each run has its time, and a position: values of the loops of the expression that move the access. `runs` says of
    each element in which run it was touched. Elements are numbers; a value that takes the place of another one has
    another number. `ready` are elements that are read and hold the first value of a sum, which the tree does not load;
    `padding` are those that no point has. Scratch memory of a tensor that the tree stages at a level does not leave
    that level.
    """

    program: int
    op: str
    tensor: str
    writes: bool
    times: Array
    position: Mapping[str, Array]
    runs: Array
    elements: Array
    ready: Array
    padding: Array
    scratch: bool = False

    def chosen(self, runs: Array) -> Touch:
        """Those of its runs that are chosen."""
        kept, number = runs[self.runs], np.cumsum(runs) - 1
        return replace(
            self, times=self.times[runs], position={loop: at[runs] for loop, at in self.position.items()},
            runs=number[self.runs[kept]], elements=self.elements[kept], ready=self.ready[kept],
            padding=self.padding[kept],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Placed:
    """A touch with the step of each loop around the leaf of its expression, run by run."""

    touch: Touch
    steps: Mapping[LoopAt, Array]

    def chosen(self, runs: Array) -> Placed:
        """Those of its runs that are chosen."""
        return Placed(self.touch.chosen(runs), {loop: steps[runs] for loop, steps in self.steps.items()})


def by_touch(values: Array, touches: Sequence[Touch]) -> list[Array]:
    """Values of all runs of several touches, touch by touch."""
    return np.split(values, np.cumsum([len(touch.times) for touch in touches])[:-1])
