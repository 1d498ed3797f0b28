"""Kinds of steps between visits of a memory: how often each occurs, and what slices lie before and after it.

`movement` finds them. A `Frame` has, once for a topology, the loops that decide about the turns between two visits; a
`Point` has the factors, and what follows from them. `positions` has slices whose steps are clipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.tiles.axis_steps import Digit, count_up_to
from tilewright.tiles.equal_steps import EqualSteps
from tilewright.tiles.positions import Positions, Sizes
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import Number, greatest, least
from tilewright.tiles.topology import LoopAt, Topology
from tilewright.tiles.tree import Path


class Turn:
    """A kind of step from one visit of a memory to the next.

    `shared` loops stand where they stood, `advancing` has gone one step on, loops further in start again at `now` and
    have ended at `before`. Without `before`, nothing is resident; without `now`, the run is over. `kept`: the slice is
    not dropped in between.

    `where` is the visit whose loops say how often the turn occurs, and `last` the one whose slice is resident: `where`
    itself if there is none, so that turns with and without a slice before them have the same frame.
    """

    def __init__(
        self, now: Path | None, before: Path | None, shared: Collection[LoopAt], advancing: LoopAt | None, kept: bool
    ) -> None:
        self.now, self.before, self.shared, self.advancing, self.kept = now, before, shared, advancing, kept
        where = now if now is not None else before
        assert where is not None, "a turn has a visit"
        self.where = where
        self.last = before if before is not None else where
        #: How the loops of each axis stand; `AGAIN` for axes that are not here.
        self.stands: dict[str, Stand] = {}
        for loop in shared:
            self.stands[loop.axis] = self.stands.get(loop.axis, AGAIN) + 2
        if advancing is not None:
            self.stands[advancing.axis] = self.stands.get(advancing.axis, AGAIN) + 3


#: How the loops of one axis stand at a turn: twice the number of those on the outside that do not start again, and one
#: more if the last of these advances.
Stand: TypeAlias = int
AGAIN: Stand = 0  #: all loops of the axis start again


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Dimensions of a slice that the same axes move, and axes whose extent depends on these.

    `advanced` are the axes that loops around the visits advance. `enumerated`: slices end at a border of the tensor
    somewhere else than in the last step.
    """

    axes: frozenset[str]
    dims: tuple[int, ...]
    enumerated: bool
    advanced: tuple[str, ...]


class Line(NamedTuple):
    """A dimension whose indices are the values of one axis, in these expressions after and before a turn."""

    axis: str
    dim: int
    now: tuple[str, ...]
    before: tuple[str, ...]


class Steps:
    """The loops of one axis around a visit; `groups` are those whose iterations run on units that share a slice."""

    def __init__(self, topology: Topology, where: Path, axis: str, groups: tuple[LoopAt, ...]) -> None:
        self.axis, self.loops, self.groups = axis, topology.along(where, axis), groups
        #: The spatial loops whose iterations make different occurrences of every turn.
        self.spread = [loop for loop in self.loops if loop.spatial and loop not in groups]

    def digits(self, stand: Stand, *, first: bool = False) -> list[tuple[LoopAt, str]]:
        """The loops with the steps that make different occurrences of a turn; temporal ones at the `first`."""
        standing, advances = stand >> 1, stand & 1
        found = []
        for number, loop in enumerate(self.loops):
            steps = "first"
            if loop.spatial:
                steps = "first" if loop in self.groups else "all"
            elif advances and number == standing - 1:
                steps = "none" if first else "later"
            elif number < standing and not first:
                steps = "all"
            found.append((loop, steps))
        return found


#: The values of an axis that a node covers: the product of the factors of these loops, and of a number.
Extent: TypeAlias = tuple[tuple[LoopAt, ...], int]


