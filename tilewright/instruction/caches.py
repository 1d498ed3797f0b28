"""Loops through caches: at which level of a hierarchy each loop of a nest runs, when nobody places data by hand.

A level takes loops, from the inside outward, as long as what they touch fits its memory; the last level takes the rest.
That makes any order of loops, split any number of times, a description for `model.predict`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.instruction.intrinsic import LoopKind
from tilewright.instruction.model import Access, Hierarchy, Level


@dataclass(frozen=True)
class Step:
    """One loop of a nest: `count` trips along the loop `name`, which may be split into several steps."""

    name: str
    kind: LoopKind
    count: int


def levels_in_caches(
    steps: Sequence[Step],
    units: Mapping[str, int],
    accesses: Sequence[Access],
    machine: Hierarchy,
    parallel: Collection[int] = (),
) -> tuple[Level, ...]:
    """The levels of a nest: `steps` outermost first, `units` the elements of every loop that one call covers.

    `parallel` are positions of steps that are dealt to the cores; they and all steps outside of them run at the last
    level. Every call fills the registers anew but for accumulators, which stay while only reductions pass.
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
        held = [access.bytes(extents) for access in accesses]
        moved = [_moved(access, size, outside, beyond) for access, size in zip(accesses, held, strict=True)]
        levels.append(
            Level(
                tuple(step.count for step in serial if step.kind == "S"),
                tuple(step.count for step in serial if step.kind == "R"),
                tuple(step.count for position, step in reversed(own) if position in parallel),
                sum(size for access, size in zip(accesses, moved, strict=True) if not access.output),
                sum(size for access, size in zip(accesses, moved, strict=True) if access.output),
                resident_bytes=0.0 if flows else float(sum(held)),
            )
        )
    return tuple(levels)


Placed = tuple[int, Step]  # a step with its position in the nest


def _steps_by_level(
    steps: Sequence[Step],
    units: Mapping[str, int],
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
        step = steps[position]
        extents[step.name] *= step.count
        if parallel and position <= max(parallel):
            level = last
        needed = sum(access.bytes(extents) for access in accesses)
        while level < last and needed > machine.levels[level].capacity_bytes:
            level += 1
        found[level].append((position, step))
    return found


def _moved(access: Access, size: float, outside: Sequence[Placed], beyond: Sequence[Placed]) -> float:
    """Bytes per execution of a level: what stays for the innermost steps of the next level moves once for all of them.

    An output leaves once for all reductions that pass before any other step; the model divides by those of the next
    level itself.
    """
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
            break
        served *= step.count
    return size / served
