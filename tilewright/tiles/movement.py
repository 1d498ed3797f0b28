"""The data movement of a tile tree from its boundary steps: exact, and without walking the tree.

Two visits to a memory differ only by which loop has advanced and which inner loops went back to their first step (spec
1, section 5.2, generalised to siblings in section 5.4). Each such *turn* occurs a known number of times and moves the
same number of elements each time, up to clipped edges: there the last step of an axis differs, and the turns of steps
next to the edge are counted apart. `brute.walk` is the definition; both give equal numbers on every tree.

Only units that share a range which is shorter in some steps, as the rows of a producer under a clipped window, and
trees with loops that a mask ends early are walked, equal steps at once (`equal_steps`).

Factors may be arrays: one evaluation then covers all trees of one topology.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine
from tilewright.tiles.equal_steps import EqualSteps
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.problem import Access, Problem
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import Level, Number, Resources
from tilewright.tiles.topology import LoopAt, Topology, bound
from tilewright.tiles.traffic import Moved, Traffic, sum_of
from tilewright.tiles.tree import Binding, Kind, Path, Scope, Tile, TileTree
from tilewright.tiles.turns import Frame, Known, Line, Part, Point, Turn

MOST_STEPS = 250_000  # of a tree in a batch: a search does not wait for walks of its trees


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


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The visits of a nest inside the same spatial `tiles`, which share memory, and how a tensor comes and goes there.

    `writer` is the visit that computes the tensor. `moving` are the axes that move its slices, `sums` those that its
    expression sums over. `frames` are those of turns between two visits, as they are needed: that of all units, and
    that of one of those that share a slice.
    """

    top: Path
    tensor: str
    tiles: tuple[Path, ...]
    writer: Path | None
    moving: frozenset[str]
    sums: frozenset[str]
    turns: tuple[Turn, ...]
    frames: dict[tuple[Path, Path], tuple[Frame, Frame]]


class _Arrival(NamedTuple):
    """A turn before it is known whether a tensor stays: not those that are `dropped`, and none if that is None.

    Loops of the axes `restarted` go on or start again. `turns` are the turn where the tensor is dropped and where not.
    """

    now: Path | None
    before: Path | None
    shared: tuple[LoopAt, ...]
    advancing: LoopAt | None
    dropped: frozenset[str] | None
    restarted: frozenset[str]
    turns: list[Turn | None]


