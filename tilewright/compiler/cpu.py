"""Code for CPUs, as `target.Codegen` asks for it: plans to tile programs, and these to objects."""

from __future__ import annotations

from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.cpu import pipeline
from tilewright.codegen.cpu.target import described, target_of
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement, planned_launches, sizes, steps
from tilewright.compiler.target import Generated
from tilewright.errors import InvalidArgument
from tilewright.intrinsics.registry import catalogue
from tilewright.kernel.passes.cpu.table import CPU, run_passes
from tilewright.kernel.printing import print_module
from tilewright.kernel.records import carry
from tilewright.lower.module import build_module
from tilewright.lower.numbers import numbers_as_arguments
from tilewright.machine.description import Cpu
from tilewright.options import Options
from tilewright.runtime.pool import default_threads
from tilewright.tiles.machines import program_resources


def tile_program(plan: Plan, placement: Placement, machine: Cpu, options: Options) -> ModuleOp:
    """The optimised tile program of a plan: the only thing code generation sees."""
    launches = numbers_as_arguments(steps(plan))
    module, _ = build_module(
        launches, sizes(plan), placement.places, placement.sections, described(machine).attribute(),
        program_resources(machine),
    )  # fmt: skip
    carry(module, plan.intrinsics, catalogue(machine.architecture))
    run_passes(module, [each for each in CPU if each.name not in options.disable], options.verify_each)
    return module


def generate(plan: Plan, placement: Placement, machine: Cpu, options: Options) -> Generated:
    """The object of a plan; LLVM runs while the text of the program and the constants are made."""
    program = tile_program(plan, placement, machine, options)
    with pipeline.generating(program, default_threads()) as finish:
        text, constants = print_module(program), placement.packed(plan)
        made = finish()
    planned = zip(planned_launches(plan), made.launches, strict=True)
    launches = tuple(replace(each, kernel=launch.kernel, programs=launch.programs) for each, launch in planned)
    return Generated(made.code, constants, text, "", replace(made, launches=launches))


def form(program: ModuleOp, name: str, options: Options, where: str = "") -> str | bytes:
    """A later form of a tile program for a CPU: "llvm", "asm" or "object"."""
    if name == "llvm":
        return pipeline.llvm_text(program, target_of(program))[0]
    if name == "asm":
        return pipeline.assembly(program)
    if name != "object":
        raise InvalidArgument(f"a program for a CPU has no {name}", where=where, help="tile, llvm, asm or object")
    return pipeline.generate(program).code
