"""Intrinsics of the CPU as records: what they multiply, how many neighbours along k they consume, what they need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Intrinsic:
    """One multiply-accumulate instruction: ``Dst[i2] += sum_r Src1[r] * Src2[i2, r]`` with Src1 broadcast to all lanes.

    `group` is the extent of r; `emitter` the name under which code generation finds it; `inputs` the accepted (Src1, Src2)
    dtypes; `cost` how many multiply-adds of one f32 lane its issue slot is worth (1 for a full-rate instruction).
    """

    name: str
    inputs: tuple[tuple[str, str], ...]
    accumulator: str
    group: int
    emitter: str
    features: tuple[str, ...]
    source: str


#: In order of preference: the first record whose dtypes fit and whose features the machine has is used.
RECORDS: tuple[Intrinsic, ...] = (
    Intrinsic(
        "vdpbf16ps_16x2_bf16_f32", (("bf16", "bf16"),), "f32", 2, "vdpbf16ps", ("avx512bf16",),
        "Intel SDM vol. 2, VDPBF16PS: odd product first, then even, each addition rounded; denormals are zero",
    ),
    Intrinsic(
        "vpdpbusd_16x4_u8s8_s32", (("u8", "i8"),), "i32", 4, "vpdpbusd", ("avx512vnni",),
        "Intel SDM vol. 2, VPDPBUSD: exact products, sums wrap in 32 bits",
    ),
    Intrinsic("fma_ps_f32", (("f32", "f32"),), "f32", 1, "fma", (), "Intel SDM vol. 2, VFMADD231PS; Arm FMLA"),
    Intrinsic("fma_pd_f64", (("f64", "f64"),), "f64", 1, "fma", (), "Intel SDM vol. 2, VFMADD231PD; Arm FMLA"),
    Intrinsic(
        "widen_f32", (("bf16", "bf16"), ("f16", "f16"), ("f16", "f32"), ("f32", "f16"), ("bf16", "f32"), ("f32", "bf16")),
        "f32", 1, "widen_f32", (), "conversion to f32, then FMA",
    ),
    Intrinsic(
        "widen_i32",
        tuple((a, b) for a in ("i8", "u8", "i16", "u16", "i32") for b in ("i8", "u8", "i16", "u16", "i32")),
        "i32", 1, "widen_i32", (), "extension to 32 bits, then integer multiply and add",
    ),
    Intrinsic(
        "widen_i64", tuple((a, b) for a in ("i64", "i32") for b in ("i64", "i32")), "i64", 1, "widen_i32", (),
        "extension to 64 bits, then integer multiply and add",
    ),
)  # fmt: skip
