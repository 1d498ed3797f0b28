"""The walk of a tile tree that takes equal steps at once: the numbers of `brute.walk`, without a visit of every step.

Most steps of a loop move what the step before moved, some elements further on. The first step differs, and so do those
in which a loop ends or a slice reaches a border of its tensor. Of a row of equal steps two are run. The first one
follows a step that may differ. The second one stands for all others: what it moves counts as often, and what it leaves
in memory is put where the last one would have left it. Of equal iterations of a spatial loop one is run.

Which steps are equal is decided loop by loop, from the values that indices have in the steps inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from tilewright.expr.affine import Affine
from tilewright.tiles.brute import Box, Digits, Walk
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.memories import Key
from tilewright.tiles.topology import LoopAt
from tilewright.tiles.tree import Path, same_path

MOST_VISITS = 250_000  # of memories by tensors, each of which takes some 0.2 milliseconds


class EqualSteps(Walk):
    """The walk of a prepared tree with these factors. Raises Unanalysable where too many of its steps differ."""

    def steps(self, loops: Sequence[LoopAt], digits: Digits) -> Iterator[Digits]:
        if not loops:
            yield digits
            return
        loop, *inner = loops
        if loop.spatial:
            yield from self.steps(inner, {**digits, loop: 0})
            return
        equal = _Equal(self, loop, digits)
        for step, times in equal.runs():
            visits = self.memories.visits
            self.memories.times *= times
            yield from self.steps(inner, {**digits, loop: step})
            self.memories.times //= times
            if times > 1:
                self.memories.move(visits, partial(equal.moved, times - 1))

    def spread(self, loop: LoopAt) -> Mapping[int, int]:
        return dict(_Equal(self, loop, {}).classes())

    def visit(self, path: Path, top: Path, digits: Digits) -> None:
        if self.memories.visits > MOST_VISITS:
            raise Unanalysable(
                f"too many of its steps differ: more than {MOST_VISITS:,} visits", where="tile tree",
                help="smaller extents, or factors that divide them",
            )  # fmt: skip
        super().visit(path, top, digits)


class _Reach(NamedTuple):
    """The values of an axis or an index in one step of a loop: from `low` to `last` in the first one, and in each
    further one `shift` more. In no step are they less than `least` or more than `most`.
    """

    low: int
    last: int
    shift: int
    least: int
    most: int


class _Equal:
    """The steps of one loop that are equal, where loops around it are at these `digits`.

    Spatial loops may be at any iteration. Steps from `first` to before `end` are equal, but those at which `breaks` say
    that others begin: what the loop moves reaches no end of an axis between them, and no border of a tensor.
    """

    def __init__(self, walk: Walk, loop: LoopAt, digits: Digits) -> None:
        self.walk, self.topology, self.loop, self.digits = walk, walk.topology, loop, digits
        self.first, self.end = 0, walk.factors[loop]
        self.breaks: set[int] = set()
        self.shifts: dict[str, list[int]] = {}
        if self.end > (1 if loop.spatial else 2):
            self._find()

    def classes(self) -> Iterator[tuple[int, int]]:
        """The first one of steps that are equal, and how many there are."""
        steps = self.walk.factors[self.loop]
        inside = {each for each in self.breaks if self.first < each < self.end}
        begins = sorted({*range(min(self.first, steps)), *inside, self.first, *range(self.end, steps)} - {steps})
        for begin, end in pairwise([*begins, steps]):
            yield begin, end - begin

    def runs(self) -> Iterator[tuple[int, int]]:
        """The steps to be run one after the other, and how many each of them stands for."""
        for begin, steps in self.classes():
            yield begin, 1
            if steps > 1:
                yield begin + 1, steps - 1

    def moved(self, steps: int, key: Key, box: Box) -> Box:
        """A slice so many steps further on."""
        _, tensor, *_ = key
        shifts = self.shifts[tensor]
        return tuple((low + steps * by, high + steps * by) for (low, high), by in zip(box, shifts, strict=True))

    # Which steps are equal

    def _find(self) -> None:
        topology, loop = self.topology, self.loop
        if any(topology.advance(op) is loop for op in topology.places):
            self.first = 1  # before the first step there is none that has left something
        self._find_masks()
        for op in topology.ops(loop.tile):
            place = topology.places[op]
            if loop.axis in topology.extents:
                self._find_end(op, loop.axis, place, topology.extents[loop.axis])
            for name in topology.axes_around(place):
                if name in topology.cut:
                    self._axis(*topology.cut[name], place)
            for axis in topology.computes[op].loops:
                self._axis(op, axis.name, place)
            self._find_shifts(op, place)

    def _find_masks(self) -> None:
        """Where masks end the loop; no steps are equal where the loop moves such an end."""
        topology, loop = self.topology, self.loop
        for part in topology.seen:
            names = {topology.problem.names[part.op, axis.name] for axis in part.last.terms}
            if (loop in part.loops and loop.axis in names) or (loop.spatial and loop.axis == part.axis):
                self._none()
            elif loop.axis == part.axis:
                child = (*loop.tile, 0)
                ends = {self.walk.ends(child, each)[part.axis] for each in self.walk.instances(child, self.digits)}
                for op in topology.ops(loop.tile):
                    for end in ends:
                        self._find_end(op, part.axis, topology.places[op], end)

    def _find_shifts(self, op: str, place: Path) -> None:
        """How far the slices of the tensors of an expression move with each step."""
        topology = self.topology
        for tensor in (*topology.inputs[op], op):
            for access in topology.accesses(place, tensor):
                shifts = []
                for form, size in zip(access.forms, access.shape, strict=True):
                    shifts.append(0 if form is None else self._keep_inside(self._index(op, form, place), size).shift)
                if self.shifts.setdefault(tensor, shifts) != shifts:
                    self._none()

    def _none(self) -> None:
        self.first = self.end = self.walk.factors[self.loop]

    def _keep_inside(self, reach: _Reach, size: int) -> _Reach:
        """Leave out steps whose values the loop moves beyond the first or the last one of so many; what is left."""
        low, last, shift, least, most = reach
        if shift < 0:
            low, last, least, most = (size - 1 - each for each in (last, low, most, least))
        if shift and least < 0:
            self.first = max(self.first, -(low // abs(shift)))
        if shift and most >= size:
            self.end = min(self.end, (size - 1 - last) // abs(shift) + 1)
        if self.end <= self.first:
            self._none()
        return reach._replace(least=max(reach.least, 0), most=min(reach.most, size - 1))

    def _find_end(self, op: str, name: str, place: Path, size: int) -> None:
        """Where an axis ends after so many values: its loops run there in each block of the loops around."""
        loops, strides, factors = self.topology.along(place, name), self.walk.strides, self.walk.factors
        if self.loop not in loops:
            return
        number, stride = loops.index(self.loop), strides[self.loop]
        inner = self.walk.inside(op, name, same_path(place, self.topology.places[op]))
        inner += sum((factors[loop] - 1) * strides[loop] for loop in loops[number + 1 :])
        unknown = [loop for loop in loops[:number] if not self._is_known(loop)]
        block = stride * factors[self.loop]
        if inner > stride or any(strides[loop] % block for loop in unknown):
            self._none()
            return
        left = size - sum(self.digits[loop] * strides[loop] for loop in loops[:number] if self._is_known(loop))
        whole, rest = divmod(left % block if unknown else left, stride)
        self.breaks |= {whole, whole + 1} if rest else {whole}

    # Values of axes and indices

    def _axis(self, op: str, name: str, place: Path) -> _Reach:
        """The values of an axis of an expression, where it or what computes for it runs at a leaf."""
        axis = self.topology.axis(op, name)
        if axis.given:
            return _Reach(0, axis.extent - 1, 0, 0, axis.extent - 1)
        if not axis.forms:
            self._find_end(op, axis.name, place, axis.extent)
            return self._covered(op, axis.name, place)._replace(least=0, most=axis.extent - 1)
        reaches = [self._index(consumer, form, place) for consumer, form in axis.forms]
        lows, lasts, shifts, least, most = zip(*reaches, strict=True)
        if len(set(shifts)) > 1:
            self._none()
        span = _Reach(min(lows), max(lasts), shifts[0], min(least), max(most))
        span = self._keep_inside(span, axis.extent)
        if self.topology.cuts(op, name) and self._along(place, axis.name).shift:
            return self._part(op, name, place, span)
        return span

    def _index(self, op: str, form: Affine, place: Path) -> _Reach:
        """The values of an index of an expression."""
        low = last = least = most = form.constant
        shift = 0
        for axis, factor in form.terms.items():
            reach = self._axis(op, axis.name, place)
            ends = sorted((factor * reach.low, factor * reach.last))
            bounds = sorted((factor * reach.least, factor * reach.most))
            low, last, shift = low + ends[0], last + ends[1], shift + factor * reach.shift
            least, most = least + bounds[0], most + bounds[1]
        return _Reach(low, last, shift, least, most)

    def _covered(self, op: str, name: str, place: Path) -> _Reach:
        """The values of an axis whose loops are those around a leaf, and those of the expression further in."""
        reach = self._along(place, name)
        inner = self.walk.inside(op, name, same_path(place, self.topology.places[op]))
        return reach._replace(last=reach.last + inner - 1, most=reach.most + inner - 1)

    def _along(self, place: Path, name: str) -> _Reach:
        """The first values of an axis that its loops around a leaf reach."""
        low = reach = shift = 0
        for loop in self.topology.along(place, name):
            stride = self.walk.strides[loop]
            if loop is self.loop:
                shift = stride
            elif self._is_known(loop):
                low += self.digits[loop] * stride
            else:
                reach += (self.walk.factors[loop] - 1) * stride
        most = low + reach + shift * (self.walk.factors[self.loop] - 1)
        return _Reach(low, low + reach, shift, low, most)

    def _is_known(self, loop: LoopAt) -> bool:
        return loop in self.digits and not loop.spatial

    def _part(self, op: str, name: str, place: Path, span: _Reach) -> _Reach:
        """The values of an axis whose range follows from consumers and is cut by the loop."""
        topology, axis = self.topology, self.topology.axis(op, name)
        around = (loop for each in topology.problem.loops_of(op, name) for loop in topology.along(place, each))
        others = [loop for loop in around if loop.axis != axis.name]
        meets_outside = len(topology.meeting(op, name)) <= len(self.loop.tile)
        if span.shift or self.loop.spatial or not meets_outside or any(loop not in self.digits for loop in others):
            self._none()
            return span
        spans = [self._span(op, name, place, each) for each in self.walk.instances(self.loop.tile, self.digits)]
        part = self._keep_inside(self._covered(op, axis.name, place), min(end - first for first, end in spans))
        low, last = part.low + min(first for first, _ in spans), part.last + max(first for first, _ in spans)
        return _Reach(low, last, part.shift, span.least, span.most)

    def _span(self, op: str, name: str, place: Path, digits: Digits) -> tuple[int, int]:
        """The range of an axis at one iteration of the spatial loops."""

        def at(axis: str, _: int) -> int:
            return sum(digits.get(loop, 0) * self.walk.strides[loop] for loop in self.topology.along(place, axis))

        return self.topology.span(op, name, place, at, self.walk.inside)
