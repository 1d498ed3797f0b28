"""Records of the usual form, so that a data file says only what is particular: shapes, types, layouts, sources."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tilewright.intrinsics.elements import is_float, tag
from tilewright.intrinsics.intrinsic import Cost, Fragment, Group, Intrinsic, Limits, Movement, Numerics, Operand

Layout = Fragment | str
MATRIX = "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]"
DOT = "Dst[i] += Src1[r] * Src2[i, r]"
FULL_DOT = "Dst[i] += Src1[i, r] * Src2[i, r]"


def types_of(a: str, b: str, c: str) -> str:
    """How a name ends: ``f16_f32``, ``u8s8_s32``; integer types stand in pairs where they differ."""
    return f"{tag(a)}{tag(b) if b != a else ''}_{tag(c)}"


def matrix(
    name: str,
    target: str,
    shape: tuple[int, int, int],
    dtypes: tuple[str, str, str],
    layouts: tuple[Layout, Layout, Layout] = ("row_major", "row_major", "row_major"),
    *,
    cost: Cost,
    source: str,
    group: Group = "lane",
    features: tuple[str, ...] = (),
    processors: tuple[str, ...] = (),
    scopes: tuple[str, str, str] = ("reg", "reg", "reg"),
    registers: tuple[int, int, int] = (0, 0, 0),
    memory: tuple[Movement, ...] = (),
    limits: Limits | None = None,
    numerics: Numerics | None = None,
    aliases: tuple[str, ...] = (),
    llvm: str = "",
    emitter: str = "",
    realised_by: str = "",
    compute: str = MATRIX,
) -> Intrinsic:
    """``Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]``; `shape` is (i1, i2, r1), types and the rest a, b, c."""
    m, n, k = shape
    indices = (("Src1", ("i1", "r1")), ("Src2", ("r1", "i2")), ("Dst", ("i1", "i2")))
    return Intrinsic(
        name=name,
        target=target,
        compute=compute,
        extents={"i1": m, "i2": n, "r1": k},
        operands=tuple(
            Operand(role, dtype, loops, scope, layout, count)
            for (role, loops), dtype, scope, layout, count in zip(
                indices, dtypes, scopes, layouts, registers, strict=True
            )
        ),
        cost=cost,
        source=source,
        group=group,
        features=features,
        processors=processors,
        memory=memory,
        limits=limits or Limits(),
        numerics=numerics or _usual(dtypes),
        aliases=aliases,
        llvm=llvm,
        emitter=emitter,
        realised_by=realised_by,
    )


@cache
def multiply_add(a: str, b: str, c: str) -> Intrinsic:
    """One point of a product: the multiply-add of one thread, which every machine has after exact conversions."""
    name = f"fma_1_{types_of(a, b, c)}"
    return matrix(name, "any", (1, 1, 1), (a, b, c), cost=Cost(1, 1), source="IEEE 754 fusedMultiplyAdd; integers wrap")


def with_upper_types(prefix: str, shape: str, a: str, b: str, c: str) -> str:
    """A name as MLIR's GPU dialects write it: ``MFMA_F32_16x16x32_F8E5M2FNUZ_F8E4M3FNUZ``."""
    return f"{prefix}{c}_{shape}_{a}{'' if a == b else f'_{b}'}".upper().replace("X", "x")


def _usual(dtypes: tuple[str, str, str]) -> Numerics:
    """Integers wrap; narrow floats have exact products, f32 and f64 fused multiply-adds, in an order that is open."""
    if not is_float(dtypes[2]):
        return Numerics(order="fixed")
    return Numerics("fma" if dtypes[0] in ("f32", "f64") else "exact")


def vector(
    name: str,
    target: str,
    compute: str,
    extents: dict[str, int],
    operands: tuple[tuple[str, tuple[str, ...], Layout], ...],
    *,
    cost: Cost,
    source: str,
    numerics: Numerics,
    features: tuple[str, ...] = (),
    memory: tuple[Movement, ...] = (),
    aliases: tuple[str, ...] = (),
    llvm: str = "",
    vector_bits: tuple[int, ...] = (),
    emitter: str = "",
) -> Intrinsic:
    """A record of one lane of code: operands as (dtype, loops, layout), called Src1, Src2, ..., Dst."""
    roles = [*(f"Src{number}" for number in range(1, len(operands))), "Dst"]
    return Intrinsic(
        name=name,
        target=target,
        compute=compute,
        extents=extents,
        operands=tuple(
            Operand(role, dtype, loops, "reg", layout)
            for role, (dtype, loops, layout) in zip(roles, operands, strict=True)
        ),
        cost=cost,
        source=source,
        features=features,
        memory=memory,
        numerics=numerics,
        aliases=aliases,
        llvm=llvm,
        vector_bits=vector_bits,
        emitter=emitter,
    )


def saturating(record: Intrinsic, name: str, **changes: object) -> Intrinsic:
    """The variant of an integer record that saturates instead of wrapping."""
    numerics = replace(record.numerics, saturate=True)
    return replace(record, name=name, numerics=numerics, **{"aliases": (), "llvm": "", "emitter": "", **changes})  # type: ignore[arg-type]
