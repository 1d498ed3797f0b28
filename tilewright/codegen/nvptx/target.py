"""What code generation knows about an NVIDIA GPU: read from the `tile.target` attribute of a module, nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from llvmlite import ir
from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.gpu.target import GpuTarget, described, named
from tilewright.codegen.math.value import Value
from tilewright.errors import InvalidProgram
from tilewright.kernel.facts import ATTRIBUTE
from tilewright.machine.description import Gpu

TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True)
class Target(GpuTarget):
    """The processor ("sm_90a") and the features ("ptx80") as LLVM names them; what passes know of the machine."""

    triple: str = TRIPLE

    @property
    def power_of_two(self) -> Callable[[Value], Value]:
        return partial(_instruction, "llvm.nvvm.ex2.approx.ftz.f")

    @property
    def reciprocal(self) -> Callable[[Value], Value]:
        return partial(_instruction, "llvm.nvvm.rcp.approx.ftz.f")

    @property
    def capability(self) -> int:
        """The compute capability times ten: 90 for sm_90a."""
        found = re.fullmatch(r"sm_(\d+)[af]?", self.cpu)
        if found is None:
            raise InvalidProgram(f"{self.cpu!r} is no NVIDIA processor", help="such as sm_80 or sm_90a")
        return int(found[1])

    @property
    def ptx(self) -> int:
        """The PTX version times ten that the features ask for; 0 for the oldest that knows the processor."""
        versions = [int(name[3:]) for name in self.features if re.fullmatch(r"ptx\d+", name)]
        return max(versions, default=0)

    def feature_string(self, ptx: int = 0) -> str:
        """The features for LLVM, with a PTX version of at least `ptx`."""
        version = max(self.ptx, ptx)
        others = [f"+{name}" for name in self.features if not name.startswith("ptx")]
        return ",".join([*([f"+ptx{version}"] if version else []), *others])


def _instruction(name: str, value: Value) -> Value:
    """``ex2.approx.ftz``: 2 ulp; ``rcp.approx.ftz``: 1 ulp. PTX ISA 8.0, "Floating Point Instructions"."""
    scalar = value.float_scalar
    function = value.builder.module.declare_intrinsic(name, (), ir.FunctionType(scalar, [scalar]))
    return value.with_value(value.builder.call(function, [value.value]))


def target_for(machine: Gpu) -> Target:
    """The target that a machine's description names."""
    return Target(*described(machine))


def target_of(module: ModuleOp) -> Target:
    """The target that a module's attribute names; raises InvalidProgram where it is missing or malformed."""
    target = Target(*named(module))
    if not target.triple.startswith("nvptx64") or target.capability < 75:
        raise InvalidProgram(f"no code for {target.cpu} of {target.triple}", help="sm_75 or newer of nvptx64")
    return target


__all__ = ["ATTRIBUTE", "TRIPLE", "Target", "target_for", "target_of"]
