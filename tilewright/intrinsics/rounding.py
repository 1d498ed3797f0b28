"""Arithmetic that rounds as hardware does, on arrays: narrowing once, fused multiply-adds, flushed denormals."""

from __future__ import annotations

import numpy as np

from tilewright.intrinsics.elements import Array, storage


def round_to(values: Array, dtype: str) -> Array:
    """f64 values rounded once to nearest-even."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "bf16" or dtype.startswith("f8"):  # their conversion goes through f32
            return _f32_to_odd(values).astype(storage(dtype))
        return values.astype(storage(dtype))


def _f32_to_odd(values: Array) -> Array:
    """f64 in f32, inexact values with an odd last bit: a later rounding to fewer bits is then correct."""
    nearest = values.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(values)
    inward = np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)
    inexact = (inward.astype(np.float64) != values) & np.isfinite(values)
    return np.asarray((inward.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32))


def flushed(values: Array) -> Array:
    """Denormal numbers as zeros of their sign."""
    limit = {2: 2.0**-126, 4: 2.0**-126, 8: 2.0**-1022}[values.dtype.itemsize]
    if values.dtype == np.float16:
        limit = 2.0**-14
    return np.asarray(np.where(np.abs(values) < limit, np.copysign(np.zeros((), values.dtype), values), values))


def add_to_odd(a: Array, b: Array) -> Array:
    """``a + b`` in f64, an inexact sum with an odd last bit: rounding it to f32 or less gives the fused result."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part)
        even = (total.view(np.int64) & 1) == 0
        other = np.nextafter(total, np.copysign(np.inf, error))
        fix = (error != 0.0) & even & np.isfinite(total)
        return np.asarray(np.where(fix, other, total))


def fused_f64(a: Array, b: Array, c: Array) -> Array:
    """Correctly rounded ``a * b + c`` in f64 (Boldo and Melquiond, "Emulation of FMA", 2008); extremes by integers."""
    with np.errstate(all="ignore"):
        if all((factor.astype(np.float32) == factor).all() for factor in (a, b)):
            return np.asarray(a * b + c)  # 24 bits times 24 bits are exact in 53
    a, b, c = np.broadcast_arrays(a, b, c)
    with np.errstate(all="ignore"):
        high = a * b
        low = _product_error(a, b, high)
        carried = c + low
        carry = _sum_error(c, low, carried)
        top = high + carried
        result = np.asarray(top + add_to_odd(carry, _sum_error(high, carried, top)))
        sizes = [np.abs(value) for value in (a, b, c, high)]
        plain = np.logical_and.reduce([(size == 0) | ((size > 2.0**-400) & (size < 2.0**400)) for size in sizes])
        plain &= (high != 0) | (a == 0) | (b == 0)
        special = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
        result = np.asarray(np.where(special | ((high == 0) & plain), high + c, result))
    for place in map(tuple, np.argwhere(~plain & ~special)):
        result[place] = _fused_scalar(float(a[place]), float(b[place]), float(c[place]))
    return result


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """The rounding error of a product, without a fused operation (Dekker 1971)."""
    a1 = a * 134217729.0
    a1 = a1 - (a1 - a)
    b1 = b * 134217729.0
    b1 = b1 - (b1 - b)
    a2, b2 = a - a1, b - b1
    return np.asarray(((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2)


def _sum_error(a: Array, b: Array, total: Array) -> Array:
    part = total - a
    return np.asarray((a - (total - part)) + (b - part))


def _fused_scalar(a: float, b: float, c: float) -> float:
    from fractions import Fraction  # few numbers need it

    exact_sum = Fraction(a) * Fraction(b) + Fraction(c)
    if exact_sum == 0:
        return a * b + c if a * b == 0 else 0.0
    try:
        return float(exact_sum)
    except OverflowError:
        return float("inf") if exact_sum > 0 else float("-inf")
