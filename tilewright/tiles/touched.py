"""The data movement of a tile tree from the elements that a program of it has touched, access by access.

`brute` asks the tree which slices its steps need. Here the slices are what a running program reads and writes; of the
tree come only its levels, and where its steps begin. The rules of what a memory holds are the same (`memories`): an
element that a step reads, and that the step before did not leave there, is filled; what was written is stored once
a step does not need it any more (`held_slices`). Steps count in the order in which the program takes them. Only the
stages of a `pipe` scope, which work on several steps at once, count step by step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.tiles.held_slices import OWN, READ, READY, WRITTEN, HeldSlices
from tilewright.tiles.memories import Movement, Place
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.topology import LoopAt, Topology, bound
from tilewright.tiles.traffic import Traffic
from tilewright.tiles.tree import Kind, Path, Scope, TileTree

Array = np.ndarray[Any, Any]

PADDING = " (padding)"  #: behind the name of a tensor: elements of its memory that no point of the loops has
UNKNOWN = np.iinfo(np.int64).min  # where a loop stands that does not move an access


class WrongStep(CompileError):
    """A program that does not take the steps of its tree: two programs of the grid are in one of them."""

    code = "wrong-step"


@dataclass(frozen=True, slots=True)
class Touch:
    """Runs of one access by a program of the grid: elements of a tensor, for the expression `op`.

    Each run has its time, and its position in the loops of the expression that move the access. `runs` says of each
    element in which run it was touched. Elements are numbers; a value that takes the place of another one has another
    number. `ready` are elements that are read and hold the first value of a sum, which the tree does not load;
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
            self, times=self.times[runs], position={}, runs=number[self.runs[kept]], elements=self.elements[kept],
            ready=self.ready[kept], padding=self.padding[kept],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Placed:
    """A touch with the step of each loop around its leaf, run by run."""

    touch: Touch
    steps: Mapping[LoopAt, Array]

    def chosen(self, runs: Array) -> _Placed:
        return _Placed(self.touch.chosen(runs), {loop: steps[runs] for loop, steps in self.steps.items()})


_Visit = tuple[Path, tuple[int, ...]]  # one run of a node below a nest: the node, and the steps of the loops around it
_Held = tuple[str, tuple[Path, ...]]  # a tensor in the memory of a nest, and the spatial tiles whose children share it


@dataclass
class _Nest:
    """Where the walk of a nest has come to: the visit, and for each tensor the turn at which a visit last needed it.

    Turns of a tensor that follow each other without a number left out are visits between which it stayed.
    """

    visit: _Visit | None = None
    visits: int = 0
    turns: dict[_Held, int] = field(default_factory=dict)
    needed: dict[_Held, int] = field(default_factory=dict)
    dropped: set[_Held] = field(default_factory=set)

    def turn(self, held: _Held) -> int:
        """The turn of a tensor in this visit, which needs it."""
        if self.needed.get(held) != self.visits:
            self.needed[held] = self.visits
            self.turns[held] = self.turns.get(held, 0) + (2 if held in self.dropped else 1)
            self.dropped.discard(held)
        return self.turns[held]

    def open_turn(self, held: _Held) -> int:
        """The turn of a tensor that has not ended, or has not begun."""
        return self.turns[held] + (self.needed[held] != self.visits)


