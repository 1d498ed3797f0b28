"""MFMA of AMD's CDNA: matrix products of a wave of 64, and virtual ones that load wider K.

Which processors execute an instruction: ISA guides of the MI100, MI200, MI300 and CDNA 4. To gfx950 the codes of fnuz
formats mean OCP's formats.
"""

from __future__ import annotations

from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Cost, Fragment, Intrinsic, Limits, Movement
from tilewright.intrinsics.shapes import matrix, types_of, with_upper_types

_GUIDE = "Instruction Set Architecture reference guide, MFMA; AMD matrix instruction calculator"
SOURCE, OLD_SOURCE = f'"AMD Instinct MI300" {_GUIDE}', f'"AMD Instinct MI100" {_GUIDE}'
AMD = "amd"
CDNA = ("gfx908", "gfx90a", "gfx942", "gfx950")


def _inputs(rows: int, k: int, pieces: int = 1) -> tuple[Fragment, Fragment]:
    """A and B: lane // rows chooses a run of K, `e` walks it; `pieces` runs follow each other at equal distances."""
    groups = 64 // rows
    elements = k // groups
    run = elements // pieces
    place = f"{run} * (lane // {rows}) + e" if pieces == 1 else (
        f"{k // pieces} * (e // {run}) + {run} * (lane // {rows}) + e % {run}"
    )  # fmt: skip
    return Fragment(64, elements, (f"lane % {rows}", place)), Fragment(64, elements, (place, f"lane % {rows}"))


C = {
    16: Fragment(64, 4, ("4 * (lane // 16) + e", "lane % 16")),
    32: Fragment(64, 16, ("8 * (e // 4) + 4 * (lane // 32) + e % 4", "lane % 32")),
}
C_F64 = Fragment(64, 4, ("4 * e + lane // 16", "lane % 16"))
# Multiply-adds per SIMD and cycle, MI300X: 163.4 Tflop/s of f32 and f64 matrix work, 1307.4 of 16-bit, 2614.9 of 8-bit.
_RATE = {"f64": 32, "f32": 32, "f16": 256, "bf16": 256}
_OLD_RATE = {"bf16": 64, "i8": 128}  # MI100: 92.3 Tflop/s of bf16, 184.6 Top/s of 8-bit


def mfma(
    m: int, k: int, a: str, b: str, c: str, llvm: str = "", since: str = "gfx942", until: str = "gfx950"
) -> Intrinsic:
    """An instruction of M x M x K, which the processors from `since` to `until` have."""
    return _record("mfma", m, k, a, b, c, _inputs(m, k), m * m * k / _RATE.get(a, 512), (since, until), llvm)


def old(m: int, k: int, dtype: str, c: str, llvm: str) -> Intrinsic:
    """An instruction of gfx908 and gfx90a that gfx942 has no more: half of K of those that took its place."""
    cycles = m * m * k / _OLD_RATE[dtype]
    between = ("gfx908", "gfx90a")
    return _record("mfma", m, k, dtype, dtype, c, _inputs(m, k), cycles, between, llvm, source=OLD_SOURCE)


def virtual(
    m: int, k: int, dtype: str, pieces: int, parent: str, since: str = "gfx942", until: str = "gfx950"
) -> Intrinsic:
    """One or two instructions whose K is permuted, for A and B alike, so that a wider load feeds them."""
    cycles = m * m * k / _RATE.get(dtype, 512)
    return _record(
        "vmfma", m, k, dtype, dtype, "f32", _inputs(m, k, pieces), cycles, (since, until), realised_by=parent
    )


