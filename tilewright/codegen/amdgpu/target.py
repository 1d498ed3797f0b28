"""What code generation knows about an AMD GPU: read from the `tile.target` attribute of a module, nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr

from tilewright.errors import InvalidProgram
from tilewright.machine.description import Gpu

ATTRIBUTE = "tile.target"
TRIPLE = "amdgcn-amd-amdhsa"
_KNOWN = "gfx942, gfx950, or one of gfx10, gfx11 and gfx12"


@dataclass(frozen=True)
class Target:
    """The processor ("gfx1100") and its features as LLVM names them."""

    cpu: str
    features: tuple[str, ...] = ()
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

    @property
    def shared_bytes(self) -> int:
        """The local data share of a work-group. LLVM, AMDGPUUsage, "Processors"; CDNA 4 ISA guide, LDS."""
        return 163_840 if self.cpu == "gfx950" else 65_536

    # What shared element arithmetic asks (codegen.arithmetic).

    @property
    def fma(self) -> bool:
        return True

    @property
    def converts_halves(self) -> bool:
        return True

    @property
    def exponents(self) -> None:
        return None

    def feature_string(self) -> str:
        """The features for LLVM."""
        return ",".join(f"+{name}" for name in self.features)

    def attribute(self) -> DictionaryAttr:
        return DictionaryAttr(
            {
                "triple": StringAttr(self.triple),
                "cpu": StringAttr(self.cpu),
                "features": StringAttr(" ".join(self.features)),
            }
        )


def target_for(machine: Gpu) -> Target:
    """The target that a machine's description names."""
    names = machine.llvm.features.replace(",", " ").split()
    return Target(machine.llvm.cpu, tuple(name.lstrip("+") for name in names), machine.llvm.triple)


def target_of(module: ModuleOp) -> Target:
    """The target that a module's attribute names; raises InvalidProgram where it is missing or malformed."""
    found = module.attributes.get(ATTRIBUTE)
    if not isinstance(found, DictionaryAttr):
        raise InvalidProgram(f"the module has no {ATTRIBUTE} attribute", help="it names triple, cpu, features")
    texts: dict[str, str] = {}
    for key in ("triple", "cpu", "features"):
        value = found.data.get(key)
        if not isinstance(value, StringAttr):
            raise InvalidProgram(f"{ATTRIBUTE} has no text {key!r}")
        texts[key] = value.data
    target = Target(texts["cpu"], tuple(name.lstrip("+") for name in texts["features"].split()), texts["triple"])
    if not target.triple.startswith("amdgcn") or not target.generation:
        raise InvalidProgram(f"no code for {target.cpu} of {target.triple}", help=_KNOWN)
    return target
