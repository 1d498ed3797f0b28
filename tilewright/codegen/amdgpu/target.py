"""What code generation knows about an AMD GPU: read from the `tile.target` attribute of a module, nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.gpu.target import GpuTarget, described, named
from tilewright.errors import InvalidProgram
from tilewright.kernel.facts import ATTRIBUTE
from tilewright.machine.description import Gpu

TRIPLE = "amdgcn-amd-amdhsa"
_KNOWN = "gfx942, gfx950, or one of gfx10, gfx11 and gfx12"


@dataclass(frozen=True)
class Target(GpuTarget):
    """The processor ("gfx1100") and its features as LLVM names them."""

    triple: str = TRIPLE

    @property
    def generation(self) -> int:
        """9 for CDNA 3 (gfx942) and 4 (gfx950), 10 to 12 for RDNA."""
        found = re.fullmatch(r"gfx(9|1[0-2])[0-9a-f]{2}", self.cpu)
        if found is None or (found[1] == "9" and self.cpu not in ("gfx942", "gfx950")):
            raise InvalidProgram(f"{self.cpu!r} is no AMD processor with code", help=_KNOWN)
        return int(found[1])

    @property
    def lanes(self) -> int:
        """Threads of a wave: 64 of CDNA, 32 of RDNA."""
        return 64 if self.generation == 9 else 32

    def feature_string(self) -> str:
        """The features for LLVM."""
        return ",".join(f"+{name}" for name in self.features)


def target_for(machine: Gpu) -> Target:
    """The target that a machine's description names."""
    return Target(*described(machine))


def target_of(module: ModuleOp) -> Target:
    """The target that a module's attribute names; raises InvalidProgram where it is missing or malformed."""
    target = Target(*named(module))
    if not target.triple.startswith("amdgcn") or not target.generation:
        raise InvalidProgram(f"no code for {target.cpu} of {target.triple}", help=_KNOWN)
    return target


__all__ = ["ATTRIBUTE", "TRIPLE", "Target", "target_for", "target_of"]
