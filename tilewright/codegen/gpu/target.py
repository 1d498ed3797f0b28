"""What code generation knows about any GPU: read from the `tile.target` attribute of a module, nothing else."""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.dataclass import dataclass
from tilewright.kernel.facts import NOTHING, Facts, facts_of
from tilewright.kernel.target import texts_of
from tilewright.machine.description import Gpu


@dataclass(frozen=True)
class GpuTarget(Arithmetic):
    """The processor and its features as LLVM names them; what passes know of the machine.

    A feature that is switched off has ``-`` before its name.
    """

    cpu: str
    features: tuple[str, ...] = ()
    triple: str = ""
    facts: Facts = NOTHING

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a block may have; 0 where nothing is known of the machine."""
        return self.facts.shared_bytes

    @property
    def fma(self) -> bool:
        return True

    @property
    def converts_halves(self) -> bool:
        return True

    @property
    def signed_features(self) -> list[str]:
        """The features with ``+`` or ``-`` before each, as LLVM takes them."""
        return [name if name.startswith("-") else f"+{name}" for name in self.features]

    def attribute(self) -> DictionaryAttr:
        return DictionaryAttr(
            {
                "triple": StringAttr(self.triple),
                "cpu": StringAttr(self.cpu),
                "features": StringAttr(" ".join(self.features)),
                **(self.facts.attributes() if self.facts != NOTHING else {}),
            }
        )


Fields = tuple[str, tuple[str, ...], str, Facts]


def described(machine: Gpu) -> Fields:
    """The fields of the target that a machine's description names."""
    names = machine.llvm.features.split(",") if machine.llvm.features else []
    facts = Facts(
        frozenset(machine.features), machine.multiprocessors, machine.shared_bytes_per_block,
        machine.max_threads_per_block, machine.max_registers_per_thread,
    )  # fmt: skip
    return machine.llvm.cpu, tuple(name.lstrip("+") for name in names), machine.llvm.triple, facts


def named(module: ModuleOp) -> Fields:
    """Those that a module's attribute names; raises InvalidProgram where it is missing or malformed."""
    triple, cpu, features = texts_of(module, "triple", "cpu", "features")
    return cpu, tuple(name.lstrip("+") for name in features.split()), triple, facts_of(module)
