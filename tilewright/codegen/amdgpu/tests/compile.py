"""Compiles kernels in distributed form for AMD GPUs; what LLVM makes of them is all that there is to look at."""

from __future__ import annotations

import re
from collections import Counter

from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.amdgpu.pipeline import AmdCode, generate
from tilewright.codegen.amdgpu.target import target_for
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine import targets
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve

LANES = {name: targets.lanes(name) for name in ("gfx1100", "gfx1201", "gfx942")}


def targeted(program: ModuleOp | str, machine: str) -> ModuleOp:
    """A copy of a module for a machine."""
    found = resolve(machine)
    assert isinstance(found, Gpu), "tests name GPUs"
    copy = parse_module(program if isinstance(program, str) else print_module(program))
    copy.attributes[ATTRIBUTE] = target_for(found).attribute()
    return copy


def compiled(program: ModuleOp | str, machine: str = "gfx1100") -> AmdCode:
    """Code for a machine, which LLVM's verifier and back end have accepted."""
    return generate(targeted(program, machine))


def kernel(body: str, views: str, machine: str = "gfx1100", threads: str = "", grid: str = "1") -> str:
    """A module with one kernel @k; a block is one wave unless told."""
    lanes = targets.lanes(machine)
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"""builtin.module {{
  tile.func @k({views}) grid [{grid}] threads [{threads or f"{lanes}, 1, 1"}] warp {lanes} {{
{lines}
    tile.return
  }}
}}"""


def instructions(code: AmdCode) -> list[str]:
    """The mnemonics of a kernel, in order."""
    found = [line.split() for line in code.assembly.splitlines() if re.match(r"\t[a-z]+_[a-z]", line)]
    return [words[0] for words in found]


def count(code: AmdCode) -> Counter[str]:
    return Counter(instructions(code))
