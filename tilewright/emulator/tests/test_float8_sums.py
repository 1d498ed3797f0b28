"""Products of 8-bit floats, bit for bit: single instructions, and the arithmetic of matrix units in whole numbers.

With `--device=cuda` the results are those of the GPU: a failure says which fraction bits agree with it.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import emulator
from tilewright.emulator import parse
from tilewright.emulator.fragments import mma_a, mma_b, mma_c, wgmma_d
from tilewright.emulator.tests.harness import kernel

Array = np.ndarray[Any, Any]
Kinds = tuple[str, str]

BITS = {"e4m3": (4, 3), "e5m2": (5, 2), "f16": (5, 10), "f32": (8, 23)}  # of the exponent and of the fraction
TYPES: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "f16": np.float16}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
NO_EXPONENT = -(10**6)  # of zeros: any other is larger
PAIRS = list(itertools.product(("e4m3", "e5m2"), repeat=2))

# 64 x 32 bytes of a and 8 x 32 of b in matrices of 8 rows of 16 bytes, 128 bytes from one to the next along K and 256
# along the rows; a thread brings 16 bytes of a, 16 threads bring b.
MEMORY = ".extern .shared .align 128 .b8 memory[];"
DESCRIBED = """mov.u32 %r10, memory; shl.b32 %r1, %r0, 4; add.u32 %r2, %r10, %r1; cvt.u64.u32 %rd5, %r1;
add.s64 %rd6, %rd0, %rd5; ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd6];
st.shared.v4.b32 [%r2], {%r3, %r4, %r5, %r6}; setp.lt.u32 %p1, %r0, 16; add.s64 %rd6, %rd1, %rd5;
@%p1 ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd6]; @%p1 st.shared.v4.b32 [%r2 + 2048], {%r3, %r4, %r5, %r6};
fence.proxy.async.shared::cta; bar.sync 0; and.b32 %r10, %r10, 0x3ffff; shr.u32 %r10, %r10, 4; cvt.u64.u32 %rd7, %r10;
or.b64 %rd7, %rd7, 0x0000001000080000; add.s64 %rd8, %rd7, 128; mov.pred %p2, -1; ld.param.u64 %rd9, [p2];
"""
AWAITED = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
OF_FOUR_WARPS = {
    "f32": """mad.wide.u32 %rd9, %r0, 16, %rd9; ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd9];
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k32.f32.KINDS {%f1, %f2, %f3, %f4}, %rd7, %rd8, %p2, 1, 1;
    AWAITED st.global.v4.f32 [%rd9], {%f1, %f2, %f3, %f4};""",
    "f16": """mad.wide.u32 %rd9, %r0, 8, %rd9; ld.global.v2.b32 {%r11, %r12}, [%rd9];
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k32.f16.KINDS {%r11, %r12}, %rd7, %rd8, %p2, 1, 1;
    AWAITED st.global.v2.b32 [%rd9], {%r11, %r12};""",
}
OF_A_WARP = """mov.u32 %r1, %ctaid.x; mad.lo.u32 %r1, %r1, 32, %r0; mad.wide.u32 %rd5, %r1, 16, %rd0;
mad.wide.u32 %rd6, %r1, 8, %rd1; ld.param.u64 %rd9, [p2]; mad.wide.u32 %rd9, %r1, 16, %rd9;
ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd5]; ld.global.v2.b32 {%r7, %r8}, [%rd6];
ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd9];
mma.sync.aligned.m16n8k32.row.col.f32.KINDS.f32 {%f1, %f2, %f3, %f4}, {%r3, %r4, %r5, %r6}, {%r7, %r8},
{%f1, %f2, %f3, %f4};
st.global.v4.f32 [%rd9], {%f1, %f2, %f3, %f4};"""


@pytest.mark.parametrize("result", ["f32", "f16"])
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_products_of_four_warps_keep_13_fraction_bits(kinds: Kinds, result: str) -> None:
    """Of terms, and of a result of f32: every other number of bits gives other results."""
    largest = 8.0 if result == "f16" else np.inf  # sums of f16 shall not overflow
    a, b = numbers((64, 32), kinds[0], largest, seed=1), numbers((8, 32), kinds[1], largest, seed=2)
    c = addends((64, 8), result, seed=3)
    rows = [each.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).copy() for each in (a, b)]
    registers = wgmma_d(8).scatter(c[None])
    body = DESCRIBED + OF_FOUR_WARPS[result].replace("KINDS", ".".join(kinds)).replace("AWAITED", AWAITED)
    text = kernel(body, 3, "sm_90a", MEMORY)
    assert not emulator.run(parse(text), "k", (1, 1, 1), (128, 1, 1), [*rows, registers], 2304).diagnostics
    found = wgmma_d(8).gather(registers)[0]
    same = {
        (fraction, kept): float((found == fused(a, b, c, (*kinds, result), fraction, kept)).mean())
        for fraction in range(8, 26)
        for kept in (range(8, 24) if result == "f32" else [13])
    }
    nearest = sorted(same.items(), key=lambda each: -each[1])[:5]
    assert [bits for bits, share in same.items() if share == 1] == [(13, 13)], nearest


@pytest.mark.emulator_only  # sm_90 makes other products of the same text
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize(("target", "block", "fraction", "kept"), [("sm_89", 16, 13, 13), ("sm_100", 32, 25, 23)])
def test_products_of_a_warp(target: str, block: int, fraction: int, kept: int, kinds: Kinds) -> None:
    """Xie et al., "MMA-Sim", 2025."""
    a, b, c, found = products_of_warps(kinds, target)
    for warp in range(len(found)):
        wanted = c[warp]
        for start in range(0, 32, block):
            part = slice(start, start + block)
            wanted = fused(a[warp][:, part], b[warp][:, part], wanted, (*kinds, "f32"), fraction, kept)
        assert (found[warp] == wanted).all()


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_products_of_a_warp_of_sm_90_are_products_of_f16(kinds: Kinds) -> None:
    """Of every four neighbours along K the first two, then the last two; their sum is added to c by itself."""
    a, b, c, found = products_of_warps(kinds, "sm_90")
    wide = [
        values.view(TYPES[kind]).astype(np.float16).view(np.uint16) for values, kind in zip((a, b), kinds, strict=True)
    ]
    first = np.arange(32) % 4 < 2
    for warp in range(len(found)):
        sums = np.zeros_like(c[warp])
        for half in (first, ~first):
            sums = fused(wide[0][warp][:, half], wide[1][warp][:, half], sums, ("f16", "f16", "f32"), 25, 23)
        assert (found[warp].view(np.float32) == c[warp].view(np.float32) + sums.view(np.float32)).all()


def products_of_warps(kinds: Kinds, target: str, warps: int = 8) -> tuple[Array, Array, Array, Array]:
    """Words of a (warps, 16, 32), b (warps, 8, 32), c and ``c + a @ b.T`` (warps, 16, 8)."""
    a, b = numbers((warps, 16, 32), kinds[0], np.inf, seed=4), numbers((warps, 8, 32), kinds[1], np.inf, seed=5)
    c = addends((warps, 16, 8), "f32", seed=6)
    of_a, of_b, sums = mma_a(16, 32, 8), mma_b(32, 8, 8), mma_c(16, 8)
    registers = sums.scatter(c)
    arguments = [of_a.scatter(a), of_b.scatter(b.transpose(0, 2, 1)), registers]
    text = kernel(OF_A_WARP.replace("KINDS", ".".join(kinds)), 3, target)
    assert not emulator.run(parse(text), "k", (warps, 1, 1), (32, 1, 1), arguments).diagnostics
    return a, b, c, sums.gather(registers)


def numbers(shape: tuple[int, ...], kind: str, largest: float, seed: int) -> Array:
    """Bytes of numbers up to the largest: of all that there are each is as likely, so that every exponent is."""
    generator = np.random.default_rng(seed)
    top = np.array(min(largest, LARGEST[kind]), TYPES[kind]).view(np.uint8)
    return (generator.integers(0, int(top) + 1, shape) | generator.choice([0, 0x80], shape)).astype(np.uint8)


def addends(shape: tuple[int, ...], kind: str, seed: int) -> Array:
    """Words of numbers with exponents from -20 to 20, in f16 from -14 to 10."""
    generator = np.random.default_rng(seed)
    exponent_bits, bits = BITS[kind]
    bias = (1 << (exponent_bits - 1)) - 1
    least, most = (-14, 10) if kind == "f16" else (-20, 20)
    words = generator.integers(bias + least, bias + most + 1, shape) << bits | generator.integers(0, 1 << bits, shape)
    words |= generator.choice([0, 1 << (exponent_bits + bits)], shape)
    return words.astype(np.uint16 if kind == "f16" else np.uint32)


def fused(a: Array, b: Array, c: Array, kinds: tuple[str, str, str], fraction: int, kept: int) -> Array:
    """Words of ``c + a @ b.T`` as a matrix unit adds one block of K, from words of a (M, K), b (N, K) and c (M, N).

    The exponent of a product is the sum of those of its factors. Every term keeps `fraction` bits below the largest
    exponent of all. A sum of f32 keeps `kept` bits below its leading one, toward zero; f16 is rounded to nearest.
    """
    (sa, ea), (sb, eb), (sc, ec) = (parts(words, kind) for words, kind in zip((a, b, c), kinds, strict=True))
    exponents = ea[:, None] + eb[None]
    top = np.maximum(exponents.max(axis=-1), ec)
    below = [BITS[kind][1] for kind in kinds]
    total = shifted(sa[:, None] * sb[None], fraction - below[0] - below[1] + exponents - top[..., None]).sum(axis=-1)
    total += shifted(sc, fraction - below[2] + ec - top)
    if kinds[2] == "f16":
        return np.ldexp(total.astype(np.float64), top - fraction).astype(np.float16).view(np.uint16)
    length = np.frexp(np.abs(total).astype(np.float64))[1].astype(np.int64)
    lost = np.maximum(length - 1 - kept, 0)
    cut = shifted(shifted(total, -lost), lost)
    return np.ldexp(cut.astype(np.float64), top - fraction).astype(np.float32).view(np.uint32)


def parts(words: Array, kind: str) -> tuple[Array, Array]:
    """Significands as signed whole numbers, in units of the last bit, and exponents: subnormals have the least one."""
    exponent_bits, bits = BITS[kind]
    wide = words.astype(np.int64)
    field, fraction = wide >> bits & (1 << exponent_bits) - 1, wide & (1 << bits) - 1
    significands = np.where(field > 0, fraction | 1 << bits, fraction)
    signs = np.where(wide >> (exponent_bits + bits) & 1, -1, 1)
    exponents = np.maximum(field, 1) - (1 << (exponent_bits - 1)) + 1
    return signs * significands, np.where(significands == 0, NO_EXPONENT, exponents)


def shifted(values: Array, by: Array) -> Array:
    """``values * 2**by``, cut toward zero."""
    magnitudes = np.abs(values) << np.clip(by, 0, 40) >> np.clip(-by, 0, 63)
    return np.sign(values) * magnitudes
