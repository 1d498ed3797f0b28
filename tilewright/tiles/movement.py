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

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.expr.affine import Affine
from tilewright.tiles.brute import walk_nest
from tilewright.tiles.problem import Problem
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import Number, Resources
from tilewright.tiles.topology import LoopAt, Topology, bound
from tilewright.tiles.traffic import Moved, Traffic
from tilewright.tiles.tree import Binding, Kind, Path, Scope, Tile, TileTree
from tilewright.tiles.turns import Frame, Line, Part, Parts, Point, Turn


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


class Boundaries:
    """The turns of one topology: found once, evaluated for any factors."""

    def __init__(self, topology: Topology, *, compat_evict: bool = False) -> None:
        self.topology, self.compat_evict = topology, compat_evict
        self._known_parts: dict[tuple[Path | None, Path | None, str], Parts] = {}
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
            frame = Frame(point, turn, tuple(loop for loop in self.topology.above(place) if loop.spatial))
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
            frame = Frame(point, turn, tuple(loop for loop in topology.above(place) if loop.spatial))
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
        frame = Frame(point, turn, groups)
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

    def _parts(self, turn: Turn, tensor: str) -> Parts:
        """The dimensions of a tensor in groups that depend on different axes."""
        key = (turn.now, turn.before, tensor)
        if key not in self._known_parts:
            parts = self._find_parts(turn, tensor)
            self._known_parts[key] = Parts(parts, frozenset().union(*(part.axes for part in parts)))
        return self._known_parts[key]

    def _find_parts(self, turn: Turn, tensor: str) -> tuple[Part, ...]:
        topology, problem = self.topology, self.topology.problem
        visits = [path for path in dict.fromkeys((turn.now, turn.before)) if path is not None]
        after = topology.accesses(turn.where, tensor)
        before = topology.accesses(turn.before, tensor) if turn.before is not None else ()
        accesses = dict.fromkeys((*after, *before))
        users = tuple(access.op for access in after), tuple(access.op for access in before)
        groups: list[tuple[set[str], list[int], bool, Line | None]] = []
        for dim, extent in enumerate(after[0].shape):
            own = {access.axes[dim] for access in accesses}
            axis = own.pop()
            if axis is not None and not own:
                clipped = topology.extents[axis] > extent
                groups.append(({axis}, [dim], clipped, None if clipped else Line(axis, *users)))
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
        joined: list[tuple[set[str], list[int], bool, Line | None]] = []
        for axes, dims, enumerated, line in groups:
            for other in [other for other in joined if other[0] & axes]:
                joined.remove(other)
                axes, dims, enumerated, line = axes | other[0], [*other[1], *dims], enumerated or other[2], None
            joined.append((axes, dims, enumerated, line))
        walked = dict.fromkeys(axis for visit in visits for axis in topology.axes_around(visit))
        return tuple(
            Part(frozenset(axes), tuple(dims), enumerated, tuple(axis for axis in walked if axis in axes), line)
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


def _is_one(factor: Number) -> bool:
    return not isinstance(factor, np.ndarray) and factor == 1
