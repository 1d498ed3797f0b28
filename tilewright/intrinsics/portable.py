"""Products that every CPU has: a multiply-add of vectors, after conversions where the operands are narrower.

Vectors of 128 bits, which every CPU has; a target's own files widen the same records.
"""

from __future__ import annotations

from tilewright.intrinsics.composite import family
from tilewright.intrinsics.elements import bits, is_float
from tilewright.intrinsics.intrinsic import Cost, Intrinsic, Movement, Numerics
from tilewright.intrinsics.shapes import types_of, vector

CPU = "cpu"

_NARROW = ("i8", "u8", "i16", "u16", "i32")

_FLOAT_PAIRS = (("f16", "f16"), ("bf16", "bf16"), ("f16", "f32"), ("f32", "f16"), ("bf16", "f32"), ("f32", "bf16"))
WIDENED: tuple[tuple[str, str, str], ...] = (
    *((a, b, "f32") for a, b in _FLOAT_PAIRS),
    *((a, b, "i32") for a in _NARROW for b in _NARROW),
    *((a, b, "i64") for a in ("i64", "i32") for b in ("i64", "i32")),
)  # fmt: skip


def multiply_add(
    lanes: int,
    a: str,
    b: str,
    c: str,
    *,
    full: bool = False,
    family: str = "",
    target: str = CPU,
    features: tuple[str, ...] = (),
    fused: bool = False,
    aliases: tuple[str, ...] = (),
    cost: Cost | None = None,
) -> Intrinsic:
    """``Dst[i2] += Src1[] * Src2[i2]`` on a vector of `lanes`, the scalar broadcast; `full`: both factors are vectors.

    Operands narrower than the accumulator are converted first. `fused` promises one rounding per point; without it a
    machine may round product and sum.
    """
    plain = a == b == c and is_float(c)
    emitter = "fma" if plain else "widen_f32" if is_float(c) else "widen_i32"
    loops = ("i2",) if full else ()
    movements = [
        Movement("ldb", "Src2", "reg", "mem", "addr_b + i2", alignment_bytes=bits(b) // 8),
        Movement("ldc", "Dst", "reg", "mem", "addr_c + i2", alignment_bytes=bits(c) // 8),
        Movement("stc", "Dst", "mem", "reg", "addr_c + i2", alignment_bytes=bits(c) // 8),
    ]
    address, via = ("addr_a + i2", "") if full else ("addr_a", "broadcast")
    movements.insert(0, Movement("lda", "Src1", "reg", "mem", address, via, bits(a) // 8))
    rule = "exact" if not is_float(c) else "fma" if fused else "multiply_add"
    family = family or ("fma" if plain else "widen")
    name = "_".join([family, *(["full"] if full else []), str(lanes), types_of(a, b, c)])
    return vector(
        name,
        target,
        f"Dst[i2] += {'Src1[i2]' if full else 'Src1[]'} * Src2[i2]",
        {"i2": lanes},
        ((a, loops, "row_major"), (b, ("i2",), "i2"), (c, ("i2",), "i2")),
        cost=cost or Cost(0.5 if plain else 1.5, 4.0),
        source="IEEE 754 fusedMultiplyAdd, or multiply and add" if plain else "exact conversion, then a multiply-add",
        numerics=Numerics(rule, order="fixed" if fused or not is_float(c) else "unspecified"),
        features=features,
        memory=tuple(movements),
        aliases=aliases,
        llvm=f"llvm.fma.v{lanes}{c}" if plain else "",
        emitter=emitter,
    )


FMA_F32 = multiply_add(4, "f32", "f32", "f32")
FMA_F64 = multiply_add(2, "f64", "f64", "f64")
_WIDENED = tuple(multiply_add(2 if c == "i64" else 4, a, b, c) for a, b, c in WIDENED)
_REGISTERS = 16  # vector registers of the smallest CPUs; others have more
INTRINSICS = (
    *family(FMA_F32, _REGISTERS),
    *family(FMA_F64, _REGISTERS),
    *(kernel for record in _WIDENED for kernel in family(record, _REGISTERS)),
    FMA_F32,
    FMA_F64,
    *_WIDENED,
    *(multiply_add(4 if c != "f64" else 2, c, c, c, full=True) for c in ("f32", "f64")),
    *(multiply_add(2 if c == "i64" else 4, a, b, c, full=True) for a, b, c in WIDENED),
)
