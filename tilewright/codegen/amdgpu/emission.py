"""The state of one kernel's emission for AMD: address spaces, and instructions of its own for element operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright.codegen.amdgpu.offsets import Offsets
from tilewright.codegen.amdgpu.target import Target
from tilewright.codegen.gpu import emission
from tilewright.codegen.gpu.emission import GLOBAL, LOCAL, SHARED, Place
from tilewright.codegen.values import I1, I8, I16, I32, I64
from tilewright.dataclass import dataclass

OUTSIDE = 1 << 31  # no view that is read as a buffer has so many bytes
# The last word of a buffer resource. The ISA guides, "Buffer Resource Descriptor": a format, which these instructions
# ignore, but which is not 0; from RDNA on a bit that must be set, and offsets, not indices, held against the size.
_FORMAT = 7 << 12 | 4 << 15
_RANGE_CHECKED = 1 << 24 | 3 << 28


@dataclass(frozen=True)
class Start:
    """Where an access begins, in bytes from the start of a resource: what a wave shares, what a thread adds to it."""

    resource: ir.Value
    constant: int
    wave: ir.Value
    lane: ir.Value


@dataclass
class Emission(emission.Emission):
    """`ordered` says that threads of a block hand each other values through global memory too.

    Views that are only written are among the `unread`. `starts` are by the address that stands for them, `resources` by
    the pointer to their view.
    """

    spaces: ClassVar[dict[str, int]] = {LOCAL: 5, GLOBAL: 1, SHARED: 3}  # LLVM, AMDGPUUsage, "Address Spaces"
    target: Target
    ordered: bool = False
    unread: frozenset[SSAValue] = frozenset()
    offsets: Offsets = field(default_factory=Offsets)
    starts: dict[ir.Value, Start] = field(default_factory=dict)
    resources: dict[ir.Value, ir.Value] = field(default_factory=dict)
    masked_stores: int = 0  # by buffer instructions, so far

    def begin(self, view: SSAValue, offset: SSAValue, touched: bool) -> ir.Value:
        """Perhaps one that stands for a `Start`, where a view is only read or only written.

        Else a base that is the same everywhere and bytes above it in 32 bits, which other accesses take.
        """
        place, whole = self.places[view], self.scalar(offset)
        size = place.count * place.bytes
        if place.space != GLOBAL or not touched or whole.type != I32 or size > 1 << 32:
            return self.address(place, whole)
        above = self.builder.mul(whole, I32(place.bytes), flags=["nuw"])
        address = self.builder.gep(place.pointer, [self.builder.zext(above, I64)], source_etype=I8)
        if (place.constant or view in self.unread) and size < OUTSIDE:
            parts = self.offsets.parts(offset)
            if parts is None:
                self.starts[address] = Start(self._resource(place), 0, I32(0), above)
            elif parts.lane:
                wave, lane = (self._bytes(place, part) for part in (parts.wave, parts.lane))
                self.starts[address] = Start(self._resource(place), parts.constant * place.bytes, wave, lane)
        return address

    def _bytes(self, place: Place, factors: Mapping[SSAValue, int]) -> ir.Value:
        found: ir.Value = I32(0)
        for number, (value, factor) in enumerate(factors.items()):
            part = self.builder.mul(self.scalar(value), I32(factor * place.bytes))
            found = self.builder.add(found, part) if number else part
        return found

    def _resource(self, place: Place) -> ir.Value:
        """The description of a view that buffer instructions take; what lies behind its end is read as 0."""
        if place.pointer not in self.resources:
            flags = _FORMAT | (_RANGE_CHECKED if self.target.generation >= 10 else 0)
            given = [place.pointer, I16(0), I64(place.count * place.bytes), I32(flags)]
            with self.builder.goto_entry_block():
                made = self.call("llvm.amdgcn.make.buffer.rsrc.p8.p1", ir.PointerType(addrspace=8), given)
            self.resources[place.pointer] = made
        return self.resources[place.pointer]

    @property
    def has_extremes(self) -> bool:
        """From RDNA 4 on."""
        return self.target.generation >= 12

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
