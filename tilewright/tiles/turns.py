"""Kinds of steps between visits of a memory: how often each occurs, and what slices lie before and after it.

`movement` finds them; `positions` has slices whose steps are clipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.tiles.axis_steps import Digit, count_all, count_up_to
from tilewright.tiles.positions import Positions, Sizes
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import Number, greatest, least
from tilewright.tiles.topology import LoopAt, Topology
from tilewright.tiles.traffic import Traffic
from tilewright.tiles.tree import Path


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
class Part:
    """Dimensions of a slice that the same axes move, and axes whose extent depends on these.

    `walked` are the axes that loops around the visits advance. `enumerated`: slices end at a border of the tensor
    somewhere else than in the last step. `line`: the part is one dimension whose index is one axis.
    """

    axes: frozenset[str]
    dims: tuple[int, ...]
    enumerated: bool
    walked: tuple[str, ...]
    line: Line | None


class Parts(NamedTuple):
    """A slice in parts that move independently, and the axes of all."""

    all: tuple[Part, ...]
    axes: frozenset[str]


class Line(NamedTuple):
    """An axis whose values are the indices of one dimension, in these expressions after and before a turn."""

    axis: str
    now: tuple[str, ...]
    before: tuple[str, ...]


class Point:
    """A topology with its factors, and what is known about it."""

    def __init__(self, topology: Topology, factors: Mapping[LoopAt, Number], strides: Mapping[LoopAt, Number]) -> None:
        self.topology, self.factors, self.strides = topology, factors, strides
        self.in_batch = any(isinstance(factor, np.ndarray) for factor in factors.values())
        self.sizes: dict[object, Sizes] = {}  # of parts of slices, by what they depend on
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


class Frame:
    """How often one kind of turn occurs, and where slices lie before and after it.

    `groups` are loops whose iterations run on units that read and write the same slice.
    """

    def __init__(self, point: Point, turn: Turn, groups: tuple[LoopAt, ...]) -> None:
        self.point, self.turn, self.groups = point, turn, groups
        self.grouped = frozenset(loop.axis for loop in groups)

    def times(self, parts: Parts, fresh: frozenset[str], *, together: bool) -> Number:
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
            point.counts[key] = count_all(digits) if even else count_up_to(topology.extents[axis] - 1, digits)
        return point.counts[key]

    def digits(self, axis: str, together: bool, *, first: bool = False) -> list[Digit]:
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

    def sizes(self, parts: Parts, tensor: str, *, together: bool) -> Sizes:
        """Elements of the slices of a tensor at the turn, summed over all positions of the axes in `parts`."""
        now: Number = 1
        before: Number = 1
        common: Number = 1
        for part in parts.all:
            sizes = self._of_part(part, tensor, together)
            now, before, common = now * sizes.now, before * sizes.before, common * sizes.common
        return Sizes(now, before, common)

    def _of_part(self, part: Part, tensor: str, together: bool) -> Sizes:
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
            sizes = Positions(self, part, together).total(tensor) if line is None else self._of_line(line, together)
            known[key] = sizes
        return known[key]

    def _even(self, axis: str) -> bool:
        """Whether no step of an axis is clipped before or after the turn."""
        point, turn = self.point, self.turn
        return point.even(turn.where, axis) and (turn.before is None or point.even(turn.before, axis))

    def _of_line(self, line: Line, together: bool) -> Sizes:
        """The intervals of an axis whose steps are whole: all have one length, and one distance from those before."""
        turn, point = self.turn, self.point
        often = self.often(line.axis, together)
        now = point.length(line.axis, line.now, turn.where)
        if turn.before is None:
            return Sizes(often * now, 0, 0)
        before = point.length(line.axis, line.before, turn.before)
        shift: Number = point.strides[turn.advancing] if turn.advances(line.axis) else 0  # type: ignore[index]
        for loop in point.topology.along(turn.before, line.axis):
            if not loop.spatial and loop not in turn.shared and loop is not turn.advancing:
                shift = shift - (point.factors[loop] - 1) * point.strides[loop]
        common = greatest(least(now + shift, before) - greatest(shift, 0), 0)
        return Sizes(often * now, often * before, often * common)