class Touched:
    """The memories of one kernel while its program runs. `touch` takes accesses, those of earlier times first."""

    def __init__(self, tree: TileTree, problem: Problem, resources: Resources) -> None:
        """Raises Unanalysable for a tree whose movement is not defined on these levels."""
        self.topology = Topology(tree, problem, resources)
        self.factors = bound(self.topology)
        self.strides = self.topology.strides(self.factors)
        self.movement = Movement(self.topology)
        self.slices: dict[tuple[Path, Place, _Held], HeldSlices] = {}
        self.walks: dict[tuple[Path, Place], _Nest] = defaultdict(_Nest)
        self.last: dict[tuple[int, str, str], int] = {}
        self.programs: dict[Place, int] = {}
        self.nests = {place: tuple(self._nests(place)) for place in self.topology.places.values()}
        self.piped: list[_Placed] = []
        self.ended, self.scopes = cache(self._ended), cache(self._scopes)

    def touch(self, touches: Sequence[Touch]) -> None:
        """Raises WrongStep where two programs are in one step of the grid."""
        groups: dict[tuple[int, str], list[Touch]] = defaultdict(list)
        for touch in touches:
            groups[touch.program, touch.op].append(touch)
        now: list[_Placed] = []
        for group in groups.values():
            piped = self._pipe(self._leaf(group[0])) is not None
            (self.piped if piped else now).extend(self._placed(group))
        self._reach(now)

    def traffic(self) -> Traffic:
        """What has moved, when the program has ended."""
        self._reach(self._in_turn(self.piped))
        self.piped.clear()
        for (top, place, held), slices in self.slices.items():
            self._count(top, place, held, *slices.end())
        self.slices.clear()
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

    def _placed(self, touches: Sequence[Touch]) -> Iterator[_Placed]:
        """The touches of one expression by one program with their steps.

        A loop that does not move an access stands where it stood.
        """
        order = np.argsort(np.concatenate([touch.times for touch in touches]))
        loops = self.topology.above(self._leaf(touches[0]))
        positions = {axis: self._positions(touches, axis, order) for axis in {loop.axis for loop in loops}}
        begin = 0
        for touch in touches:
            part = slice(begin, begin + len(touch.times))
            begin = part.stop
            yield _Placed(
                touch,
                {
                    loop: positions[loop.axis][part] // int(self.strides[loop]) % int(self.factors[loop])
                    for loop in loops
                },
            )

    def _positions(self, touches: Sequence[Touch], axis: str, order: Array) -> Array:
        """Where a loop stands at each run of the touches, whose `order` in time is given."""
        parts = [np.broadcast_to(each.position.get(axis, UNKNOWN), each.times.shape) for each in touches]
        known = np.concatenate(parts)[order]
        latest = np.maximum.accumulate(np.where(known != UNKNOWN, np.arange(len(known)), -1))
        key = touches[0].program, touches[0].op, axis
        found = np.empty_like(known)
        found[order] = np.where(latest >= 0, known[latest], self.last.get(key, 0))
        self.last[key] = int(found[order[-1]])
        return found

    def _pipe(self, leaf: Path) -> Path | None:
        """The outermost pipe around a leaf."""
        paths = (leaf[:depth] for depth in range(len(leaf)))
        return next((path for path in paths if self._kind(path) is Kind.PIPE), None)

    def _kind(self, path: Path) -> Kind | None:
        node = self.topology.nodes[path]
        return node.kind if isinstance(node, Scope) else None

    def _in_turn(self, piped: Sequence[_Placed]) -> list[_Placed]:
        """Accesses of the stages of pipes at other times: one step after the other, in each the stages in order."""
        if not piped:
            return []
        columns = [self._stage(each) for each in piped]
        width = max(len(each) for each in columns)
        keys = [
            np.concatenate([
                np.broadcast_to(each[n] if n < len(each) else -1, placed.touch.times.shape)
                for each, placed in zip(columns, piped, strict=True)
            ])
            for n in range(width)
        ]  # fmt: skip
        times = np.empty(len(keys[0]), np.int64)
        times[np.lexsort([np.concatenate([each.touch.times for each in piped]), *keys[::-1]])] = np.arange(len(times))
        ends = np.cumsum([len(each.touch.times) for each in piped])[:-1]
        return [
            replace(each, touch=replace(each.touch, times=part))
            for each, part in zip(piped, np.split(times, ends), strict=True)
        ]

    def _stage(self, placed: _Placed) -> list[Array | int]:
        """By what an access is sorted: the program, the steps around the pipe, and which of its stages it is in."""
        leaf = self._leaf(placed.touch)
        pipe = self._pipe(leaf)
        assert pipe is not None, "it is in a pipe"
        return [placed.touch.program, *(placed.steps[loop] for loop in self.topology.above(pipe)), leaf[len(pipe)]]

    # The visits of nests ----------------------------------------------------------------------------------------------

    def _reach(self, accesses: Sequence[_Placed]) -> None:
        """Count accesses at every nest around them."""
        parts: dict[tuple[Path, Place], list[tuple[_Placed, Path]]] = defaultdict(list)
        for each in accesses:
            for top, path in self.nests[self._leaf(each.touch)]:
                for place, part in self._by_place(each, path):
                    parts[top, place].append((part, path))
        for (top, place), found in parts.items():
            self._visit(top, place, found)

    def _by_place(self, placed: _Placed, path: Path) -> Iterator[tuple[Place, _Placed]]:
        """An access by the iterations of the spatial loops around a node.

        Raises WrongStep where another program has been at one of them.
        """
        spatial = [placed.steps[loop] for loop in self.topology.above(path) if loop.spatial]
        rows = np.stack(spatial, axis=1) if spatial else np.zeros((1, 0), np.int64)
        places = [tuple(row) for row in np.unique(rows, axis=0).tolist()] if len(spatial) else [()]
        for place in places:
            program = placed.touch.program
            if self.programs.setdefault(place, program) != program and place:
                both = f"programs {self.programs[place]} and {program}"
                raise WrongStep(
                    f"{both} run step {place} of the grid", where="tile program", help="one program for each"
                )
            yield place, placed if len(places) == 1 else placed.chosen((rows == place).all(axis=1))

    def _visit(self, top: Path, place: Place, accesses: Sequence[tuple[_Placed, Path]]) -> None:
        """Count accesses in one memory that a nest fills, each in its visit."""
        visits, runs = self._visits(top, accesses)
        needs: dict[_Held, list[tuple[Array, Array, Array]]] = defaultdict(list)
        needed: list[list[_Held]] = [[] for _ in visits]
        for (placed, path), visit in zip(accesses, runs, strict=True):
            if self._passes(placed.touch, top, path):
                for held, rows in self._needs(placed.touch, path):
                    for number in np.unique(visit if rows is None else visit[placed.touch.runs[rows]]).tolist():
                        needed[number].append(held)
                    needs[held].append(self._rows(placed.touch, path, visit, rows))
        walk = self.walks[top, place]
        turns = {held: np.zeros(len(visits), np.int64) for held in needs}
        for number, entered in enumerate(visits):
            self._enter(top, walk, entered)
            for held in needed[number]:
                turns[held][number] = walk.turn(held)
        for held, found in needs.items():
            slices = self.slices.setdefault((top, place, held), HeldSlices(self.topology.retains(top)))
            elements, visit, flags = (np.concatenate(each) for each in zip(*found, strict=True))
            moved = slices.touch(elements, turns[held][visit], flags, walk.open_turn(held))
            self._count(top, place, held, *moved)

    def _visits(self, top: Path, accesses: Sequence[tuple[_Placed, Path]]) -> tuple[list[_Visit], list[Array]]:
        """The visits of a nest in the order of time, and for each run of each access the number of its visit."""
        paths = self.topology.visits(top)
        loops = {path: self.topology.above(path) for path in paths}
        width = 1 + max(map(len, loops.values()))
        table = np.zeros((sum(len(placed.touch.times) for placed, _ in accesses), width), np.int64)
        times, begin = np.empty(len(table), np.int64), 0
        for placed, path in accesses:
            end = begin + len(placed.touch.times)
            times[begin:end], table[begin:end, 0] = placed.touch.times, paths.index(path)
            for column, loop in enumerate(loops[path], 1):
                table[begin:end, column] = placed.steps[loop]
            begin = end
        order = np.argsort(times)
        table = table[order]
        new = np.ones(len(table), np.bool_)
        new[1:] = (table[1:] != table[:-1]).any(axis=1)
        runs = np.empty(len(table), np.int64)
        runs[order] = np.cumsum(new) - 1
        visits = [(paths[row[0]], tuple(row[1 : 1 + len(loops[paths[row[0]]])])) for row in table[new].tolist()]
        ends = np.cumsum([len(placed.touch.times) for placed, _ in accesses])[:-1]
        return visits, np.split(runs, ends)

    def _passes(self, touch: Touch, top: Path, path: Path) -> bool:
        """Whether an access reaches beyond the memory that a nest fills."""
        level = self.topology.level(top)
        inside = touch.scratch and self.topology.staged.get(touch.tensor, 0) > level
        return not inside and touch.tensor in self.topology.crossing(path, level)

    def _needs(self, touch: Touch, path: Path) -> Iterator[tuple[_Held, Array | None]]:
        """What the runs of an access need of a memory; of padding, where only some runs need it, these elements."""
        tiles = self.topology.par_tiles(path)
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

    def _count(self, top: Path, place: Place, held: _Held, fills: int, stores: int) -> None:
        key = (top, *held, place)
        self.movement.fill(key, fills)
        self.movement.store(key, stores)

    # What visits drop -------------------------------------------------------------------------------------------------

    def _enter(self, top: Path, walk: _Nest, visit: _Visit) -> None:
        """Go on to a visit: what later children of scopes that end do not need is dropped."""
        before = walk.visit
        if visit == before:
            return
        walk.visit, walk.visits = visit, walk.visits + 1
        if before is not None:
            for scope in self.scopes(top, before[0]):
                child, count = before[0][len(scope)], len(self._scope(scope).children)
                end = visit[0][len(scope)] if self._same_run(scope, before, visit) else count
                self._drop(walk, scope, range(child, end))
        for scope in self.scopes(top, visit[0]):
            if before is None or not self._same_run(scope, before, visit):
                self._drop(walk, scope, range(visit[0][len(scope)]))

    def _scopes(self, top: Path, visit: Path) -> tuple[Path, ...]:
        """The scopes between a nest and a visit, outermost first."""
        paths = (visit[:depth] for depth in range(len(top) + 1, len(visit)))
        return tuple(path for path in paths if isinstance(self.topology.nodes[path], Scope))

    def _scope(self, path: Path) -> Scope:
        node = self.topology.nodes[path]
        assert isinstance(node, Scope), "it is one of `_scopes`"
        return node

    def _same_run(self, scope: Path, visit: _Visit, entered: _Visit) -> bool:
        """Whether a scope has not ended between two visits."""
        around = len(self.topology.above(scope))
        same = entered[0][: len(scope)] == scope == visit[0][: len(scope)]
        return same and visit[1][:around] == entered[1][:around]

    def _drop(self, walk: _Nest, scope: Path, ended: range) -> None:
        for number in ended:
            walk.dropped |= self.ended(scope, number)

    def _ended(self, scope: Path, number: int) -> frozenset[_Held]:
        return frozenset(held[1:] for held in self.movement.ended(scope, self._scope(scope), number))
