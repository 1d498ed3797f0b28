"""``mma.sync``: matrix products of a warp, A row-major, B column-major, every fragment documented.

``g = lane // 4``, ``t = lane % 4``; `e` counts elements in register order.
"""

from __future__ import annotations

from tilewright.intrinsics.elements import bits, tag
from tilewright.intrinsics.intrinsic import Cost, Fragment, Intrinsic, Limits, Movement
from tilewright.intrinsics.shapes import matrix, saturating, types_of

SOURCE = "PTX ISA 8.5, section 9.7.14.5, matrix fragments for mma"
CUDA = "cuda"


def _fragment(elements: int, *indices: str) -> Fragment:
    return Fragment(32, elements, indices)


# Fragments of A by (M, K), of B by K; several shapes and widths share one.
A = {
    ("16-bit", 16, 16): _fragment(8, "lane // 4 + 8 * (e // 2 % 2)", "2 * (lane % 4) + e % 2 + 8 * (e // 4)"),
    ("16-bit", 16, 8): _fragment(4, "lane // 4 + 8 * (e // 2)", "2 * (lane % 4) + e % 2"),
    ("32-bit", 16, 8): _fragment(4, "lane // 4 + 8 * (e % 2)", "lane % 4 + 4 * (e // 2)"),
    ("32-bit", 16, 4): _fragment(2, "lane // 4 + 8 * e", "lane % 4"),
    ("8-bit", 16, 32): _fragment(16, "lane // 4 + 8 * (e // 4 % 2)", "4 * (lane % 4) + e % 4 + 16 * (e // 8)"),
    ("8-bit", 16, 16): _fragment(8, "lane // 4 + 8 * (e // 4)", "4 * (lane % 4) + e % 4"),
    ("8-bit", 8, 16): _fragment(4, "lane // 4", "4 * (lane % 4) + e"),
    ("64-bit", 8, 4): _fragment(1, "lane // 4", "lane % 4"),
    ("64-bit", 16, 4): _fragment(2, "lane // 4 + 8 * e", "lane % 4"),
    ("64-bit", 16, 8): _fragment(4, "lane // 4 + 8 * (e % 2)", "lane % 4 + 4 * (e // 2)"),
    ("64-bit", 16, 16): _fragment(8, "lane // 4 + 8 * (e % 2)", "lane % 4 + 4 * (e // 2)"),
}
B = {
    ("16-bit", 16): _fragment(4, "2 * (lane % 4) + e % 2 + 8 * (e // 2)", "lane // 4"),
    ("16-bit", 8): _fragment(2, "2 * (lane % 4) + e", "lane // 4"),
    ("32-bit", 8): _fragment(2, "lane % 4 + 4 * e", "lane // 4"),
    ("32-bit", 4): _fragment(1, "lane % 4", "lane // 4"),
    ("8-bit", 32): _fragment(8, "4 * (lane % 4) + e % 4 + 16 * (e // 4)", "lane // 4"),
    ("8-bit", 16): _fragment(4, "4 * (lane % 4) + e", "lane // 4"),
    ("64-bit", 4): _fragment(1, "lane % 4", "lane // 4"),
    ("64-bit", 8): _fragment(2, "lane % 4 + 4 * e", "lane // 4"),
    ("64-bit", 16): _fragment(4, "lane % 4 + 4 * e", "lane // 4"),
}
C = {
    16: _fragment(4, "lane // 4 + 8 * (e // 2)", "2 * (lane % 4) + e % 2"),
    8: _fragment(2, "lane // 4", "2 * (lane % 4) + e"),
}


