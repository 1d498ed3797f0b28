"""The data movement of a tile tree from its boundary steps: exact, and without walking the tree.

Two visits to a memory differ only by which loop has advanced and which inner loops went back to their first step (spec
1, section 5.2, generalised to siblings in section 5.4). Each such *turn* occurs a known number of times and moves the
same number of elements each time, up to clipped edges: there the last step of an axis differs, and the turns of steps
next to the edge are counted apart. `brute.walk` is the definition; both give equal numbers on every tree.

Only units that share a range which is shorter in some steps, as the rows of a producer under a clipped window, are
walked.

Factors may be arrays: one evaluation then covers all trees of one topology.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine
from tilewright.tiles.brute import walk_nest
from tilewright.tiles.problem import Problem
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import Number, Resources, greatest, least
from tilewright.tiles.topology import LoopAt, Topology, bound
from tilewright.tiles.traffic import Moved, Traffic
from tilewright.tiles.tree import Binding, Kind, Path, Scope, Tile, TileTree


def movement(
    tree: TileTree,
    problem: Problem,
    *,
    resources: Resources | None = None,
    factors: Any = None,
    compat_evict: bool = False,
) -> Traffic:
    """Loads, fills and stores of every tensor at every level: what `brute.walk` counts.

    `factors` gives values to the open loops of the tree, in the order of `tree.walk` and outermost first in a tile:
    integers, or an array of shape (trees, open loops), which makes every number of the result an array of `trees`.
    Raises Unanalysable for a tree without a defined movement or factors that are not those of its open loops.
    """
    return Boundaries(Topology(tree, problem, resources), compat_evict=compat_evict).traffic(factors)


@dataclass(frozen=True, eq=False)
class Turn:
    """A kind of step from one visit of a memory to the next.

    `shared` loops stand where they stood, `advancing` has gone one step on, loops further in start again at `now` and
    have ended at `before`. Without `before`, nothing is resident; without `now`, the run is over. `kept`: the slice is
    not dropped in between.
    """

    now: Path | None
    before: Path | None
    shared: frozenset[LoopAt]
    advancing: LoopAt | None
    kept: bool

    @cached_property
    def where(self) -> Path:
        """The visit whose loops say how often the turn occurs."""
        path = self.now if self.now is not None else self.before
        assert path is not None
        return path

    @cached_property
    def standing(self) -> Mapping[str, int]:
        """How many loops of each axis do not start again."""
        return Counter(loop.axis for loop in (*self.shared, self.advancing) if loop is not None)

    def advances(self, axis: str) -> bool:
        """Whether the loop that goes on is one of this axis."""
        return self.advancing is not None and self.advancing.axis == axis


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Dimensions of a slice that the same axes move, and axes whose extent depends on these.

    `walked` are the axes that loops around the visits advance. `enumerated`: slices end at a border of the tensor
    somewhere else than in the last step. `line`: the part is one dimension whose index is one axis.
    """

    axes: frozenset[str]
    dims: tuple[int, ...]
    enumerated: bool
    walked: tuple[str, ...]
    line: _Line | None


class _Parts(NamedTuple):
    """A slice in parts that move independently, and the axes of all."""

    all: tuple[_Part, ...]
    axes: frozenset[str]


class _Line(NamedTuple):
    """An axis whose values are the indices of one dimension, in these expressions after and before a turn."""

    axis: str
    now: tuple[str, ...]
    before: tuple[str, ...]


