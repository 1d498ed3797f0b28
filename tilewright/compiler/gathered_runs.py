"""Accesses of a program, gathered as they run and given back as arrays: all runs of each load and store together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import StoreOp, shape
from tilewright.kernel.interpreter import Access
from tilewright.lower.whereabouts import Whereabouts

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Site:
    """A load or store of a program, of a statement or of none, to or from the memory of a tensor.

    `counters` are the values of the program from which follows where in its loops a run of it is.
    """

    op: Operation
    view: SSAValue
    where: Whereabouts
    statement: str
    tensor: str
    writes: bool
    counters: tuple[SSAValue, ...]

    @property
    def own(self) -> bool:
        """Whether the statement touches its own value."""
        return self.statement == self.tensor

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of the tile that is read or written."""
        return shape(self.op.value if isinstance(self.op, StoreOp) else self.op.results[0])


@dataclass(frozen=True)
class Runs:
    """Runs of one site: the time of each, and the elements of its view that they touch, with the run of each element.

    `rows` are where the elements stand among all that were gathered.
    """

    site: Site
    times: Array
    rows: Array
    runs: Array
    elements: Array
    values: Sequence[Sequence[int]]

    def value(self, name: SSAValue) -> Array:
        """What a value of the program was at each run."""
        column = self.site.counters.index(name)
        return np.array([values[column] for values in self.values])


@dataclass(frozen=True)
class Gathered:
    """The elements that some runs touched, in the order of time, with what touched them."""

    program: int
    elements: Array
    runs: tuple[Runs, ...]


class Gathering:
    """Runs of accesses by one program that were not taken yet. Times grow from the first run to the last one."""

    def __init__(self) -> None:
        self.begin, self.count, self.program = 0, 0, 0
        self.sites: list[Site] = []
        self.elements: list[Array] = []
        self.values: list[list[int]] = []

    def add(self, site: Site, access: Access) -> None:
        self.program = access.program
        self.count += access.elements.size
        self.sites.append(site)
        self.elements.append(access.elements)
        self.values.append([access.value(counter) for counter in site.counters])

    def take(self) -> Gathered:
        """What was gathered, which is forgotten."""
        elements = np.concatenate(self.elements)
        found = Gathered(self.program, elements, tuple(self._by_site(elements)))
        self.begin, self.count = self.begin + len(self.sites), 0
        self.sites, self.elements, self.values = [], [], []
        return found

    def _by_site(self, elements: Array) -> Iterator[Runs]:
        sizes = np.array([each.size for each in self.elements])
        firsts = np.cumsum(sizes) - sizes
        by_site: dict[Site, list[int]] = defaultdict(list)
        for number, site in enumerate(self.sites):
            by_site[site].append(number)
        for site, numbers in by_site.items():
            own = sizes[numbers]
            runs = np.repeat(np.arange(len(numbers)), own)
            within = np.arange(len(runs)) - np.repeat(np.cumsum(own) - own, own)
            rows = firsts[numbers][runs] + within
            values = [self.values[number] for number in numbers]
            yield Runs(site, self.begin + np.array(numbers), rows, runs, elements[rows], values)
