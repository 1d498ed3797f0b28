"""The target of each kind of machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.compiler.target import Codegen, Target
from tilewright.machine import targets
from tilewright.machine.description import Cpu, Gpu

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tilewright.compiler.planning import Rules


def target_of(machine: Cpu | Gpu) -> Target:
    """The target of a machine."""
    return TARGETS[machine.kind]


def target_of_program(program: ModuleOp) -> Target:
    """The target that a tile program names; that of CPUs where it names none."""
    from tilewright.kernel.target import triple_of

    return TARGETS["gpu" if triple_of(program) in targets.GPUS else "cpu"]


def _cpu_rules() -> Rules:
    from tilewright.compiler import cpu_rules

    return cpu_rules


def _cpu_codegen() -> Codegen:
    from tilewright.compiler import cpu

    return cpu


def _gpu_rules() -> Rules:
    from tilewright.compiler import gpu_rules

    return gpu_rules


def _gpu_codegen() -> Codegen:
    from tilewright.compiler import gpu

    return gpu


TARGETS = {
    "cpu": Target("cpu", "object", True, _cpu_rules, _cpu_codegen),
    "gpu": Target("gpu", "ptx", False, _gpu_rules, _gpu_codegen),
}
