"""The state of one kernel's emission for AMD: address spaces, and instructions of its own for element operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from llvmlite import ir
from xdsl.dialects import arith
from xdsl.ir import Operation

from tilewright.codegen.amdgpu.target import Target
from tilewright.codegen.gpu import emission
from tilewright.codegen.gpu.emission import GLOBAL, LOCAL, SHARED
from tilewright.codegen.values import F16, F32, I1, I32, mangle

_EXTREMES: dict[type[Operation], str] = {arith.MaximumfOp: "maximum", arith.MinimumfOp: "minimum"}


@dataclass
class Emission(emission.Emission):
    """`ordered` says that threads of a block hand each other values through global memory too."""

    spaces: ClassVar[dict[str, int]] = {LOCAL: 5, GLOBAL: 1, SHARED: 3}  # LLVM, AMDGPUUsage, "Address Spaces"
    target: Target
    ordered: bool = False

    def own(self, kind: type[Operation], args: Sequence[ir.Value]) -> ir.Value | None:
        """An extreme in one instruction, in which NaN wins: from RDNA 4 on."""
        name = _EXTREMES.get(kind)
        if name is None or self.target.generation < 12 or args[0].type not in (F16, F32):
            return None
        return self.call(f"llvm.{name}.{mangle(args[0].type)}", args[0].type, args)

    def dot_bytes(self, unsigned: tuple[bool, bool], a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value | None:
        """``v_dot4``: RDNA's says of each operand whether it is signed, CDNA's takes two of a kind."""
        none = I1(0)  # the sum wraps
        if unsigned == (True, True) and self.target.generation != 10:
            return self.call("llvm.amdgcn.udot4", I32, [a, b, c, none])
        if self.target.generation >= 11:
            signed_a, signed_b = (I1(int(not each)) for each in unsigned)
            return self.call("llvm.amdgcn.sudot4", I32, [signed_a, a, signed_b, b, c, none])
        if unsigned == (False, False) and self.target.generation == 9:
            return self.call("llvm.amdgcn.sdot4", I32, [a, b, c, none])
        return None
