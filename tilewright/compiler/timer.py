"""Seconds of the kernels of plans on this machine, without a whole module around them.

In: plans. Out: seconds of each kernel, timed once for what it does and how its operands are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field, replace

from tilewright.collection import collect_new
from tilewright.compiler.plan import Kernel, Plan
from tilewright.compiler.program import Placement
from tilewright.dataclass import dataclass
from tilewright.expr.core import Tensor, static_shape
from tilewright.machine.description import Cpu
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.memory import allocate
from tilewright.runtime.module import Module

REPEATS = 5  # runs of a module, whose medians per kernel make one timing
TIMINGS = 2  # of each kernel: the least counts
TURNS = 7  # of timings that are compared: the least counts, what disturbs one only adds to it


@dataclass
class Timer:
    """Seconds of kernels, each timed once for what it does and how its operands are stored."""

    machine: Cpu
    threads: int
    options: Options
    seconds: dict[str, float] = field(default_factory=dict)

    def total(self, plan: Plan) -> float:
        """Seconds of all kernels of a plan."""
        keys = [content(plan, kernel) for kernel in plan.kernels]
        unknown = [number for number, key in enumerate(keys) if key not in self.seconds]
        if unknown:
            kernels = [plan.kernels[number] for number in unknown]
            found = self.times(self.module(plan, kernels))
            self.seconds.update(zip((keys[number] for number in unknown), found, strict=True))
        return sum(self.seconds[key] for key in keys)

    def of(self, plan: Plan, kernels: Iterable[Kernel]) -> float:
        """Seconds of some kernels of a plan that was timed."""
        return sum(self.seconds[content(plan, kernel)] for kernel in kernels)

    def forget(self, plan: Plan, but: Collection[str] = ()) -> None:
        """Have the kernels of a plan timed anew, but for those of that content."""
        for key in {content(plan, kernel) for kernel in plan.kernels}.difference(but):
            self.seconds.pop(key, None)

    def module(self, plan: Plan, kernels: Sequence[Kernel]) -> Module:
        """Some kernels of a plan as a module of their own; memory holds zeros, which take the time of any values."""
        from tilewright.codegen.cpu.pipeline import generate  # brings xDSL, which known times do without
        from tilewright.compiler.cpu import tile_program

        names = {name for kernel in kernels for name in kernel.arguments}
        names |= {plan.stored[name].memory for name in names}
        stored = {name: each for name, each in plan.stored.items() if name in names}
        stored |= {name: replace(each, space="arena") for name, each in stored.items() if each.space == "slice"}
        part = replace(plan, kernels=list(kernels), stored=stored, loops=[])  # of a loop one trip is timed
        made = generate(tile_program(part, Placement(part), self.machine, self.options))
        collect_new()  # the program: its parts refer to each other
        launches = tuple(replace(each, name=kernel.name) for kernel, each in zip(kernels, made.launches, strict=True))
        manifest = Manifest(
            name=plan.graph.name, inputs=_specs(plan.graph.inputs), outputs=_specs(plan.graph.outputs),
            features=tuple(sorted(self.machine.features)), triple=self.machine.llvm.triple,
            **replace(made, launches=launches).parts(),
        )  # fmt: skip
        constants = allocate(made.constants_bytes)
        return Module(Artifact(manifest, made.code, constants, "", "{}", "{}"), self.threads, self.options)

    def in_turns(self, *plans: Plan) -> list[float]:
        """The least seconds of each plan's own kernels, those that not all plans have, timed in turns."""
        own = own_of_each(plans)
        modules = [self.module(plan, kernels) if kernels else None for plan, kernels in zip(plans, own, strict=True)]
        turns = [[sum(self.times(module)) if module else 0.0 for module in modules] for _ in range(TURNS)]
        return [min(each) for each in zip(*turns, strict=True)]

    def times(self, module: Module) -> list[float]:
        """Seconds of the kernels of a module."""
        profiles = [[each.seconds for each in module.profile(repeats=REPEATS)] for _ in range(TIMINGS)]
        return [min(each) for each in zip(*profiles, strict=True)]


def content(plan: Plan, kernel: Kernel) -> str:
    """Equal for kernels that do the same on operands that are stored alike."""
    stored = [plan.stored[name] for name in kernel.arguments]
    return repr((kernel.scheduled, [(str(each.layout), each.space) for each in stored]))


def own_of_each(plans: Sequence[Plan]) -> list[list[Kernel]]:
    """The kernels of each plan that not all of them have."""
    contents = [[content(plan, kernel) for kernel in plan.kernels] for plan in plans]
    shared = set.intersection(*map(set, contents))
    return [
        [kernel for kernel, each in zip(plan.kernels, known, strict=True) if each not in shared]
        for plan, known in zip(plans, contents, strict=True)
    ]


def own_kernels(plan: Plan, node: str) -> list[Kernel]:
    """The kernels of a product: its contraction, and the relayouts that its mapping makes necessary."""
    name = plan.products[node]["kernel"]
    nodes = {each.name for key in (node, name) for each in plan.mapped.get(key, ())}
    return [kernel for kernel in plan.kernels if kernel.name == name or nodes.intersection(kernel.writes)]


def _specs(tensors: Sequence[Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tensor.name, tensor.dtype, static_shape(tensor.shape)) for tensor in tensors)