class Interval:
    """One dimension of a slice whose index is one axis, at the turns from one visit to another.

    It is the same for all tensors that are read and written so; `line` and `tensor` are those of one of them. `now` and
    `before` are what the expressions cover. Where the `outermost` loops make up the extent of the axis, no step is
    clipped.
    """

    def __init__(self, topology: Topology, line: Line, tensor: str, where: Path, before: Path, steps: Steps) -> None:
        self.line, self.tensor, self.axis, self.loops = line, tensor, line.axis, steps
        axis = line.axis
        self.now = tuple([topology.inside(op, axis, where) for op in line.now])
        self.before = tuple([topology.inside(op, axis, before) for op in line.before])
        self.last = topology.along(before, axis)
        outermost = (*steps.loops[:1], *self.last[:1])
        self.outermost = outermost[:1] if outermost[:1] == outermost[1:] else outermost

    @property
    def part(self) -> Part:
        """The dimension as a part whose steps are clipped."""
        axis = self.axis
        walked = (axis,) if self.loops.loops or self.last else ()
        return Part(frozenset((axis,)), (self.line.dim,), False, walked)

    @property
    def steps(self) -> Mapping[str, Steps]:
        """The loops by axis."""
        return {self.axis: self.loops}


class Box:
    """Dimensions of a slice of a tensor that move together, with the loops of the axes that move them."""

    def __init__(self, part: Part, tensor: str, steps: Mapping[str, Steps]) -> None:
        self.part, self.tensor, self.steps = part, tensor, steps

    def stand(self, stands: Mapping[str, Stand]) -> tuple[Stand, ...]:
        """How the loops that decide about the slice stand."""
        return tuple([stands.get(axis, AGAIN) for axis in self.part.advanced])


