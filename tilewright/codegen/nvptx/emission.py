"""What the emitters of operations share, for PTX: inline assembly, versions, instructions of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from llvmlite import ir
from xdsl.ir import Attribute

from tilewright.codegen.gpu import emission
from tilewright.codegen.gpu.emission import (
    BF16,
    GLOBAL,
    LOCAL,
    SHARED,
    SPACES,
    Place,
    Tile,
    from_words,
    is_bfloat,
    resized,
    scalars_of,
    to_words,
    vector,
)
from tilewright.codegen.host_program import TensorMap
from tilewright.codegen.nvptx.target import Target
from tilewright.codegen.values import F16, F32, I1, I8, I16, I32, I64
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram

_ATTRIBUTES = {
    "memory": (), "together": ("convergent",), "read": ("readonly", "nounwind"), "none": ("readnone", "nounwind")
}  # fmt: skip


@dataclass
class Needs:
    """What the module asks of the PTX version, times ten."""

    ptx: int = 0


@dataclass
class Emission(emission.Emission):
    """The state of one kernel's emission; `where` is the condition of the copies that are being emitted."""

    target: Target
    needs: Needs = field(default_factory=Needs)
    maps: dict[TensorMap, ir.Value] = field(default_factory=dict)
    where: ir.Value | None = None

    def require(self, what: str, capability: int, ptx: int) -> None:
        """Refuse what the processor lacks, and note the PTX version that has it."""
        if self.target.capability < capability:
            message = f"kernel {self.name}: {what} needs sm_{capability}, the target is {self.target.cpu}"
            raise InvalidProgram(message)
        self.needs.ptx = max(self.needs.ptx, ptx)

    def asm(
        self, text: str, result: ir.Type, constraints: str, args: Sequence[ir.Value], effect: str = "memory"
    ) -> ir.Value:
        """Inline assembly; `effect` is "memory", "together" (the lanes of a warp act together, too), "read" (may be
        dropped or moved over reads) or "none".
        """
        type_ = ir.FunctionType(result, [arg.type for arg in args])
        letters = [constraints] if constraints else []
        # LLVM takes assembly that does not say so for one that touches no memory, whatever its attributes are.
        every = ",".join(letters if effect == "none" else [*letters, "~{memory}"])
        assembly = ir.InlineAsm(type_, text.replace("\n", "\\0A"), every, effect in ("memory", "together"))
        return self.builder.call(assembly, list(args), attrs=_ATTRIBUTES[effect])

    @property
    def has_extremes(self) -> bool:
        return self.target.capability >= 80

    def narrowed(self, values: Sequence[ir.Value], wanted: Attribute) -> list[ir.Value] | None:
        """Pairs by one instruction. For f16 it is named: LLVM takes pairs apart that are widened again, and where those
        are results of products of four warps, ptxas then lets each product wait for the one before (its C7514).
        """
        if self.target.capability < 80:
            return None
        builder, narrow, found = self.builder, BF16 if is_bfloat(wanted) else F16, list[ir.Value]()
        for start in range(0, len(values), 2):
            pair = list(values[start : start + 2])
            filled = vector(builder, pair if len(pair) == 2 else [*pair, ir.Constant(F32, 0.0)])
            if narrow == BF16:
                cut = builder.fptrunc(filled, ir.VectorType(narrow, 2))
                cut = builder.bitcast(cut, ir.VectorType(I16, 2))
            else:
                low, high = scalars_of(builder, filled)
                cut = self.call("llvm.nvvm.ff2f16x2.rn", ir.VectorType(F16, 2), [high, low])
            found += scalars_of(builder, cut)[: len(pair)]
        return found

    def dot_bytes(self, unsigned: tuple[bool, bool], a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value | None:
        form = ".".join("u" if each else "s" for each in unsigned)
        return self.call(f"llvm.nvvm.idp4a.{form}", I32, [a, b, c])


def constraint_of(place: Place) -> str:
    """The letter of an address in inline assembly."""
    return "r" if place.space == SHARED else "l"


__all__ = [
    "BF16", "F16", "GLOBAL", "I1", "I8", "I16", "I32", "I64", "LOCAL", "SHARED", "SPACES", "Emission", "Needs",
    "Place", "Tile", "constraint_of", "from_words", "is_bfloat", "resized", "scalars_of", "to_words", "vector",
]  # fmt: skip
