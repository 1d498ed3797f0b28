"""`execute` against a reference that computes one element at a time, with exact fractions, rounded once where told."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.errors import InvalidArgument
from tilewright.intrinsics.elements import is_float, storage
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.fragments import execute_registers, fragment_of, to_registers
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic
from tilewright.intrinsics.registry import standard
from tilewright.intrinsics.rounding import fused_f64, round_to

# Precision and least exponent of a normal number.
FORMATS = {"f16": (11, -14), "bf16": (8, -126), "f32": (24, -126), "f64": (53, -1022)}
LARGEST = {"f16": 65504.0, "bf16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), "f32": float(np.finfo("f4").max),
           "f64": float(np.finfo("f8").max)}  # fmt: skip


def rounded(value: Fraction, dtype: str) -> float:
    """The nearest number of a format, ties to even, from the exact value."""
    if value == 0:
        return 0.0
    precision, least = FORMATS[dtype]
    exponent = abs(value).numerator.bit_length() - abs(value).denominator.bit_length()
    exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (abs(value) < Fraction(2) ** exponent)
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    result = round(value / unit) * unit  # Python rounds ties to even
    if abs(result) > Fraction(LARGEST[dtype]):
        return math.inf if value > 0 else -math.inf
    return float(result)


def tiles(record: Intrinsic, seed: int, wild: bool) -> list[np.ndarray[Any, Any]]:
    """Random finite tiles, sources then destination: any bits (`wild`), or numbers near one."""
    random = np.random.default_rng(seed)
    found = []
    for operand in record.operands:
        shape, dtype = record.shape(operand), storage(operand.dtype)
        if operand.dtype == "b1":
            tile = random.integers(0, 2, shape).astype(bool)
        elif operand.dtype in ("i4", "u4"):
            tile = random.integers(*((-8, 8) if operand.dtype == "i4" else (0, 16)), shape).astype(dtype)
        elif wild:
            tile = np.frombuffer(random.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()
            if is_float(operand.dtype):
                with np.errstate(invalid="ignore"):
                    tile[~np.isfinite(tile.astype(np.float64))] = 1
        else:
            low = 0 if operand.dtype.startswith("u") else -8
            tile = np.asarray(random.integers(low, 9, shape) * (0.37 if is_float(operand.dtype) else 1)).astype(dtype)
        found.append(tile)
    return found


def truncated(value: float, dtype: str) -> float:
    """What arithmetic reads of an element."""
    if dtype != "tf32":
        return value
    mantissa, exponent = math.frexp(value)
    least = max(exponent, -125)
    return math.ldexp(math.trunc(math.ldexp(mantissa, 11 + exponent - least)), least - 11)


def terms_at(record: Intrinsic, sources: list[Any], spatial: dict[str, int]) -> list[tuple[Any, ...]]:
    """The factors at every reduction point of one element of the destination."""
    reduction = [loop for loop in record.loops if loop.kind == "R"]
    found = []
    for point in np.ndindex(*(loop.extent for loop in reduction)):
        at = {**spatial, **dict(zip((loop.name for loop in reduction), point, strict=True))}
        factors = []
        for operand, tile in zip(record.sources, sources, strict=True):
            element = tile[tuple(at[loop] for loop in operand.loops)]
            number = truncated(float(element), operand.dtype) if is_float(operand.dtype) else int(element)
            factors.append(number)
        found.append(tuple(factors))
    return found


def body_of(record: Intrinsic, factors: tuple[Any, ...]) -> Any:
    a, b = factors
    return a ^ b if "^" in record.compute else a * b


def element_of(record: Intrinsic, acc: Any, terms: list[tuple[Any, ...]]) -> Any:
    """One element of the result, by the rule's definition."""
    numerics, dtype = record.numerics, record.destination.dtype
    if not is_float(dtype):
        bits = storage(dtype).itemsize * 8
        half, span = 1 << (bits - 1), 1 << bits
        group = numerics.group or len(terms)
        if numerics.rule == "saturated_pairs_i16":
            for start in range(0, len(terms), 2):
                pair = sum(a * b for a, b in terms[start : start + 2])
                acc += min(max(pair, -(1 << 15)), (1 << 15) - 1)
            return (acc + half) % span - half
        for start in range(0, len(terms), group):
            acc += sum(body_of(record, factors) for factors in terms[start : start + group])
            acc = min(max(acc, -half), half - 1) if numerics.saturate else (acc + half) % span - half
        return acc
    if numerics.rule == "exact":
        group = numerics.group or len(terms)
        for start in range(0, len(terms), group):
            for a, b in terms[start : start + group]:
                acc += a * b
            acc = rounded(Fraction(acc), dtype)
        return acc
    if numerics.rule == "bf16_pairs":
        tiny = Fraction(2) ** -126
        terms = [terms[place ^ 1] for place in range(len(terms))]
        for factors in terms:
            a, b = (0.0 if abs(factor) < tiny else factor for factor in factors)
            exact = Fraction(a) * Fraction(b) + (0 if abs(acc) < tiny else Fraction(acc))
            acc = rounded(exact, "f32")
            acc = 0.0 if abs(acc) < tiny or abs(exact) < tiny - Fraction(2) ** -151 else acc
            if math.isinf(acc):
                return None
        return acc
    for a, b in terms:
        if math.isinf(acc):
            return None  # the reference has no infinities
        product = Fraction(a) * Fraction(b)
        if numerics.rule == "multiply_add":
            product = rounded(product, dtype)
            if math.isinf(product):
                return None
        acc = rounded(Fraction(product) + Fraction(acc), dtype)
    return acc


