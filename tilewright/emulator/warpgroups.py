"""Asynchronous products of warpgroups: pending until a wait, reading their operands as late as they may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.lanes import Lanes, State, Step, as_index
from tilewright.emulator.scalars import Array

WARPGROUP = 128


@dataclass
class PendingProduct:
    """One instruction of some warpgroups: `perform` computes it for those that `chosen` numbers."""

    number: int
    step: Step
    threads: Array  # (warpgroups, 128) positions
    group: Array  # commit group of each warpgroup
    results: tuple[int, ...]
    sources: tuple[int, ...]
    cells: list[Array]  # of each warpgroup
    perform: Callable[[Array], None]
    done: Array = field(default_factory=lambda: np.zeros(0, np.bool_))


class Warpgroups:
    """The pending products of a chunk and the groups they are committed in."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.open_group = np.zeros(state.size, np.int64)
        self.fenced = np.zeros(state.size, np.int64)  # last wgmma.fence
        self.pending: list[PendingProduct] = []

    def issue(self, product: PendingProduct) -> None:
        shared = self.state.shared
        for cells in product.cells:
            shared.expect_read(cells, product.number)
        product.done = np.zeros(len(product.threads), np.bool_)
        self.pending.append(product)
        self._mark()

    def wait(self, lanes: Lanes, left: int) -> None:
        """All but the last `left` committed groups of these threads are done."""
        here = np.zeros(self.state.size, np.bool_)
        here[lanes.index] = True
        for product in self.pending:
            first = product.threads[:, 0]
            ready = here[first] & (product.group < self.open_group[first] - left) & ~product.done
            self._finish(product, np.flatnonzero(ready))
        self.pending = [product for product in self.pending if not product.done.all()]
        self._mark()

    def _finish(self, product: PendingProduct, chosen: Array) -> None:
        if not len(chosen):
            return
        product.perform(chosen)
        for number in chosen.tolist():
            self.state.shared.end_read(product.cells[number], product.number)
            warp = int(product.threads[number, 0]) % self.state.clocks.members // 32
            self.state.shared.note_group_read(product.cells[number], warp)
        product.done[chosen] = True

    def _mark(self) -> None:
        """Which registers of which threads pending products still use."""
        state = self.state
        state.in_flight.clear()
        for product in self.pending:
            threads = product.threads[~product.done].reshape(-1)
            for use, slots in (("result", product.results), ("source", product.sources)):
                for slot in slots:
                    uses = state.in_flight.setdefault(slot, {})
                    mask = uses.setdefault(use, np.zeros(state.size, np.bool_))
                    mask[threads] = True

    def lanes_of(self, product: PendingProduct, chosen: Array) -> Lanes:
        positions = product.threads[chosen].reshape(-1)
        return Lanes(self.state, as_index(positions), len(positions), product.step)