class Boundaries:
    """The turns of one topology: found once, evaluated for any factors."""

    def __init__(self, topology: Topology, *, compat_evict: bool = False) -> None:
        self.topology, self.compat_evict = topology, compat_evict
        self._known_parts: dict[tuple[Path | None, Path | None, str], _Parts] = {}
        self._known_turns: dict[object, Turn] = {}
        self._restarted: dict[Turn, frozenset[str]] = {}  # the axes whose loops go on or start again

    def traffic(self, factors: Any = None, *, outermost: int | None = None) -> Traffic:
        """The movement with these factors; of the levels before number `outermost` only, where that is given."""
        return self.traffic_at(self.point(factors), outermost=outermost)

    def traffic_at(self, point: Point, *, outermost: int | None = None) -> Traffic:
        """As `traffic`, at a point that `point` gave."""
        topology = self.topology
        moved: dict[Path, dict[str, Moved]] = {top: {} for top in topology.tops}
        for top, tensor, tiles, turns in self.turns:
            if outermost is not None and topology.level(top) >= outermost:
                continue
            if self._uneven(point, top, tensor, tiles):
                moved[top][tensor] = self._walked(point, top, tensor)
                continue
            moving = topology.moving(top, tensor, tiles)
            parts = [self._moved(point, top, tensor, moving, turn) for turn in turns]
            old = moved[top].get(tensor)
            if old is not None:
                parts.append((old.loads, old.fills, old.stores))
            loads, fills, stores = (sum(part[i] for part in parts) for i in range(3))
            moved[top][tensor] = Moved(loads, fills, stores)
        return topology.traffic(moved)

    def _uneven(self, point: Point, top: Path, tensor: str, tiles: tuple[Path, ...]) -> bool:
        """Whether units share a range of values that is not equally long in all steps, or loops one that may be empty.

        Then a unit without a part in some steps keeps its slice meanwhile, and what it held before a step is not what
        it held in the step before.
        """
        topology = self.topology
        if not topology.cut:
            return False
        for visit in topology.visits(top):
            if tensor in topology.crossing(visit, topology.level(top)):
                for loop in topology.above(visit):
                    if loop.axis in topology.cut:
                        op, axis = topology.cut[loop.axis]
                        if not loop.spatial:
                            if topology.advance(op) is not None:
                                return True
                            continue
                        sources = topology.problem.loops_of(op, axis) - {loop.axis}
                        around = {one.axis: one for one in reversed(topology.above(visit)) if one.axis in sources}
                        fits = all(one.axis in topology.extents and point.fits(one) for one in around.values())
                        if not fits or self._clipped(op, axis):
                            return True
        return False

    def _walked(self, point: Point, top: Path, tensor: str) -> Moved:
        """The movement of a tensor in a nest, by walking each tree."""
        if point.walked is None:
            rows = 1
            for factor in point.factors.values():
                rows = max(rows, len(factor) if isinstance(factor, np.ndarray) else 1)
            point.walked = [
                walk_nest(
                    self.topology,
                    {loop: int(f[row]) if isinstance(f, np.ndarray) else f for loop, f in point.factors.items()},
                    compat_evict=self.compat_evict,
                )
                for row in range(rows)
            ]
        found = [traffic.moved[top][tensor] for traffic in point.walked]
        if not point.in_batch:
            return found[0]
        return Moved(*(np.array([getattr(one, kind) for one in found]) for kind in ("loads", "fills", "stores")))

    def point(self, factors: Any = None) -> Point:
        """The topology with these factors."""
        values = bound(self.topology, factors)
        return Point(self.topology, values, self.topology.strides(values))

    def points(self, point: Point, op: str) -> tuple[Number, Number]:
        """How often an expression is evaluated: on all units together, and on the one that does most."""
        if op not in point.evaluations:
            place, tensor = self.topology.places[op], self.topology.points_of(op)
            turn = Turn(place, None, frozenset(self.topology.above(place)), None, False)
            parts = self._parts(turn, tensor)
            frame = _Frame(point, turn, tuple(loop for loop in self.topology.above(place) if loop.spatial))
            every, one = (
                frame.sizes(parts, tensor, together=together).now * frame.times(parts, frozenset(), together=together)
                for together in (False, True)
            )
            point.evaluations[op] = every, one
        return point.evaluations[op]

    def multiplied(self, point: Point, one: Rescaled) -> tuple[Number, Number]:
        """How often elements of a sum are rescaled: on all units together, and on the one that does most."""
        if one not in point.multiplications:
            topology, total = self.topology, one.rescaling.total
            place = topology.places[total]
            moving = topology.accesses(place, total)[-1].moving
            own = [loop for loop in topology.above(place) if loop.axis in moving]
            turn = Turn(place, None, frozenset((*topology.above(one.meeting), *own)), None, False)
            frame = _Frame(point, turn, tuple(loop for loop in topology.above(place) if loop.spatial))
            parts = self._parts(turn, total)
            every, most = (
                frame.sizes(parts, total, together=together).now * frame.times(parts, one.loops, together=together)
                for together in (False, True)
            )
            point.multiplications[one] = every, most
        return point.multiplications[one]

    # Turns

    @cached_property
    def turns(self) -> list[tuple[Path, str, tuple[Path, ...], list[Turn]]]:
        """Every kind of turn, by nest, tensor and the spatial tiles that visits share."""
        found = []
        for top in self.topology.tops:
            level = self.topology.level(top)
            groups: dict[tuple[str, tuple[Path, ...]], list[Path]] = {}
            for visit in self.topology.visits(top):
                for tensor in sorted(self.topology.crossing(visit, level)):
                    groups.setdefault((tensor, self.topology.par_tiles(visit)), []).append(visit)
            for (tensor, tiles), visits in groups.items():
                moving = self.topology.moving(top, tensor, tiles)
                turns = [turn for visit in visits for turn in self._turns(top, tensor, visits, visit)]
                turns.append(self._turn(None, visits[-1], (), None, True))
                found.append((top, tensor, tiles, [turn for turn in turns if self._changes(top, tensor, turn, moving)]))
        return found

    def _turns(self, top: Path, tensor: str, visits: Sequence[Path], visit: Path) -> list[Turn]:
        """How the memory can come to a visit: from an earlier sibling, or by a loop around all earlier ones."""
        topology, found = self.topology, []
        for depth in reversed(range(len(visit))):
            path = visit[:depth]
            node = topology.nodes[path]
            if isinstance(node, Scope) and depth > len(top):
                earlier = [v for v in visits if v[:depth] == path and v[depth] < visit[depth]]
                if earlier:
                    before = earlier[-1]
                    kept = self._kept(tensor, before, depth + 1) and not self._drops(tensor, before[: depth + 1])
                    found.append(self._turn(visit, before, path, None, kept))
                    return found
            elif isinstance(node, Tile):
                if node.binding is Binding.SP:
                    continue
                last = [v for v in visits if v[: depth + 1] == (*path, 0)][-1] if depth >= len(top) else visits[-1]
                kept = self._kept(tensor, last, max(depth + 1, len(top)))
                found += [self._turn(visit, last, path, loop, kept) for loop in topology.loops[path]]
        found.append(self._turn(visit, None, (), None, False))
        return found

    def _turn(self, now: Path | None, before: Path | None, path: Path, advancing: LoopAt | None, kept: bool) -> Turn:
        """The one turn in which `advancing` goes on, or else all loops inside the node at `path` start again."""
        key = (now, before, path, advancing, kept)
        if key not in self._known_turns:
            shared = self.topology.above(path)
            if advancing is not None:
                shared = (*shared, *self.topology.loops[path][: advancing.index])
            self._known_turns[key] = Turn(now, before, frozenset(shared), advancing, kept)
        return self._known_turns[key]

    def _kept(self, tensor: str, visit: Path, depth: int) -> bool:
        """Whether a slice outlives the scopes between a node of this depth and a visit that ends in all of them."""
        return not any(self._drops(tensor, visit[:n]) for n in range(depth + 1, len(visit) + 1))

    def _drops(self, tensor: str, child: Path) -> bool:
        """Whether a tensor is dropped when a child of a scope has run."""
        scope = self.topology.nodes[child[:-1]]
        if not isinstance(scope, Scope):
            return False
        around = self.topology.around(child)
        evicts = scope.kind is Kind.SEQ or (self.compat_evict and scope.kind is Kind.PIPE)
        last = child[-1] == len(scope.children) - 1
        in_scope = len(child) > 1 and isinstance(self.topology.nodes[child[:-2]], Scope)
        if not evicts or not around or (last and in_scope):
            return False
        following = (*child[:-1], 0 if last else child[-1] + 1)
        return tensor not in self.topology.crossing(following, self.topology.level(around[-1])) | self.topology.kept(
            child
        )

    def _changes(self, top: Path, tensor: str, turn: Turn, moving: frozenset[str]) -> bool:
        """Whether a turn moves anything: not if the same visit finds its slice where it left it."""
        if turn.now != turn.before or not turn.kept or not self._stays(top, tensor, turn):
            return True
        if turn not in self._restarted:
            loops = (loop for loop in self.topology.above(turn.where) if not loop.spatial and loop not in turn.shared)
            self._restarted[turn] = frozenset(loop.axis for loop in loops)
        return not self._restarted[turn].isdisjoint(moving)

    def _stays(self, top: Path, tensor: str, turn: Turn) -> bool:
        """Whether what is resident need not be loaded again."""
        writes = turn.now is not None and tensor in self.topology.ops(turn.now)
        return turn.kept and (writes or self.topology.retains(top))

    # What one kind of turn moves

    def _moved(
        self, point: Point, top: Path, tensor: str, moving: frozenset[str], turn: Turn
    ) -> tuple[Number, Number, Number]:
        topology = self.topology
        if turn.advancing is not None and _is_one(point.factors[turn.advancing]):
            return 0, 0, 0
        writes = turn.now is not None and tensor in topology.ops(turn.now)
        wrote = turn.before is not None and tensor in topology.ops(turn.before)
        sums = topology.problem.reductions(tensor) if writes else frozenset()
        adds = writes and any(loop.axis in sums and not loop.spatial for loop in (*turn.shared, turn.advancing) if loop)
        adds |= writes and self.compat_evict and bool(sums)
        adds &= not topology.levels[topology.level(top)].accumulate
        loading = turn.now is not None and (not writes or adds)
        if not loading and not wrote:
            return 0, 0, 0
        groups = tuple(loop for loop in topology.spread(turn.where, top) if loop.axis not in moving)
        frame = _Frame(point, turn, groups)
        parts = self._parts(turn, tensor)
        each = frame.sizes(parts, tensor, together=False)
        one = each if frame.grouped.isdisjoint(parts.axes) else frame.sizes(parts, tensor, together=True)
        loads = fills = stores = 0
        if loading:
            fresh = sums if writes and not self.compat_evict else frozenset()
            stays = self._stays(top, tensor, turn)
            fills = (each.now - (each.common if stays else 0)) * frame.times(parts, fresh, together=False)
            loads = fills
            if groups and topology.levels[topology.level(top)].multicast:
                loads = (one.now - (one.common if stays else 0)) * frame.times(parts, fresh, together=True)
        if wrote:
            stored = one.before - (one.common if writes and turn.kept else 0)
            stores = stored * frame.times(parts, frozenset(), together=True)
        return loads, fills, stores

    def _parts(self, turn: Turn, tensor: str) -> _Parts:
        """The dimensions of a tensor in groups that depend on different axes."""
        key = (turn.now, turn.before, tensor)
        if key not in self._known_parts:
            parts = self._find_parts(turn, tensor)
            self._known_parts[key] = _Parts(parts, frozenset().union(*(part.axes for part in parts)))
        return self._known_parts[key]

    def _find_parts(self, turn: Turn, tensor: str) -> tuple[_Part, ...]:
        topology, problem = self.topology, self.topology.problem
        visits = [path for path in dict.fromkeys((turn.now, turn.before)) if path is not None]
        after = topology.accesses(turn.where, tensor)
        before = topology.accesses(turn.before, tensor) if turn.before is not None else ()
        accesses = dict.fromkeys((*after, *before))
        users = tuple(access.op for access in after), tuple(access.op for access in before)
        groups: list[tuple[set[str], list[int], bool, _Line | None]] = []
        for dim, extent in enumerate(after[0].shape):
            own = {access.axes[dim] for access in accesses}
            axis = own.pop()
            if axis is not None and not own:
                clipped = topology.extents[axis] > extent
                groups.append(({axis}, [dim], clipped, None if clipped else _Line(axis, *users)))
                continue
            axes: set[str] = set()
            enumerated = False
            shapes: set[frozenset[tuple[str, int]]] = set()
            for access in accesses:
                op, form = access.op, access.forms[dim]
                if form is not None:
                    shapes |= self._shapes(op, form)
                    for term in form.terms:
                        axes |= problem.loops_of(op, term.name)
                        enumerated |= self._clipped(op, term.name)
                    low, high = form.bounds()
                    enumerated |= low < 0 or high >= extent
            groups.append((axes, [dim], enumerated or len(shapes) > 1, None))
        for name, (op, cut) in topology.cut.items():
            if any(topology.along(visit, name) for visit in visits):
                form = Affine(0, {next(a for a in topology.computes[op].loops if a.name == cut): 1})
                enumerated = self._clipped(op, cut) or len(self._shapes(op, form)) > 1
                groups.append(({name, *problem.loops_of(op, cut)}, [], enumerated, None))
        joined: list[tuple[set[str], list[int], bool, _Line | None]] = []
        for axes, dims, enumerated, line in groups:
            for other in [other for other in joined if other[0] & axes]:
                joined.remove(other)
                axes, dims, enumerated, line = axes | other[0], [*other[1], *dims], enumerated or other[2], None
            joined.append((axes, dims, enumerated, line))
        walked = dict.fromkeys(axis for visit in visits for axis in topology.axes_around(visit))
        return tuple(
            _Part(frozenset(axes), tuple(dims), enumerated, tuple(axis for axis in walked if axis in axes), line)
            for axes, dims, enumerated, line in joined
        )

    def _shapes(self, op: str, form: Affine) -> set[frozenset[tuple[str, int]]]:
        """How an index moves with the loops: coefficients by axis, for every way in which consumers decide about it.

        Slices that move in different ways lie in each step at another distance from each other.
        """
        problem = self.topology.problem
        if not any((op, axis.name) in problem.derived for axis in form.terms):
            return {frozenset((problem.names[op, axis.name], factor) for axis, factor in form.terms.items())}
        found: set[frozenset[tuple[str, int]]] = {frozenset()}
        for axis, factor in form.terms.items():
            own = {frozenset({(problem.names[op, axis.name], factor)})}
            for consumer, outer in problem.derived.get((op, axis.name), ()):
                own |= self._shapes(consumer, outer.scaled(factor))
            if (op, axis.name) in problem.derived:
                own.discard(frozenset({(problem.names[op, axis.name], factor)}))
            found = {a | b for a in found for b in own}
        return found

    def _clipped(self, op: str, axis: str) -> bool:
        """Whether consumers ask for values that do not exist, or only for those that the last step lacked."""
        problem = self.topology.problem
        if (op, axis) in problem.derived and self.topology.advance(op) is not None:
            return True
        whole = next(a.size for a in self.topology.computes[op].loops if a.name == axis)
        for consumer, form in problem.derived.get((op, axis), ()):
            low, high = form.bounds()
            if low < 0 or high >= whole or any(self._clipped(consumer, a.name) for a in form.terms):
                return True
        return False


