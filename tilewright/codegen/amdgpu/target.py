"""What code generation knows about an AMD GPU: read from the `tile.target` attribute of a module, nothing else."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.gpu.target import GpuTarget, described, named
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.target import require_fit
from tilewright.machine import targets
from tilewright.machine.description import Gpu

TRIPLE = targets.AMD


@dataclass(frozen=True)
class Target(GpuTarget):
    """The processor ("gfx1100") and its features as LLVM names them."""

    triple: str = TRIPLE

    @property
    def generation(self) -> int:
        """9 for CDNA (gfx908, gfx90a, gfx942, gfx950), 10 to 12 for RDNA."""
        return int(self.cpu.removeprefix("gfx")[:-2])

    @property
    def lanes(self) -> int:
        """Threads of a wave: 64 of CDNA, 32 of RDNA."""
        return targets.lanes(self.cpu)

    def feature_string(self) -> str:
        """The features for LLVM."""
        return ",".join(self.signed_features)


def target_for(machine: Gpu) -> Target:
    """The target that a machine's description names."""
    return Target(*described(machine))


def target_of(module: ModuleOp) -> Target:
    """The target that a module's attribute names; raises InvalidProgram where it is missing or malformed."""
    target = Target(*named(module))
    require_fit(target.triple, target.cpu, target.signed_features)
    if target.triple != TRIPLE:
        raise InvalidProgram(f"no code for {target.cpu} of {target.triple}", help=f"a processor of {TRIPLE}")
    return target


__all__ = ["TRIPLE", "Target", "target_for", "target_of"]
