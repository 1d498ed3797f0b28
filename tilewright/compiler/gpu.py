"""Code for GPUs, as `target.Codegen` asks for it: plans to tile programs, and these to distributed form and code.

Modules for NVIDIA GPUs are PTX, which the emulator runs on the CPU; programs for AMD GPUs become assembly and objects,
which nothing here runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.amdgpu import pipeline as amd
from tilewright.codegen.amdgpu import target as amd_target
from tilewright.codegen.gpu.target import GpuTarget, described
from tilewright.codegen.host_program import OF_PARTS, Launch
from tilewright.codegen.nvptx import pipeline as nvidia
from tilewright.codegen.nvptx.simt import LANES
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement, sizes, steps
from tilewright.compiler.target import Generated
from tilewright.errors import InvalidArgument, InvalidMachine
from tilewright.graph.passes import table
from tilewright.kernel import dialect as tile
from tilewright.kernel.passes.gpu.split_k import PARTS
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.records import carry
from tilewright.kernel.target import triple_of
from tilewright.kernel.text import print_module
from tilewright.lower.module import build_module
from tilewright.lower.steps import Repeated, Step
from tilewright.machine import targets
from tilewright.machine.description import Gpu
from tilewright.options import Options
from tilewright.tiles.machines import program_resources


def _check_runs(machine: Gpu) -> None:
    """Raise InvalidMachine where modules for a machine can be made, but not run or stored."""
    if machine.llvm.triple != targets.NVIDIA:
        fact = f"modules for {machine.name} cannot be run: code for {machine.llvm.triple} is made and not run"
        raise InvalidMachine(fact, where=machine.name, help="`tilewright compile MODEL --emit asm` or `--emit object`")


def tile_program(plan: Plan, placement: Placement, machine: Gpu, options: Options | None = None) -> ModuleOp:
    """The tile program of a plan, whole tiles; `options` have no say before it is distributed."""
    return _tile_program(plan, placement, machine)[0]


def _tile_program(plan: Plan, placement: Placement, machine: Gpu) -> tuple[ModuleOp, dict[str, list[str]]]:
    """The tile program, and the names in the plan of every kernel of it, in the order of its launches."""
    attribute, planned = GpuTarget(*described(machine)).attribute(), steps(plan)
    module, launched = build_module(
        planned, sizes(plan), placement.places, placement.sections, attribute,
        program_resources(machine, plan.intrinsics),
    )  # fmt: skip
    carry(module, plan.intrinsics)
    names: dict[str, list[str]] = {}
    for step, kernel in zip(_each(planned), launched, strict=True):
        names.setdefault(kernel, []).append(step.name)
    return module, names


def _each(planned: Sequence[Step | Repeated]) -> Iterator[Step]:
    """The launches of a plan, those in loops once."""
    for step in planned:
        if isinstance(step, Repeated):
            yield from _each(step.steps)
        else:
            yield step


def distribute(program: ModuleOp, options: Options) -> None:
    """Take a tile program to distributed form, in place."""
    disabled = tuple(name for name in options.disable if name not in table.NAMES)
    lanes = amd_target.target_of(program).lanes if triple_of(program) == targets.AMD else LANES
    run_pipeline(program, "gpu", disabled, options.verify_each, lanes)


def generate(plan: Plan, placement: Placement, machine: Gpu, options: Options) -> Generated:
    """The PTX of a plan; the form of whole tiles is kept beside the program that the code was made from."""
    _check_runs(machine)
    program, names = _tile_program(plan, placement, machine)
    tiles = print_module(program)
    distribute(program, options)
    made = nvidia.generate(program)
    made = replace(made, launches=_with_predictions(plan, _named(made.launches, names)))
    return Generated(made.ptx.encode(), placement.packed(plan), print_module(program), tiles, made)


def _named(launches: Sequence[Launch], names: Mapping[str, Sequence[str]]) -> tuple[Launch, ...]:
    """The launches by the names of kernels in the plan, of which several may be one in the program.

    In a loop a kernel is launched more often than it is planned: then it has the first of its names.
    """
    counts, done, found = Counter(launch.kernel for launch in launches), Counter[str](), []
    for launch in launches:
        kernel = launch.kernel if launch.kernel in names else launch.kernel.removesuffix(PARTS)
        known = names.get(kernel, (kernel,))
        own = known[done[launch.kernel]] if counts[launch.kernel] == len(known) else known[0]
        done[launch.kernel] += 1
        found.append(replace(launch, name=own if kernel == launch.kernel else f"{own}{OF_PARTS}"))
    return tuple(found)


def _with_predictions(plan: Plan, launches: Sequence[Launch]) -> tuple[Launch, ...]:
    """The launches with the instruction and the predicted cycles of their kernels.

    Of a sum in parts the first kernel, which multiplies, has the instruction, and the cycles of both.
    """
    names = {each.name for each in launches}
    known = {each.name: (round(each.cycles), each.instruction) for each in plan.kernels}
    parts = {f"{name}{OF_PARTS}": name for name in known if f"{name}{OF_PARTS}" in names}
    known |= {first: known[name] for first, name in parts.items()} | dict.fromkeys(parts.values(), (0, ""))
    found = ((each, *known.get(each.name, (0, ""))) for each in launches)
    return tuple(replace(launch, cycles=cycles, instruction=instruction) for launch, cycles, instruction in found)


def form(program: ModuleOp, name: str, options: Options, where: str = "") -> str | bytes:
    """A later form of a tile program for a GPU: "distributed", "llvm", and "ptx" or "asm" and "object".

    The program is changed. Raises InvalidArgument for a form that it has not.
    """
    for_amd = triple_of(program) == targets.AMD
    last = ("asm", "object") if for_amd else ("ptx",)
    forms = ("distributed", "llvm", *last)
    if name not in forms:
        raise InvalidArgument(f"a program for this GPU has no {name}", where=where, help=f"tile, {', '.join(forms)}")
    if not is_distributed(program):
        distribute(program, options)
    if name == "distributed":
        return print_module(program)
    if not for_amd:
        return nvidia.llvm_text(program) if name == "llvm" else nvidia.generate(program).ptx
    if name == "llvm":
        return amd.llvm_text(program)
    code = amd.generate(program)
    return code.object if name == "object" else code.assembly


def is_distributed(program: ModuleOp) -> bool:
    """Whether every kernel is in distributed form."""
    return all(bool(op.block) for op in program.body.block.ops if isinstance(op, tile.FuncOp))