class Point:
    """A topology with its factors, and what is known about it."""

    def __init__(self, topology: Topology, factors: Mapping[LoopAt, Number], strides: Mapping[LoopAt, Number]) -> None:
        self.topology, self.factors, self.strides = topology, factors, strides
        self.in_batch = any(isinstance(factor, np.ndarray) for factor in factors.values())
        self.sizes: dict[object, _Sizes] = {}  # of parts of slices, by what they depend on
        self.counts: dict[object, Number] = {}  # of steps of an axis, by what they depend on
        self.evaluations: dict[str, tuple[Number, Number]] = {}  # of expressions: all, and of the busiest unit
        self.multiplications: dict[Rescaled, tuple[Number, Number]] = {}  # by which sums are rescaled: the same
        self.walked: list[Traffic] | None = None  # by tree, where the boundaries do not decide
        self._ends: dict[LoopAt, bool] = {}
        self._even: dict[tuple[Path, str], bool] = {}
        self._inside: dict[tuple[str, str, Path], Number] = {}

    def length(self, axis: str, ops: tuple[str, ...], path: Path) -> Number:
        """How many values of an axis the node at `path` covers for the expression that needs most."""
        found: Number = 0
        for op in ops:
            found = greatest(found, self.inside(op, axis, path))
        return least(found, self.topology.extents[axis])

    def fits(self, loop: LoopAt) -> bool:
        """Whether the steps of the outermost loop of an axis make up its extent."""
        if loop not in self._ends:
            size = self.strides[loop] * self.factors[loop]
            extent = self.topology.extents[loop.axis]
            self._ends[loop] = bool((size == extent).all()) if isinstance(size, np.ndarray) else size == extent
        return self._ends[loop]

    def even(self, path: Path, axis: str) -> bool:
        """Whether no step of an axis is clipped around the node at `path`."""
        key = (path, axis)
        if key not in self._even:
            loops = self.topology.along(path, axis)
            self._even[key] = not loops or self.fits(loops[0])
        return self._even[key]

    def inside(self, op: str, axis: str, path: Path) -> Number:
        """How many values of an axis of an expression the node at `path` covers."""
        key = (op, axis, path)
        if key not in self._inside:
            loops, size = self.topology.inside(op, axis, path)
            for loop in loops:
                size = size * self.factors[loop]
            self._inside[key] = size
        return self._inside[key]


