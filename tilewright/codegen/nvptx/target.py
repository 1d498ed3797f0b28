"""What code generation knows about an NVIDIA GPU: read from the `tile.target` attribute of a module, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir
from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.gpu.target import GpuTarget, described, named
from tilewright.codegen.math.value import Value
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.target import require_fit
from tilewright.machine import targets
from tilewright.machine.description import Gpu

TRIPLE = targets.NVIDIA


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
        return targets.capability(self.cpu)

    @property
    def ptx(self) -> int:
        """The PTX version times ten that the features ask for; 0 for the oldest that knows the processor."""
        return max((int(name[3:]) for name in self.features), default=0)

    def feature_string(self, ptx: int = 0) -> str:
        """The features for LLVM: a PTX version of at least `ptx` that knows the processor."""
        return f"+ptx{max(self.ptx, ptx, targets.PTX_SINCE[self.cpu])}"


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
    require_fit(target.triple, target.cpu, target.signed_features)
    missing = targets.without_code(target.triple, target.cpu)
    if target.triple != TRIPLE or missing:
        fact = f"no code for {target.cpu} of {target.triple}"
        raise InvalidProgram(fact, help=f"sm_{targets.LEAST} or newer of {TRIPLE}")
    return target


__all__ = ["TRIPLE", "Target", "target_for", "target_of"]
