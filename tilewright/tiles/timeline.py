"""The steps of the outermost nests of a tree in the order in which they run, with what each loads, computes and stores.

The same visits as in `brute.walk`, all at once as arrays, of the first memory instance. Words and cycles of a step are
for all instances together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.tiles.movement import Boundaries
from tilewright.tiles.resources import Number
from tilewright.tiles.topology import LoopAt
from tilewright.tiles.tree import Leaf, Path, Scope, Tile
from tilewright.tiles.turns import Point, Turn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Steps:
    """One entry per step: elements loaded and stored of each tensor, and the share of its visit's computation."""

    visits: tuple[Path, ...]
    visit: Array  # the number of the visit
    loads: Mapping[str, Array]
    stores: Mapping[str, Array]
    share: Array


def steps(boundaries: Boundaries, point: Point) -> Steps:
    """The steps of a tree; `point` has the factors of one tree."""
    return _Timeline(boundaries, point).steps()


class _Timeline:
    def __init__(self, boundaries: Boundaries, point: Point) -> None:
        self.boundaries, self.point, self.topology = boundaries, point, boundaries.topology
        self.visits: list[Path] = []
        visit, digits = self.sequence(())
        runs = self.live(visit, digits)
        self.visit = visit[runs]
        self.digits = {loop: values[runs] for loop, values in digits.items()}
        self.rows = {path: np.flatnonzero(self.visit == number) for number, path in enumerate(self.visits)}

    def steps(self) -> Steps:
        loads: dict[str, Array] = {}
        stores: dict[str, Array] = {}
        for top in self.topology.tops:
            for group in self.boundaries.groups(top) if self.topology.level(top) == 0 else ():
                tensor = group.tensor
                loaded, stored = self.moved(top, tensor, group.tiles, group.turns)
                loads[tensor] = loads.get(tensor, 0) + loaded
                stores[tensor] = stores.get(tensor, 0) + stored
        return Steps(tuple(self.visits), self.visit, loads, stores, self.shares())

    # The order of the visits

    def sequence(self, path: Path) -> tuple[Array, dict[LoopAt, Array]]:
        """The numbers of the visits below a node of the outermost level in order, and the digits of the loops."""
        node = self.topology.nodes[path]
        if isinstance(node, Leaf) or (isinstance(node, Tile) and self.topology.level(path) > 0):
            self.visits.append(path)
            return np.array([len(self.visits) - 1]), {}
        if isinstance(node, Scope):
            parts = [self.sequence((*path, number)) for number in range(len(node.children))]
            loops = dict.fromkeys(loop for _, digits in parts for loop in digits)
            empty = [np.zeros(len(visit), np.int64) for visit, _ in parts]
            return np.concatenate([visit for visit, _ in parts]), {
                loop: np.concatenate([digits.get(loop, zero) for (_, digits), zero in zip(parts, empty, strict=True)])
                for loop in loops
            }
        visit, digits = self.sequence((*path, 0))
        for loop in reversed(self.topology.loops[path]):
            trips = 1 if loop.spatial else self.point.factors[loop]
            step = np.repeat(np.arange(trips), len(visit))
            visit = np.tile(visit, trips)
            digits = {loop: step, **{inner: np.tile(values, trips) for inner, values in digits.items()}}
        return visit, digits

    def live(self, visit: Array, digits: Mapping[LoopAt, Array]) -> Array:
        """Which steps are inside the extents of all loops."""
        runs = np.ones(len(visit), bool)
        for number, path in enumerate(self.visits):
            rows = np.flatnonzero(visit == number)
            at = self.at(path, {loop: values[rows] for loop, values in digits.items()})
            for axis in {loop.axis for loop in self.topology.above(path)}:
                if axis in self.topology.extents:
                    runs[rows] &= at(axis, 0) < self.topology.extents[axis]
                elif axis in self.topology.cut:
                    low, high = self.topology.span(*self.topology.cut[axis], path, at, self.point.inside)
                    runs[rows] &= low + at(axis, high - low) < high
            runs[rows] &= ~self.idle(path, at)
        return runs

    def idle(self, path: Path, at: Any) -> Any:
        """At which steps of a visit no expression has a point."""
        found: Any = True
        for op in self.topology.ops(path):
            empty: Any = False
            for axis in self.topology.optional.get(op, ()):
                low, high = self.topology.range(op, axis, path, at, self.point.inside)
                empty = empty | (high <= low)
            found = np.logical_and(found, empty)
        return found

    def at(self, path: Path, digits: Mapping[LoopAt, Array]) -> Any:
        """The first values of axes at the steps of a visit."""

        def first(axis: str, _: Number) -> Number:
            return sum(
                digits[loop] * self.point.strides[loop] for loop in self.topology.above(path) if loop.axis == axis
            )

        return first

    def rows_at(self, path: Path) -> Any:
        rows = self.rows[path]
        return self.at(path, {loop: values[rows] for loop, values in self.digits.items()})

    # What moves

    def moved(self, top: Path, tensor: str, tiles: tuple[Path, ...], turns: Sequence[Turn]) -> tuple[Array, Array]:
        """Elements of a tensor that each step loads and stores."""
        loads = np.zeros(len(self.visit), np.int64)
        stores = np.zeros(len(self.visit), np.int64)
        level = self.topology.level(top)
        group = [
            path
            for path in self.topology.visits(top)
            if self.topology.par_tiles(path) == tiles and tensor in self.topology.crossing(path, level)
        ]
        rows = np.sort(np.concatenate([self.rows[path] for path in group]))
        if not len(rows):
            return loads, stores
        low, high = self.slices(group, tensor)
        low, high = low[:, rows], high[:, rows]
        need = np.prod(np.maximum(high - low, 0), axis=0)
        ends = np.minimum(high[:, 1:], high[:, :-1]) - np.maximum(low[:, 1:], low[:, :-1])
        common = np.concatenate([[0], np.prod(np.maximum(ends, 0), axis=0)])
        writer = self.topology.places.get(tensor)
        writes = np.isin(
            self.visit[rows], [self.visits.index(path) for path in group if tensor in self.topology.ops(path)]
        )
        kept = self.kept(turns)[rows]
        stays = kept & (writes | self.topology.retains(top))
        loading = ~writes if writer is not None else np.ones(len(rows), bool)
        if not self.topology.levels[level].accumulate:
            loading = loading | (writes & self.continues(group, tensor)[rows])
        loads[rows] = np.where(loading, need - np.where(stays, common, 0), 0) * self.units(top, tensor, tiles, True)
        left = need[:-1] - np.where(writes[1:] & kept[1:], common[1:], 0)
        stored = np.where(writes, np.concatenate([left, need[-1:]]), 0)
        stores[rows] = stored * self.units(top, tensor, tiles, False)
        return loads, stores

    def slices(self, group: list[Path], tensor: str) -> tuple[Array, Array]:
        """The slice of each step by dimension: from the first element to one after the last."""
        rank = len(self.topology.accesses(group[0], tensor)[0].shape)
        low = np.zeros((rank, len(self.visit)), np.int64)
        high = np.zeros((rank, len(self.visit)), np.int64)
        for path in group:
            at = self.rows_at(path)
            for dim in range(rank):
                low[dim, self.rows[path]], high[dim, self.rows[path]] = self.topology.side(
                    path, tensor, dim, at, self.point.inside
                )
        return low, high

    def kept(self, turns: Sequence[Turn]) -> Array:
        """Whether the slice of the visit before is still resident at each step."""
        kept = np.ones(len(self.visit), bool)
        for turn in turns:
            if turn.now is not None and not turn.kept:
                kept[self.steps_of(turn)] = False
        return kept

    def steps_of(self, turn: Turn) -> Array:
        """The steps that are turns of one kind."""
        rows = self.rows[turn.where]
        right = np.ones(len(rows), bool)
        for loop in self.topology.above(turn.where):
            if not loop.spatial and loop not in turn.shared:
                digit = self.digits[loop][rows]
                right &= digit > 0 if loop is turn.advancing else digit == 0
        return rows[right]

    def continues(self, group: list[Path], tensor: str) -> Array:
        """Whether a step adds to what the tensor already has."""
        found = np.zeros(len(self.visit), bool)
        sums = self.topology.problem.reductions(tensor) if tensor in self.topology.places else frozenset()
        for path in group:
            for loop in self.topology.above(path):
                if loop.axis in sums and not loop.spatial:
                    found[self.rows[path]] |= self.digits[loop][self.rows[path]] > 0
        return found

    def units(self, top: Path, tensor: str, tiles: tuple[Path, ...], reads: bool) -> Number:
        """Memory instances whose slices move one by one."""
        moving = self.topology.moving(top, tensor, tiles)
        apart = reads and not self.topology.levels[self.topology.level(top)].multicast
        total: Number = 1
        for tile in tiles:
            for loop in self.topology.loops[tile]:
                total *= self.point.factors[loop] if apart or loop.axis in moving else 1
        return total

    # What is computed

    def shares(self) -> Array:
        """The part of the points of its visit that each step evaluates."""
        points = np.zeros(len(self.visit))
        for path, rows in self.rows.items():
            at = self.rows_at(path)
            for op in self.topology.ops(path):
                size: Number = np.ones(len(rows))
                for axis in self.topology.computes[op].body_loops:
                    low, high = self.topology.range(op, axis.name, path, at, self.point.inside)
                    size = size * np.maximum(high - low, 0)
                points[rows] += size
            points[rows] /= max(points[rows].sum(), 1)
        return points