def _memory(m: int, k: int, dtype: str, accumulator: str) -> tuple[Movement, ...]:
    """Statements of the memory abstraction; ``ldmatrix`` moves rows of 16 bytes, so K must fill one or two."""
    width = bits(dtype)
    found = [Movement("fill", "Dst", "reg", "constant", "", value=0.0)]
    row = 128 // width  # elements of 16 bytes
    if width < 64 and k in (row, 2 * row):
        halves = k // row
        count = m // 8 * halves
        a = f"(lane % {m}) * stride_a" + (f" + {row} * (lane // {m} % 2)" if halves == 2 else "")
        b = "(lane % 8) * stride_b" + (f" + {row} * (lane // 8 % 2)" if halves == 2 else "")
        granule = {"alignment_bytes": 16, "stride_multiple": row}
        found += [
            Movement("lda", "Src1", "reg", "shared", "addr_a + i1 * stride_a + r1", f"ldmatrix.x{count}",
                     lane_address=a, **granule),
            Movement("ldb", "Src2", "reg", "shared", "addr_b + i2 * stride_b + r1", f"ldmatrix.x{halves}",
                     lane_address=b, **granule),
        ]  # fmt: skip
        if width == 16:
            found.append(
                Movement("ldbt", "Src2", "reg", "shared", "addr_b + r1 * stride_b + i2", f"ldmatrix.x{halves}.trans",
                         lane_address=f"(lane % {k}) * stride_b", **granule)
            )  # fmt: skip
    else:
        found += [
            Movement("lda", "Src1", "reg", "shared", "addr_a + i1 * stride_a + r1", "ld", width // 8),
            Movement("ldb", "Src2", "reg", "shared", "addr_b + r1 * stride_b + i2", "ld", width // 8),
        ]
    pair = bits(accumulator) // 4
    for name, there in (("st", "global"), ("sts", "shared")):
        found.append(Movement(name, "Dst", there, "reg", "addr_c + i1 * stride_c + i2", "st.v2", pair, 2))
    found.append(Movement("ldc", "Dst", "reg", "global", "addr_c + i1 * stride_c + i2", "ld.v2", pair, 2))
    return tuple(found)


def mma(shape: tuple[int, int, int], dtypes: tuple[str, str, str], feature: str, llvm: str = "",
        aliases: tuple[str, ...] = (), cycles: float = 8.0) -> Intrinsic:  # fmt: skip
    """A record of this family; raises KeyError for a shape without a fragment."""
    m, n, k = shape
    a, b, c = dtypes
    width = f"{bits(a)}-bit"
    layouts = (A[width, m, k], B[width, k], C[m])
    registers = sum(max(1, layout.elements * bits(t) // 32) for layout, t in zip(layouts, dtypes, strict=True))
    return matrix(
        f"mma_m{m}n{n}k{k}_{types_of(a, b, c)}", CUDA, shape, dtypes, layouts, group="warp32", features=(feature,),
        cost=Cost(cycles, 33.0, 4), source=SOURCE, memory=_memory(m, k, a, c), limits=Limits(registers=registers),
        llvm=llvm, aliases=aliases,
    )  # fmt: skip


def _nvvm(shape: str, types: str) -> str:
    return f"llvm.nvvm.mma.{shape}.row.col.{types}"


# Issue cycles: A100 does 256 f16 multiply-adds per sub-core and cycle, half for tf32, twice for s8, 1/16 for f64. H100
# does 32 of f64 (NVIDIA H100 whitepaper: 67 TFLOP/s) by the instructions with 16 rows, half of that by m8n8k4: ptxas
# 13.0 issues m16n8k4 and m8n8k4 for sm_90 16 cycles apart.
_FLOATS = (
    mma((16, 8, 16), ("f16", "f16", "f32"), "sm_80", _nvvm("m16n8k16", "f32.f32"),
        ("MMA_SYNC_F32_16x8x16_F16", "NV_MMA_SYNC_F32_16x8x16_F16")),
    mma((16, 8, 16), ("f16", "f16", "f16"), "sm_80", _nvvm("m16n8k16", "f16.f16"),
        ("MMA_SYNC_F16_16x8x16_F16", "NV_MMA_SYNC_F16_16x8x16_F16")),
    mma((16, 8, 16), ("bf16", "bf16", "f32"), "sm_80", _nvvm("m16n8k16", "bf16"), ("MMA_SYNC_F32_16x8x16_BF16",)),
    mma((16, 8, 8), ("tf32", "tf32", "f32"), "sm_80", _nvvm("m16n8k8", "tf32"), ("MMA_SYNC_F32_16x8x8_TF32",)),
    mma((16, 8, 8), ("f16", "f16", "f32"), "sm_75", _nvvm("m16n8k8", "f32.f32"), ("MMA_SYNC_F32_16x8x8_F16",), 4.0),
    mma((16, 8, 8), ("f16", "f16", "f16"), "sm_75", _nvvm("m16n8k8", "f16.f16"), ("MMA_SYNC_F16_16x8x8_F16",), 4.0),
    mma((16, 8, 8), ("bf16", "bf16", "f32"), "sm_80", _nvvm("m16n8k8", "bf16"), cycles=4.0),
    mma((16, 8, 4), ("tf32", "tf32", "f32"), "sm_80", _nvvm("m16n8k4", "tf32"), cycles=4.0),
    mma((8, 8, 4), ("f64", "f64", "f64"), "sm_80", _nvvm("m8n8k4", "f64"), ("MMA_SYNC_F64_8x8x4_F64",), 16.0),
    mma((16, 8, 16), ("f64", "f64", "f64"), "sm_90", _nvvm("m16n8k16", "f64"), ("MMA_SYNC_F64_16x8x16_F64",), 64.0),
    mma((16, 8, 8), ("f64", "f64", "f64"), "sm_90", _nvvm("m16n8k8", "f64"), ("MMA_SYNC_F64_16x8x8_F64",), 32.0),
    mma((16, 8, 4), ("f64", "f64", "f64"), "sm_90", _nvvm("m16n8k4", "f64"), ("MMA_SYNC_F64_16x8x4_F64",), 16.0),
)  # fmt: skip
_SHORT = {"f8e4m3fn": "e4m3", "f8e5m2": "e5m2"}
_F8 = tuple(
    mma((16, 8, 32), (a, b, "f32"), "sm_89", _nvvm("m16n8k32", f"f32.{_SHORT[a]}.{_SHORT[b]}.f32"),
        aliases=(f"MMA_SYNC_F32_16x8x32_{a.upper() if a == b else f'{a.upper()}_{b.upper()}'}",))
    for a in _SHORT for b in _SHORT
)  # fmt: skip
_INTEGERS = tuple(
    mma(shape, (a, b, "i32"), feature,
        _nvvm("m{}n{}k{}".format(*shape), tag(a) if a == b else f"{tag(a)}.{tag(b)}"),
        (alias,) if a == b == "i8" and alias else (), cycles)
    for shape, feature, alias, cycles in (
        ((16, 8, 32), "sm_80", "MMA_SYNC_I32_16x8x32_I8", 8.0),
        ((16, 8, 16), "sm_80", "", 4.0),
        ((8, 8, 16), "sm_75", "MMA_SYNC_I32_8x8x16_I8", 4.0),
    )
    for a in ("i8", "u8") for b in ("i8", "u8")
)  # fmt: skip
_SATURATING = tuple(
    saturating(record, f"{record.name}_sat", llvm=record.llvm.replace("row.col.", "row.col.satfinite."))
    for record in _INTEGERS
)

INTRINSICS = (*_FLOATS, *_F8, *_INTEGERS, *_SATURATING)