def _record(family: str, m: int, k: int, a: str, b: str, c: str, inputs: tuple[Fragment, Fragment], cycles: float,
            between: tuple[str, str], llvm: str = "", realised_by: str = "",
            source: str = SOURCE) -> Intrinsic:  # fmt: skip
    since, until = between
    result = C_F64 if c == "f64" else C[m]
    held = (*((fragment.elements, a) for fragment in inputs), (result.elements, c))
    piece = min(16, inputs[0].elements * bits(a) // 8)
    address = {"Src1": "addr_a + i1 * stride_a + r1", "Src2": "addr_b + i2 * stride_b + r1"}
    loads = tuple(
        Movement(f"{role.lower()}_{scope}", role, "reg", scope, text, "vector load", piece)
        for role, text in address.items()
        for scope in ("global", "lds")
    )
    stores = tuple(
        Movement(f"dst_{scope}", "Dst", scope, "reg", "addr_c + i1 * stride_c + i2", "store")
        for scope in ("global", "lds")
    )
    return matrix(
        f"{family}_{m}x{m}x{k}_{types_of(a, b, c)}", AMD, (m, m, k), (a, b, c), (*inputs, result), group="wave64",
        features=(since,), processors=CDNA[CDNA.index(since) : CDNA.index(until) + 1],
        cost=Cost(cycles, cycles + 8, 4), source=source, memory=(*loads, *stores),
        limits=Limits(registers=sum(count * bits(t) // 32 for count, t in held)), llvm=llvm, realised_by=realised_by,
        aliases=(with_upper_types(f"{family.upper()}_", f"{m}x{m}x{k}", a, b, c),),
    )  # fmt: skip


_F8 = (("f8e5m2fnuz", "f8e5m2fnuz"), ("f8e5m2fnuz", "f8e4m3fnuz"), ("f8e4m3fnuz", "f8e4m3fnuz"),
       ("f8e4m3fnuz", "f8e5m2fnuz"))  # fmt: skip
_SHORT = {"f8e5m2fnuz": "bf8", "f8e4m3fnuz": "fp8"}
_LLVM = "llvm.amdgcn.mfma"


def _f8(m: int, k: int) -> tuple[Intrinsic, ...]:
    return tuple(
        mfma(m, k, a, b, "f32", f"{_LLVM}.f32.{m}x{m}x{k}.{_SHORT[a]}.{_SHORT[b]}", until="gfx942") for a, b in _F8
    )  # fmt: skip


# In the order in which schedules prefer them; virtual ones follow their parents.
INTRINSICS = (
    mfma(16, 16, "bf16", "bf16", "f32", f"{_LLVM}.f32.16x16x16bf16.1k", "gfx90a"),
    mfma(32, 8, "bf16", "bf16", "f32", f"{_LLVM}.f32.32x32x8bf16.1k", "gfx90a"),
    *_f8(16, 32)[:3],
    virtual(16, 32, "f8e4m3fnuz", 2, "mfma_16x16x32_f8e4m3fnuz_f32", until="gfx942"),
    *_f8(16, 32)[3:],
    *_f8(32, 16)[:3],
    virtual(32, 16, "f8e4m3fnuz", 2, "mfma_32x32x16_f8e4m3fnuz_f32", until="gfx942"),
    *_f8(32, 16)[3:],
    mfma(16, 32, "i8", "i8", "i32", f"{_LLVM}.i32.16x16x32.i8"),
    mfma(32, 16, "i8", "i8", "i32", f"{_LLVM}.i32.32x32x16.i8"),
    mfma(16, 4, "f64", "f64", "f64", f"{_LLVM}.f64.16x16x4f64", "gfx90a"),
    mfma(16, 4, "f32", "f32", "f32", f"{_LLVM}.f32.16x16x4f32", "gfx908"),
    mfma(16, 16, "f16", "f16", "f32", f"{_LLVM}.f32.16x16x16f16", "gfx908"),
    virtual(16, 32, "f16", 1, "mfma_16x16x16_f16_f32", "gfx908"),
    mfma(32, 8, "f16", "f16", "f32", f"{_LLVM}.f32.32x32x8f16", "gfx908"),
    virtual(32, 16, "f16", 1, "mfma_32x32x8_f16_f32", "gfx908"),
    old(16, 16, "i8", "i32", f"{_LLVM}.i32.16x16x16i8"),
    old(32, 8, "i8", "i32", f"{_LLVM}.i32.32x32x8i8"),
    old(16, 8, "bf16", "f32", f"{_LLVM}.f32.16x16x8bf16"),
    old(32, 4, "bf16", "f32", f"{_LLVM}.f32.32x32x4bf16"),
)
