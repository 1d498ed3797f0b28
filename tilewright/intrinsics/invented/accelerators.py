"""Three accelerators invented to show that a description is enough, with a plain matrix unit beside them."""

from __future__ import annotations

from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Limits, Movement, Numerics, Operand
from tilewright.intrinsics.shapes import MATRIX

SOURCE = "AMOS (ISCA 2022), section 7.6, and its code for extents and cycles"
INVENTED = "invented"
LIMITS = Limits({"reg": 8 << 10, "shared": 64 << 10, "global": 40 << 30})


def _record(name: str, alias: str, compute: str, extents: dict[str, int], loops: tuple[tuple[str, ...], ...],
            cycles: float, source: str = SOURCE) -> Intrinsic:  # fmt: skip
    operands = tuple(Operand(role, "f32", own) for role, own in zip(("Src1", "Src2", "Dst"), loops, strict=True))
    memory = tuple(
        Movement(f"load_{letter}" if letter != "c" else "store", operand.role,
                 *(("global", "reg") if letter == "c" else ("reg", "shared")), _address(letter, operand.loops))
        for letter, operand in zip("abc", operands, strict=True)
    )  # fmt: skip
    return Intrinsic(
        name=name, target=INVENTED, compute=compute, extents=extents, operands=operands, cost=Cost(cycles, 0.0, 4),
        source=source, group="core", memory=memory, limits=LIMITS, numerics=Numerics("fma", order="fixed"),
        aliases=(alias,),
    )  # fmt: skip


def _address(letter: str, loops: tuple[str, ...]) -> str:
    """Unit stride in the last loop, a free stride in every other."""
    terms = [f"{loop} * stride_{letter}_{loop}" for loop in loops[:-1]] + list(loops[-1:])
    return " + ".join([f"addr_{letter}", *terms])


INTRINSICS = (
    _record("axpy_4_f32_f32", "AXPY", "Dst[i] += Src1[z] * Src2[i, z]", {"i": 4, "z": 1},
            (("z",), ("i", "z"), ("i",)), 2.0),
    _record("gemv_16x4_f32_f32", "GEMV", "Dst[i] += Src1[r] * Src2[i, r]", {"i": 16, "r": 4},
            (("r",), ("i", "r"), ("i",)), 4.0, f"{SOURCE}; extents and cycles are ours, none are published"),
    _record("conv_16x4x4x16_f32_f32", "CONV", "Dst[kk, pp, qq] += Src1[cc, pp, qq] * Src2[kk, cc]",
            {"kk": 16, "pp": 4, "qq": 4, "cc": 16}, (("cc", "pp", "qq"), ("kk", "cc"), ("kk", "pp", "qq")), 36.0),
    _record("gemm_16x16x16_f32_f32", "GEMM", MATRIX, {"i1": 16, "i2": 16, "r1": 16},
            (("i1", "r1"), ("r1", "i2"), ("i1", "i2")), 64.0),
)  # fmt: skip
