"""What is known of a module before there is code: its inputs and outputs, and the launches of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement, planned_launches
from tilewright.compiler.targets import target_of
from tilewright.expr.core import Tensor, static_shape
from tilewright.machine.description import Cpu, Gpu
from tilewright.runtime.manifest import Manifest, TensorSpec


def planned_manifest(plan: Plan, machine: Cpu | Gpu) -> Manifest:
    """The manifest of a plan as far as it is known before there is code."""
    placement = Placement(plan)
    return Manifest(
        **interface_of(plan, machine, [tensor.name for tensor in plan.graph.outputs]),
        constants_bytes=placement.constants_bytes,
        arena_bytes=placement.arena_bytes,
        zeroed_bytes=placement.zeroed_bytes,
        launches=tuple(planned_launches(plan)),
    )


def interface_of(plan: Plan, machine: Cpu | Gpu, names_of_outputs: Sequence[str]) -> dict[str, Any]:
    """The fields of a manifest that do not depend on the generated code."""
    outputs, target = zip(plan.graph.outputs, names_of_outputs, strict=True), target_of(machine)
    return {
        "name": plan.graph.name,
        "inputs": tuple(_spec(tensor) for tensor in plan.graph.inputs),
        "outputs": tuple(replace(_spec(tensor), name=name) for tensor, name in outputs),
        "features": tuple(sorted(machine.features)) if target.on_host else (),
        "triple": machine.llvm.triple,
        "code": target.code,
        "machine": machine.name,
    }


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.dtype, static_shape(tensor.shape))
