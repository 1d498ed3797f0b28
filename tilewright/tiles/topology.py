"""A tile tree as the analysis walks it: a tile at every memory level, what crosses which border, where slices lie.

Levels are numbered from the outside in, 0 for the outermost. The tiles of one level that stand inside each other are
one *nest*: their loops run over data in one memory and replace slices in the next inner one. The nodes directly below a
nest are its *visits*: subtrees of the next level, or leaves. Data moves at visits and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, reduce
from math import prod
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine
from tilewright.expr.core import Compute, Tensor
from tilewright.expr.hidden import last_seen
from tilewright.tiles.levels import Unanalysable, completed, levels_of
from tilewright.tiles.problem import Access, AxisOf, Problem
from tilewright.tiles.rescaling import readers, rescaled
from tilewright.tiles.resources import Level, Number, Range, Resources, greatest, least
from tilewright.tiles.traffic import Moved, Traffic
from tilewright.tiles.tree import (
    Binding,
    Leaf,
    Node,
    Path,
    Scope,
    Tile,
    TileTree,
    same_path,
    walk,
)

At = Callable[
    [str, Number], Number
]  #: the first value of an axis of so many values that a point of the walk has reached
Inside = Callable[[str, str, Path], Number]  #: the values of an axis of an expression that one run of a node covers


@dataclass(frozen=True, slots=True, eq=False)
class LoopAt:
    """A loop of one tree, equal to itself alone: its tile, its place there, and the axis whose values it advances.

    `axis` is the name of the loop where an expression below walks an axis of this name. Where no expression does, the
    loop repeats everything below it, and `axis` is a name that no other loop has.
    """

    tile: Path
    index: int
    axis: str
    spatial: bool
    level: int


@dataclass(frozen=True, slots=True)
class SeenPart:
    """A loop of which only a part runs: up to the last point that the mask of expression `op` shows.

    `last` is that point as a form of the axes of `op`. It is taken over all that one step of `loops` covers, those
    around everything that walks the loop of name `axis`, and rounded up to whole steps of so many `points`.
    """

    axis: str
    op: str
    last: Affine
    points: int
    loops: frozenset[LoopAt]


def bound(topology: Topology, factors: Any = None) -> dict[LoopAt, Number]:
    """The factor of every loop of a tree, where `factors` has those of the open ones."""
    found: dict[LoopAt, Number] = {}
    unset: list[LoopAt] = []
    for path, loops in topology.loops.items():
        tile = topology.nodes[path]
        assert isinstance(tile, Tile)
        for loop in loops:
            factor = tile.loops[loop.index].factor
            found[loop] = factor
            if factor is None:
                unset.append(loop)
    if factors is None and unset:
        tile = topology.nodes[unset[0].tile]
        assert isinstance(tile, Tile)
        raise Unanalysable(
            f"the factor of {tile.loops[unset[0].index].name} at {tile.level} is open",
            where="tile tree", help="give a number, or give `factors` for the open loops",
        )  # fmt: skip
    given = np.asarray([] if factors is None else factors, dtype=np.int64)
    if given.ndim not in (1, 2) or given.shape[-1] != len(unset) or (given < 1).any():
        shape = "x".join(map(str, given.shape)) or "a number"
        raise Unanalysable(
            f"the tree has {len(unset)} open loops, and the factors given are {shape}", where="tile tree",
            help="positive integers, one for each open loop, or an array of shape (trees, open loops)",
        )  # fmt: skip
    for number, loop in enumerate(unset):
        found[loop] = int(given[number]) if given.ndim == 1 else np.ascontiguousarray(given[:, number])
    return found


class Topology:
    """The parts of one tree that do not depend on its factors, and the geometry of its slices.

    Raises Unanalysable where a leaf names no expression of the problem or two leaves name the same one.
    """

    def __init__(self, tree: TileTree, problem: Problem, resources: Resources | None = None) -> None:
        self._ops: dict[Path, tuple[str, ...]] = {}
        self._above: dict[Path, tuple[LoopAt, ...]] = {}
        self._along: dict[Path, Mapping[str, tuple[LoopAt, ...]]] = {}
        self._spread: dict[Path, tuple[LoopAt, ...]] = {}
        self._inside: dict[tuple[str, str, Path], tuple[tuple[LoopAt, ...], int]] = {}
        self._visits: dict[Path, tuple[Path, ...]] = {}
        self._crossing: dict[tuple[Path, int], frozenset[str]] = {}
        self._bypassed: dict[Path, frozenset[str]] = {}
        self._advances: dict[str, LoopAt | None] = {}
        self._tops: dict[Path, Path] = {}
        self._par_tiles: dict[Path, tuple[Path, ...]] = {}
        self._moving: dict[tuple[Path, str, tuple[Path, ...]], frozenset[str]] = {}
        self._accesses: dict[tuple[Path, str], tuple[Access, ...]] = {}
        self._accessed: dict[str, Mapping[str, Sequence[Access]]] = {}
        self._axes: dict[tuple[str, str], AxisOf] = {}
        self._meetings: dict[tuple[Path, str], Path] = {}
        self._scopes: dict[tuple[str, str], Path] = {}
        self._widths: dict[int, Mapping[str, float]] = {}
        self.problem = problem
        self.levels = resources.levels if resources is not None else levels_of(tree)
        self.direct_paths = None if resources is None else resources.path_numbers()
        self.tree, self._stages = completed(tree, self.levels)
        #: The level of each tensor that a stage names.
        self.staged = {each.tensor: each.level for each in self._stages}
        self.nodes: dict[Path, Node] = dict(walk(self.tree))
        self._bypasses = any(isinstance(node, Tile) and node.bypass for node in self.nodes.values())
        self.places: dict[str, Path] = {}
        known = {compute.name for compute in problem.computes}
        for path, leaf in self.nodes.items():
            if not isinstance(leaf, Leaf):
                continue
            if leaf.op in self.places or leaf.op not in known:
                raise Unanalysable(
                    f"op {leaf.op} " + ("stands twice" if leaf.op in self.places else "is no expression here"),
                    where="tile tree", help=f"one leaf for each of {', '.join(c.name for c in problem.computes)}",
                )  # fmt: skip
            self.places[leaf.op] = path
        self.computes: dict[str, Compute] = {op: problem.compute(op) for op in self.places}
        self.rescaled = readers(rescaled(self.tree, problem, self.places))
        #: What each expression reads: its operands, and the running values by which it is rescaled.
        self.inputs: dict[str, frozenset[str]] = {
            op: frozenset(tensor.name for tensor in compute.inputs()).union(
                one.value.name for one in self.rescaled.get(op, ())
            )
            for op, compute in self.computes.items()
        }
        self.extents = self._extents()
        #: The expressions that a loop advances: those whose factors further in make up its block.
        self.references: dict[LoopAt, tuple[str, ...]] = {}
        self.loops: dict[Path, tuple[LoopAt, ...]] = {
            path: self._loops_at(path, node) for path, node in self.nodes.items() if isinstance(node, Tile)
        }

    @cached_property
    def seen(self) -> tuple[SeenPart, ...]:
        """The loops that a mask ends early, as the hints `seen` of leaves say."""
        found = []
        for op, place in self.places.items():
            leaf = self.nodes[place]
            assert isinstance(leaf, Leaf)
            for hint in leaf.hints:
                if hint.name == "seen":
                    found.append(self._seen_part(op, *hint.arguments))  # type: ignore[arg-type]
        return tuple(found)

    def _seen_part(self, op: str, name: str, points: int) -> SeenPart:
        compute = self.computes[op]
        axis = next((a for a in compute.loops if self.problem.names[op, a.name] == name), None)
        last = last_seen(compute.body, axis) if axis is not None and name in self.problem.free_extents[op] else None
        if axis is None or last is None or points < 1:
            raise Unanalysable(
                f"op {op} hides no steps of {points} points of {name}", where="tile tree",
                help=f"a loop that a mask of {op} bounds, as in l <= m, and steps of 1 point or more",
            )  # fmt: skip
        users = [place for other, place in self.places.items() if name in self.problem.free_extents[other]]
        around = list(self.above(reduce(same_path, users)))
        first = next((n for n, loop in enumerate(around) if loop.axis == name), len(around))
        return SeenPart(name, op, last, points, frozenset(around[:first]))

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor read or written, by name."""
        return self.problem.tensors()

    def widths(self, level: Level) -> Mapping[str, float]:
        """Words of a level that hold one element of each tensor."""
        if level.word_bits not in self._widths:
            self._widths[level.word_bits] = {
                name: dtypes.size_bytes(tensor.dtype) * 8 / level.word_bits for name, tensor in self.tensors.items()
            }
        return self._widths[level.word_bits]

    # Loops and blocks

    def _extents(self) -> dict[str, int]:
        """Extents of the axes that no consumer's tile decides, by the name of their loop."""
        extents: dict[str, int] = {}
        for op in self.places:
            extents.update(self.problem.free_extents[op])
        return extents

    def _follows(self, op: str, name: str, tile: Path) -> bool:
        """Whether a loop of a tile cuts a range that consumers outside of the tile decide."""
        if not self.problem.derived:
            return False
        for axis in self.computes[op].body_loops:
            forms = self.problem.derived.get((op, axis.name), ())
            if forms and self.problem.names[op, axis.name] == name:
                shared = [same_path(self.places[op], self.places[c]) for c, _ in forms if c in self.places]
                return all(len(path) < len(tile) for path in shared)
        return False

    def _loops_at(self, path: Path, tile: Tile) -> tuple[LoopAt, ...]:
        level = self.level(path)
        below, free = self.ops(path), self.problem.free_extents
        found = []
        for index, loop in enumerate(tile.loops):
            name = loop.name
            advances = tuple([op for op in below if name in free[op] or self._follows(op, name, path)])
            axis = loop.name if advances else f"{loop.name} {path} {index}"
            found.append(LoopAt(path, index, axis, tile.binding is Binding.SP, level))
            self.references[found[-1]] = advances
        return tuple(found)

    def ops(self, path: Path) -> tuple[str, ...]:
        """The expressions below a node."""
        if path not in self._ops:
            around = self.ops(path[:-1]) if path else self.places
            self._ops[path] = tuple([op for op in around if self.places[op][: len(path)] == path])
        return self._ops[path]

    def above(self, path: Path) -> tuple[LoopAt, ...]:
        """The loops around a node, outermost first."""
        if path not in self._above:
            self._above[path] = (*self.above(path[:-1]), *self.loops.get(path[:-1], ())) if path else ()
        return self._above[path]

    def along(self, path: Path, axis: str) -> tuple[LoopAt, ...]:
        """The loops of one axis around a node, outermost first."""
        return self._by_axis(path).get(axis, ())

    def axes_around(self, path: Path) -> Collection[str]:
        """The axes that the loops around a node advance."""
        return self._by_axis(path).keys()

    def _by_axis(self, path: Path) -> Mapping[str, tuple[LoopAt, ...]]:
        if path not in self._along:
            found = dict(self._by_axis(path[:-1])) if path else {}
            for loop in self.loops.get(path[:-1], ()) if path else ():
                found[loop.axis] = (*found.get(loop.axis, ()), loop)
            self._along[path] = found
        return self._along[path]

    def spread(self, path: Path, top: Path) -> tuple[LoopAt, ...]:
        """The loops around a node that spread a nest over units."""
        if path not in self._spread:
            level = self.level(top)
            self._spread[path] = tuple(loop for loop in self.above(path) if loop.spatial and loop.level == level)
        return self._spread[path]

    def inside(self, op: str, axis: str, path: Path) -> tuple[tuple[LoopAt, ...], int]:
        """The loops of one axis of an expression from a node inwards, and the extent in its micro-kernel."""
        key = (op, axis, path)
        if key not in self._inside:
            place = self.places[op]
            loops = self.along(place, axis)[len(self.along(path, axis)) :]
            self._inside[key] = (loops, self._quantum(op, axis))
        return self._inside[key]

    def _quantum(self, op: str, axis: str) -> int:
        """The extent of an axis in the micro-kernel of an expression; 1 without one."""
        leaf = self.nodes[self.places[op]]
        assert isinstance(leaf, Leaf)
        kernel = leaf.kernel
        return 1 if kernel is None else prod(loop.trips for loop in kernel.quantum if loop.name == axis)

    def strides(self, factors: Mapping[LoopAt, Number]) -> dict[LoopAt, Number]:
        """Values of its axis that one step of each loop covers.

        Raises Unanalysable where two expressions below a loop cut its step into blocks of different sizes.
        """
        found: dict[LoopAt, Number] = {}
        for op, size, loops in self._chains:
            for loop in loops:
                if op in self.references[loop]:
                    first = found.setdefault(loop, size)
                    if first is not size:
                        self._require_equal(loop, op, first, size)
                size = size * factors[loop]
        return {loop: found.get(loop, 1) for loop in self.references}

    @cached_property
    def _chains(self) -> tuple[tuple[str, int, tuple[LoopAt, ...]], ...]:
        """The loops that advance an axis of an expression, innermost first, with its extent in the micro-kernel."""
        found = []
        for op, place in self.places.items():
            for axis, loops in self._by_axis(place).items():
                if any(op in self.references[loop] for loop in loops):
                    found.append((op, self._quantum(op, axis), loops[::-1]))
        return tuple(found)

    def _require_equal(self, loop: LoopAt, op: str, first: Number, size: Number) -> None:
        """Raises Unanalysable where a step of a loop has another size for `op` than for the first expression in it."""
        unequal = size != first
        if unequal.any() if isinstance(unequal, np.ndarray) else unequal:
            raise Unanalysable(
                f"one step of {loop.axis} at {self.levels[loop.level].name} is {np.max(first)} values for "
                f"{self.references[loop][0]} and {np.max(size)} for {op}",
                where="tile tree", help=f"factors of {loop.axis} further in with one product for both",
            )  # fmt: skip

    # Levels

    def level(self, path: Path) -> int:
        """The level of the tile at `path`."""
        return self._levels[path]

    @cached_property
    def _levels(self) -> dict[Path, int]:
        number = {level.name: index for index, level in enumerate(self.levels)}
        return {path: number[node.level] for path, node in self.nodes.items() if isinstance(node, Tile)}

    @cached_property
    def tops(self) -> tuple[Path, ...]:
        """The outermost tile of every nest."""
        return tuple(path for path in self.loops if path == self.top(path))

    def around(self, path: Path) -> tuple[Path, ...]:
        """The tiles around a node, outermost first."""
        return tuple(path[:depth] for depth in range(len(path)) if path[:depth] in self._levels)

    def top(self, path: Path) -> Path:
        """The outermost tile of the nest that the tile at `path` belongs to."""
        if path not in self._tops:
            level = self.level(path)
            self._tops[path] = next(tile for tile in (*self.around(path), path) if self.level(tile) == level)
        return self._tops[path]

    def visits(self, top: Path) -> tuple[Path, ...]:
        """The nodes directly below a nest, in the order in which they run."""
        if top not in self._visits:
            self._visits[top] = self._find_visits(top)
        return self._visits[top]

    def _find_visits(self, top: Path) -> tuple[Path, ...]:
        level, found = self.level(top), []
        below = [top]
        while below:
            path = below.pop()
            node = self.nodes[path]
            if isinstance(node, Leaf) or (isinstance(node, Tile) and self.level(path) != level):
                found.append(path)
                continue
            children = len(node.children) if isinstance(node, Scope) else 1
            below += [(*path, number) for number in reversed(range(children))]
        return tuple(found)

    def retains(self, top: Path) -> bool:
        """Whether the memory that a nest fills keeps a slice that the next step needs as well."""
        inner = self.level(top) + 1
        return inner == len(self.levels) or self.levels[inner].retain

    @cached_property
    def homes(self) -> dict[str, int]:
        """The level that holds each tensor: the outermost for what comes in or goes out.

        A value that only expressions of one tile exchange lies one level further in than that tile (spec 1, section
        2.2), or where a stage says.
        """
        found = dict.fromkeys(self.tensors, 0)
        for op in self.places:
            users = [user for user, inputs in self.inputs.items() if op in inputs]
            if not users:
                continue
            meeting = self.places[op]
            for user in users:
                meeting = same_path(meeting, self.places[user])
            around = self.around(meeting)
            found[op] = self.level(around[-1]) + 1 if around else 0
            found[op] = self.staged.get(op, found[op])
        return found

    def crossing(self, path: Path, level: int) -> frozenset[str]:
        """The tensors that the visits at or below a node of a nest exchange with its level or what lies outside."""
        key = (path, level)
        if key not in self._crossing:
            node = self.nodes[path]
            if isinstance(node, Scope) or (isinstance(node, Tile) and self.level(path) == level):
                count = len(node.children) if isinstance(node, Scope) else 1
                parts = [self.crossing((*path, number), level) for number in range(count)]
                self._crossing[key] = frozenset().union(*parts)
            else:
                names = frozenset().union(*(self.inputs[op] for op in self.ops(path)), self.ops(path))
                names -= self.bypassed(path)
                self._crossing[key] = frozenset(name for name in names if self.homes[name] <= level)
        return self._crossing[key]

    def bypassed(self, top: Path) -> frozenset[str]:
        """The tensors that the level of a nest does not hold."""
        if not self._bypasses:
            return frozenset()
        if top not in self._bypassed:
            tiles = (node for path, node in self.nodes.items() if path in self._levels and self.top(path) == top)
            self._bypassed[top] = frozenset(name for tile in tiles for name in tile.bypass)  # type: ignore[union-attr]
            for name in self._bypassed[top] - self.homes.keys():
                raise Unanalysable(
                    f"there is no tensor {name} to bypass {self.levels[self.level(top)].name}",
                    where="tile tree", help=f"one of {', '.join(sorted(self.homes))}",
                )  # fmt: skip
            for name in self._bypassed[top]:
                if self.homes[name] == self.level(top):
                    level = self.levels[self.level(top)].name
                    raise Unanalysable(
                        f"{name} lies in {level} and cannot bypass it", where="tile tree",
                        help=f"let {name} bypass a level between {level} and the units",
                    )  # fmt: skip
        return self._bypassed[top]

    def source(self, top: Path, tensor: str) -> int:
        """The level that a nest loads a tensor from: its own, or one outside of those that the tensor bypasses."""
        while tensor in self.bypassed(top):
            top = self.top(self.around(top)[-1])
        return self.level(top)

    def kept(self, path: Path) -> frozenset[str]:
        """The tensors that stay in what a nest around a node fills: its tiles keep them, or a stage has them there."""
        around = self.around(path)
        level = self.level(around[-1])
        tiles = [self.nodes[tile] for tile in around if self.level(tile) == level]
        kept = [name for tile in tiles if isinstance(tile, Tile) for name in tile.keep]
        kept += [each.tensor for each in self._stages if level < each.level and path[: len(each.path)] == each.path]
        return frozenset(kept)

    def par_tiles(self, path: Path) -> tuple[Path, ...]:
        """The spatial tiles of the nest that a visit stands in: children inside the same ones share memory."""
        if path not in self._par_tiles:
            loops = self.above(path)
            level = max((loop.level for loop in loops), default=-1)
            tiles = (loop.tile for loop in loops if loop.spatial and loop.level == level)
            self._par_tiles[path] = tuple(dict.fromkeys(tiles))
        return self._par_tiles[path]

    def moving(self, top: Path, tensor: str, tiles: tuple[Path, ...]) -> frozenset[str]:
        """The axes that move the slices of a tensor in the memory that visits inside these spatial tiles share."""
        key = (top, tensor, tiles)
        if key not in self._moving:
            visits = [visit for visit in self.visits(top) if self.par_tiles(visit) == tiles]
            accesses = [access for visit in visits for access in self.accesses(visit, tensor)]
            self._moving[key] = frozenset().union(*[access.moving for access in accesses])
        return self._moving[key]

    def traffic(self, moved: Mapping[Path, Mapping[str, Moved]]) -> Traffic:
        """What has moved, with the levels between which it did."""
        names = [*(level.name for level in self.levels), "units"]
        through = {(top, name): self.through(top, name) for top in moved for name in self.bypassed(top) & {*moved[top]}}
        return Traffic(
            moved,
            {(top, name): names[self.source(top, name)] for top, tensors in moved.items() for name in tensors},
            {top: names[self.level(top) + 1] for top in moved},
            {key: tuple(names[level] for level in levels) for key, levels in through.items() if levels},
        )

    def through(self, top: Path, tensor: str) -> range:
        """The levels that a tensor bypasses at a nest and that its words pass, as no direct path leads past them."""
        source, target = self.source(top, tensor), self.level(top) + 1
        direct = self.direct_paths is None or {source, target} in self.direct_paths
        return range(0) if direct else range(source + 1, target)

    # Slices

    def accesses(self, path: Path, tensor: str) -> tuple[Access, ...]:
        """How the expressions below a node index a tensor, the write included."""
        key = (path, tensor)
        if key not in self._accesses:
            self._accesses[key] = tuple(
                access for op in self.ops(path) for access in self._accesses_of(op).get(tensor, ())
            )
        return self._accesses[key]

    def _accesses_of(self, op: str) -> Mapping[str, Sequence[Access]]:
        """The accesses of one expression by tensor, the write last."""
        if op not in self._accessed:
            found: dict[str, list[Access]] = {}
            for access in self.problem.accesses(op):
                found.setdefault(access.tensor, []).append(access)
            for one in self.rescaled.get(op, ()):
                found.setdefault(one.value.name, []).append(self.problem.access(op, one.value, one.forms))
            self._accessed[op] = found
        return self._accessed[op]

    def points_of(self, op: str) -> str:
        """The name of a tensor that has an element for every point at which an expression is evaluated."""
        points = self.problem.points(op)
        self._accesses[self.places[op], points.tensor] = (points,)
        return points.tensor

    def side(
        self, path: Path, tensor: str, dim: int, at: At, inside: Inside, idle: Collection[str] = ()
    ) -> Range:  # fmt: skip
        """The slice of a tensor that a node needs along one dimension: the hull of accesses, clipped to the tensor.

        Expressions that are `idle` access nothing; one of those that access the tensor is not.
        """
        low: Number = None
        high: Number = None
        for access in self.accesses(path, tensor):
            if access.op in idle:
                continue
            size, form = access.shape[dim], access.forms[dim]
            first, end = (0, size) if form is None else self.hull(access.op, form, path, at, inside)
            first, end = least(greatest(first, 0), size), least(greatest(end, 0), size)
            low, high = (first, end) if low is None else (least(low, first), greatest(high, end))
        return low, high

    def hull(self, op: str, form: Affine, path: Path, at: At, inside: Inside) -> Range:
        """The values of an affine index while the node at `path` runs once."""
        low = high = form.constant
        for axis, factor in form.terms.items():
            first, end = self.range(op, axis.name, path, at, inside)
            small, large = factor * first, factor * (end - 1)
            low, high = (low + small, high + large) if factor > 0 else (low + large, high + small)
        return low, high + 1

    def range(self, op: str, axis: str, path: Path, at: At, inside: Inside) -> Range:
        """The values of one axis of an expression while the node at `path` runs once."""
        one = self.axis(op, axis)
        if one.given:
            return 0, one.extent
        if not one.forms:
            first = at(one.name, one.extent)
            return first, least(first + inside(op, one.name, path), one.extent)
        low, high = self.span(op, axis, path, at, inside)
        if not self.cuts(op, axis) or path[: len(self.meeting(op, axis))] != self.meeting(op, axis):
            return low, high
        first = low + at(one.name, high - low)
        return first, least(first + inside(op, one.name, path), high)

    def span(self, op: str, axis: str, path: Path, at: At, inside: Inside) -> Range:
        """The values of an axis that its consumers need in one step of the tiles around them and the node at `path`.

        Only for axes whose range consumers decide.
        """
        one = self.axis(op, axis)
        low: Number = None
        high: Number = None
        for consumer, form in one.forms:
            key = (path, consumer)
            if key not in self._meetings:
                self._meetings[key] = same_path(path, self.places[consumer])
            first, end = self.hull(consumer, form, self._meetings[key], at, inside)
            low, high = (first, end) if low is None else (least(low, first), greatest(high, end))
        low, high = greatest(low, 0), least(high, one.extent)
        loop = self.advance(op)
        if loop is None or loop.axis not in self.problem.loops_of(op, axis) or path[: len(loop.tile)] != loop.tile:
            return low, high
        return self._new_part(op, axis, path, loop, (low, high), at, inside)

    def advance(self, op: str) -> LoopAt | None:
        """The innermost temporal loop that moves a value which a tile keeps from step to step; None if none does.

        What one step of this loop has computed, the next one need not compute again.
        """
        if op not in self._advances:
            moving = {name for axis in self.computes[op].axes for name in self.problem.loops_of(op, axis.name)}
            users = [c for c, compute in self.computes.items() if any(t.name == op for t in compute.inputs())]
            meeting = self.places[op]
            for user in users:
                meeting = same_path(meeting, self.places[user])
            found = None
            for tile in self.around(meeting) if users else ():
                node = self.nodes[tile]
                if isinstance(node, Tile) and op in node.keep:
                    loops = [loop for loop in self.loops[tile] if loop.axis in moving and not loop.spatial]
                    found = loops[-1] if loops else found
            self._advances[op] = found
        return self._advances[op]

    def _new_part(self, op: str, axis: str, path: Path, loop: LoopAt, span: Range, at: At, inside: Inside) -> Range:
        """The part of a range that the step before, along a loop, did not have."""
        owner = next(name for name in self.references[loop])
        step = inside(owner, loop.axis, (*loop.tile, 0))
        digit = at(loop.axis, self.extents[loop.axis]) // step % (inside(owner, loop.axis, loop.tile) // step)

        def before(name: str, extent: Number) -> Number:
            return at(name, extent) - step if name == loop.axis else at(name, extent)

        high: Number = None
        for consumer, form in self.axis(op, axis).forms:
            _, end = self.hull(consumer, form, self._meetings[path, consumer], before, inside)
            high = end if high is None else greatest(high, end)
        new = least(greatest(span[0], high), span[1])
        if isinstance(digit, np.ndarray):
            return np.where(digit > 0, new, span[0]), span[1]
        return (new if digit > 0 else span[0]), span[1]

    def axis(self, op: str, axis: str) -> AxisOf:
        """What decides the values of an axis of an expression, of consumers only those in the tree."""
        key = (op, axis)
        if key not in self._axes:
            found = self.problem.axis(op, axis)
            self._axes[key] = found._replace(forms=tuple(form for form in found.forms if form[0] in self.places))
        return self._axes[key]

    def cuts(self, op: str, axis: str) -> bool:
        """Whether loops around an expression run through an axis in parts."""
        return bool(self.along(self.places[op], self.problem.names[op, axis]))

    def meeting(self, op: str, axis: str) -> Path:
        """Where an expression meets the consumers that decide about an axis, whose range its loops cut there."""
        key = (op, axis)
        if key not in self._scopes:
            users = [self.places[consumer] for consumer, _ in self.axis(op, axis).forms]
            self._scopes[key] = reduce(same_path, users, self.places[op])
        return self._scopes[key]

    @cached_property
    def optional(self) -> Mapping[str, tuple[str, ...]]:
        """The expressions that may have no point in some step, each with the axes along which that may be.

        Windows of a step may lie outside of what they read, or the step before may have computed all that they need.
        """
        if not self.problem.derived:
            return {}
        found = {
            op: tuple(axis for axis in self.derived_axes(op) if self._may_be_empty(op, axis)) for op in self.places
        }
        return {op: axes for op, axes in found.items() if axes}

    def derived_axes(self, op: str) -> list[str]:
        """The axes of an expression whose range consumers decide."""
        return [axis.name for axis in self.computes[op].body_loops if self.axis(op, axis.name).forms]

    def may_be_idle(self, op: str, path: Path) -> bool:
        """Whether an expression below a node may have no point in some step of the loops around the node."""
        axes, around = self.optional.get(op, ()), self.axes_around(path)
        return any(not self.problem.loops_of(op, axis).isdisjoint(around) for axis in axes)

    def _may_be_empty(self, op: str, axis: str) -> bool:
        one, around = self.axis(op, axis), self.axes_around(self.meeting(op, axis))
        for consumer, form in one.forms:
            if any(self._may_be_empty(consumer, each) for each in self.derived_axes(consumer)):
                return True
            names = {each: self.problem.names[consumer, each.name] for each in form.terms}
            reach = sum(abs(f) * (each.size - 1) for each, f in form.terms.items() if names[each] not in around)
            low, high = form.bounds()
            if low + reach < 0 or high - reach >= one.extent or (high >= one.extent and self.advance(op) is not None):
                return True
        return False

    @cached_property
    def cut(self) -> dict[str, tuple[str, str]]:
        """Of axes whose range consumers decide and that loops cut all the same: (expression, axis) by loop name."""
        names = {loop.axis for loops in self.loops.values() for loop in loops}
        return {
            self.problem.names[op, axis]: (op, axis)
            for op, axis in self.problem.derived
            if op in self.places and self.problem.names[op, axis] in names - self.extents.keys()
        }
