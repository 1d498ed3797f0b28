"""Products of tiles on the warps' matrix instructions: layouts of the operands, and which registers are a fragment."""

from __future__ import annotations

import re
from functools import lru_cache

from tilewright.errors import InvalidProgram
from tilewright.kernel.dialect import DotOp, shape
from tilewright.kernel.distribute.layout import canonical
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.mma import DotOperand, Mma, mma_warps

_NAME = re.compile(r"mma_m(\d+)n(\d+)k(\d+)_(\w+?)_(\w+)")
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "f64": 64}


@lru_cache(maxsize=1024)
def dot_layouts(
    intrinsic: str, extents: tuple[int, int, int], warps: int
) -> tuple[LinearLayout, LinearLayout, LinearLayout]:
    """Layouts of a (M x K), b (K x N) and c (M x N) for an instruction of one warp.

    Raises InvalidProgram for another instruction, and for a tile that is smaller than the instruction.
    """
    parent, width, k_own = _instruction(intrinsic, extents, warps)
    m, n, k = extents
    if m < parent.instr[0] or n < parent.instr[1] or k < k_own:
        own = f"{parent.instr[0]}x{parent.instr[1]}x{k_own}"
        raise InvalidProgram(f"a product of {m}x{n}x{k} on {intrinsic}", help=f"tiles of {own} at least")
    a, b = (DotOperand(index, parent, width) for index in range(2))
    return tuple(canonical(form.to_linear(e)) for form, e in ((a, (m, k)), (b, (k, n)), (parent, (m, n))))  # type: ignore[return-value]


@lru_cache(maxsize=1024)
def fragments(layout: LinearLayout, one: LinearLayout) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The registers of every fragment in a thread's part of a tile, by where the fragment begins in that part.

    `one` is the layout of a single fragment in a single warp.
    """
    bases = list(layout.of("register"))
    own = [bases.index(base) for base in one.of("register")]
    assert layout.of("lane") == one.of("lane"), f"lanes of {layout} are not those of {one}"
    found = {}
    rest = [bit for bit in range(len(bases)) if bit not in own]
    for number in range(1 << len(rest)):
        start, registers = [0] * len(layout.shape), 0
        for place, bit in enumerate(rest):
            if number >> place & 1:
                registers |= 1 << bit
                start = [s ^ part for s, part in zip(start, bases[bit], strict=True)]
        found[tuple(start)] = tuple(
            registers | sum(1 << bit for place, bit in enumerate(own) if element >> place & 1)
            for element in range(1 << len(own))
        )
    return found


def extents_of(op: DotOp) -> tuple[int, int, int]:
    """M, N and K of a product of tiles."""
    (m, k), (_, n) = shape(op.a), shape(op.c)
    if len(shape(op.b)) != 2:
        raise InvalidProgram(f"grouped operands {op.b.type} in a block", help="b is K x N")
    return m, n, k


def one_warp(intrinsic: str) -> tuple[LinearLayout, LinearLayout, LinearLayout]:
    """Layouts of the fragments of one instruction."""
    parent, _, k = _instruction(intrinsic, (16, 8, 8), 1)
    return dot_layouts(intrinsic, (parent.instr[0], parent.instr[1], k), 1)


def _instruction(intrinsic: str, extents: tuple[int, int, int], warps: int) -> tuple[Mma, int, int]:
    """Layout of the result, neighbours along k per lane and register, and k of the instruction."""
    match = _NAME.fullmatch(intrinsic)
    if match is None or match[4] not in _BITS:
        raise InvalidProgram(f"intrinsic {intrinsic!r} for a product in a block", help="one like mma_m16n8k16_f16_f32")
    m, n, k = (int(match[group]) for group in (1, 2, 3))
    return Mma(2, mma_warps(extents[:2], warps), (m, n)), max(1, 32 // _BITS[match[4]]), k
