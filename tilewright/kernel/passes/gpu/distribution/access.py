"""Accesses of a thread to the elements of its registers: as many at once as lie side by side."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.kernel import dialect as tile
from tilewright.kernel.indices import constant_index, divisor
from tilewright.kernel.integers import binary
from tilewright.kernel.passes.gpu.distribution.layout import canonical, shares
from tilewright.kernel.passes.gpu.distribution.threads import Threads
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.blocked import coalesced_blocked
from tilewright.layouts.linear import LinearLayout

ACCESS_BYTES = 16  # of the widest access of a thread


def begin_bytes(op: tile.LoadOp | tile.StoreOp) -> int:
    """Bytes of which a tile in memory begins at a multiple: as it promises, else as its offset is known to."""
    return gcd(divisor(op.offset) * element_bytes(op.view), ACCESS_BYTES) if op.align is None else op.align.value.data


def row_bytes(op: tile.LoadOp | tile.StoreOp, extents: Sequence[int]) -> int:
    """The same of all rows of a tile with these extents, up to the bytes of the widest access."""
    size, strides = element_bytes(op.view), tile.strides_of(op)
    others = [stride * size for stride, extent in zip(strides, extents, strict=True) if extent > 1]
    if size in others:
        others.remove(size)  # of the run itself; in a window over one channel there is a second one
    return gcd(begin_bytes(op), ACCESS_BYTES, *others)


def coalesced(
    extents: Sequence[int], strides: Sequence[int], most: int, warps: int, lanes: int, run: int | None = None
) -> LinearLayout:
    """Neighbouring threads on neighbouring elements of memory, each with at most `most` of them.

    Threads share `run` elements of a row (default: all) before they go to the next row; the rest of a row is in further
    registers.
    """
    order = sorted(range(len(extents)), key=lambda dim: (extents[dim] == 1, abs(strides[dim]) or 1 << 62, -dim))
    contiguous = min(most, extents[order[0]]) if strides[order[0]] == 1 else 1
    shared = [min(n, run) if run is not None and dim == order[0] else n for dim, n in enumerate(extents)]
    return canonical(coalesced_blocked(shared, order, contiguous, warps, lanes).to_linear(extents))


class Access:
    """The accesses with which a thread reads or writes its registers of a tile, `width` registers at a time."""

    def __init__(
        self, threads: Threads, layout: LinearLayout, strides: Sequence[int], offset: SSAValue,
        bounds: Sequence[SSAValue], align: int, size: int,
    ) -> None:  # fmt: skip
        self.threads, self.shares, self.strides = threads, shares(layout), strides
        self.offset, self.bounds = offset, bounds
        known = [constant_index(bound) for bound in bounds] or [None] * len(layout.shape)
        kept = [number is not None and number >= extent for number, extent in zip(known, layout.shape, strict=True)]
        self.bounded = [bool(bounds) and not keeps for keeps in kept]
        self.width, self.along = _width(layout, strides, max(1, ACCESS_BYTES // size))
        self.stride = strides[self.along] if self.along is not None else 1
        begins = aligned(layout, strides, self.width)
        self.align = min(align, self.width * size) if align > 1 and begins else None

    def place(self, start: int) -> tuple[SSAValue, list[SSAValue], SSAValue | None]:
        """Offset of registers `start` and following, bounds along them, and whether the thread may access them.

        Bounds that all extents keep are left out; where a bound along the registers is a multiple of their number, they
        are inside or outside together.
        """
        threads = self.threads
        offset: SSAValue = self.offset
        allowed: SSAValue | None = None
        bounds: list[SSAValue] = []
        for dim, (share, stride) in enumerate(zip(self.shares, self.strides, strict=True)):
            coordinate = threads.coordinate(share, start)
            if stride and (share.bits or share.registers[start]):
                step = coordinate
                if stride != 1:
                    step = threads.add(binary(arith.MuliOp, coordinate, threads.number(stride))).results[0]
                offset = threads.add(binary(arith.AddiOp, offset, step)).results[0]
            if not self.bounded[dim]:
                continue
            if dim == self.along and divisor(self.bounds[dim]) % self.width:
                bounds = [threads.add(binary(arith.SubiOp, self.bounds[dim], coordinate)).results[0]]
                continue
            inside = threads.add(tile.CompareOp("lt", coordinate, self.bounds[dim])).results[0]
            allowed = inside if allowed is None else threads.add(binary(arith.AndIOp, allowed, inside)).results[0]
        return offset, bounds, allowed


def aligned(layout: LinearLayout, strides: Sequence[int], width: int) -> bool:
    """Whether every group of `width` registers begins at a multiple of its width from the start of the tile."""
    skipped = width.bit_length() - 1
    for name, vectors in layout.bases:
        for base in vectors[skipped if name == "register" else 0 :]:
            if sum(part * stride for part, stride in zip(base, strides, strict=True)) % width:
                return False
    return True


def neighbours(layout: LinearLayout, strides: Sequence[int], most: int) -> int:
    """How many registers, at most `most`, follow each other in memory that a load with these strides reads."""
    return _width(layout, strides, most)[0]


def _width(layout: LinearLayout, strides: Sequence[int], most: int) -> tuple[int, int | None]:
    """How many registers follow each other in memory, at most `most`, and along which dimension; one has none."""
    bases = layout.of("register")
    dim = next((d for d, stride in enumerate(strides) if bases and stride == 1 and bases[0][d] == 1), None)
    if dim is None:
        return 1, None
    width = 1
    for base in bases:
        if base[dim] != width or any(part for d, part in enumerate(base) if d != dim) or width == most:
            break
        width *= 2
    skipped = width.bit_length() - 1
    others = [base[dim] for name, v in layout.bases for base in v[skipped if name == "register" else 0 :]]
    while width > 1 and any(part % width for part in others):  # XOR with those would change the order
        width //= 2
    return (width, dim) if width > 1 else (1, None)
