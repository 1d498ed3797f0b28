"""Graphs for GPUs: planned like those for a CPU, every kernel a product or a nest on the tiles of blocks, down to code.

Modules for NVIDIA GPUs are PTX, which the emulator runs on the CPU; programs for AMD GPUs become assembly and objects,
which nothing here runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr

from tilewright.codegen.amdgpu import pipeline as amd
from tilewright.codegen.amdgpu import target as amd_target
from tilewright.codegen.gpu.target import GpuTarget, described
from tilewright.codegen.nvptx.pipeline import PtxCode, generate, llvm_text
from tilewright.codegen.nvptx.simt import LANES
from tilewright.codegen.nvptx.target import TRIPLE
from tilewright.compiler.plan import Plan, make_plan
from tilewright.compiler.program import Placement, steps
from tilewright.errors import InvalidArgument, InvalidMachine, InvalidProgram
from tilewright.expr import dtypes
from tilewright.expr.core import static_shape
from tilewright.expr.graph import Graph
from tilewright.graph.passes import table
from tilewright.kernel import dialect as tile
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import print_module
from tilewright.lower.module import build_module
from tilewright.machine.description import Gpu, Machine
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.runtime import emulated, manifest
from tilewright.runtime.emulated import Kernel

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GpuModule:
    """A graph compiled for a GPU: `code.ptx` is the code, `program` the tile program in distributed form."""

    plan: Plan
    program: str
    code: PtxCode
    constants: Array

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """The outputs, computed by the emulator.

        Raises InvalidArgument for arrays of other types and shapes, InvalidProgram where the emulator finds something.
        """
        inputs = self.plan.graph.inputs
        if len(arrays) != len(inputs):
            raise InvalidArgument(f"{len(arrays)} arrays", help=f"{len(inputs)}, one per input")
        for tensor, array in zip(inputs, arrays, strict=True):
            wanted = dtypes.numpy_dtype(tensor.dtype)
            if array.shape != static_shape(tensor.shape) or array.dtype != wanted:
                fact = f"{array.dtype} of shape {array.shape} for {tensor.name}"
                raise InvalidArgument(fact, help=f"{wanted} of shape {static_shape(tensor.shape)}")
        outputs = [
            np.zeros(static_shape(tensor.shape), dtypes.numpy_dtype(tensor.dtype)) for tensor in self.plan.graph.outputs
        ]
        given = [np.ascontiguousarray(array) for array in arrays]
        run = emulated.run_module(self.code, given, outputs, self.constants)
        if run.findings:
            raise InvalidProgram("\n".join(map(str, run.findings[:8])), help="a bug of tilewright: please report it")
        return tuple(outputs)

    def explain(self) -> str:
        """Every decision, in words."""
        return "\n".join(decision.explain() for decision in self.plan.decisions)


def compile_for_gpu(graph: Graph, machine: str | os.PathLike[str], options: Options | None = None) -> GpuModule:
    """Compile a graph for an NVIDIA GPU, by name or machine file; raises InvalidMachine for any other machine."""
    options = options or Options()
    target = gpu_target(resolve(str(machine)))
    check_runs(target)
    plan = make_plan(graph, target, 1, options.disable, options.intrinsics, tf32=options.tf32)
    memory = Placement(plan)
    program = gpu_program(plan, memory, target)
    distribute(program, options)
    return GpuModule(plan, print_module(program), generate(program), memory.packed(plan))


def gpu_target(machine: Machine) -> Gpu:
    """The machine, if code is generated for it; raises InvalidMachine for any other."""
    known = (TRIPLE, amd_target.TRIPLE)
    if not isinstance(machine, Gpu) or machine.llvm.triple not in known:
        kind = machine.llvm.triple if isinstance(machine, Gpu) else machine.kind
        fact = f"{machine.name} is a machine of kind {kind}"
        raise InvalidMachine(fact, where=machine.name, help=f"one for {' or '.join(known)}")
    return machine


def check_runs(machine: Gpu) -> None:
    """Raise InvalidMachine where modules for a machine can be made, but not run or stored."""
    if machine.llvm.triple != TRIPLE:
        fact = f"modules for {machine.name} cannot be run: code for {machine.llvm.triple} is made and not run"
        raise InvalidMachine(fact, where=machine.name, help="`tilewright compile MODEL --emit asm` or `--emit object`")


def gpu_program(plan: Plan, placement: Placement, machine: Gpu) -> ModuleOp:
    """The tile program of a plan, whole tiles."""
    attribute = GpuTarget(*described(machine)).attribute()
    places, arena, constants = placement.places, placement.arena_bytes, placement.constants_bytes
    return build_module(steps(plan), places, arena, constants, attribute)[0]


def distribute(program: ModuleOp, options: Options) -> None:
    """Take a tile program to distributed form, in place."""
    disabled = tuple(name for name in options.disable if name not in table.NAMES)
    lanes = amd_target.target_of(program).lanes if _triple(program) == amd_target.TRIPLE else LANES
    run_pipeline(program, "gpu", disabled, options.verify_each, lanes)


def is_for_gpu(program: ModuleOp) -> bool:
    """Whether a tile program says that it is for a GPU."""
    return _triple(program) in (TRIPLE, amd_target.TRIPLE)


def _triple(program: ModuleOp) -> str:
    found = program.attributes.get("tile.target")
    triple = found.data.get("triple") if isinstance(found, DictionaryAttr) else None
    return triple.data if isinstance(triple, StringAttr) else ""


def form(program: ModuleOp, name: str, options: Options, where: str = "") -> str | bytes:
    """A later form of a tile program for a GPU: "distributed", "llvm", and "ptx" or "asm" and "object".

    The program is changed. Raises InvalidArgument for a form that it has not.
    """
    for_amd = _triple(program) == amd_target.TRIPLE
    last = ("asm", "object") if for_amd else ("ptx",)
    forms = ("distributed", "llvm", *last)
    if name not in forms:
        raise InvalidArgument(f"a program for this GPU has no {name}", where=where, help=f"tile, {', '.join(forms)}")
    if not is_distributed(program):
        distribute(program, options)
    if name == "distributed":
        return print_module(program)
    if not for_amd:
        return llvm_text(program) if name == "llvm" else generate(program).ptx
    if name == "llvm":
        return amd.llvm_text(program)
    code = amd.generate(program)
    return code.object if name == "object" else code.assembly


def is_distributed(program: ModuleOp) -> bool:
    """Whether every kernel is in distributed form."""
    return all(bool(op.block) for op in program.body.block.ops if isinstance(op, tile.FuncOp))


def kernels(code: PtxCode) -> tuple[manifest.Kernel, ...]:
    """The kernels of generated code, as the runtime's manifest has them."""
    return tuple(
        manifest.Kernel(each.name, each.entry, each.grid, each.block, each.shared_bytes, _tensor_maps(each))
        for each in code.kernels
    )


def launches(code: PtxCode) -> tuple[manifest.Launch, ...]:
    """The launches of generated code, likewise."""
    found = []
    for launch in code.launches:
        programs = prod(code.kernel(launch.kernel).grid)
        operands = tuple(manifest.Operand(each.space, each.index, each.bytes) for each in launch.arguments)
        found.append(manifest.Launch(launch.kernel, launch.kernel, programs, launch.flops, launch.bytes, operands))
    return tuple(found)


def _tensor_maps(kernel: Kernel) -> tuple[manifest.TensorMap, ...]:
    return tuple(
        manifest.TensorMap(each.argument, each.element, each.extents, each.strides, each.box, each.swizzle)
        for each in kernel.tensor_maps
    )