#: One loop of an axis: how many steps, how many values a step covers, and which steps are counted: "all", the "first",
#: "later" ones, or "none".
_Digit = tuple[Number, Number, str]


class _Sizes(NamedTuple):
    """Elements of slices, summed over positions: needed now, held before, and common to both."""

    now: Number
    before: Number
    common: Number


class _Frame:
    """How often one kind of turn occurs, and where slices lie before and after it.

    `groups` are loops whose iterations run on units that read and write the same slice.
    """

    def __init__(self, point: Point, turn: Turn, groups: tuple[LoopAt, ...]) -> None:
        self.point, self.turn, self.groups = point, turn, groups
        self.grouped = frozenset(loop.axis for loop in groups)

    def times(self, parts: _Parts, fresh: frozenset[str], *, together: bool) -> Number:
        """How often the turn occurs for each position of the axes in `parts`.

        Without the first temporal step of all axes in `fresh` at once; only on one unit of those that share a slice if
        `together`.
        """
        total: Number = 1
        at_first: Number = 1
        for axis in self.point.topology.axes_around(self.turn.where):
            if axis in parts.axes:
                continue
            often = self.often(axis, together)
            total = total * often
            at_first = at_first * (self.often(axis, together, first=True) if axis in fresh else often)
        return total - at_first if fresh else total

    def often(self, axis: str, together: bool, *, first: bool = False) -> Number:
        """How many combinations of steps of an axis are occurrences of the turn; as in `digits`."""
        point, turn, topology = self.point, self.turn, self.point.topology
        groups = self.groups if together and axis in self.grouped else ()
        key = (turn.where, axis, turn.standing.get(axis, 0), turn.advances(axis), groups, first)
        if key not in point.counts:
            digits = self.digits(axis, together, first=first)
            even = axis not in topology.extents or point.even(turn.where, axis)
            point.counts[key] = _whole(digits) if even else _count(topology.extents[axis] - 1, digits)
        return point.counts[key]

    def digits(self, axis: str, together: bool, *, first: bool = False) -> list[_Digit]:
        """The loops of an axis whose steps make different occurrences of the turn; temporal ones at the `first`."""
        factors, strides, turn = self.point.factors, self.point.strides, self.turn
        found = []
        for loop in self.point.topology.along(turn.where, axis):
            steps = "all"
            if loop.spatial:
                steps = "first" if together and loop in self.groups else "all"
            elif loop is turn.advancing:
                steps = "none" if first else "later"
            elif first or loop not in turn.shared:
                steps = "first"
            found.append((factors[loop], strides[loop], steps))
        return found

    def sizes(self, parts: _Parts, tensor: str, *, together: bool) -> _Sizes:
        """Elements of the slices of a tensor at the turn, summed over all positions of the axes in `parts`."""
        now: Number = 1
        before: Number = 1
        common: Number = 1
        for part in parts.all:
            sizes = self._of_part(part, tensor, together)
            now, before, common = now * sizes.now, before * sizes.before, common * sizes.common
        return _Sizes(now, before, common)

    def _of_part(self, part: _Part, tensor: str, together: bool) -> _Sizes:
        """As `sizes`, along the dimensions of one part."""
        turn, known, line = self.turn, self.point.sizes, part.line
        if line is not None and not self._even(line.axis):
            line = None
        stand: object = (
            tuple((turn.standing.get(axis, 0), turn.advances(axis)) for axis in part.walked)
            if line is None
            else (turn.standing.get(line.axis, 0), turn.advances(line.axis))
        )
        key = (line or part, turn.now, turn.before, stand, together and not self.grouped.isdisjoint(part.axes))
        if key not in known:
            sizes = _Positions(self, part, together).total(tensor) if line is None else self._of_line(line, together)
            known[key] = sizes
        return known[key]

    def _even(self, axis: str) -> bool:
        """Whether no step of an axis is clipped before or after the turn."""
        point, turn = self.point, self.turn
        return point.even(turn.where, axis) and (turn.before is None or point.even(turn.before, axis))

    def _of_line(self, line: _Line, together: bool) -> _Sizes:
        """The intervals of an axis whose steps are whole: all have one length, and one distance from those before."""
        turn, point = self.turn, self.point
        often = self.often(line.axis, together)
        now = point.length(line.axis, line.now, turn.where)
        if turn.before is None:
            return _Sizes(often * now, 0, 0)
        before = point.length(line.axis, line.before, turn.before)
        shift: Number = point.strides[turn.advancing] if turn.advances(line.axis) else 0  # type: ignore[index]
        for loop in point.topology.along(turn.before, line.axis):
            if not loop.spatial and loop not in turn.shared and loop is not turn.advancing:
                shift = shift - (point.factors[loop] - 1) * point.strides[loop]
        common = greatest(least(now + shift, before) - greatest(shift, 0), 0)
        return _Sizes(often * now, often * before, often * common)


