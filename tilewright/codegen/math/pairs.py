"""Sums and products of two values with their rounding errors."""

from __future__ import annotations

from tilewright.codegen.math.value import Value


def two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and its rounding error (Knuth)."""
    total = a + b
    seen = total - a
    return total, (a - (total - seen)) + (b - seen)


def two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """a * b and its rounding error: one fused multiply-add, or Dekker's splitting."""
    product = a * b
    if a.has_fma:
        return product, a.fma(b, -product)
    (a_high, a_low), (b_high, b_low) = (_halves(v) for v in (a, b))
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(a: Value) -> tuple[Value, Value]:
    big = a * (4097.0 if a.kind.bits == 32 else 134217729.0)  # 2^12 + 1, 2^27 + 1: half of the bits each
    high = big - (big - a)
    return high, a - high