def structures() -> dict[str, Intrinsic]:
    """The smallest record of every rule, body, element types, grouping and saturation."""
    found: dict[str, Intrinsic] = {}
    for record in sorted(standard(), key=lambda record: record.macs):
        dtypes = ",".join(operand.dtype for operand in record.operands)
        ranks = ",".join(str(len(operand.loops)) for operand in record.operands)
        found.setdefault(f"{record.compute[:60]} {dtypes} {ranks} {record.numerics}", record)
    return found


@pytest.mark.parametrize("record", structures().values(), ids=lambda record: record.name)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1 << 32), wild=st.booleans())
def test_execute_is_the_scalar_definition(record: Intrinsic, seed: int, wild: bool) -> None:
    check_elements(record, seed, wild, 4)


def test_every_record_is_executed_by_its_definition() -> None:
    for seed, record in enumerate(standard()):
        check_elements(record, seed, wild=bool(seed % 2), count=1)


def check_elements(record: Intrinsic, seed: int, wild: bool, count: int) -> None:
    """Some elements of a result beside those that the definition gives."""
    *sources, dst = tiles(record, seed, wild)
    result = execute(record, dst, *sources)
    places = np.random.default_rng(seed).integers(0, max(1, dst.size), count)
    for flat in places:
        place = np.unravel_index(flat, dst.shape) if dst.ndim else ()
        spatial = dict(zip(record.destination.loops, map(int, place), strict=True))
        start = dst[place]
        expected = element_of(
            record,
            float(start) if is_float(record.destination.dtype) else int(start),
            terms_at(record, sources, spatial),
        )
        if expected is not None:
            kind = float if is_float(record.destination.dtype) else int
            assert kind(result[place]) == expected, f"{record.name} at {spatial}"


