"""Floating-point results rounded once, in any of the four modes, with flushing and saturation.

An exact sum or product is carried in f64 with a sticky last bit ("round to odd"), so that the one rounding that
follows is correct.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.emulator.scalars import Array

MODES = ("rn", "rz", "rm", "rp", "rna")
_TINY = np.float32(2.0**-126)


def sum_odd(a: Any, b: Any) -> Array:
    """``a + b`` in f64; an inexact sum has an odd last bit."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    fix = (error != 0.0) & np.isfinite(total) & ((total.view(np.int64) & 1) == 0)
    if not fix.any():
        return np.asarray(total)
    return np.asarray(np.where(fix, np.nextafter(total, np.copysign(np.inf, error)), total))


def to_f32(values: Any, mode: str = "rn") -> Array:
    """f64 rounded to f32 in a mode; `rna` rounds ties away from zero."""
    values = np.asarray(values, np.float64)
    nearest = values.astype(np.float32)
    if mode == "rn":
        return np.asarray(nearest)
    wide = nearest.astype(np.float64)
    if mode == "rz":
        wrong = np.abs(wide) > np.abs(values)
        return np.asarray(np.where(wrong, np.nextafter(nearest, np.float32(0)), nearest))
    if mode == "rm":
        return np.asarray(np.where(wide > values, np.nextafter(nearest, np.float32(-np.inf)), nearest))
    assert mode == "rp", f"no rounding mode {mode}"
    return np.asarray(np.where(wide < values, np.nextafter(nearest, np.float32(np.inf)), nearest))


def f32_odd(values: Any) -> Array:
    """f64 to f32 with a sticky last bit, for a further rounding to fewer bits."""
    values = np.asarray(values, np.float64)
    cut = to_f32(values, "rz")
    inexact = (cut.astype(np.float64) != values) & np.isfinite(values)
    return np.asarray((cut.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32))


def to_f16(values: Any, mode: str = "rn") -> Array:
    """f64 rounded to f16."""
    values = np.asarray(values, np.float64)
    nearest = values.astype(np.float16)
    if mode == "rn":
        return np.asarray(nearest)
    wide = nearest.astype(np.float64)
    target = {"rz": np.float16(0), "rm": np.float16(-np.inf), "rp": np.float16(np.inf)}[mode]
    wrong = {"rz": np.abs(wide) > np.abs(values), "rm": wide > values, "rp": wide < values}[mode]
    return np.asarray(np.where(wrong, np.nextafter(nearest, target), nearest))


