"""Hopper ``wgmma``: matrix products of a warpgroup, 64 x N, B read from shared memory through a descriptor.

``fence`` before the first use of accumulators and registers of A, ``commit_group`` after a batch, ``wait_group`` before
reading D; ordinary stores to shared memory need ``fence.proxy.async`` and a barrier before they are read.
"""

from __future__ import annotations

from functools import cache

from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Cost, Fragment, Intrinsic, Limits, Movement
from tilewright.intrinsics.shapes import matrix, types_of

SOURCE = "PTX ISA 8.5, section 9.7.15, asynchronous warpgroup level matrix instructions"
CUDA = "cuda"
_ROW = "16 * (lane // 32) + lane % 32 // 4"
# Fragments of A in registers, by bits of an element: those of mma.sync, warp by warp.
A = {
    16: Fragment(128, 8, (f"{_ROW} + 8 * (e // 2 % 2)", "2 * (lane % 4) + e % 2 + 8 * (e // 4)")),
    32: Fragment(128, 4, (f"{_ROW} + 8 * (e % 2)", "lane % 4 + 4 * (e // 2)")),
    8: Fragment(128, 16, (f"{_ROW} + 8 * (e // 4 % 2)", "4 * (lane % 4) + e % 4 + 16 * (e // 8)")),
}


@cache
def accumulators(n: int) -> Fragment:
    """D: N / 2 per lane, 16 rows per warp."""
    return Fragment(128, n // 2, (f"{_ROW} + 8 * (e // 2 % 2)", "2 * (lane % 4) + e % 2 + 8 * (e // 4)"))


# Bytes of a swizzled row, and the alignment of a tile: 8 such rows, or 16 bytes without swizzle.
_SWIZZLES = ((128, 1024), (64, 512), (32, 256), (0, 16))
_OPERANDS = (("a", "Src1", "i1", "M"), ("b", "Src2", "i2", "N"))


@cache
def _memory(width: int) -> tuple[Movement, ...]:
    """A from registers or, like B, through a descriptor: K-major tiles for every type, MN-major for 16 bits."""
    found = [
        Movement("lda", "Src1", "reg", "shared", "addr_a + i1 * stride_a + r1", "ldmatrix", 16, 128 // width),
    ]  # fmt: skip
    for letter, role, loop, dimension in _OPERANDS:
        for span, alignment in _SWIZZLES:
            via = f"descriptor, {f'swizzle {span}' if span else 'no swizzle'}"
            row = f"addr_{letter} + {loop} * stride_{letter} + r1"
            column = f"addr_{letter} + r1 * stride_{letter} + {loop}"
            found.append(
                Movement(
                    f"desc_{letter}_{span}", role, "use", "shared", row, f"{via}, K-major", alignment, 128 // width
                )
            )
            if width == 16:
                found.append(
                    Movement(f"desc_{letter}t_{span}", role, "use", "shared", column, f"{via}, {dimension}-major",
                             alignment, 8)
                )  # fmt: skip
    address = "addr_c + i1 * stride_c + i2"
    found += [Movement(f"st_{scope}", "Dst", scope, "reg", address, "st.v2", 8, 2) for scope in ("global", "shared")]
    return tuple(found)


def wgmma(n: int, dtypes: tuple[str, str, str], aliases: tuple[str, ...] = ()) -> Intrinsic:
    """``wgmma.mma_async`` m64nNk(256 bits); full rate is 2048 16-bit multiply-adds per multiprocessor and cycle."""
    a, b, c = dtypes
    k = 256 // bits(a)
    fragment, result = A[bits(a)], accumulators(n)
    registers = n // 2 * bits(c) // 32 + fragment.elements * bits(a) // 32
    return matrix(
        f"wgmma_m64n{n}k{k}_{types_of(a, b, c)}", CUDA, (64, n, k), dtypes, (fragment, "descriptor", result),
        group="warpgroup128", features=("sm_90a",), scopes=("reg", "use", "reg"), cost=Cost(n / 2, 128.0),
        source=SOURCE, memory=_memory(bits(a)), limits=Limits(registers=registers), aliases=aliases,
    )  # fmt: skip


_WIDTHS = tuple(range(8, 257, 8))
_INTEGER_WIDTHS = (8, 16, 24, 32, *range(48, 257, 16))
_F8 = ("f8e4m3fn", "f8e5m2")


def _aliases(n: int, dtype: str) -> tuple[str, ...]:
    return (f"WGMMA_64x{n}x{256 // bits(dtype)}_{dtype.upper()}",) if n in (256, 128, 64) else ()


INTRINSICS = (
    *(wgmma(n, (t, t, "f32"), _aliases(n, t)) for t in ("f16", "bf16", "tf32") for n in reversed(_WIDTHS)),
    *(wgmma(n, ("f16", "f16", "f16")) for n in reversed(_WIDTHS)),
    *(wgmma(n, (a, b, "f32"), _aliases(n, a) if a == b else ()) for a in _F8 for b in _F8 for n in reversed(_WIDTHS)),
    *(wgmma(n, (a, b, "i32"), _aliases(n, a) if a == b else ())
      for a in ("i8", "u8") for b in ("i8", "u8") for n in reversed(_INTEGER_WIDTHS)),
)  # fmt: skip