@pytest.mark.parametrize(
    "name", ["vpdpbusd", "mma_m16n8k16_bf16_f32", "fma_ps", "CONV", "arm_dot", "mad_16x16x16_f16_f32"]
)
def test_many_calls_at_once_are_calls_one_by_one(name: str) -> None:
    record = standard().find(name)
    calls = [tiles(record, seed, wild=False) for seed in range(6)]
    *sources, dst = (np.stack(column).reshape(2, 3, *column[0].shape) for column in zip(*calls, strict=True))
    together = execute(record, dst, *sources)
    for number, (*one, start) in enumerate(calls):
        np.testing.assert_array_equal(together[number // 3, number % 3], execute(record, start, *one))
    # Operands without a batch are shared by all calls.
    shared = execute(record, dst, np.asarray(sources[0][0, 0]), *sources[1:])
    np.testing.assert_array_equal(shared[0, 0], together[0, 0])
    assert shared.shape == together.shape


def test_execute_leaves_its_arguments_alone() -> None:
    record = standard().find("fma_ps")
    *sources, dst = tiles(record, 0, wild=False)
    before = dst.copy()
    execute(record, dst, *sources)
    np.testing.assert_array_equal(dst, before)


@pytest.mark.parametrize(
    "record",
    [record for record in structures().values() if all(isinstance(o.layout, Fragment) for o in record.operands)],
    ids=lambda record: record.name,
)
def test_registers_compute_what_boxes_do(record: Intrinsic) -> None:
    """The emulator: scatter by the fragment maps, execute, gather."""
    *sources, dst = tiles(record, 3, wild=False)
    fragments = [fragment_of(record, operand.role)[1] for operand in record.operands]
    registers = [to_registers(fragment, tile) for fragment, tile in zip(fragments, (*sources, dst), strict=True)]
    result = execute_registers(record, registers[-1], *registers[:-1])
    np.testing.assert_array_equal(result, to_registers(fragments[-1], execute(record, dst, *sources)))


def test_lanes_that_disagree_about_a_copy_are_refused() -> None:
    record = standard().find("WMMAR3_F32_16x16x16_F16")
    *sources, dst = tiles(record, 3, wild=False)
    registers = [to_registers(o.layout, tile) for o, tile in zip(record.operands, (*sources, dst), strict=True)]  # type: ignore[arg-type]
    registers[0][20, 7] += np.float16(1)
    with pytest.raises(InvalidArgument, match=r"element 7 differs"):
        execute_registers(record, registers[2], registers[0], registers[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b, c: (a[:2], b, c), r"Src1 is uint8\[2\], not uint8\[..., 4\]"),
        (lambda a, b, c: (a.astype(np.int8), b, c), "Src1 is int8"),
        (lambda a, b, c: (a, b, c.tolist()), "Dst is list"),
    ],
)
def test_a_wrong_box_is_refused(change: Any, message: str) -> None:
    record = standard().find("vpdpbusd")
    a, b, c = change(*tiles(record, 0, wild=False))
    with pytest.raises(InvalidArgument, match=message):
        execute(record, c, a, b)


def test_infinities_and_nans_follow_ieee() -> None:
    record = standard().find("fma_ps")
    b = np.full(16, 2, np.float32)
    dst = np.array([0, np.inf, -np.inf, np.nan] * 4, np.float32)
    result = execute(record, dst, np.array(np.inf, np.float32), b)
    np.testing.assert_array_equal(result[:4], np.array([np.inf, np.inf, np.nan, np.nan], np.float32))
    overflow = execute(record, np.zeros(16, np.float32), np.array(3e38, np.float32), b)
    assert np.isinf(overflow).all()


@settings(max_examples=tries(60, full=300), deadline=None)
@given(bits=st.lists(st.integers(0, (1 << 64) - 1), min_size=3, max_size=3), near=st.integers(-60, 60))
def test_fused_f64_is_exact(bits: list[int], near: int) -> None:
    a, b, c = np.array(bits, np.uint64).view(np.float64)
    if not np.isfinite([a, b, c]).all():
        return
    for addend in (c, -math.ldexp(a * b, near) if math.isfinite(a * b) and abs(a * b) < 1e280 else c):
        expected = rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(addend)), "f64")
        assert float(fused_f64(np.array(a), np.array(b), np.array(addend))) == expected


@settings(max_examples=tries(60, full=300), deadline=None)
@given(
    high=st.integers(1, 255),
    middle=st.sampled_from([0, 1, 1 << 16, 1 << 29, (1 << 30) - 1, 1 << 30]),
    low=st.integers(-2, 2),
    exponent=st.integers(-190, 100),
    dtype=st.sampled_from(["f16", "bf16", "f32"]),
)
def test_rounding_happens_once(high: int, middle: int, low: int, exponent: int, dtype: str) -> None:
    """Numbers beside the middle of two neighbours, where rounding to f32 first would lose on which side they are."""
    value = math.ldexp((high << 45) + (1 << 44) + (middle << 13) + low, exponent)
    assert float(round_to(np.array([value, -value]), dtype)[0]) == rounded(Fraction(value), dtype)


def test_bf16_sums_are_tiny_after_rounding() -> None:
    """As the hardware does: 2**-126 - 2**-151 rounds to 2**-126, what is below it is flushed."""
    record = standard().find("vdpbf16ps_full_4x2_bf16_f32")
    a, b = (np.zeros((4, 2), ml_dtypes.bfloat16) for _ in range(2))
    a[:, 0] = np.array([1, 1.0078125, 0.9921875, 2]) * 2.0**-75
    b[:, 0] = -(2.0**-76)
    result = execute(record, np.full(4, 2.0**-126, np.float32), a, b)
    assert result.tolist() == [2.0**-126, 0.0, 2.0**-126, 0.0]
