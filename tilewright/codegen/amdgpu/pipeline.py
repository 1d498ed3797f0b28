"""Tile program in distributed form to assembly and code object: emission, LLVM's -O3, its back end.

The module's text is the only input. What comes out is checked by LLVM and has not been run on a device.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.amdgpu.emit import emit_kernel
from tilewright.codegen.amdgpu.link import linked
from tilewright.codegen.amdgpu.resources import Resources, resources_of
from tilewright.codegen.amdgpu.target import Target, target_of
from tilewright.codegen.gpu.launches import host_program
from tilewright.codegen.host_program import HostProgram
from tilewright.codegen.optimise import optimise, rotate_loops, target_machine
from tilewright.dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class AmdCode(HostProgram):
    """Code of a module and its host program.

    `object` is a code object where `executable`, else a relocatable one that a linker makes one of. `resources` are by
    the names of kernels in the tile program.
    """

    assembly: str
    object: bytes
    executable: bool
    target: Target
    resources: dict[str, Resources]

    def explain(self) -> str:
        """What was made, for which processor, and what every kernel takes, in words."""
        kind = "a code object" if self.executable else "a relocatable object (no ld.lld was found to link it)"
        lines = [
            f"{kind} for {self.target.cpu}, {len(self.object)} bytes; "
            "checked by LLVM's verifier and assembler only: Tilewright does not run code on AMD GPUs"
        ]
        for kernel in self.kernels:
            found = self.resources[kernel.name]
            registers = f"{found.vector_registers} vector and {found.scalar_registers} scalar registers"
            if found.accumulation_registers:
                registers += f", {found.accumulation_registers} of them for accumulation"
            spills = found.vector_spills + found.scalar_spills
            lines.append(
                f"kernel {kernel.name}: waves of {found.lanes}, {registers}, "
                f"{spills or 'none'} spilled, {found.shared_bytes} bytes of shared memory"
            )
        return "\n".join(lines)


def generate(program: ModuleOp) -> AmdCode:
    """Compile a verified tile program in distributed form. Same text, same bytes (of one linker)."""
    target = target_of(program)
    machine = _machine(target)
    module, host = _emitted(program, target, machine)
    parsed = llvm.parse_assembly(str(module), context=llvm.create_context())
    parsed.verify()
    rotate_loops(parsed, machine)
    optimise(parsed, machine)
    bitcode = parsed.as_bitcode()  # the back end changes what it works on
    assembly = str(machine.emit_assembly(parsed))
    relocatable = bytes(machine.emit_object(llvm.parse_bitcode(bitcode, context=llvm.create_context())))
    code = linked(relocatable)
    resources = resources_of(assembly)
    return AmdCode(
        assembly=assembly,
        object=relocatable if code is None else code,
        executable=code is not None,
        target=target,
        resources={kernel.name: resources[kernel.entry] for kernel in host.kernels},
        **host.parts(),
    )


def llvm_text(program: ModuleOp) -> str:
    """LLVM IR of a module before optimisation."""
    target = target_of(program)
    return str(_emitted(program, target, _machine(target))[0])


def _emitted(program: ModuleOp, target: Target, machine: Any) -> tuple[ir.Module, HostProgram]:
    module = ir.Module("tilewright")
    module.triple = target.triple
    module.data_layout = str(machine.target_data)  # before parsing: it says where memory of a thread lies
    emit = partial(emit_kernel, module, target)
    return module, host_program(program, target.lanes, emit)


def _machine(target: Target) -> Any:
    return target_machine(target.triple, cpu=target.cpu, features=target.feature_string(), opt=3, reloc="pic")