class _Positions:
    """The positions of the axes of one part at one kind of turn, in classes that have slices of the same sizes.

    Where every step of every axis is whole, there is one class, and all is scalar (or one value per tree). Otherwise
    each axis has a dimension of classes: the first step, the last one and one of those between, or every step.
    """

    def __init__(self, frame: _Frame, part: _Part, together: bool) -> None:
        self.frame, self.part, self.together = frame, part, together
        self.topology, self.turn = frame.point.topology, frame.turn
        self.walked = part.walked
        self.ragged = [axis for axis in self.walked if self._is_ragged(axis)]
        self.now: dict[str, Number] = {}
        self.bases: dict[str, tuple[Number, Number]] = {}
        self.before: dict[str, Number] = {}
        self.weight: Number = 1

    def total(self, tensor: str) -> _Sizes:
        """The sums over all positions of the elements along the part's dimensions."""
        topology, turn = self.topology, self.turn
        for axis in self.walked:
            self._first(axis, self._extent(axis, turn.where, self._at_now))
        now = before = common = self.weight
        for dim in self.part.dims:
            low, high = topology.side(turn.where, tensor, dim, self._at_now, self._inside)
            now = now * greatest(high - low, 0)
            if turn.before is not None:
                other_low, other_high = topology.side(turn.before, tensor, dim, self._at_before, self._inside)
                before = before * greatest(other_high - other_low, 0)
                common = common * greatest(least(high, other_high) - greatest(low, other_low), 0)
        if turn.before is None:
            before = common = 0
        return _Sizes(self._summed(now), self._summed(before), self._summed(common))

    def _summed(self, sizes: Number) -> Number:
        if not self.ragged:
            return sizes
        array = np.asarray(sizes)
        total = array.sum(axis=tuple(range(1, array.ndim))) if array.ndim > 1 else array
        return total if self.frame.point.in_batch or not array.ndim else int(total[0])

    # Axes

    def _is_ragged(self, axis: str) -> bool:
        """Whether steps of an axis are clipped, or differ for another reason."""
        if self.part.enumerated or axis in self.topology.cut:
            return True
        visits = (path for path in (self.turn.now, self.turn.before) if path is not None)
        return not all(self.frame.point.even(path, axis) for path in visits)

    def _extent(self, axis: str, path: Path, at: Any) -> Number:
        if axis not in self.topology.cut:
            return self.topology.extents[axis]
        span = self.topology.span(*self.topology.cut[axis], path, at, self._inside)
        return greatest(span[1] - span[0], 0)

    def _lift(self, value: Number) -> Number:
        """A value per tree, with dimensions for the classes."""
        if isinstance(value, np.ndarray) and value.ndim == 1 and self.ragged:
            return value.reshape((-1, *(1 for _ in self.ragged)))
        return value

    def _along(self, axis: str, values: Any) -> Number:
        """Classes of an axis along its dimension."""
        shape = [1] * (1 + len(self.ragged))
        shape[1 + self.ragged.index(axis)] = -1
        return np.asarray(values, dtype=np.int64).reshape(shape)

    def _inside(self, op: str, axis: str, path: Path) -> Number:
        return self._lift(self.frame.point.inside(op, axis, path))

    def _at_now(self, axis: str, extent: Number) -> Number:
        if axis in self.walked and axis not in self.now:
            self._first(axis, extent)
        return self.now.get(axis, 0)

    def _first(self, axis: str, extent: Number) -> None:
        """The first values of an axis after the turn, and how often each occurs."""
        if axis in self.now:
            return
        turn, point = self.turn, self.frame.point
        digits = self.frame.digits(axis, self.together)
        loops = self.topology.along(turn.where, axis)
        outer = [loop for loop in loops if loop in turn.shared or loop is turn.advancing]
        advances = turn.advances(axis)
        stride = self._lift(point.strides[outer[-1]]) if outer else None
        offset: Number = 0
        block: Number = 1 if advances else 0
        if axis not in self.ragged:
            self.weight = self.weight * self._lift(_whole(digits))
        else:
            digits = [(self._lift(factor), self._lift(step), steps) for factor, step, steps in digits]
            inner = [
                range(int(np.max(factor)) if steps == "all" else 1)
                for loop, (factor, _, steps) in zip(loops, digits, strict=True)
                if loop.spatial and loop not in outer
            ]
            strides = [self._lift(point.strides[loop]) for loop in loops if loop.spatial and loop not in outer]
            factors = [self._lift(point.factors[loop]) for loop in loops if loop.spatial and loop not in outer]
            head = digits[: len(outer)]
            blocks = _blocks(head, stride, extent)
            kinds = range(int(np.max(blocks))) if self.part.enumerated else range(3)
            classes = list(product(kinds, *inner))
            kind = self._along(axis, [c[0] for c in classes])
            runs: Number = True
            for number, (step, factor) in enumerate(zip(strides, factors, strict=True)):
                unit = self._along(axis, [c[1 + number] for c in classes])
                offset, runs = offset + unit * step, runs & (unit < factor)
            if self.part.enumerated:
                block, often = kind, _counted(kind, stride, head) & (kind < blocks)
            else:
                last = blocks - 1
                block = np.where(kind == 2, last, kind)
                at_first = 1 * _counted(0, stride, head)
                at_last = (last > 0) & _counted(last, stride, head)
                between = _count(extent - 1, head) - at_first - at_last
                often = np.where(kind == 0, at_first, np.where(kind == 1, between, at_last))
            first = (0 if stride is None else block * stride) + offset
            self.weight = self.weight * (often * runs * (first < extent))
        base: Number = 0
        before: Number = 0
        if stride is not None:
            base = block * stride
            before = base - stride if advances else base
        self.now[axis] = base + offset
        self.bases[axis] = (before, offset)

    def _at_before(self, axis: str, extent: Number) -> Number:
        """The values of an axis before the turn: its inner loops were at their last steps."""
        if axis not in self.walked:
            return 0
        if axis not in self.before:
            turn, point = self.turn, self.frame.point
            assert turn.before is not None
            base, offset = self.bases[axis]
            loops = self.topology.along(turn.where, axis)
            outer = [loop for loop in loops if loop in turn.shared or loop is turn.advancing]
            end = extent
            if outer:
                end = least(end, base + self._lift(point.strides[outer[-1]]))
            rest = end - 1 - base - offset
            place = base + offset
            for loop in self.topology.along(turn.before, axis):
                if not loop.spatial and loop not in outer:
                    size = self._lift(point.strides[loop])
                    step = least(self._lift(point.factors[loop]) - 1, greatest(rest, 0) // size)
                    place, rest = place + step * size, rest - step * size
            self.before[axis] = place
        return self.before[axis]


# Counting the steps of an axis ----------------------------------------------------------------------------------------


def _count(last: Number, digits: Sequence[_Digit]) -> Number:
    """How many combinations of steps reach a value of at most `last` (None: any)."""
    if last is None or not digits:
        return _whole(digits)
    factor, stride, steps = digits[0]
    reached = least(last // stride, factor)
    partial = (reached < factor) & _allowed(reached, steps)
    return _among(reached, steps) * _whole(digits[1:]) + partial * _count(last - reached * stride, digits[1:])


def _whole(digits: Sequence[_Digit]) -> Number:
    total: Number = 1
    for factor, _, steps in digits:
        total = total * _among(factor, steps)
    return total


def _among(steps: Number, which: str) -> Number:
    """How many of the first `steps` steps are counted."""
    if which == "all":
        return steps
    if which == "later":
        return greatest(steps - 1, 0)
    return 0 if which == "none" else least(steps, 1)


def _allowed(step: Number, which: str) -> Number:
    """Whether a step is counted."""
    if which == "all":
        return True
    if which == "none":
        return False
    return step > 0 if which == "later" else step == 0


def _blocks(digits: Sequence[_Digit], stride: Number, extent: Number) -> Number:
    """How many steps of this stride an axis has."""
    if stride is None:
        return 1
    total: Number = 1
    for factor, _, _ in digits:
        total = total * factor
    return least(total, -(-extent // stride))


def _counted(block: Number, stride: Number, digits: Sequence[_Digit]) -> Number:
    """Whether the steps that lead to a block are counted."""
    right: Number = True
    for factor, step, steps in digits:
        right = right & _allowed(block * stride // step % factor, steps)
    return right


def _is_one(factor: Number) -> bool:
    return not isinstance(factor, np.ndarray) and factor == 1
