"""Tile program to object code for one CPU: emission, LLVM's passes, assembly. The module's text is the only input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from tilewright.codegen.cpu.host import Launch, emit_host, emit_kernel
from tilewright.codegen.cpu.target import Target, target_of
from tilewright.codegen.optimise import simplify, target_machine
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile


@dataclass(frozen=True)
class ObjectCode:
    """Machine code of a module with what its caller must provide."""

    code: bytes
    target: Target
    launches: tuple[Launch, ...]
    scratch_bytes: int
    arena_bytes: int
    constants_bytes: int


def generate(program: ModuleOp) -> ObjectCode:
    """Compile a verified tile program. Same text, same bytes."""
    target = target_of(program)
    text, launches, scratch_bytes = llvm_text(program, target)
    main = next(op for op in program.body.block.ops if isinstance(op, tile.MainOp))
    module = llvm.parse_assembly(text, context=llvm.create_context())
    machine = _machine(target)
    simplify(module, machine)
    return ObjectCode(
        machine.emit_object(module),
        target,
        tuple(launches),
        scratch_bytes,
        _number(main.arena_bytes),
        _number(main.constants_bytes),
    )


def llvm_text(program: ModuleOp, target: Target) -> tuple[str, list[Launch], int]:
    """LLVM IR of a module before optimisation, its launches, and its scratch bytes per thread."""
    module = ir.Module("tilewright")
    module.triple = target.triple
    kernels, scratch_bytes = {}, 0
    for func in program.body.block.ops:
        if isinstance(func, tile.FuncOp):
            if func.block:
                fact = f"kernel @{func.sym_name.data} is written for the threads of a block"
                raise InvalidProgram(fact, help="a CPU runs kernels in tile form")
            function, needed = emit_kernel(module, target, func)
            kernels[func.sym_name.data] = (function, func)
            scratch_bytes = max(scratch_bytes, needed)
    scratch_bytes = -(-scratch_bytes // 64) * 64
    launches = emit_host(module, target, program, kernels, scratch_bytes)
    return str(module), launches, scratch_bytes


def assembly(program: ModuleOp) -> str:
    """The machine code as text."""
    target = target_of(program)
    module = llvm.parse_assembly(llvm_text(program, target)[0], context=llvm.create_context())
    machine = _machine(target)
    simplify(module, machine)
    return str(machine.emit_assembly(module))


def _machine(target: Target) -> Any:
    _initialise()
    features = target.feature_string()
    return target_machine(target.triple, cpu=target.cpu, features=features, opt=3, reloc="pic", codemodel="small")


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _number(attribute: IntegerAttr[Any]) -> int:
    return int(attribute.value.data)
