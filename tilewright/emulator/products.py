"""What matrix units compute, bit by bit: exact products, added in blocks after an alignment that truncates.

Floats: the products of a block of K and the accumulator are aligned to the largest exponent among them, cut to a fixed
number of fraction bits, added exactly, and the sum is cut to f32 (to nearest for an f16 result). Width of the block and
fraction bits depend on the generation: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores",
2021, for sm_70 to sm_80; Li et al., "FTTN", 2024, for sm_90, which agrees with an H200 in every bit that a test has;
Xie et al., "MMA-Sim", 2025 (arXiv 2511.10909), for 8-bit floats and sm_100.
f64 is a chain of fused multiply-adds along K; integers are exact and wrap, or saturate with `.satfinite`.
"""

from __future__ import annotations

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.rounding import fma_f64, from_bf16, to_bf16, to_f16, to_f32
from tilewright.emulator.scalars import Array


@dataclass(frozen=True)
class Unit:
    """How the matrix unit of a generation adds floats: the parameters of `block_sum`.

    `bits16` products of f16 or bf16 are added at once, `bits32` of tf32, twice `bits16` of 8-bit floats; the blocks of
    a longer K follow each other. Terms keep `fraction` bits behind the leading bit of the largest one, those of 8-bit
    floats `fraction8`, of whose sum a result of f32 keeps `kept8` behind the leading bit of its own; f32 has 23.
    Where `unpacks8`, `mma` of 8-bit floats is assembled to conversions and products of f16 (`multiply_unpacked`).
    """

    bits16: int
    bits32: int
    fraction: int
    fraction8: int = 13
    kept8: int = 13
    unpacks8: bool = False


_F32_BITS = 23  # of a fraction
UNITS = {
    70: Unit(4, 4, 23), 75: Unit(4, 4, 24), 80: Unit(8, 4, 24), 90: Unit(16, 8, 25, unpacks8=True),
    100: Unit(16, 8, 25, fraction8=25, kept8=_F32_BITS),
}  # fmt: skip
_LEAST_EXPONENT = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14}


def unit_of(target: str) -> Unit:
    """The unit of the generation that `.target` names.

    >>> unit_of("sm_86").bits16
    8
    """
    digits = "".join(character for character in target if character.isdigit())
    number = int(digits or 80)
    return UNITS[max((known for known in UNITS if known <= number), default=70)]


def elements(registers: Array, kind: str) -> Array:
    """Elements of 32- or 64-bit registers (n, lanes, registers) as f64 or i64 (n, lanes, elements)."""
    raw = np.ascontiguousarray(registers)
    if kind == "f64":
        return raw.view(np.float64)
    if kind == "f32":
        return raw.view(np.float32).astype(np.float64)
    if kind == "tf32":
        return (raw & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if kind == "f16":
        return raw.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return from_bf16(raw.view(np.uint16)).astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        import ml_dtypes

        dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[kind]
        return np.asarray(raw.view(np.uint8).view(dtype).astype(np.float64))
    if kind == "s32":
        return raw.view(np.int32).astype(np.int64)
    if kind in ("s8", "u8"):
        return raw.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64)
    assert kind in ("s4", "u4", "b1"), f"no elements of type {kind}"
    if kind == "b1":
        return np.unpackbits(raw.view(np.uint8), axis=-1, bitorder="little").astype(np.int64)
    halves = raw.view(np.uint8)
    values = np.stack([halves & 15, halves >> 4], axis=-1).reshape(*halves.shape[:-1], -1).astype(np.int64)
    return np.where(values > 7, values - 16, values) if kind == "s4" else values


def registers(values: Array, kind: str) -> Array:
    """The reverse of `elements` for results: registers (n, lanes, registers)."""
    if kind == "f64":
        return np.ascontiguousarray(values.astype(np.float64)).view(np.uint64)
    if kind == "f32":
        return np.ascontiguousarray(values.astype(np.float32)).view(np.uint32)
    if kind == "f16":
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)
    if kind == "bf16":
        return np.ascontiguousarray(to_bf16(values)).view(np.uint32)
    assert kind == "s32", f"no results of type {kind}"
    return np.ascontiguousarray(values.astype(np.int32)).view(np.uint32)