class Known:
    """The parts that frames of one topology have in common, so that a point evaluates each once."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._around: dict[Path, dict[str, Steps]] = {}
        self._grouped: dict[tuple[Path, tuple[LoopAt, ...]], Steps] = {}
        self._idle: dict[tuple[Path, str], Steps] = {}
        self._intervals: dict[object, Interval] = {}

    def frames(
        self, where: Path, before: Path, tensor: str, parts: Sequence[Part | Line], groups: Sequence[LoopAt]
    ) -> tuple[Frame, Frame]:
        """The turns between two visits as a tensor sees them: of all units, and of one of those that run `groups`.

        `groups` are loops whose iterations run on units that read and write the same slice.
        """
        axes: set[str] = set()
        for part in parts:
            axes.update((part.axis,) if isinstance(part, Line) else part.axes)
        around = self.around(where)
        every = Frame(_besides(axes, around), self._portions(where, before, tensor, parts, around))
        if not groups:
            return every, every
        around = self.grouped(where, groups)
        if axes.isdisjoint([loop.axis for loop in groups]):
            return every, Frame(_besides(axes, around), every.parts)
        return every, Frame(_besides(axes, around), self._portions(where, before, tensor, parts, around))

    def _portions(
        self, where: Path, before: Path, tensor: str, parts: Sequence[Part | Line], around: Mapping[str, Steps]
    ) -> Sequence[Interval | Box]:
        """The parts of a slice with the loops that move them."""
        found: list[Interval | Box] = []
        for part in parts:
            if isinstance(part, Line):
                steps = around.get(part.axis) or self.idle(where, part.axis)
                found.append(self.interval(part, tensor, where, before, steps))
            else:
                own = {axis: around.get(axis) or self.idle(where, axis) for axis in part.advanced}
                found.append(Box(part, tensor, own))
        return found

    def around(self, where: Path) -> Mapping[str, Steps]:
        """The loops around a visit by axis."""
        if where not in self._around:
            axes = self.topology.axes_around(where)
            self._around[where] = {axis: Steps(self.topology, where, axis, ()) for axis in axes}
        return self._around[where]

    def grouped(self, where: Path, groups: Sequence[LoopAt]) -> Mapping[str, Steps]:
        """The loops around a visit by axis, where these are run by units that share a slice."""
        found = dict(self.around(where))
        for axis in dict.fromkeys([loop.axis for loop in groups]):
            own = tuple([loop for loop in groups if loop.axis == axis])
            key = (where, own)
            if key not in self._grouped:
                self._grouped[key] = Steps(self.topology, where, axis, own)
            found[axis] = self._grouped[key]
        return found

    def interval(self, line: Line, tensor: str, where: Path, before: Path, steps: Steps) -> Interval:
        """The slices along one dimension: equal ones once."""
        key = (line.axis, line.now, line.before, where, before, steps)
        if key not in self._intervals:
            self._intervals[key] = Interval(self.topology, line, tensor, where, before, steps)
        return self._intervals[key]

    def idle(self, where: Path, axis: str) -> Steps:
        """An axis that no loop around a visit advances."""
        if (where, axis) not in self._idle:
            self._idle[where, axis] = Steps(self.topology, where, axis, ())
        return self._idle[where, axis]


class Frame(NamedTuple):
    """Which loops say how often turns from one visit to another occur, and where slices of a tensor lie at them.

    `rest` are the loops of the axes that move no slice, by axis.
    """

    rest: Sequence[Steps]
    parts: Sequence[Interval | Box]


def _besides(axes: Collection[str], around: Mapping[str, Steps]) -> Sequence[Steps]:
    """The loops around a visit of all other axes."""
    return [steps for axis, steps in around.items() if axis not in axes]


class Point:
    """A topology with its factors, and what is known about it."""

    def __init__(self, topology: Topology, factors: Mapping[LoopAt, Number], strides: Mapping[LoopAt, Number]) -> None:
        self.topology, self.factors, self.strides = topology, factors, strides
        batches = {loop for loop, factor in factors.items() if isinstance(factor, np.ndarray)}
        self.in_batch = bool(batches)
        #: The loops of one step.
        self.single = {loop for loop, factor in factors.items() if loop not in batches and factor == 1}
        self.evaluations: dict[str, tuple[Number, Number]] = {}  # of expressions: all, and of the busiest unit
        self.multiplications: dict[Rescaled, tuple[Number, Number]] = {}  # by which sums are rescaled: the same
        self.walked: list[EqualSteps] | None = None  # by tree, where the boundaries do not decide
        self._counts: dict[tuple[Steps, Stand, bool], Number] = {}
        self._sizes: dict[tuple[Interval | Box, object], Sizes] = {}
        self._lengths: dict[Interval, tuple[Number, Number]] = {}  # now and before
        self._ends: dict[LoopAt, bool] = {}
        self._covered: dict[Extent, Number] = {}

    def fits(self, loop: LoopAt) -> bool:
        """Whether the steps of the outermost loop of an axis make up its extent."""
        if loop not in self._ends:
            size = self.strides[loop] * self.factors[loop]
            extent = self.topology.extents[loop.axis]
            self._ends[loop] = bool((size == extent).all()) if isinstance(size, np.ndarray) else size == extent
        return self._ends[loop]

    def even(self, path: Path, axis: str) -> bool:
        """Whether no step of an axis is clipped around the node at `path`."""
        loops = self.topology.along(path, axis)
        return not loops or self.fits(loops[0])

    def is_whole(self, op: str) -> bool:
        """Whether no step of a loop around an expression is clipped, and no consumer decides about its axes."""
        topology = self.topology
        place, extents = topology.places[op], topology.extents
        if topology.cut or len(topology.problem.free_extents[op]) < len(topology.computes[op].body_loops):
            return False
        return all(self.even(place, axis) for axis in topology.axes_around(place) if axis in extents)

    def runs(self, op: str) -> tuple[Number, Number]:
        """The points of an expression where it `is_whole`: of all units together, and of each."""
        topology, place = self.topology, self.topology.places[op]
        one: Number = 1
        for axis, extent in topology.problem.free_extents[op].items():
            one = one * least(self.inside(op, axis, place), extent)
        every = one
        for loop in topology.above(place):
            every = every * self.factors[loop]
            one = one if loop.spatial else one * self.factors[loop]
        return every, one

    def inside(self, op: str, axis: str, path: Path) -> Number:
        """How many values of an axis of an expression the node at `path` covers."""
        return self._covers(self.topology.inside(op, axis, path))

    def _covers(self, extent: Extent) -> Number:
        if extent not in self._covered:
            loops, size = extent
            for loop in loops:
                size = size * self.factors[loop]
            self._covered[extent] = size
        return self._covered[extent]

    # How often

    def often(self, frame: Frame, turn: Turn, fresh: Collection[str] = ()) -> Number:
        """How often a turn occurs for each position of the axes that move the slice.

        Without the first temporal step of all axes in `fresh` at once.
        """
        stands = turn.stands
        total: Number = 1
        at_first: Number = 1
        for steps in frame.rest:
            stand = stands.get(steps.axis, AGAIN)
            count = self._counts.get((steps, stand, False))
            if count is None:
                count = self.count(steps, stand)
            total = total * count
            if fresh:
                at_first = at_first * (self.count(steps, stand, first=True) if steps.axis in fresh else count)
        return total - at_first if fresh else total

    def count(self, steps: Steps, stand: Stand, *, first: bool = False) -> Number:
        """How many combinations of steps of the loops of an axis are occurrences of a turn."""
        key = (steps, stand, first)
        if key not in self._counts:
            self._counts[key] = self._count(steps, stand, first)
        return self._counts[key]

    def _count(self, steps: Steps, stand: Stand, first: bool) -> Number:
        axis, loops, extents, factors = steps.axis, steps.loops, self.topology.extents, self.factors
        if loops and axis in extents and not self.fits(loops[0]):
            return count_up_to(extents[axis] - 1, self.digits(steps.digits(stand, first=first)))
        total: Number = 1
        for loop in steps.spread:
            total = total * factors[loop]
        standing, advances = stand >> 1, stand & 1
        if advances:
            total = total * (0 if first else factors[loops[standing - 1]] - 1)
        for loop in () if first else loops[: standing - advances]:
            if not loop.spatial:
                total = total * factors[loop]
        return total

    def digits(self, digits: Sequence[tuple[LoopAt, str]]) -> list[Digit]:
        """The loops as `axis_steps` has them."""
        return [(self.factors[loop], self.strides[loop], steps) for loop, steps in digits]

    # How much

    def sizes(self, frame: Frame, turn: Turn) -> Sizes:
        """Elements of a slice before and after a turn, summed over all positions that differ, from its parts."""
        now: Number = 1
        before: Number = 1
        common: Number = 1
        stands, known = turn.stands, self._sizes
        for part in frame.parts:
            stand = stands.get(part.axis, AGAIN) if isinstance(part, Interval) else part.stand(stands)
            key = (part, stand)
            own = known.get(key)
            if own is None:
                own = known[key] = self._part(part, turn)
            size, last, same = own
            now, before, common = now * size, before * last, common * same
        return Sizes(now, before, common)

    def _part(self, part: Interval | Box, turn: Turn) -> Sizes:
        if isinstance(part, Box) or not all(map(self.fits, part.outermost)):
            return Positions(self, part, turn).total()
        return self._interval(part, turn.stands.get(part.axis, AGAIN))

    def _interval(self, interval: Interval, stand: Stand) -> Sizes:
        """Intervals that all have one length, and one distance from those before: no step is clipped."""
        standing, advances = stand >> 1, stand & 1
        often = self.count(interval.loops, stand)
        if interval not in self._lengths:
            now = before = self._length(interval.axis, interval.now)
            if interval.before != interval.now:
                before = self._length(interval.axis, interval.before)
            self._lengths[interval] = now, before
        now, before = self._lengths[interval]
        shift: Number = self.strides[interval.loops.loops[standing - 1]] if advances else 0
        for loop in interval.last[standing:]:
            if not loop.spatial:
                shift = shift - (self.factors[loop] - 1) * self.strides[loop]
        common = greatest(least(now + shift, before) - greatest(shift, 0), 0)
        return Sizes(often * now, often * before, often * common)

    def _length(self, axis: str, extents: tuple[Extent, ...]) -> Number:
        """How many values of an axis the longest of these extents has."""
        found: Number = 0
        for extent in extents:
            found = greatest(found, self._covers(extent))
        return least(found, self.topology.extents[axis])
