"""Tile program to object code for one CPU: emission, LLVM's passes, assembly. The program's text is the only input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from tilewright.codegen import unlocked
from tilewright.codegen.cpu.host import emit_host, emit_kernel
from tilewright.codegen.cpu.merge import merged
from tilewright.codegen.cpu.target import Target, target_of
from tilewright.codegen.host_program import HostProgram, Launch
from tilewright.codegen.optimise import simplify, target_machine
from tilewright.codegen.workers import Workers
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.records import RECORDS

#: LLVM IR instructions after which a module is full: LLVM takes about 0.1 s for it, of which starting is below 1 ms.
INSTRUCTIONS: Final = 4000


@dataclass(frozen=True, kw_only=True)
class ObjectCode(HostProgram):
    """Machine code of a module and its host program."""

    code: bytes
    target: Target


def generate(program: ModuleOp, threads: int = 1) -> ObjectCode:
    """Compile a verified tile program. Same text, same bytes, whatever the number of threads."""
    with generating(program, threads) as finish:
        return finish()


@contextmanager
def generating(program: ModuleOp, threads: int) -> Iterator[Callable[[], ObjectCode]]:
    """Compile a verified tile program on up to `threads` threads, of which the caller is one.

    The caller emits LLVM IR, a few modules of about equal size; other threads run LLVM on each as soon as it is there,
    also in the body of the `with` statement. The function that the statement gives waits for the rest. None of the
    threads is left behind the statement.
    """
    target = target_of(program)
    _machine(target)  # raises here what it raises
    most = INSTRUCTIONS if llvm.get_object_format(target.triple) == "ELF" else None
    with Workers(partial(_compiled, target), threads) as workers:
        launches, scratch_bytes = _emit(program, target, most, workers.give)
        main = next(op for op in program.body.block.ops if isinstance(op, tile.MainOp))
        yield lambda: ObjectCode(
            code=_checked(merged(workers.results()), program),
            target=target,
            launches=tuple(launches),
            scratch_bytes=scratch_bytes,
            arena_bytes=_number(main.arena_bytes),
            zeroed_bytes=_number(main.zeroed_bytes),
            constants_bytes=_number(main.constants_bytes),
        )


def llvm_text(program: ModuleOp, target: Target) -> tuple[str, list[Launch], int]:
    """LLVM IR of a program in one module, before optimisation; its launches, and its scratch bytes per thread."""
    texts: list[str] = []
    launches, scratch_bytes = _emit(program, target, None, texts.append)
    return texts[0], launches, scratch_bytes


def _emit(
    program: ModuleOp, target: Target, most: int | None, emitted: Callable[[str], None]
) -> tuple[list[Launch], int]:
    """Emit a program and hand each module to `emitted`: kernels up to `most` instructions each, and the one after.

    The launches, and the scratch bytes per thread.
    """
    module, instructions = _module(target), 0
    kernels, scratch_bytes = {}, 0
    for func in program.body.block.ops:
        if not isinstance(func, tile.FuncOp):
            continue
        if func.block:
            fact = f"kernel @{func.sym_name.data} is written for the threads of a block"
            raise InvalidProgram(fact, help="a CPU runs kernels in tile form")
        if most is not None and instructions >= most:
            emitted(str(module))
            module, instructions = _module(target), 0
        function, needed = emit_kernel(module, target, func)
        instructions = _instructions(module)
        kernels[func.sym_name.data] = (function, func)
        scratch_bytes = max(scratch_bytes, needed)
    scratch_bytes = -(-scratch_bytes // 64) * 64
    launches = emit_host(module, target, program, kernels, scratch_bytes)
    emitted(str(module))
    return launches, scratch_bytes


def _checked(code: bytes, program: ModuleOp) -> bytes:
    """The object; InvalidProgram where a record that the program carries names a function that LLVM does not have.

    LLVM leaves a call to such a function, whose name is then in the table of symbols.
    """
    found = re.search(rb"\0(llvm\.[\w.]+)\0", code) if RECORDS in program.attributes else None
    if found is not None:
        raise InvalidProgram(f"LLVM has no function {found[1].decode()}", help="a record names it in `llvm`")
    return code


def _module(target: Target) -> ir.Module:
    module = ir.Module("tilewright")
    module.triple = target.triple
    return module


def _instructions(module: ir.Module) -> int:
    return sum(len(block.instructions) for function in module.functions for block in function.blocks)


def _compiled(target: Target, text: str) -> bytes:
    """The object code of one module."""
    module = llvm.parse_assembly(text, context=llvm.create_context())
    machine = _machine(target)
    simplify(module, machine)
    return unlocked.emit_object(machine, module)


def assembly(program: ModuleOp) -> str:
    """The machine code as text."""
    target = target_of(program)
    module = llvm.parse_assembly(llvm_text(program, target)[0], context=llvm.create_context())
    machine = _machine(target)
    simplify(module, machine)
    return str(machine.emit_assembly(module))


def _machine(target: Target) -> Any:
    features = target.feature_string()
    return target_machine(target.triple, cpu=target.cpu, features=features, opt=3, reloc="pic", codemodel="small")


def _number(attribute: IntegerAttr[Any]) -> int:
    return int(attribute.value.data)
