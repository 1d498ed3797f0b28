"""The data movement of a tile tree from the elements that a program of it has touched, access by access.

`brute` asks the tree which slices its steps need. Here the slices are what a running program reads and writes; of the
tree come only its levels, and where its steps begin. The rules of what a memory holds are the same (`memories`): an
element that a step reads, and that the step before did not leave there, is filled; what was written is stored once
a step does not need it any more. Steps count in the order in which the program takes them. Only the stages of a `pipe`
scope, which work on several steps at once, count step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import pairwise

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.tiles.memories import Memories, Place
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.topology import LoopAt, Topology, bound
from tilewright.tiles.traffic import Traffic
from tilewright.tiles.tree import Kind, Path, Scope, TileTree

Elements = frozenset[int]

PADDING = " (padding)"  #: behind the name of a tensor: elements of its memory that no point of the loops has


class WrongStep(CompileError):
    """A program that does not take the steps of its tree: two programs of the grid are in one of them."""

    code = "wrong-step"


@dataclass(frozen=True, slots=True)
class Touch:
    """One access by a program of the grid: elements of a tensor, for the expression `op` at a position of its loops.

    Elements are numbers; a value that takes the place of another one has another number. `ready` are elements that are
    read and hold the first value of a sum, which the tree does not load; `padding` are those that no point has. Scratch
    memory of a tensor that the tree stages at a level does not leave that level.
    """

    program: int
    op: str
    tensor: str
    writes: bool
    position: Mapping[str, int]
    elements: Elements
    ready: Elements = frozenset()
    padding: Elements = frozenset()
    scratch: bool = False


@dataclass
class _Needs:
    """What one visit has touched of a tensor."""

    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    ready: set[int] = field(default_factory=set)


@dataclass
class _Visit:
    """One run of a node below a nest: the node, the steps of the loops around it, and what has been touched so far."""

    path: Path
    steps: Mapping[LoopAt, int]
    needs: dict[str, _Needs] = field(default_factory=dict)


class Touched:
    """The memories of one kernel while its program runs. `touch` takes accesses in the order of time."""

    def __init__(self, tree: TileTree, problem: Problem, resources: Resources) -> None:
        """Raises Unanalysable for a tree whose movement is not defined on these levels."""
        self.topology = Topology(tree, problem, resources)
        self.factors = bound(self.topology)
        self.strides = self.topology.strides(self.factors)
        self.memories: Memories[Elements] = Memories(self.topology, _lacking)
        self.visits: dict[tuple[Path, Place], _Visit] = {}
        self.last: dict[tuple[int, str], dict[str, int]] = {}
        self.programs: dict[Place, int] = {}
        self.nests = {place: tuple(self._nests(place)) for place in self.topology.places.values()}
        self.piped: list[tuple[tuple[int, ...], Touch, dict[LoopAt, int]]] = []
        self.in_turn = True  # whether the children of each scope have run in their order

    def touch(self, touch: Touch) -> None:
        """Raises WrongStep where two programs are in one step of the grid."""
        assert touch.op in self.topology.places, f"{touch.op} is no leaf of the tree"
        leaf = self.topology.places[touch.op]
        steps = self._steps(leaf, touch)
        pipe = next((leaf[:n] for n in range(len(leaf)) if self._is_pipe(leaf[:n])), None)
        if pipe is None:
            self._reach(leaf, touch, steps)
        else:
            outer = tuple(steps[loop] for loop in self.topology.above(pipe))
            self.piped.append(((touch.program, *outer, leaf[len(pipe)]), touch, steps))

    def _is_pipe(self, path: Path) -> bool:
        node = self.topology.nodes[path]
        return isinstance(node, Scope) and node.kind is Kind.PIPE

    def _reach(self, leaf: Path, touch: Touch, steps: Mapping[LoopAt, int]) -> None:
        for top, path in self.nests[leaf]:
            around = {loop: steps[loop] for loop in self.topology.above(path)}
            place = tuple(step for loop, step in around.items() if loop.spatial)
            if self.programs.setdefault(place, touch.program) != touch.program and place:
                both = f"programs {self.programs[place]} and {touch.program}"
                raise WrongStep(
                    f"{both} run step {place} of the grid", where="tile program", help="one program for each"
                )
            visit = self._at(top, path, place, around)
            level = self.topology.level(top)
            inside = touch.scratch and self.topology.staged.get(touch.tensor, 0) > level
            if inside or touch.tensor not in self.topology.crossing(path, level):
                continue
            self._note(visit, touch.tensor, touch.elements - touch.padding, touch)
            if touch.padding:
                self._note(visit, touch.tensor + PADDING, touch.padding, touch)

    def traffic(self) -> Traffic:
        """What has moved, when the program has ended."""
        for _, touch, steps in sorted(self.piped, key=lambda each: each[0]):
            self._reach(self.topology.places[touch.op], touch, steps)
        self.piped.clear()
        for (top, place), visit in self.visits.items():
            self._leave(top, place, visit, None)
        self.visits.clear()
        return self.memories.traffic()

    def _nests(self, leaf: Path) -> Iterator[tuple[Path, Path]]:
        """The nests around a leaf but for the registers', and of each the node below it that the leaf is in."""
        last = len(self.topology.levels) - 1
        around = self.topology.around(leaf)
        for tile, inner in pairwise(around):
            if self.topology.level(tile) != self.topology.level(inner) and self.topology.level(tile) < last:
                yield self.topology.top(tile), inner

    def _steps(self, leaf: Path, touch: Touch) -> dict[LoopAt, int]:
        """The step of each loop around a leaf. A loop that does not move an access stands where it stood."""
        position = self.last.setdefault((touch.program, touch.op), {})
        position.update(touch.position)
        return {
            loop: position.get(loop.axis, 0) // int(self.strides[loop]) % int(self.factors[loop])
            for loop in self.topology.above(leaf)
        }

    def _at(self, top: Path, path: Path, place: Place, steps: Mapping[LoopAt, int]) -> _Visit:
        """The visit of a nest that an access is in: the last one, or the next."""
        visit = self.visits.get((top, place))
        if visit is not None and visit.path == path and visit.steps == steps:
            return visit
        entered = _Visit(path, steps)
        if visit is not None:
            self._leave(top, place, visit, entered)
        for scope in self._scopes(top, path):
            if visit is None or not self._same_run(scope, visit, entered):
                self._evict(scope, range(path[len(scope)]), place)
        self.visits[top, place] = entered
        return entered

    def _leave(self, top: Path, place: Place, visit: _Visit, entered: _Visit | None) -> None:
        """End a visit: what it has touched is brought, and what later children of its scopes do not need is dropped."""
        own, tiles = self.topology.ops(visit.path), self.topology.par_tiles(visit.path)
        for tensor, needs in visit.needs.items():
            key, need = (top, tensor, tiles, place), frozenset(needs.read | needs.written)
            state = self.memories.states.get(key)
            left = frozenset() if state is None or state.dirty is None else state.dirty & need
            reads = frozenset(needs.read - needs.ready)
            self.memories.visit(key, need, reads, writes=tensor in own, written=left | needs.written)
        for scope in reversed(self._scopes(top, visit.path)):
            child, count = visit.path[len(scope)], len(self._scope(scope).children)
            end = count
            if entered is not None and self._same_run(scope, visit, entered):
                end = entered.path[len(scope)]
                self.in_turn &= end >= child
            self._evict(scope, range(child, end), place)

    def _scopes(self, top: Path, visit: Path) -> list[Path]:
        """The scopes between a nest and a visit, outermost first."""
        paths = (visit[:depth] for depth in range(len(top) + 1, len(visit)))
        return [path for path in paths if isinstance(self.topology.nodes[path], Scope)]

    def _scope(self, path: Path) -> Scope:
        node = self.topology.nodes[path]
        assert isinstance(node, Scope), "it is one of `_scopes`"
        return node

    def _same_run(self, scope: Path, visit: _Visit, entered: _Visit) -> bool:
        """Whether a scope has not ended between two visits."""
        if entered.path[: len(scope)] != scope or visit.path[: len(scope)] != scope:
            return False
        return all(visit.steps[loop] == entered.steps[loop] for loop in self.topology.above(scope))

    def _evict(self, scope: Path, ended: range, place: Place) -> None:
        for number in ended:
            self.memories.evict(scope, self._scope(scope), number, place)

    def _note(self, visit: _Visit, tensor: str, elements: Elements, touch: Touch) -> None:
        needs = visit.needs.setdefault(tensor, _Needs())
        if touch.writes:
            needs.written |= elements
            return
        needs.ready |= elements & touch.ready
        needs.read |= elements


def _lacking(elements: Elements, others: Elements | None) -> int:
    return len(elements) if others is None else len(elements - others)
