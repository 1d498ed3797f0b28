"""Loops through caches: at which level of a hierarchy each loop of a nest runs, when nobody places data by hand.

A level takes loops, from the inside outward, as long as what they touch fits its memory, the last one in part; the last
level takes the rest. That makes any order of loops, split any number of times, a description for `model.predict`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.dataclass import dataclass
from tilewright.instruction.model import Access, Hierarchy, Level
from tilewright.intrinsics.intrinsic import LoopKind

LINE_BYTES = 64  # of every processor that this model was measured on, and of most others
STREAM_BYTES = 256  # shorter runs of lines are over before a prefetcher has seen them


@dataclass(frozen=True)
class Step:
    """One loop of a nest: `count` trips along the loop `name`, which may be split into several steps."""

    name: str
    kind: LoopKind
    count: int


def levels_in_caches(
    steps: Sequence[Step],
    units: Mapping[str, float],
    accesses: Sequence[Access],
    machine: Hierarchy,
    parallel: Collection[int] = (),
) -> tuple[Level, ...]:
    """The levels of a nest: `steps` outermost first, `units` the elements of every loop that one call covers.

    `parallel` are positions of steps that are distributed to the cores. They and all steps outside of them run at the
    last level. Every call fills the registers anew but for accumulators, which stay while only reductions pass.
    """
    inside = _steps_by_level(steps, units, accesses, machine, parallel)
    extents = dict(units)
    levels = []
    for number, own in enumerate(inside):
        for _, step in own:
            extents[step.name] *= step.count
        outside = [each for later in inside[number + 1 : number + 2] for each in later]
        beyond = [each for later in inside[number + 1 :] for each in later]
        serial = [step for position, step in reversed(own) if position not in parallel]
        flows = not own and number < len(inside) - 1  # through registers, and through a cache that holds no loop
        held = sum(_held(access, extents, number) for access in accesses)
        moved = [_moved(access, extents, number, outside, beyond, machine.scattered) for access in accesses]
        levels.append(
            Level(
                tuple(step.count for step in serial if step.kind == "S"),
                tuple(step.count for step in serial if step.kind == "R"),
                tuple(step.count for position, step in reversed(own) if position in parallel),
                sum(size for access, size in zip(accesses, moved, strict=True) if not access.output),
                sum(size for access, size in zip(accesses, moved, strict=True) if access.output),
                resident_bytes=0.0 if flows else float(held),
            )
        )
    return tuple(levels)


@dataclass(frozen=True)
class Strided(Access):
    """An operand by its linear address: one dimension, with the coefficients of all loops.

    `again`: what is written is read back, so that it moves twice and is held once.
    """

    again: bool = False

    def bytes(self, extents: Mapping[str, float]) -> float:
        """Distinct elements: loops whose steps overlap, as rows and window of an image do, share them."""
        covered = self.element_bytes
        for stride, count in self._strides(extents):
            covered += (count - 1) * min(stride, covered)
        return covered

    def lines(self, extents: Mapping[str, float]) -> tuple[float, float]:
        """Bytes of the lines that hold them, and of each run of neighbouring lines.

        On average over where lines begin; runs of whole lines begin with one.
        """
        run, covered = 0.0, self.element_bytes
        for stride, count in self._strides(extents):
            if not run and stride > max(covered, LINE_BYTES):
                run = covered = self._in_lines(covered)
            covered += (count - 1) * min(stride, max(covered, LINE_BYTES))
        if not run:
            run = covered = self._in_lines(covered)
        return covered, run

    def _strides(self, extents: Mapping[str, float]) -> list[tuple[float, float]]:
        """Bytes between steps of each loop, and steps, nearest first."""
        terms = ((abs(step) * self.element_bytes, extents[loop]) for loop, step in self.dims[0].items())
        return sorted((stride, count) for stride, count in terms if count > 1)

    def _in_lines(self, covered: float) -> float:
        whole = round(covered / LINE_BYTES, 6).is_integer()
        return covered if whole else covered + LINE_BYTES - self.element_bytes


def _bytes(access: Access, extents: Mapping[str, float], level: int) -> float:
    """Bytes that a level has of an operand: caches have lines, registers elements."""
    return access.lines(extents)[0] if level and isinstance(access, Strided) else access.bytes(extents)


def _held(access: Access, extents: Mapping[str, float], level: int) -> float:
    """Bytes that a level holds of an operand; what is read back is held as the result that it was."""
    return 0.0 if isinstance(access, Strided) and access.again else _bytes(access, extents, level)


def _fetched(access: Access, extents: Mapping[str, float], level: int, scattered: float) -> float:
    """Bytes as the time that they take: lines that no stream leads to take `scattered` times as long."""
    alone = level and isinstance(access, Strided) and access.lines(extents)[1] < STREAM_BYTES
    return _bytes(access, extents, level) * (scattered if alone else 1.0)


Placed = tuple[int, Step]  # a step with its position in the nest


def _steps_by_level(
    steps: Sequence[Step],
    units: Mapping[str, float],
    accesses: Sequence[Access],
    machine: Hierarchy,
    parallel: Collection[int],
) -> list[list[Placed]]:
    """The steps of every level, innermost first; level 0 has none."""
    last = len(machine.levels) - 1
    found: list[list[Placed]] = [[] for _ in machine.levels]
    extents = dict(units)
    level = 1
    for position in range(len(steps) - 1, -1, -1):
        step, inside = steps[position], dict(extents)
        if parallel and position <= max(parallel):
            level = last
        left = step.count
        while left > 1 and level < last:
            trips = _most_trips(replace(step, count=left), inside, accesses, machine, level)
            if trips > 1:
                found[level].append((position, replace(step, count=trips)))
                inside[step.name] *= trips
                left //= trips
            if left > 1:
                level += 1
        if left > 1 or step.count == 1:
            found[level].append((position, replace(step, count=left)))
        extents[step.name] *= step.count
    return found


def _most_trips(
    step: Step, inside: Mapping[str, float], accesses: Sequence[Access], machine: Hierarchy, level: int
) -> int:
    """The most trips of a step, a divisor of its count, after which the level still holds what they touch."""
    for pieces in range(1, step.count):
        if step.count % pieces == 0:
            extents = {**inside, step.name: inside[step.name] * (step.count // pieces)}
            if sum(_held(access, extents, level) for access in accesses) <= machine.levels[level].capacity_bytes:
                return step.count // pieces
    return 1


def _moved(
    access: Access,
    extents: Mapping[str, float],
    level: int,
    outside: Sequence[Placed],
    beyond: Sequence[Placed],
    scattered: float,
) -> float:
    """Bytes per execution of a level, as the time that they take.

    What stays for the innermost steps of the next level moves once for all of them. Of the first step that touches an
    operand, a cache keeps what the trip before has brought, such as the rest of a line. An output leaves once for all
    reductions that pass before any other step; the model divides by those of the next level itself.
    """
    size = _fetched(access, extents, level, scattered)
    if access.output:
        stayed = 1
        for _, step in beyond:
            if step.kind == "S":
                break
            stayed *= step.count
        return size / stayed * prod(step.count for _, step in outside if step.kind == "R")
    served = 1
    for _, step in outside:
        if step.count > 1 and access.touches(step.name):
            if level:
                whole = {**extents, step.name: extents[step.name] * step.count}
                size *= _bytes(access, whole, level) / step.count / _bytes(access, extents, level)
            break
        served *= step.count
    return size / served
