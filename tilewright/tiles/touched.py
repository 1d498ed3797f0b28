"""The data movement of a tile tree from the elements that a program of it has touched, access by access.

`brute` asks the tree which slices its steps need. Here the slices are what a running program reads and writes; of the
tree come only its levels, and where its steps begin. The rules of what a memory holds are the same (`memories`): an
element that a step reads, and that the step before did not leave there, is filled; what was written is stored once
a step does not need it any more (`nest_visits`). Steps count in the order in which the program takes them. Only the
stages of a `pipe` scope, which work on several steps at once, count step by step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.errors import CompileError
from tilewright.tiles.memories import Movement, Place
from tilewright.tiles.nest_visits import Below, NestVisits
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.topology import Topology, bound
from tilewright.tiles.touch import Placed, Touch, by_touch
from tilewright.tiles.traffic import Traffic
from tilewright.tiles.tree import Kind, Path, Scope, TileTree

Array = np.ndarray[Any, Any]

UNKNOWN = np.iinfo(np.int64).min  # where a loop stands that does not move an access


class WrongStep(CompileError):
    """A program that does not take the steps of its tree: two programs of the grid are in one of them."""

    code = "wrong-step"


class Touched:
    """The memories of one kernel while its program runs. `touch` takes accesses, those of earlier times first."""

    def __init__(self, tree: TileTree, problem: Problem, resources: Resources) -> None:
        """Raises Unanalysable for a tree whose movement is not defined on these levels."""
        self.topology = Topology(tree, problem, resources)
        self.factors = bound(self.topology)
        self.strides = self.topology.strides(self.factors)
        self.movement = Movement(self.topology)
        self.visits: dict[tuple[Path, Place], NestVisits] = {}
        self.last: dict[tuple[int, str, str], int] = {}
        self.programs: dict[Place, int] = {}
        self.nests = {place: tuple(self._nests(place)) for place in self.topology.places.values()}
        self.piped: list[Placed] = []

    def touch(self, touches: Sequence[Touch]) -> None:
        """Raises WrongStep where two programs are in one step of the grid."""
        groups: dict[tuple[int, str], list[Touch]] = defaultdict(list)
        for touch in touches:
            groups[touch.program, touch.op].append(touch)
        now: list[Placed] = []
        for group in groups.values():
            piped = self._pipe(self._leaf(group[0])) is not None
            (self.piped if piped else now).extend(self._placed(group))
        self._reach(now)

    def traffic(self) -> Traffic:
        """What has moved, when the program has ended."""
        self._reach(self._in_turn(self.piped))
        self.piped.clear()
        for visits in self.visits.values():
            visits.end()
        self.visits.clear()
        return self.movement.traffic()

    def _leaf(self, touch: Touch) -> Path:
        assert touch.op in self.topology.places, f"{touch.op} is no leaf of the tree"
        return self.topology.places[touch.op]

    def _nests(self, leaf: Path) -> Iterator[tuple[Path, Path]]:
        """The nests around a leaf but for the registers', and of each the node below it that the leaf is in."""
        last = len(self.topology.levels) - 1
        around = self.topology.around(leaf)
        for tile, inner in pairwise(around):
            if self.topology.level(tile) != self.topology.level(inner) and self.topology.level(tile) < last:
                yield self.topology.top(tile), inner

    # The steps of accesses --------------------------------------------------------------------------------------------

    def _placed(self, touches: Sequence[Touch]) -> Iterator[Placed]:
        """The touches of one expression by one program with their steps.

        A loop that does not move an access stands where it stood.
        """
        order = np.argsort(np.concatenate([touch.times for touch in touches]))
        loops = self.topology.above(self._leaf(touches[0]))
        positions = {axis: self._positions(touches, axis, order) for axis in {loop.axis for loop in loops}}
        for number, touch in enumerate(touches):
            at = {loop: positions[loop.axis][number] // int(self.strides[loop]) for loop in loops}
            yield Placed(touch, {loop: step % int(self.factors[loop]) for loop, step in at.items()})

    def _positions(self, touches: Sequence[Touch], axis: str, order: Array) -> list[Array]:
        """Where a loop stands at the runs of each touch; the `order` of all runs in time is given."""
        parts = [np.broadcast_to(each.position.get(axis, UNKNOWN), each.times.shape) for each in touches]
        known = np.concatenate(parts)[order]
        latest = np.maximum.accumulate(np.where(known != UNKNOWN, np.arange(len(known)), -1))
        key = touches[0].program, touches[0].op, axis
        found = np.empty_like(known)
        found[order] = np.where(latest >= 0, known[latest], self.last.get(key, 0))
        self.last[key] = int(found[order[-1]])
        return by_touch(found, touches)

    def _pipe(self, leaf: Path) -> Path | None:
        """The outermost pipe around a leaf."""
        paths = (leaf[:depth] for depth in range(len(leaf)))
        return next((path for path in paths if self._kind(path) is Kind.PIPE), None)

    def _kind(self, path: Path) -> Kind | None:
        node = self.topology.nodes[path]
        return node.kind if isinstance(node, Scope) else None

    def _in_turn(self, piped: Sequence[Placed]) -> list[Placed]:
        """Accesses of the stages of pipes at other times: one step after the other, in each the stages in order."""
        if not piped:
            return []
        stages = [self._stage(each) for each in piped]
        width = max(each.shape[1] for each in stages)
        padded = [np.pad(each, [(0, 0), (0, width - each.shape[1])], constant_values=-1) for each in stages]
        touches = [each.touch for each in piped]
        times = np.concatenate([touch.times for touch in touches])
        turns = np.empty_like(times)
        turns[np.lexsort([times, *np.concatenate(padded).T[::-1]])] = np.arange(len(times))
        return [
            Placed(replace(each.touch, times=part), each.steps)
            for each, part in zip(piped, by_touch(turns, touches), strict=True)
        ]

    def _stage(self, placed: Placed) -> Array:
        """By what runs are sorted: the program, the steps around the pipe, and which of its stages they are in."""
        leaf, touch = self._leaf(placed.touch), placed.touch
        pipe = self._pipe(leaf)
        assert pipe is not None, "it is in a pipe"
        steps = [placed.steps[loop] for loop in self.topology.above(pipe)]
        keys: list[Any] = [touch.program, *steps, leaf[len(pipe)]]
        return np.stack([np.broadcast_to(key, touch.times.shape) for key in keys], axis=1)

    # The nests around accesses ----------------------------------------------------------------------------------------

    def _reach(self, accesses: Sequence[Placed]) -> None:
        """Count accesses at every nest around them."""
        parts: dict[tuple[Path, Place], list[Below]] = defaultdict(list)
        for each in accesses:
            for top, path in self.nests[self._leaf(each.touch)]:
                for place, part in self._by_place(each, path):
                    parts[top, place].append((part, path))
        for key, found in parts.items():
            if key not in self.visits:
                self.visits[key] = NestVisits(self.topology, self.movement, *key)
            self.visits[key].count(found)

    def _by_place(self, placed: Placed, path: Path) -> Iterator[tuple[Place, Placed]]:
        """An access by the iterations of the spatial loops around a node.

        Raises WrongStep where another program has been at one of them.
        """
        spatial = [placed.steps[loop] for loop in self.topology.above(path) if loop.spatial]
        rows = np.stack([np.zeros_like(placed.touch.times), *spatial], axis=1)
        places = np.unique(rows, axis=0).tolist()
        for _, *place in places:
            self._require_alone(tuple(place), placed.touch.program)
            yield tuple(place), placed if len(places) == 1 else placed.chosen((rows[:, 1:] == place).all(axis=1))

    def _require_alone(self, place: Place, program: int) -> None:
        if self.programs.setdefault(place, program) != program and place:
            both = f"programs {self.programs[place]} and {program}"
            raise WrongStep(f"{both} run step {place} of the grid", where="tile program", help="one program for each")
