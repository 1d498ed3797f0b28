"""What a plan asks of `lower`: its launches, and a place in memory for every tensor that they touch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewright.codegen.host_program import Launch
from tilewright.compiler.plan import Kernel, Plan
from tilewright.expr import dtypes
from tilewright.expr.core import Read, Tensor, walk
from tilewright.lower.steps import Place, Repeated, Sections, Step
from tilewright.runtime.memory import LiveBuffer, align, allocate, plan_arena
from tilewright.tiles.tree import kernels


def steps(plan: Plan) -> list[Step | Repeated]:
    """The launches of a plan as `lower` takes them."""
    moving = {name: each for loop in plan.loops for name, each in loop.moving.items()}
    made: list[tuple[int, Step | Repeated]] = [(n, _step(plan, kernel)) for n, kernel in enumerate(plan.kernels)]
    for loop in plan.loops:
        inside = [step for number, step in made if loop.begin <= number < loop.end]
        names = {name for name, stored in plan.stored.items() if stored.memory in loop.moving} | set(loop.moving)
        places = {name: moving[plan.stored[name].memory if name in plan.stored else name] for name in names}
        outside = [(number, step) for number, step in made if not loop.begin <= number < loop.end]
        if inside:
            made = sorted([*outside, (loop.begin, Repeated(loop.trips, inside, places))], key=lambda item: item[0])
    return [step for _, step in made]


def _step(plan: Plan, kernel: Kernel) -> Step:
    arguments = tuple((plan.stored[name].tensor, plan.stored[name].flat.size) for name in kernel.arguments)
    return Step(kernel.name, kernel.scheduled, arguments, kernel.flops, _moved_bytes(plan, kernel))


def planned_launches(plan: Plan) -> list[Launch]:
    """What is known of the launches of a plan before there is code: no kernels, no programs."""
    found = []
    for number, kernel in enumerate(plan.kernels):
        trips = prod(loop.trips for loop in plan.loops if loop.begin <= number < loop.end)
        moved = _moved_bytes(plan, kernel) * trips
        constants = sum(plan.stored[name].bytes for name in kernel.reads if plan.stored[name].space == "constant")
        cycles, instruction = round(kernel.cycles * trips), kernel.instruction
        found.append(Launch(kernel.name, "", 0, kernel.flops * trips, moved, (), trips, cycles, constants, instruction))
    return found


def sizes(plan: Plan) -> dict[str, tuple[Tensor, int]]:
    """The elements that tensors take in memory."""
    return {name: (stored.tensor, stored.flat.size) for name, stored in plan.stored.items()}


def _moved_bytes(plan: Plan, kernel: Kernel) -> int:
    """Bytes that a kernel moves: its tensors, of each no more than it reads and writes at its points. What it updates
    is read and written.

    A product reads its operands at more points than they have. Lines of a scatter that come again for other updates are
    in its cycles (`operator.ordered_cycles`).
    """
    tensors, scheduled = [plan.stored[name] for name in kernel.arguments], kernel.scheduled
    if kernels(scheduled.tree):
        return sum(stored.bytes for stored in tensors)
    bodies = [statement.body for statement in scheduled.statements]
    loops = {axis for statement in scheduled.statements for axis in (*statement.axes, *statement.reduce)}
    points = prod(axis.size for axis in loops)
    times = Counter([*kernel.writes, *kernel.updates])
    for body in bodies:
        times.update(read.tensor.name for read in walk(body) if isinstance(read, Read))
    sizes = [points * times[stored.tensor.name] * dtypes.size_bytes(stored.tensor.dtype) for stored in tensors]
    wholes = [stored.bytes * (2 if stored.tensor.name in kernel.updates else 1) for stored in tensors]
    return sum(min(whole, size) for whole, size in zip(wholes, sizes, strict=True))


class Placement:
    """Where every stored tensor lives, and how large arena and constants are.

    The arena begins with the tensors that have a border of zeros, `zeroed_bytes` in all. Of these only tensors of one
    layout share memory, so that the border of each stays as it is.
    """

    def __init__(self, plan: Plan) -> None:
        self.places: dict[str, Place] = {}
        self.offsets: dict[str, int] = {}
        self.constants_bytes = 0
        numbers = {tensor.name: i for i, tensor in enumerate(plan.graph.inputs)}
        results = {tensor.name: i for i, tensor in enumerate(plan.graph.outputs)}
        uses = _uses(plan)
        buffers: dict[object, list[LiveBuffer]] = {}
        for name, stored in plan.stored.items():
            if stored.owner or stored.space == "slice":
                continue
            if stored.space == "input":
                self.places[name] = Place("input", numbers[name])
            elif stored.space == "output":
                self.places[name] = Place("output", results[name])
            elif stored.space == "constant":
                self.offsets[name] = self.constants_bytes
                self.places[name] = Place("constant", self.constants_bytes)
                self.constants_bytes += align(stored.bytes)
            elif name in uses:
                alike = (stored.layout, stored.bytes) if stored.zero_border else None
                buffers.setdefault(alike, []).append(LiveBuffer(name, stored.bytes, min(uses[name]), max(uses[name])))
        rest = buffers.pop(None, [])
        self.arena_bytes = 0
        for group in buffers.values():
            self._place(group)
        self.zeroed_bytes = self.arena_bytes
        self._place(rest)
        for name, stored in plan.stored.items():
            if stored.memory in self.places:
                place = self.places[stored.memory]
                offset = stored.begin * dtypes.size_bytes(stored.tensor.dtype)
                self.places[name] = replace(place, index=place.index + offset)

    @property
    def sections(self) -> Sections:
        """The sizes of arena and constants."""
        return Sections(self.arena_bytes, self.constants_bytes, self.zeroed_bytes)

    def _place(self, buffers: Sequence[LiveBuffer]) -> None:
        """Place buffers behind what the arena has."""
        offsets, size = plan_arena(buffers)
        for name, offset in offsets.items():
            self.places[name] = Place("arena", self.arena_bytes + offset)
        self.arena_bytes += size

    def packed(self, plan: Plan) -> np.ndarray[Any, Any]:
        """The constants in their layouts, one block of bytes."""
        block = allocate(self.constants_bytes)
        for name, offset in self.offsets.items():
            layout, array = plan.stored[name].layout, plan.constants[name]
            size_bytes = layout.size * array.itemsize
            layout.pack(array, block[offset : offset + size_bytes].view(array.dtype))
        return block


def _uses(plan: Plan) -> dict[str, set[int]]:
    """The kernels, by number, during which the memory of a tensor is in use.

    A loop holds what comes from outside or goes on to the next trip from its first kernel to its last.
    """
    moving = {name: each for loop in plan.loops for name, each in loop.moving.items()}

    def memories(name: str) -> set[str]:
        memory = plan.stored[name].memory
        if memory not in moving:
            return {memory}
        each = moving[memory]
        return memories(each.whole) | (memories(each.first) if each.first else set())

    uses: dict[str, set[int]] = {}
    for number, kernel in enumerate(plan.kernels):
        for name in kernel.arguments:
            for memory in memories(name):
                uses.setdefault(memory, set()).add(number)
    for loop in plan.loops:
        for name, numbers in uses.items():
            if name not in loop.local and any(loop.begin <= number < loop.end for number in numbers):
                numbers.update((loop.begin, loop.end - 1))
    return uses
