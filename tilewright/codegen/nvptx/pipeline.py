"""Tile program in distributed form to PTX: emission, LLVM's -O3, assembly. The module's text is the only input."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.gpu.launches import host_program
from tilewright.codegen.host_program import HostProgram
from tilewright.codegen.nvptx.emission import Needs
from tilewright.codegen.nvptx.emit import emit_kernel
from tilewright.codegen.nvptx.simt import LANES
from tilewright.codegen.nvptx.target import Target, target_of
from tilewright.codegen.nvptx.tensor_copies import maps_of
from tilewright.codegen.optimise import optimise, target_machine
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram


@dataclass(frozen=True, kw_only=True)
class PtxCode(HostProgram):
    """PTX of a module and its host program."""

    ptx: str
    target: Target


def generate(program: ModuleOp) -> PtxCode:
    """Compile a verified tile program in distributed form. Same text, same bytes."""
    target = target_of(program)
    module, host, needs = _emitted(program, target)
    machine = _machine(target, needs)
    module.data_layout = str(machine.target_data)
    parsed = llvm.parse_assembly(str(module), context=llvm.create_context())
    optimise(parsed, machine)
    text = str(machine.emit_assembly(parsed))
    _check_functions(text)
    return PtxCode(ptx=text, target=target, **host.parts())


def _check_functions(ptx: str) -> None:
    """InvalidProgram where LLVM left a call to one of its own functions: a record named one that it does not have."""
    at = ptx.find(".extern .func")
    while at >= 0:
        name = ptx[at : ptx.index("\n(", at)].split()[-1]
        if name.startswith("llvm."):
            raise InvalidProgram(f"LLVM has no function {name}", help="a record names it in `llvm`")
        at = ptx.find(".extern .func", at + 1)


def llvm_text(program: ModuleOp) -> str:
    """LLVM IR of a module before optimisation."""
    return str(_emitted(program, target_of(program))[0])


def _emitted(program: ModuleOp, target: Target) -> tuple[ir.Module, HostProgram, Needs]:
    module, needs = ir.Module("tilewright"), Needs()
    module.triple = target.triple
    host = host_program(program, LANES, lambda func, given: emit_kernel(module, target, func, given, needs), maps_of)
    return module, host, needs


def _machine(target: Target, needs: Needs) -> Any:
    _set_options()
    return target_machine(target.triple, cpu=target.cpu, features=target.feature_string(needs.ptx), opt=3)


@cache
def _set_options() -> None:
    # Options of LLVM's whole process, which concern this target only: addresses of shared and local memory take one
    # register; accesses are as wide as the tile program says, as LLVM would read 16 bytes for the last 12 of a buffer.
    llvm.set_option("", "--nvptx-short-ptr")
    llvm.set_option("", "--disable-nvptx-load-store-vectorizer")
