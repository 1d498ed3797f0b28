"""WMMA of AMD's RDNA 3 (gfx11) and RDNA 4 (gfx12): 16x16x16 matrix products of a wave of 32.

No layout is compatible between the two generations. RDNA 3 holds A and B twice: lanes 16-31 equal lanes 0-15.
"""

from __future__ import annotations

from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Cost, Fragment, Intrinsic, Limits, Movement
from tilewright.intrinsics.shapes import matrix, types_of, with_upper_types

RDNA3_SOURCE = '"RDNA3" Instruction Set Architecture reference guide, section 7.9, WMMA'
RDNA4_SOURCE = '"RDNA4" Instruction Set Architecture reference guide, WMMA; AMD matrix instruction calculator'
AMD = "amd"
SHAPE = (16, 16, 16)


def _fragment(elements: int, row: str, column: str, replicated: bool = False) -> Fragment:
    return Fragment(32, elements, (row, column), replicated)


RDNA3 = (
    _fragment(16, "lane % 16", "e", replicated=True),
    _fragment(16, "e", "lane % 16", replicated=True),
    # One element per register; 16-bit results use its low half (OPSEL chooses).
    _fragment(8, "2 * e + lane // 16", "lane % 16"),
)
_K16 = "8 * (e // 4) + 4 * (lane // 16) + e % 4"
_K8 = "8 * (lane // 16) + e"  # 8-bit types: any order of K that A and B share gives the same sum; this is one load
RDNA4_C = _fragment(8, "e + 8 * (lane // 16)", "lane % 16")


def _rdna4(dtype: str) -> tuple[Fragment, Fragment, Fragment]:
    k = _K16 if bits(dtype) == 16 else _K8
    return _fragment(8, "lane % 16", k), _fragment(8, k, "lane % 16"), RDNA4_C


def _memory(piece_bytes: int) -> tuple[Movement, ...]:
    """Lanes load pieces of rows of A and of columns of B, and store single elements of C."""
    found = [Movement("fill", "Dst", "reg", "constant", "", value=0.0)]
    for scope in ("global", "lds"):
        found += [
            Movement(f"a_{scope}", "Src1", "reg", scope, "addr_a + i1 * stride_a + r1", "vector load", piece_bytes),
            Movement(f"b_{scope}", "Src2", "reg", scope, "addr_b + i2 * stride_b + r1", "vector load", piece_bytes),
            Movement(f"c_{scope}", "Dst", scope, "reg", "addr_c + i1 * stride_c + i2", "store"),
        ]
    return tuple(found)


_LLVM_TYPES = {"f8e4m3fn": "fp8", "f8e5m2": "bf8", "i8": "iu8"}
_VECTORS = {"f32": "v8f32", "i32": "v8i32"}


def _llvm(dtypes: tuple[str, str, str], a_vector: str, c_vector: str) -> str:
    a, b, c = dtypes
    inputs = _LLVM_TYPES.get(a, a) + (f".{_LLVM_TYPES[b]}" if a.startswith("f8") else "")
    return f"llvm.amdgcn.wmma.{c}.16x16x16.{inputs}.{_VECTORS.get(c, c_vector)}.{a_vector}"


def rdna3(a: str, c: str) -> Intrinsic:
    """A record of gfx11: 32 cycles for every type."""
    dtypes = (a, a, c)
    vector = "v4i32" if a == "i8" else f"v16{a.replace('bf16', 'i16')}"
    registers = 2 * 16 * bits(a) // 32 + 8
    return matrix(
        f"wmmar3_16x16x16_{types_of(*dtypes)}", AMD, SHAPE, dtypes, RDNA3, group="wave32", features=("gfx11",),
        cost=Cost(32.0, 32.0, 4), source=RDNA3_SOURCE, memory=_memory(2 * bits(a)), limits=Limits(registers=registers),
        llvm=_llvm(dtypes, vector, vector), aliases=(with_upper_types("WMMAR3_", "16x16x16", *dtypes),),
    )  # fmt: skip


def rdna4(a: str, b: str, c: str) -> Intrinsic:
    """A record of gfx12: 16 cycles for 16-bit types, 8 for 8-bit ones."""
    vector = "v2i32" if bits(a) == 8 else f"v8{a.replace('bf16', 'i16')}"
    registers = 2 * 8 * bits(a) // 32 + 8 * bits(c) // 32
    return matrix(
        f"wmmar4_16x16x16_{types_of(a, b, c)}", AMD, SHAPE, (a, b, c), _rdna4(a), group="wave32", features=("gfx12",),
        cost=Cost(float(bits(a)), float(bits(a)), 4), source=RDNA4_SOURCE, memory=_memory(8),
        limits=Limits(registers=registers), llvm=_llvm((a, b, c), vector, f"v8{c.replace('bf16', 'i16')}"),
        aliases=(with_upper_types("WMMAR4_", "16x16x16", a, b, c),),
    )  # fmt: skip


_PAIRS = (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("bf16", "bf16"))
_F8 = (("f8e5m2", "f8e5m2"), ("f8e5m2", "f8e4m3fn"), ("f8e4m3fn", "f8e4m3fn"), ("f8e4m3fn", "f8e5m2"))
INTRINSICS = (
    *(rdna3(a, c) for a, c in (*_PAIRS, ("i8", "i32"))),
    *(rdna4(a, a, c) for a, c in _PAIRS),
    *(rdna4(a, b, "f32") for a, b in _F8),
    rdna4("i8", "i8", "i32"),
)
