"""Dot products and multiply-adds of Arm CPUs (`SDOT`, `UDOT`, `USDOT`) and of Mali GPUs (OpenCL ``arm_dot``)."""

from __future__ import annotations

from tilewright.intrinsics.composite import family
from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Movement, Numerics, Operand
from tilewright.intrinsics.portable import multiply_add
from tilewright.intrinsics.shapes import FULL_DOT, types_of, vector

ARM, MALI = "arm", "mali"
_WRAPS = Numerics(order="fixed")


def dot(name: str, a: str, b: str, feature: str, *, full: bool = False, aliases: tuple[str, ...] = ()) -> Intrinsic:
    """``Dst[i] += Src1[i, r] * Src2[r]``, Src2 a group of 4 bytes of a vector; `full`: ``Src2[i, r]``."""
    loops: tuple[str, ...] = ("i", "r") if full else ("r",)
    return vector(
        f"{name}{'_full' if full else ''}_4x4_{types_of(a, b, 'i32')}",
        ARM,
        FULL_DOT if full else "Dst[i] += Src1[i, r] * Src2[r]",
        {"i": 4, "r": 4},
        ((a, ("i", "r"), "4 * i + r"), (b, loops, "4 * i + r" if full else "r"), ("i32", ("i",), "i")),
        cost=Cost(0.5, 3.0),
        source="Arm Architecture Reference Manual, SDOT/UDOT/USDOT (vector) and (by element)",
        numerics=_WRAPS,
        features=(feature,),
        memory=(
            Movement("lda", "Src1", "reg", "mem", "addr_a + 4 * i + r"),
            Movement("ldb", "Src2", "reg", "mem", "addr_b + 4 * i + r" if full else "addr_b + r",
                     "" if full else "by element", 1 if full else 4),
            Movement("ldc", "Dst", "reg", "mem", "addr_c + i"),
            Movement("stc", "Dst", "mem", "reg", "addr_c + i"),
        ),
        llvm=f"llvm.aarch64.neon.{name}.v4i32.v16i8",
        emitter="words",
        aliases=aliases,
    )  # fmt: skip


def arm_dot(length: int) -> Intrinsic:
    """``Dst[] += Src1[r] * Src2[r]`` of `length` bytes, operands from any scope; 8 and 16 chain those of 4."""
    loops = ("r",)
    return Intrinsic(
        name=f"arm_dot_{length}_s8_s32",
        target=MALI,
        compute="Dst[] += Src1[r] * Src2[r]",
        extents={"r": length},
        operands=(
            Operand("Src1", "i8", loops, "use", "r"),
            Operand("Src2", "i8", loops, "use", "r"),
            Operand("Dst", "i32", (), "reg"),
        ),
        cost=Cost(length / 4, 4.0),
        source="Khronos OpenCL extension cl_arm_integer_dot_product_accumulate_int8",
        features=("cl_arm_integer_dot_product_accumulate_int8",),
        memory=tuple(
            Movement(f"{name}_{scope}", role, "use", scope, f"addr_{name} + r", alignment_bytes=4)
            for name, role in (("a", "Src1"), ("b", "Src2"))
            for scope in ("global", "local", "private")
        ),
        numerics=_WRAPS,
        aliases=("arm_dot",) if length == 4 else (),
        realised_by="" if length == 4 else "arm_dot_4_s8_s32",
    )


_FMA = tuple(
    multiply_add(128 // bits, c, c, c, family="fmla", target=ARM, features=("neon",), fused=True)
    for bits, c in ((32, "f32"), (64, "f64"))
)
_TYPES = (("sdot", "i8", "i8", "dotprod"), ("udot", "u8", "u8", "dotprod"), ("usdot", "u8", "i8", "i8mm"))
_DOTS = tuple(
    dot(name, a, b, feature, aliases=(name, "sdot_4x4_s8s8_s32") if name == "sdot" else (name,))
    for name, a, b, feature in _TYPES
)
INTRINSICS = (
    *(kernel for record in (*_FMA, *_DOTS) for kernel in family(record, 32)),
    *_FMA,
    *_DOTS,
    *(dot(*each, full=True) for each in _TYPES),
    *(arm_dot(length) for length in (4, 8, 16)),
)
