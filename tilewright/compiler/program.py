"""What a plan asks of `lower`: its launches, and a place in memory for every tensor that they touch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.compiler.plan import Plan
from tilewright.lower.steps import Place, Step
from tilewright.runtime.memory import Buffer, align, allocate, plan_arena


def steps(plan: Plan) -> list[Step]:
    """The launches of a plan as `lower` takes them."""
    made = []
    for kernel in plan.kernels:
        arguments = tuple((plan.stored[name].tensor, plan.stored[name].flat.size) for name in kernel.arguments)
        moved = sum(plan.stored[name].bytes for name in kernel.arguments)
        made.append(Step(kernel.name, kernel.work, kernel.schedule, arguments, kernel.flops, moved))
    return made


class Placement:
    """Where every stored tensor lives, and how large arena and constants are."""

    def __init__(self, plan: Plan) -> None:
        self.places: dict[str, Place] = {}
        self.offsets: dict[str, int] = {}
        self.constants_bytes = 0
        numbers = {tensor.name: i for i, tensor in enumerate(plan.graph.inputs)}
        results = {tensor.name: i for i, tensor in enumerate(plan.graph.outputs)}
        uses: dict[str, list[int]] = {}
        for step, kernel in enumerate(plan.kernels):
            for name in kernel.arguments:
                uses.setdefault(plan.stored[name].memory, []).append(step)
        buffers = []
        for name, stored in plan.stored.items():
            if stored.owner:
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
                buffers.append(Buffer(name, stored.bytes, uses[name][0], uses[name][-1]))
        offsets, self.arena_bytes = plan_arena(buffers)
        for name, offset in offsets.items():
            self.places[name] = Place("arena", offset)
        for name, stored in plan.stored.items():
            if stored.memory in self.places:
                self.places[name] = self.places[stored.memory]

    def packed(self, plan: Plan) -> np.ndarray[Any, Any]:
        """The constants in their layouts, one block of bytes."""
        block = allocate(self.constants_bytes)
        for name, offset in self.offsets.items():
            stored = plan.stored[name]
            storage = stored.layout.pack(plan.constants[name]).view(np.uint8).reshape(-1)
            block[offset : offset + storage.size] = storage
        return block
