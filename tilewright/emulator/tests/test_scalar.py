"""Scalar instructions against plain Python or NumPy, on random values and on the ends of their ranges."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tilewright.emulator.tests.harness import apply, execute

EDGES = [0, 1, 2, 31, 32, 33, 63, 64, 255, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF, 0x00010001]


def words(seed: int, count: int = 200) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(seed)
    found = generator.integers(0, 1 << 32, count, np.uint64).astype(np.uint32)
    found[: len(EDGES)] = generator.permutation(np.array(EDGES, np.uint32))
    return found


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def field(value: int, at: int, count: int, is_signed: bool) -> int:
    """``bfe`` as the PTX ISA states it, bit by bit."""
    at, count = at & 255, count & 255
    top = value >> min(at + count - 1, 31) & 1 if is_signed and count else 0
    found = [top] * 32
    for bit in range(min(count, 32)):
        if at + bit <= 31:
            found[bit] = value >> (at + bit) & 1
    return sum(bit << place for place, bit in enumerate(found))


def permuted(a: int, b: int, control: int) -> int:
    source = [(a | b << 32) >> 8 * byte & 255 for byte in range(8)]
    found = 0
    for byte in range(4):
        select = control >> 4 * byte & 15
        value = source[select & 7]
        if select & 8:
            value = 255 if value >> 7 else 0
        found |= value << 8 * byte
    return found


def parts(value: int, bits: int, is_signed: bool) -> list[int]:
    found = [value >> at & ((1 << bits) - 1) for at in range(0, 32, bits)]
    return [signed(each, bits) for each in found] if is_signed else found


CASES: dict[str, tuple[int, Callable[..., int]]] = {
    "add.s32": (2, lambda a, b: a + b), "sub.u32": (2, lambda a, b: a - b), "mul.lo.s32": (2, lambda a, b: a * b),
    "mul.hi.u32": (2, lambda a, b: a * b >> 32), "mul.hi.s32": (2, lambda a, b: signed(a) * signed(b) >> 32),
    "mad.lo.u32": (3, lambda a, b, c: a * b + c), "mad.hi.s32": (3, lambda a, b, c: (signed(a) * signed(b) >> 32) + c),
    "add.sat.s32": (2, lambda a, b: max(-(1 << 31), min((1 << 31) - 1, signed(a) + signed(b)))),
    "min.s32": (2, lambda a, b: min(signed(a), signed(b))), "max.u32": (2, max),
    "abs.s32": (1, lambda a: abs(signed(a))), "neg.s32": (1, lambda a: -a), "not.b32": (1, lambda a: ~a),
    "and.b32": (2, lambda a, b: a & b), "or.b32": (2, lambda a, b: a | b), "xor.b32": (2, lambda a, b: a ^ b),
    "cnot.b32": (1, lambda a: int(a == 0)),
    "shl.b32": (2, lambda a, b: a << b if b < 32 else 0), "shr.u32": (2, lambda a, b: a >> b if b < 32 else 0),
    "shr.s32": (2, lambda a, b: signed(a) >> min(b, 31)),
    "shf.l.wrap.b32": (3, lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32),
    "shf.r.wrap.b32": (3, lambda a, b, c: (b << 32 | a) >> (c & 31)),
    "shf.l.clamp.b32": (3, lambda a, b, c: ((b << 32 | a) << min(c, 32)) >> 32),
    "bfe.u32": (3, lambda a, b, c: field(a, b, c, False)), "bfe.s32": (3, lambda a, b, c: field(a, b, c, True)),
    "prmt.b32": (3, permuted), "popc.b32": (1, lambda a: bin(a).count("1")),
    "clz.b32": (1, lambda a: 32 - a.bit_length()),
    "brev.b32": (1, lambda a: int(f"{a:032b}"[::-1], 2)),
    "bfind.u32": (1, lambda a: a.bit_length() - 1),
    "bfind.shiftamt.u32": (1, lambda a: 32 - a.bit_length() if a else -1),
    "div.u32": (2, lambda a, b: a // b if b else -1), "rem.u32": (2, lambda a, b: a % b if b else -1),
    "div.s32": (2, lambda a, b: int(Fraction(signed(a), signed(b))) if b else -1),
    "rem.s32": (2, lambda a, b: signed(a) - signed(b) * int(Fraction(signed(a), signed(b))) if b else -1),
    "sad.u32": (3, lambda a, b, c: abs(a - b) + c), "mul24.lo.u32": (2, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    "dp4a.u32.u32": (3, lambda a, b, c: c + sum((a >> 8 * i & 255) * (b >> 8 * i & 255) for i in range(4))),
    "dp4a.s32.s32": (3, lambda a, b, c: c + sum(signed(a >> 8 * i, 8) * signed(b >> 8 * i, 8) for i in range(4))),
    "szext.clamp.s32": (2, lambda a, b: signed(a & (1 << min(b, 32)) - 1, min(b, 32)) if b else 0),
    "vabsdiff4.u32.u32.u32.add": (
        3, lambda a, b, c: c + sum(abs(x - y) for x, y in zip(parts(a, 8, False), parts(b, 8, False), strict=True))
    ),
    "vmax2.s32.s32.s32": (
        3, lambda a, b, c: sum(
            (max(x, y) & 0xFFFF) << 16 * at
            for at, (x, y) in enumerate(zip(parts(a, 16, True), parts(b, 16, True), strict=True))
        ),
    ),
    "vadd4.s32.s32.u32.sat": (
        3, lambda a, b, c: sum(
            (min(x + y, 127) & 0xFF) << 8 * at
            for at, (x, y) in enumerate(zip(parts(a, 8, True), parts(b, 8, False), strict=True))
        ),
    ),
    "bmsk.clamp.b32": (2, lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32)),
}  # fmt: skip


@pytest.mark.parametrize("opcode", CASES)
def test_integer_instruction(opcode: str) -> None:
    arity, expected = CASES[opcode]
    columns = [words(seed) for seed in range(arity)]
    if opcode.split(".")[0] in ("shl", "shr", "shf", "bfe", "szext", "bmsk"):  # amounts near the width as well
        columns[1:] = [
            np.where(np.arange(200) % 3 > 0, column % 70, column).astype(np.uint32) for column in columns[1:]
        ]
    found = apply(opcode, columns, np.uint32)
    wanted = [expected(*(int(column[row]) for column in columns)) & 0xFFFFFFFF for row in range(200)]
    assert found.tolist() == wanted


@pytest.mark.parametrize("table", [0x00, 0x80, 0x96, 0xE8, 0xCA, 0xF8, 0xFF])
def test_lop3_is_its_table(table: int) -> None:
    a, b, c = words(1), words(2), words(3)
    found = apply("lop3.b32", [a, b, c], np.uint32, f", {table}")
    for bit in range(32):
        row = (a >> bit & 1) * 4 + (b >> bit & 1) * 2 + (c >> bit & 1)
        assert ((found >> np.uint32(bit) & 1) == (table >> row & 1)).all()


@pytest.mark.parametrize(("at", "count"), [(0, 8), (4, 12), (31, 1), (28, 8), (0, 32), (40, 3), (5, 0)])
def test_bfi(at: int, count: int) -> None:
    a, b = words(1), words(2)
    found = apply("bfi.b32", [a, b], np.uint32, f", {at}, {count}")
    mask = sum(1 << bit for bit in range(at, min(32, at + count)))
    assert found.tolist() == [(int(y) & ~mask) | (int(x) << at & mask) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("kind", ["u64", "s64"])
def test_high_half_of_64_bit_products(kind: str) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.integers(0, 1 << 64, 100, np.uint64, endpoint=False) for _ in range(2))
    found = apply(f"mul.hi.{kind}", [a, b], np.uint64)
    read = (lambda value: signed(int(value), 64)) if kind == "s64" else int
    assert found.tolist() == [(read(x) * read(y) >> 64) & (1 << 64) - 1 for x, y in zip(a, b, strict=True)]


def test_carries_add_and_subtract_64_bits_in_halves() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.integers(0, 1 << 64, 32, np.uint64, endpoint=False) for _ in range(2))
    a[:8] |= np.uint64(0xFFFFFFFF)
    body = """
    mul.wide.u32 %rd5, %r0, 8; add.s64 %rd6, %rd0, %rd5; add.s64 %rd7, %rd1, %rd5;
    ld.global.v2.u32 {%r1, %r2}, [%rd6]; ld.global.v2.u32 {%r3, %r4}, [%rd7];
    add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4; st.global.v2.u32 [%rd6], {%r5, %r6};
    sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4; st.global.v2.u32 [%rd7], {%r5, %r6};
    """
    total, difference = a + b, a - b
    assert not execute(body, a, b).diagnostics
    assert (a == total).all()
    assert (b == difference).all()


def floats(seed: int, count: int = 400) -> np.ndarray[Any, Any]:
    """Values of every size, with zeros, infinities, NaN and subnormals among them."""
    generator = np.random.default_rng(seed)
    found = (generator.standard_normal(count) * 10.0 ** generator.integers(-12, 12, count)).astype(np.float32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, 1, -1, 0.5, 2.5], np.float32)
    found[: len(special)] = generator.permutation(special)
    return found


def nearest(exact: Fraction, mode: str) -> np.float32:
    """A fraction rounded to f32, by trying the neighbours."""
    guess = np.float32(float(exact)) if abs(exact) < Fraction(10) ** 38 else np.float32(0)
    options = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    values = [Fraction(float(option)) for option in options]
    if mode == "rz":
        mode = "rm" if exact >= 0 else "rp"
    if mode == "rm":
        return max(option for option, value in zip(options, values, strict=True) if value <= exact)
    if mode == "rp":
        return min(option for option, value in zip(options, values, strict=True) if value >= exact)
    best = min(abs(value - exact) for value in values)
    ties = [option for option, value in zip(options, values, strict=True) if abs(value - exact) == best]
    return min(ties, key=lambda option: int(np.float32(option).view(np.uint32)) & 1)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("opcode", ["add", "mul", "fma", "div"])
def test_f32_rounds_once(opcode: str, mode: str) -> None:
    generator = np.random.default_rng(1)
    columns = [
        generator.standard_normal(300).astype(np.float32) * np.float32(1 + 1000 * (seed == 2)) for seed in range(3)
    ]
    arity = 3 if opcode == "fma" else 2
    found = apply(f"{opcode}.{mode}.f32", columns[:arity], np.float32)
    for row in range(300):
        a, b, c = (Fraction(float(column[row])) for column in columns)
        exact = {"add": a + b, "mul": a * b, "fma": a * b + c, "div": a / b}[opcode]
        assert found[row] == nearest(exact, mode), (row, a, b, c)


def test_f64_fma_rounds_once() -> None:
    generator = np.random.default_rng(1)
    a, b = generator.standard_normal(200), generator.standard_normal(200)
    c = -a * b * (1 + generator.integers(-2, 3, 200) * 2.0**-52)
    a[:3], b[:3], c[:3] = 1e-200, 1e-200, 5e-324
    found = apply("fma.rn.f64", [a, b, c], np.float64)
    assert found.tolist() == [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("opcode", ["min", "max"])
def test_extrema_order_zeros_and_skip_nan(opcode: str) -> None:
    a = np.array([0.0, -0.0, np.nan, 1, np.nan], np.float32)
    b = np.array([-0.0, 0.0, 2, np.nan, np.nan], np.float32)
    found = apply(f"{opcode}.f32", [a, b], np.float32)
    zero = -0.0 if opcode == "min" else 0.0
    assert np.signbit(found[:2]).tolist() == [np.signbit(zero)] * 2
    assert found[2:4].tolist() == [2, 1]
    assert found[4:].view(np.uint32) == 0x7FFFFFFF
    assert np.isnan(apply(f"{opcode}.NaN.f32", [a, b], np.float32)[2:]).all()


def test_flushing_of_subnormals() -> None:
    tiny = np.array([1e-40, -1e-40, 1.0], np.float32)
    assert apply("add.ftz.f32", [tiny, tiny], np.float32).tolist() == [0.0, -0.0, 2.0]
    assert apply("add.f32", [tiny, tiny], np.float32)[0] > 0


@pytest.mark.parametrize(
    ("opcode", "function", "ulps", "error"),
    [("ex2.approx.f32", np.exp2, 0.51, 2.0**-21), ("rcp.rn.f32", lambda a: 1 / a, 0.5, 0),
     ("sqrt.rn.f32", np.sqrt, 0.5, 0), ("rsqrt.approx.f32", lambda a: 1 / np.sqrt(a), 0.51, 2.0**-22),
     ("lg2.approx.f32", np.log2, 0.51, 2.0**-21), ("sin.approx.f32", np.sin, 0.51, 2.0**-14),
     ("tanh.approx.f32", np.tanh, 0.51, 2.0**-10)],
)  # fmt: skip
def test_elementary_functions(opcode: str, function: Any, ulps: float, error: float, device: str) -> None:
    """Approximate ones are closer than those of hardware, whose `error` is relative or, below 1, absolute."""
    values = np.random.default_rng(0).uniform(0.1, 20, 300).astype(np.float32)
    exact = function(values.astype(np.float64))
    found = apply(opcode, [values], np.float32)
    allowed = ulps * abs(np.spacing(exact.astype(np.float32)))
    if device == "cuda":
        allowed += error * np.maximum(1, abs(exact))
    assert (abs(found - exact) <= allowed).all()


@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("bf16", "bfloat16")])
def test_half_precision_arithmetic(kind: str, dtype: Any) -> None:
    import ml_dtypes

    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    generator = np.random.default_rng(2)
    a, b, c = ((generator.standard_normal(300) * 8).astype(dtype) for _ in range(3))
    raw = [each.view(np.uint16) for each in (a, b, c)]
    wide = [each.astype(np.float64) for each in (a, b, c)]
    for name, wanted in (("add", wide[0] + wide[1]), ("mul", wide[0] * wide[1])):
        found = apply(f"{name}.{kind}", raw[:2], np.uint16, target="sm_90")
        assert (found == wanted.astype(dtype).view(np.uint16)).all()
    fused = (wide[0] * wide[1] + wide[2]).astype(dtype).view(np.uint16)
    assert (apply(f"fma.rn.{kind}", raw, np.uint16) == fused).all()
    pairs = [np.ascontiguousarray(each).view(np.uint32) for each in raw]
    assert (apply(f"fma.rn.{kind}x2", pairs, np.uint32) == fused.view(np.uint32)).all()


@pytest.mark.parametrize("kind", ["s32", "u32", "s8", "u8", "s64", "u16"])
def test_floats_to_integers_saturate(kind: str) -> None:
    values = floats(3)
    bits = int(kind[1:])
    dtype = np.dtype(f"{'int' if kind[0] == 's' else 'uint'}{bits}")
    found = apply(f"cvt.rni.{kind}.f32", [values], np.dtype(f"uint{max(16, bits)}")).astype(np.uint64)
    limits = np.iinfo(dtype)
    for value, result in zip(values.tolist(), found.tolist(), strict=True):
        if value != value:
            wanted = limits.min if kind == "s64" else 0
        else:
            wanted = max(limits.min, min(limits.max, round(value) if abs(value) < 1e30 else int(np.sign(value)) << 100))
        assert result & ((1 << bits) - 1) == wanted & ((1 << bits) - 1), value


@pytest.mark.parametrize("mode", ["rn", "rz"])
def test_narrowing_conversions(mode: str) -> None:
    import ml_dtypes

    values = (np.random.default_rng(0).standard_normal(500) * 100).astype(np.float32)
    found = apply(f"cvt.{mode}.bf16.f32", [values], np.uint16)
    exact = values.astype(ml_dtypes.bfloat16).view(np.uint16) if mode == "rn" else (values.view(np.uint32) >> 16)
    assert (found == exact).all()
    halves = apply(f"cvt.{mode}.f16x2.f32", [values, values[::-1].copy()], np.uint32).view(np.float16).reshape(-1, 2)
    if mode == "rn":
        assert (halves[:, 1] == values.astype(np.float16)).all()
        assert (halves[:, 0] == values[::-1].astype(np.float16)).all()
    assert (abs(halves[:, 1].astype(np.float32)) <= abs(values) * (1 if mode == "rz" else 1.01)).all()


def test_tf32_rounds_ties_away() -> None:
    values = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -(1 + 2.0**-11)], np.float32)
    found = apply("cvt.rna.tf32.f32", [values], np.float32)
    assert found.tolist() == [1 + 2.0**-10, 1 + 2 * 2.0**-10, -(1 + 2.0**-10)]


def test_tf32_at_the_ends_of_f32() -> None:
    """The largest numbers become infinite, denormals are rounded like others; of infinities and NaN low bits go."""
    given = [0x7F7FEFFF, 0x7F7FF000, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFC01234, 0x7F801FFF,
             0x00000FFF, 0x00001000, 0x80001000, 0x007FF000, 0x80000000, 0x00800FFF]  # fmt: skip
    wanted = [0x7F7FE000, 0x7F800000, 0xFF800000, 0x7F800000, 0xFF800000, 0x7FFFE000, 0xFFC00000, 0x7F800000,
              0x00000000, 0x00002000, 0x80002000, 0x00800000, 0x80000000, 0x00800000]  # fmt: skip
    found = apply("cvt.rna.tf32.f32", [np.array(given, np.uint32).view(np.float32)], np.uint32)
    assert [hex(each) for each in found] == [hex(each) for each in wanted]


@pytest.mark.parametrize("comparison", ["eq", "ne", "lt", "leu", "gtu", "neu", "num", "nan"])
def test_comparisons_of_floats(comparison: str) -> None:
    a, b = floats(5), floats(6)
    b[:100] = a[:100]
    found = apply(f"set.{comparison}.u32.f32", [a, b], np.uint32)
    unordered = np.isnan(a) | np.isnan(b)
    plain = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "num": ~unordered, "nan": unordered}
    plain |= {"nan": unordered, "leu": (a <= b) | unordered, "gtu": (a > b) | unordered, "neu": (a != b) | unordered}
    plain["ne"] &= ~unordered
    wanted = plain[comparison]
    assert (found == np.where(wanted, 0xFFFFFFFF, 0)).all()
