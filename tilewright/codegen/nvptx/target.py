"""What code generation knows about an NVIDIA GPU: read from the `tile.target` attribute of a module, nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr

from tilewright.errors import InvalidProgram
from tilewright.kernel.facts import ATTRIBUTE, NOTHING, Facts, facts_of
from tilewright.machine.description import Gpu

TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True)
class Target:
    """The processor ("sm_90a") and the features ("ptx80") as LLVM names them; what passes know of the machine."""

    cpu: str
    features: tuple[str, ...] = ()
    triple: str = TRIPLE
    facts: Facts = NOTHING

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

    def feature_string(self, ptx: int = 0) -> str:
        """The features for LLVM, with a PTX version of at least `ptx`."""
        version = max(self.ptx, ptx)
        others = [f"+{name}" for name in self.features if not name.startswith("ptx")]
        return ",".join([*([f"+ptx{version}"] if version else []), *others])

    def attribute(self) -> DictionaryAttr:
        return DictionaryAttr(
            {
                "triple": StringAttr(self.triple),
                "cpu": StringAttr(self.cpu),
                "features": StringAttr(" ".join(self.features)),
                **(self.facts.attributes() if self.facts != NOTHING else {}),
            }
        )


def target_for(machine: Gpu) -> Target:
    """The target that a machine's description names."""
    names = machine.llvm.features.replace(",", " ").split()
    facts = Facts(frozenset(machine.features), machine.multiprocessors, machine.shared_bytes_per_block)
    return Target(machine.llvm.cpu, tuple(name.lstrip("+") for name in names), machine.llvm.triple, facts)


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
    target = Target(texts["cpu"], tuple(name.lstrip("+") for name in texts["features"].split()), texts["triple"],
                    facts_of(module))  # fmt: skip
    if not target.triple.startswith("nvptx64") or target.capability < 75:
        raise InvalidProgram(f"no code for {target.cpu} of {target.triple}", help="sm_75 or newer of nvptx64")
    return target
