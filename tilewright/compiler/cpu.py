"""Plans for CPUs to tile programs."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.cpu.target import described
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement, sizes, steps
from tilewright.intrinsics.registry import catalogue
from tilewright.kernel.passes.cpu.table import CPU, run_passes
from tilewright.kernel.records import carry
from tilewright.lower.module import build_module
from tilewright.lower.numbers import numbers_as_arguments
from tilewright.machine.description import Cpu
from tilewright.options import Options


def tile_program(plan: Plan, placement: Placement, machine: Cpu, options: Options) -> ModuleOp:
    """The optimised tile program of a plan: the only thing code generation sees."""
    places, arena, constants = placement.places, placement.arena_bytes, placement.constants_bytes
    launches = numbers_as_arguments(steps(plan))
    module, _ = build_module(launches, sizes(plan), places, arena, constants, described(machine).attribute())
    carry(module, plan.intrinsics, catalogue(machine.architecture))
    run_passes(module, [each for each in CPU if each.name not in options.disable], options.verify_each)
    return module