class Boundaries:
    """The turns of one topology: found once, evaluated for any factors."""

    def __init__(self, topology: Topology, *, compat_evict: bool = False) -> None:
        self.topology, self.compat_evict = topology, compat_evict
        self._known = Known(topology)
        self._groups: dict[Path, list[Group]] = {}
        self._drops: dict[Path, frozenset[str]] = {}
        self._evaluated: dict[str, tuple[Turn, Frame, Frame]] = {}
        self._multiplied: dict[Rescaled, tuple[Turn, Frame, Frame]] = {}

    def traffic(self, factors: Any = None, *, outermost: int | None = None) -> Traffic:
        """The movement with these factors; of the levels before number `outermost` only, where that is given."""
        return self.traffic_at(self.point(factors), outermost=outermost)

    def traffic_at(self, point: Point, *, outermost: int | None = None) -> Traffic:
        """As `traffic`, at a point that `point` gave."""
        topology = self.topology
        moved: dict[Path, dict[str, Moved]] = {}
        for top in topology.tops:
            moved[top] = {}
            if outermost is not None and topology.level(top) >= outermost:
                continue
            for group in self.groups(top):
                if topology.seen or self._uneven(point, group):
                    moved[top][group.tensor] = self._walked(point, group)
                else:
                    more = self._moved(point, group)
                    old = moved[top].get(group.tensor)
                    moved[top][group.tensor] = more if old is None else sum_of([more, old])
        return topology.traffic(moved)

    def _uneven(self, point: Point, group: Group) -> bool:
        """Whether units share a range of values that is not equally long in all steps, or loops one that may be empty.

        Then a unit without a part in some steps keeps its slice meanwhile, and what it held before a step is not what
        it held in the step before.
        """
        topology, top, tensor = self.topology, group.top, group.tensor
        if not topology.cut and not topology.optional:
            return False
        for visit in topology.visits(top):
            if tensor in topology.crossing(visit, topology.level(top)):
                if any(topology.may_be_idle(op, visit) for op in topology.ops(visit)):
                    return True
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

    def _walked(self, point: Point, group: Group) -> Moved:
        """The movement of a tensor in a nest, by walking each tree.

        Raises Unanalysable where the nest has no step that runs.
        """
        found = []
        for each in self._walks(point):
            moved = each.traffic.moved.get(group.top, {})
            if group.tensor not in moved:
                fact = f"no step of the nest has a part of {group.tensor}"
                raise Unanalysable(fact, where="tile tree", help=f"loops of {group.tensor} in the tiles around it")
            found.append(moved[group.tensor])
        if not point.in_batch:
            return found[0]
        return Moved(*(np.array([getattr(one, kind) for one in found]) for kind in ("loads", "fills", "stores")))

    def _walks(self, point: Point) -> list[EqualSteps]:
        """The walk of each tree. Raises Unanalysable where one takes long, in a batch where one has many steps."""
        if point.walked is None:
            rows = 1
            for factor in point.factors.values():
                rows = max(rows, len(factor) if isinstance(factor, np.ndarray) else 1)
            trees = [
                {loop: int(f[row]) if isinstance(f, np.ndarray) else f for loop, f in point.factors.items()}
                for row in range(rows)
            ]
            if point.in_batch:
                _require_few_steps(self.topology, trees)
            point.walked = [EqualSteps(self.topology, factors, compat_evict=self.compat_evict) for factors in trees]
        return point.walked

    def point(self, factors: Any = None) -> Point:
        """The topology with these factors."""
        values = bound(self.topology, factors)
        return Point(self.topology, values, self.topology.strides(values))

    def points(self, point: Point, op: str) -> tuple[Number, Number]:
        """How often an expression is evaluated: on all units together, and on the one that does most."""
        if op not in point.evaluations and self.topology.seen:
            every, most = zip(*(each.evaluated(op) for each in self._walks(point)), strict=True)
            point.evaluations[op] = (np.array(every), np.array(most)) if point.in_batch else (every[0], most[0])
        if op not in point.evaluations and point.is_whole(op):
            point.evaluations[op] = point.runs(op)
        if op not in point.evaluations:
            if op not in self._evaluated:
                place = self.topology.places[op]
                turn = self._still(place, self.topology.above(place))
                self._evaluated[op] = self._elements(turn, self.topology.points_of(op))
            point.evaluations[op] = self._counted(point, self._evaluated[op])
        return point.evaluations[op]

    def multiplied(self, point: Point, one: Rescaled) -> tuple[Number, Number]:
        """How often elements of a sum are rescaled: on all units together, and on the one that does most."""
        if one not in point.multiplications:
            if one not in self._multiplied:
                topology, total = self.topology, one.rescaling.total
                place = topology.places[total]
                moving = topology.accesses(place, total)[-1].moving
                own = [loop for loop in topology.above(place) if loop.axis in moving]
                turn = self._still(place, (*topology.above(one.meeting), *own))
                self._multiplied[one] = self._elements(turn, total)
            point.multiplications[one] = self._counted(point, self._multiplied[one], one.loops)
        return point.multiplications[one]

    def _still(self, place: Path, loops: Sequence[LoopAt]) -> Turn:
        """Every run of a leaf in which these loops make a difference."""
        return Turn(place, None, dict.fromkeys(loops), None, False)

    def _elements(self, turn: Turn, tensor: str) -> tuple[Turn, Frame, Frame]:
        """A turn with its frames of all units and of one."""
        spatial = tuple(loop for loop in self.topology.above(turn.where) if loop.spatial)
        return turn, *self._known.frames(turn.where, turn.last, tensor, self._parts(turn, tensor), spatial)

    def _counted(
        self, point: Point, elements: tuple[Turn, Frame, Frame], fresh: frozenset[str] = frozenset()
    ) -> tuple[Number, Number]:
        """Elements in all runs but the first of all loops in `fresh` at once: on all units, and on one."""
        turn, *frames = elements
        every, one = (point.sizes(frame, turn).now * point.often(frame, turn, fresh) for frame in frames)
        return every, one

    # Turns

    def groups(self, top: Path) -> Sequence[Group]:
        """The visits of a nest that share memory, with the turns of every tensor."""
        if top not in self._groups:
            self._groups[top] = self._find_groups(top)
        return self._groups[top]

    def _find_groups(self, top: Path) -> list[Group]:
        topology, level = self.topology, self.topology.level(top)
        sharing: dict[tuple[str, tuple[Path, ...]], list[Path]] = {}
        for visit in topology.visits(top):
            for tensor in sorted(topology.crossing(visit, level)):
                sharing.setdefault((tensor, topology.par_tiles(visit)), []).append(visit)
        arrivals: dict[tuple[Path, ...], list[_Arrival]] = {}
        found = []
        for (tensor, tiles), own in sharing.items():
            visits = tuple(own)
            if visits not in arrivals:
                arrivals[visits] = list(self._arrivals(top, visits))
            moving = topology.moving(top, tensor, tiles)
            writer = next((visit for visit in visits if tensor in topology.ops(visit)), None)
            turns = self._turns(tensor, arrivals[visits], moving, writer, topology.retains(top))
            sums = topology.problem.reductions(tensor) if tensor in topology.places else frozenset()
            found.append(Group(top, tensor, tiles, writer, moving, sums, turns, {}))
        return found

    def _turns(
        self, tensor: str, arrivals: Sequence[_Arrival], moving: frozenset[str], writer: Path | None, retains: bool
    ) -> tuple[Turn, ...]:
        """The turns that may move a tensor: not those where the same visit finds its slice where it left it."""
        found = []
        for arrival in arrivals:
            kept = arrival.dropped is not None and tensor not in arrival.dropped
            stays = kept and arrival.now == arrival.before and (retains or arrival.now == writer)
            if stays and moving.isdisjoint(arrival.restarted):
                continue
            turn = arrival.turns[kept]
            if turn is None:
                turn = arrival.turns[kept] = Turn(arrival.now, arrival.before, arrival.shared, arrival.advancing, kept)
            found.append(turn)
        return tuple(found)

    def _arrivals(self, top: Path, visits: Sequence[Path]) -> Iterator[_Arrival]:
        """How a memory can come to each of these visits: from an earlier one, or by a loop around all earlier ones."""
        for visit in visits:
            yield from self._arrivals_at(visit, top, visits)
        yield self._arrival(None, visits[-1], (), None, frozenset())

    def _arrivals_at(self, visit: Path, top: Path, visits: Sequence[Path]) -> Iterator[_Arrival]:
        topology = self.topology
        for depth in reversed(range(len(visit))):
            path = visit[:depth]
            node = topology.nodes[path]
            if isinstance(node, Scope) and depth > len(top):
                earlier = [v for v in visits if v[:depth] == path and v[depth] < visit[depth]]
                if earlier:
                    yield self._arrival(visit, earlier[-1], path, None, self._dropped(earlier[-1], depth))
                    return
            elif isinstance(node, Tile) and node.binding is not Binding.SP:
                last = [v for v in visits if v[: depth + 1] == (*path, 0)][-1] if depth >= len(top) else visits[-1]
                dropped = self._dropped(last, max(depth + 1, len(top)))
                for loop in topology.loops[path]:
                    if node.loops[loop.index].factor != 1:
                        yield self._arrival(visit, last, path, loop, dropped)
        yield self._arrival(visit, None, (), None, None)

    def _arrival(
        self, now: Path | None, before: Path | None, path: Path, advancing: LoopAt | None,
        dropped: frozenset[str] | None,
    ) -> _Arrival:  # fmt: skip
        """The one in which `advancing` goes on, or else all loops inside the node at `path` start again."""
        shared = self.topology.above(path)
        if advancing is not None:
            shared = (*shared, *self.topology.loops[path][: advancing.index])
        restarted: frozenset[str] = frozenset()
        if now == before and now is not None:
            loops = self.topology.above(now)[len(shared) :]
            restarted = frozenset([loop.axis for loop in loops if not loop.spatial])
        return _Arrival(now, before, shared, advancing, dropped, restarted, [None, None])

    def _dropped(self, visit: Path, depth: int) -> frozenset[str]:
        """The tensors that scopes inside a node of this depth drop after a visit."""
        found: frozenset[str] = frozenset()
        for number in range(depth + 1, len(visit) + 1):
            child = visit[:number]
            if child not in self._drops:
                self._drops[child] = self._dropped_after(child)
            found |= self._drops[child]
        return found

    def _dropped_after(self, child: Path) -> frozenset[str]:
        """The tensors that a scope drops when this child of it has run."""
        topology = self.topology
        scope = topology.nodes[child[:-1]]
        if not isinstance(scope, Scope):
            return frozenset()
        around = topology.around(child)
        evicts = scope.kind is Kind.SEQ or (self.compat_evict and scope.kind is Kind.PIPE)
        last = child[-1] == len(scope.children) - 1
        in_scope = len(child) > 1 and isinstance(topology.nodes[child[:-2]], Scope)
        if not evicts or not around or (last and in_scope):
            return frozenset()
        following = (*child[:-1], 0 if last else child[-1] + 1)
        stays = topology.crossing(following, topology.level(around[-1])) | topology.kept(child[:-1])
        return frozenset(topology.tensors).difference(stays)

    # What one kind of turn moves

    def _moved(self, point: Point, group: Group) -> Moved:
        """What all turns of a tensor move in a nest."""
        topology, top = self.topology, group.top
        level, retains = topology.levels[topology.level(top)], topology.retains(top)
        loads: Number = 0
        fills: Number = 0
        stores: Number = 0
        for turn in group.turns:
            if turn.advancing in point.single:
                continue
            writes = turn.now is not None and turn.now == group.writer
            wrote = turn.before is not None and turn.before == group.writer
            loading = turn.now is not None and (not writes or self._adds(turn, group.sums, level))
            if not loading and not wrote:
                continue
            every, one = self._frames(group, turn)
            each = point.sizes(every, turn)
            own = each if one.parts is every.parts else point.sizes(one, turn)
            if loading:
                fresh = group.sums if writes and not self.compat_evict else frozenset()
                stays = turn.kept and (writes or retains)
                more = (each.now - each.common if stays else each.now) * point.often(every, turn, fresh)
                fills = fills + more
                if one is not every and level.multicast:
                    more = (own.now - own.common if stays else own.now) * point.often(one, turn, fresh)
                loads = loads + more
            if wrote:
                left = own.before - own.common if writes and turn.kept else own.before
                stores = stores + left * point.often(one, turn)
        return Moved(loads, fills, stores)

    def _adds(self, turn: Turn, sums: frozenset[str], level: Level) -> bool:
        """Whether an expression that writes at a turn goes on with sums that it has to load."""
        if level.accumulate or not sums:
            return False
        loops = turn.shared if turn.advancing is None else (*turn.shared, turn.advancing)
        return self.compat_evict or any(loop.axis in sums and not loop.spatial for loop in loops)

    def _frames(self, group: Group, turn: Turn) -> tuple[Frame, Frame]:
        """The frames of a turn: that of all units, and that of one of those that share a slice."""
        key = (turn.where, turn.last)
        if key not in group.frames:
            sharing = [loop for loop in self.topology.spread(turn.where, group.top) if loop.axis not in group.moving]
            group.frames[key] = self._known.frames(*key, group.tensor, self._parts(turn, group.tensor), sharing)
        return group.frames[key]

    def _parts(self, turn: Turn, tensor: str) -> Sequence[Part | Line]:
        """The dimensions of a tensor in groups that depend on different axes."""
        after = self.topology.accesses(turn.where, tensor)
        before = after if turn.last is turn.where else self.topology.accesses(turn.last, tensor)
        if not self.topology.cut:
            lines = self._lines(after, before)
            if lines is not None:
                return lines
        return self._joined_parts(turn, after, before)

    def _joined_parts(self, turn: Turn, after: Sequence[Access], before: Sequence[Access]) -> Sequence[Part | Line]:
        """The parts where dimensions may share axes."""
        topology, problem = self.topology, self.topology.problem
        visits = list(dict.fromkeys((turn.where, turn.last)))
        accesses = dict.fromkeys((*after, *before))
        users = tuple(access.op for access in after), tuple(access.op for access in before)
        groups: list[tuple[set[str], list[int], bool, Line | None]] = []
        for dim, extent in enumerate(after[0].shape):
            own = {access.axes[dim] for access in accesses}
            axis = own.pop()
            if axis is not None and not own:
                clipped = topology.extents[axis] > extent
                groups.append(({axis}, [dim], clipped, None if clipped else Line(axis, dim, *users)))
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
            line or Part(frozenset(axes), tuple(dims), enumerated, tuple(axis for axis in walked if axis in axes))
            for axes, dims, enumerated, line in joined
        )

    def _lines(self, after: Sequence[Access], before: Sequence[Access]) -> Sequence[Line] | None:
        """The parts where every dimension is one axis of its own, the same in all accesses; None where not."""
        extents, first = self.topology.extents, after[0]
        for access in (*after, *before):
            if access.axes != first.axes:
                return None
        now, last = tuple([access.op for access in after]), tuple([access.op for access in before])
        lines = {}
        for dim, axis in enumerate(first.axes):
            if axis is None or axis in lines or extents[axis] > first.shape[dim]:
                return None
            lines[axis] = Line(axis, dim, now, last)
        return list(lines.values())

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


def _require_few_steps(topology: Topology, trees: Sequence[Mapping[LoopAt, int]]) -> None:
    """Raises Unanalysable where the walk of one of these trees may take long, which only the walk itself would tell."""
    for factors in trees:
        steps = sum(prod(factors[loop] for loop in topology.above(place)) for place in topology.places.values())
        if steps > MOST_STEPS:
            why = "a mask ends its loops early" if topology.seen else "it has values that are read through windows"
            raise Unanalysable(
                f"{why}, and such a tree of {steps:,} steps is not analysed in a batch",
                where="tile tree", help=f"one tree at a time, or {MOST_STEPS:,} steps at most",
            )  # fmt: skip
