"""The visits of a nest in one memory that it fills, as accesses are in them: what they need, and what is dropped.

A visit lasts as long as accesses are below one node of the nest, in one step of the loops around it. What it touches of
a tensor is one slice, the next turn of the tensor in this memory (`held_slices`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.tiles.held_slices import OWN, READ, READY, WRITTEN, HeldSlices
from tilewright.tiles.memories import Movement, Place
from tilewright.tiles.topology import Topology
from tilewright.tiles.touch import PADDING, Placed, Touch, by_touch
from tilewright.tiles.tree import Path, Scope

Array = np.ndarray[Any, Any]
Below = tuple[Placed, Path]  #: accesses, and the node below the nest that they are in
_Visit = tuple[Path, tuple[int, ...]]  # the node, and the step of each loop around it
_Held = tuple[str, tuple[Path, ...]]  # a tensor, and the spatial tiles whose children share its slice


@dataclass
class _Turns:
    """The turn of each tensor at which a visit last needed it, and in which of the visits that was.

    Between turns that follow each other the memory kept the slice. Where it was dropped, a turn is left out.
    """

    last: dict[_Held, int] = field(default_factory=dict)
    visits: dict[_Held, int] = field(default_factory=dict)
    dropped: set[_Held] = field(default_factory=set)

    def of(self, held: _Held, visit: int) -> int:
        """The turn of a tensor in a visit, the last one so far, which needs it."""
        if self.visits.get(held) != visit:
            self.visits[held] = visit
            self.last[held] = self.last.get(held, 0) + (2 if held in self.dropped else 1)
            self.dropped.discard(held)
        return self.last[held]

    def open(self, held: _Held, visit: int) -> int:
        """The turn of a tensor that has not ended in a visit, the last one so far, or has not begun."""
        return self.last[held] + (self.visits[held] != visit)


class NestVisits:
    """The visits of the nest at `top`, at one place among the iterations of spatial loops."""

    def __init__(self, topology: Topology, movement: Movement, top: Path, place: Place) -> None:
        self.topology, self.movement, self.top, self.place = topology, movement, top, place
        self.paths = topology.visits(top)
        self.loops = [topology.above(path) for path in self.paths]
        self.scopes = {path: tuple(self._scopes(path)) for path in self.paths}
        self.ended = {
            (path, number): frozenset(held[1:] for held in movement.ended(path, scope, number))
            for path, scope in {each for scopes in self.scopes.values() for each in scopes}
            for number in range(len(scope.children))
        }
        self.visit: _Visit | None = None
        self.number = 0  # of visits so far
        self.turns = _Turns()
        self.slices: dict[_Held, HeldSlices] = {}

    def _scopes(self, visit: Path) -> Iterator[tuple[Path, Scope]]:
        """The scopes between the nest and a node below it, outermost first."""
        for depth in range(len(self.top) + 1, len(visit)):
            node = self.topology.nodes[visit[:depth]]
            if isinstance(node, Scope):
                yield visit[:depth], node

    def count(self, accesses: Sequence[Below]) -> None:
        """Count what accesses move, each in its visit. None of them was before those that were counted."""
        visits, runs = self._visits(accesses)
        needs: dict[_Held, list[tuple[Array, Array, Array]]] = defaultdict(list)
        needed: list[list[_Held]] = [[] for _ in visits]
        for (placed, path), visit in zip(accesses, runs, strict=True):
            for held, rows in self._needs(placed.touch, path):
                touched = visit if rows is None else visit[placed.touch.runs[rows]]
                for number in np.flatnonzero(np.bincount(touched)).tolist():
                    needed[number].append(held)
                needs[held].append(self._rows(placed.touch, path, visit, rows))
        turns = self._turns_of(visits, needed)
        for held, found in needs.items():
            elements, visit, flags = (np.concatenate(each) for each in zip(*found, strict=True))
            slices = self.slices.setdefault(held, HeldSlices(self.topology.retains(self.top)))
            open_turn = self.turns.open(held, self.number)
            self._move(held, slices.touch(elements, turns[held][visit], flags, open_turn))

    def end(self) -> None:
        """Count what was not counted while later visits could change it."""
        for held, slices in self.slices.items():
            self._move(held, slices.end())

    def _move(self, held: _Held, moved: tuple[int, int]) -> None:
        fills, stores = moved
        self.movement.fill((self.top, *held, self.place), fills)
        self.movement.store((self.top, *held, self.place), stores)

    def _visits(self, accesses: Sequence[Below]) -> tuple[list[_Visit], list[Array]]:
        """The visits in the order of time, and for each run of each access the number of its visit."""
        width = max(map(len, self.loops))
        parts = []
        for placed, path in accesses:
            number = self.paths.index(path)
            part = np.zeros((len(placed.touch.times), 1 + width), np.int64)
            part[:, 0] = number
            for column, loop in enumerate(self.loops[number], 1):
                part[:, column] = placed.steps[loop]
            parts.append(part)
        touches = [placed.touch for placed, _ in accesses]
        order = np.argsort(np.concatenate([touch.times for touch in touches]))
        table = np.concatenate(parts)[order]
        new = np.ones(len(table), np.bool_)
        new[1:] = (table[1:] != table[:-1]).any(axis=1)
        runs = np.empty(len(table), np.int64)
        runs[order] = np.cumsum(new) - 1
        visits = [(self.paths[node], tuple(steps[: len(self.loops[node])])) for node, *steps in table[new].tolist()]
        return visits, by_touch(runs, touches)

    # What a visit needs -----------------------------------------------------------------------------------------------

    def _needs(self, touch: Touch, path: Path) -> Iterator[tuple[_Held, Array | None]]:
        """What runs of an access need of the memory, if it reaches beyond it: all runs, or those of these elements."""
        level, tiles = self.topology.level(self.top), self.topology.par_tiles(path)
        inside = touch.scratch and self.topology.staged.get(touch.tensor, 0) > level
        if inside or touch.tensor not in self.topology.crossing(path, level):
            return
        yield (touch.tensor, tiles), None
        if touch.padding.any():
            yield (touch.tensor + PADDING, tiles), touch.padding

    def _rows(self, touch: Touch, path: Path, visits: Array, padding: Array | None) -> tuple[Array, Array, Array]:
        """The elements that an access needs, the visit in which it does, and how: flags of `held_slices`."""
        rows = ~touch.padding if padding is None else padding
        own = OWN if padding is None and touch.tensor in self.topology.ops(path) else 0
        flags = np.full(np.count_nonzero(rows), own | (WRITTEN if touch.writes else READ), np.int64)
        if not touch.writes:
            flags[touch.ready[rows]] |= READY
        return touch.elements[rows], visits[touch.runs[rows]], flags

    # What is dropped between visits -----------------------------------------------------------------------------------

    def _turns_of(self, visits: Sequence[_Visit], needed: Sequence[Sequence[_Held]]) -> dict[_Held, Array]:
        """The turn of each tensor in each of the visits that needs it."""
        found: dict[_Held, Array] = defaultdict(lambda: np.zeros(len(visits), np.int64))
        for number, visit in enumerate(visits):
            self._enter(visit)
            for held in needed[number]:
                found[held][number] = self.turns.of(held, self.number)
        return found

    def _enter(self, visit: _Visit) -> None:
        """Go on to a visit: what later children of scopes that end do not need is dropped."""
        before = self.visit
        if visit == before:
            return
        self.visit, self.number = visit, self.number + 1
        if before is not None:
            for path, scope in self.scopes[before[0]]:
                same, child = self._same_run(path, before, visit), before[0][len(path)]
                self._drop(path, range(child, visit[0][len(path)] if same else len(scope.children)))
        for path, _ in self.scopes[visit[0]]:
            if before is None or not self._same_run(path, before, visit):
                self._drop(path, range(visit[0][len(path)]))

    def _same_run(self, scope: Path, visit: _Visit, entered: _Visit) -> bool:
        """Whether a scope has not ended between two visits."""
        around = len(self.topology.above(scope))
        same = entered[0][: len(scope)] == scope == visit[0][: len(scope)]
        return same and visit[1][:around] == entered[1][:around]

    def _drop(self, scope: Path, ended: range) -> None:
        for number in ended:
            self.turns.dropped |= self.ended[scope, number]
