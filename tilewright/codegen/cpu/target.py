"""What code generation knows about a CPU: read from the `tile.target` attribute of a module, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr

from tilewright.codegen.arithmetic import Arithmetic
from tilewright.codegen.cpu.exponents import exponent
from tilewright.codegen.math.value import Value
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel.target import ATTRIBUTE, require_fit, texts_of
from tilewright.machine.description import Cpu
from tilewright.machine.features import BASELINE


@dataclass(frozen=True)
class Target(Arithmetic):
    """Triple, CPU and features as LLVM names them, and the vector width in bits.

    `lacking` are features that LLVM must leave out even where it takes the CPU to have them.
    """

    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    lacking: tuple[str, ...] = ()

    @property
    def lanes(self) -> int:
        """Lanes of 32 bits in one vector: the unit into which the last dimension of a tile is cut."""
        return self.vector_bits // 32

    @property
    def architecture(self) -> str:
        """x86_64 or aarch64."""
        return self.triple.partition("-")[0]

    def has(self, feature: str) -> bool:
        return feature in self.features

    @property
    def fma(self) -> bool:
        return self.has("fma") or self.has("neon") or "aarch64" in self.triple

    @property
    def x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def vector_register_names(self) -> list[str]:
        """The vector registers as LLVM's assembly statements name them, those of the width of a vector."""
        if not self.x86:
            return [f"v{number}" for number in range(32)]
        width = {128: "xmm", 256: "ymm", 512: "zmm"}[self.vector_bits]
        count = 32 if self.has("avx512vl") or width == "zmm" else 16
        return [f"{width}{number}" for number in range(count)]

    @property
    def converts_halves(self) -> bool:
        return self.has("f16c") or not self.x86

    @property
    def exponents(self) -> Callable[..., Value] | None:
        return exponent if self.has("avx512f") and self.has("avx512vl") else None

    @property
    def signed_features(self) -> list[str]:
        """The features with ``+`` or ``-`` before each, as LLVM takes them: one that is off takes others along."""
        return [*(f"-{name}" for name in self.lacking), *(f"+{name}" for name in self.features)]

    def feature_string(self) -> str:
        return ",".join(self.signed_features)

    def attribute(self) -> DictionaryAttr:
        return DictionaryAttr(
            {
                "triple": StringAttr(self.triple),
                "cpu": StringAttr(self.cpu),
                "features": StringAttr(" ".join(self.features)),
                "lacking": StringAttr(" ".join(self.lacking)),
                "vector_bits": IntegerAttr(self.vector_bits, 64),
            }
        )


def described(machine: Cpu) -> Target:
    """The target that a machine's description names."""
    llvm = machine.llvm
    lacking = tuple(name[1:] for name in llvm.features.split(",") if name.startswith("-"))
    return Target(llvm.triple, llvm.cpu, tuple(sorted(machine.features)), machine.vector_bits, lacking)


def target_of(module: ModuleOp) -> Target:
    """The target that a module's attribute names; raises InvalidProgram where it is missing or malformed."""
    triple, cpu, features, lacking = texts_of(module, "triple", "cpu", "features", "lacking")
    attribute = module.attributes[ATTRIBUTE]
    assert isinstance(attribute, DictionaryAttr), "it has texts"
    width = attribute.data.get("vector_bits")
    if not isinstance(width, IntegerAttr) or width.value.data not in (128, 256, 512):
        raise InvalidProgram(f"{ATTRIBUTE} has vector_bits {width}", help="128, 256 or 512")
    target = Target(triple, cpu, tuple(features.split()), width.value.data, tuple(lacking.split()))
    require_fit(triple, cpu, target.signed_features)
    baseline = BASELINE.get(target.architecture)
    if baseline is None:
        raise InvalidProgram(f"{ATTRIBUTE}: no code for a CPU of {triple}", help=f"one of {', '.join(BASELINE)}")
    for name in sorted(baseline.intersection(target.lacking)):
        raise InvalidProgram(f"{ATTRIBUTE}: lacking has {name!r}, which code needs", help=f"leave {name!r} out")
    return target