def to_bf16(values: Any, mode: str = "rn") -> Array:
    """f64 rounded to bf16, as its 16 bits."""
    narrow = f32_odd(values)
    raw = narrow.view(np.uint32)
    if mode == "rn":
        rounded = (raw + np.uint32(0x7FFF) + ((raw >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    elif mode == "rz":
        rounded = raw >> np.uint32(16)
    else:
        up = (raw & np.uint32(0xFFFF) != 0) & ((narrow > 0) if mode == "rp" else (narrow < 0))
        rounded = (raw >> np.uint32(16)) + up.astype(np.uint32)
    return np.asarray(np.where(np.isnan(narrow), np.uint16(0x7FFF), rounded.astype(np.uint16)))


def from_bf16(raw: Any) -> Array:
    """The f32 value of bf16 bits."""
    return np.asarray((np.asarray(raw).astype(np.uint32) << np.uint32(16)).view(np.float32))


def to_tf32(values: Array, mode: str = "rna") -> Array:
    """f32 to tf32 (10 mantissa bits), as f32."""
    raw = np.asarray(values, np.float32).view(np.uint32)
    if mode == "rz":
        return np.asarray((raw & np.uint32(0xFFFFE000)).view(np.float32))
    half = np.uint32(0x1000) if mode == "rna" else np.uint32(0xFFF) + ((raw >> np.uint32(13)) & np.uint32(1))
    rounded = (raw + half) & np.uint32(0xFFFFE000)
    keep = ~np.isfinite(values)
    return np.asarray(np.where(keep, raw & np.uint32(0xFFFFE000), rounded).view(np.float32))


def flush(values: Any) -> Array:
    """Subnormal f32 values as zeros of their sign."""
    values = np.asarray(values)
    return np.asarray(np.where(np.abs(values) < _TINY, np.copysign(np.float32(0), values), values))


def saturate(values: Any) -> Array:
    """Into 0 … 1; NaN becomes 0."""
    values = np.asarray(values)
    inside = np.clip(values, values.dtype.type(0), values.dtype.type(1))
    return np.asarray(np.where(np.isnan(values), values.dtype.type(0), inside + values.dtype.type(0)))


#: Of floats: integers of their size, by how many units in the last place sums of the same numbers may differ, and by
#: which share of the largest number that is at hand: where terms cancel, nothing smaller says how large they were.
_NEARBY: dict[str, tuple[Any, int, float]] = {
    "f16": (np.int16, 4, 2.0**-12), "bf16": (np.int16, 2, 2.0**-12), "f32": (np.int32, 1 << 13, 2.0**-20),
    "f64": (np.int64, 1 << 22, 2.0**-49),
}  # fmt: skip


def alike(a: Array, b: Array, kind: str) -> Array:
    """Whether words hold the same sums of floats but for the order of additions; without `kind`: are equal.

    >>> alike(np.array([1.0, 1.0], np.float32).view(np.uint32), np.array([1.000001, 1.1], np.float32).view(np.uint32),
    ...       "f32")
    array([ True, False])
    """
    integer, units, share = _NEARBY.get(kind, (np.int64, 0, 0.0))
    if not units or a.dtype.itemsize < np.dtype(integer).itemsize:
        return np.asarray(a == b)
    parts = a.dtype.itemsize // np.dtype(integer).itemsize
    one, other = (np.ascontiguousarray(each).view(integer) for each in (a, b))
    top = np.int64((1 << (8 * np.dtype(integer).itemsize - 1)) - 1)  # all but the sign
    distance = np.abs((one.astype(np.int64) & top) - (other.astype(np.int64) & top))
    near = (distance <= units) & ((one < 0) == (other < 0))
    if not near.all():
        dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}.get(kind)
        first, second = (
            (from_bf16(each.view(np.uint16)) if dtype is None else each.view(dtype)).astype(np.float64)
            for each in (one, other)
        )
        largest = np.max(np.abs(second), where=np.isfinite(second), initial=0.0)
        near |= np.abs(first - second) <= share * largest
    return np.asarray(near.reshape(*a.shape, parts).all(axis=-1))


def directed(result: Any, error: Any, mode: str) -> Array:
    """A result rounded to nearest, moved to the neighbour that `mode` asks for; `error` is exact minus result."""
    result, error = np.asarray(result), np.asarray(error)
    if mode == "rn":
        return np.asarray(result)
    toward = {"rz": -np.sign(result), "rm": -1.0, "rp": 1.0}[mode]
    move = np.isfinite(result) & (error != 0) & (np.sign(error) == toward)
    return np.asarray(np.where(move, np.nextafter(result, np.inf * np.where(toward == 0, 1, toward)), result))


def sum_error(a: Any, b: Any, total: Any) -> Array:
    part = total - a
    return np.asarray((a - (total - part)) + (b - part))


def product_error(a: Any, b: Any, product: Any) -> Array:
    """Exact product minus its rounded value (Dekker 1971); wrong near the ends of the exponent range."""
    high_a = np.asarray(a) * 134217729.0
    high_a = high_a - (high_a - a)
    high_b = np.asarray(b) * 134217729.0
    high_b = high_b - (high_b - b)
    low_a, low_b = a - high_a, b - high_b
    return np.asarray(((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b)


def fma_f64(a: Any, b: Any, c: Any) -> Array:
    """``a * b + c`` in f64 rounded once (Boldo and Melquiond 2008); extreme exponents by exact fractions."""
    a, b, c = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (a, b, c)))
    high = np.asarray(a * b)
    low = product_error(a, b, high)
    carried = c + low
    carry = sum_error(c, low, carried)
    top = high + carried
    result = np.array(top + sum_odd(carry, sum_error(high, carried, top)))
    special = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    plain = np.ones(high.shape, np.bool_)
    for size in (np.abs(a), np.abs(b), np.abs(c), np.abs(high)):
        plain &= (size == 0) | ((size > 2.0**-400) & (size < 2.0**400))
    plain &= (high != 0) | (a == 0) | (b == 0)
    simple = special | ((high == 0) & plain)
    result[simple] = (high + c)[simple]
    for place in map(tuple, np.argwhere(~plain & ~special)):
        result[place] = _fraction_fma(float(a[place]), float(b[place]), float(c[place]))
    return result


def _fraction_fma(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if a * b == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")