def multiply(
    a: Array, b: Array, c: Array, kinds: tuple[str, str], result: str, unit: Unit, *, saturate: bool = False,
    bits: str = "",
) -> Array:  # fmt: skip
    """``c + a @ b`` for matrices (n, M, K), (n, K, N), (n, M, N) as `elements` gives them; `bits` is xor or and."""
    if result == "s32":
        return _integers(a, b, c, saturate, bits)
    if result == "f64":
        for k in range(a.shape[2]):
            c = fma_f64(a[:, :, k, None], b[:, None, k, :], c)
        return c
    width = unit.bits32 if "tf32" in kinds else unit.bits16
    fraction, kept = unit.fraction, _F32_BITS
    if kinds[0] in ("e4m3", "e5m2"):
        width, fraction, kept = 2 * unit.bits16, unit.fraction8, unit.kept8
    limit = 2.0**fraction
    whole = _largest_whole(a) * _largest_whole(b) < limit
    for start in range(0, a.shape[2], width):
        part = slice(start, start + width)
        left, right = a[:, :, part], b[:, part]
        if whole and _largest_whole(c) < limit and not np.signbit(c[c == 0]).any():
            c = _narrow(c + left @ right, result, kept)  # alignment cuts nothing of whole numbers below the limit
            continue
        exponents = _exponents(left, _LEAST_EXPONENT[kinds[0]]), _exponents(right, _LEAST_EXPONENT[kinds[1]])
        c = block_sum(left, right, c, exponents, fraction, result, kept)
    return c


def _largest_whole(values: Array) -> float:
    """The largest magnitude of whole numbers; infinity where one is none."""
    return float(np.abs(values).max(initial=0.0)) if (np.rint(values) == values).all() else np.inf


def multiply_unpacked(a: Array, b: Array, c: Array, result: str, unit: Unit) -> Array:
    """`multiply` for `mma` of 8-bit floats as ptxas 13.0 assembles it for sm_90, which has no unit for them.

    Of every four neighbours along K the first two are converted to f16 and multiplied, then the last two; both products
    are added in the unit, and their sum to `c` by an addition of its own.
    """
    pairs = np.arange(a.shape[2]) % 4 < 2
    sums = np.zeros_like(c)
    for part in (pairs, ~pairs):
        sums = multiply(a[:, :, part], b[:, part], sums, ("f16", "f16"), result, unit)
    narrow = to_f16(c + sums) if result == "f16" else to_f32(c + sums)
    return np.asarray(narrow.astype(np.float64))


def _exponents(values: Array, least: int) -> Array:
    """Exponents as the unit sees them: those of subnormals are the least, zeros have none."""
    exponents = np.frexp(values)[1].astype(np.int32) - 1
    return np.where(values == 0, np.int32(-100_000), np.maximum(exponents, least))


def block_sum(
    a: Array, b: Array, c: Array, exponents_of: tuple[Array, Array], fraction: int, result: str, kept: int = _F32_BITS
) -> Array:
    """``c + a @ b`` as a matrix unit adds one block of K: all products and the addend at once.

    1. Products are exact. The exponent of a product is the sum of those of its factors (`exponents_of`), so that its
       significand is in [1, 4).
    2. All terms, c among them, are aligned to the largest exponent of any, and cut to `fraction` bits behind its
       leading bit: toward zero, each by itself. A term that is smaller than the last of these bits is lost.
    3. The terms are added exactly.
    4. The sum is normalised and rounded: toward zero for a result of f32, to `kept` bits behind its leading bit, to
       nearest for one of f16.

    Where a sum of f32 passes through many blocks, its error has the sign of the sum and grows with their number.
    Where a term is infinite or NaN, the result is that of plain addition.
    """
    ea, eb = exponents_of
    terms = a[:, :, None, :] * b.transpose(0, 2, 1)[:, None]
    exponents = (ea[:, :, None, :] + eb.transpose(0, 2, 1)[:, None]).max(axis=-1)
    own = np.where(c == 0, np.int32(-100_000), np.maximum(np.frexp(c)[1].astype(np.int32) - 1, -126))
    top = np.maximum(np.maximum(exponents, own), -1000)  # all zeros: any exponent will do
    scale = np.ldexp(1.0, fraction - top)
    total = np.trunc(terms * scale[..., None]).sum(axis=-1) + np.trunc(c * scale)
    found = total / scale
    if not np.isfinite(found).all() or not np.isfinite(c).all():
        plain = terms.sum(axis=-1) + c
        found = np.where(np.isfinite(plain) & np.isfinite(found), found, plain)
    return _narrow(found, result, kept)


def _narrow(values: Array, result: str, kept: int) -> Array:
    """What a result of f16, or one of f32 with `kept` bits of a fraction, keeps of sums."""
    if result == "f16":
        return to_f16(values).astype(np.float64)
    cut = to_f32(values, "rz").view(np.uint32) & np.uint32(-(1 << (_F32_BITS - kept)) & 0xFFFFFFFF)
    return cut.view(np.float32).astype(np.float64)


def _integers(a: Array, b: Array, c: Array, saturate: bool, bits: str) -> Array:
    if bits:
        function = np.bitwise_xor if bits == "xor" else np.bitwise_and
        found = c + function(a[:, :, :, None], b[:, None]).sum(axis=2)
    else:
        found = c + (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    if saturate:
        return np.asarray(np.clip(found, -(1 << 31), (1 << 31) - 1))
    return np.asarray((found + (1 << 31)) % (1 << 32) - (1 << 31))
