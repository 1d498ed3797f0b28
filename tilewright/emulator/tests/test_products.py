"""Matrix units: integer values are exact, rounding follows the documented model, undefined rows stay rows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tilewright.emulator import products
from tilewright.emulator.products import UNITS, multiply, unit_of


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize(("kind", "k"), [("f16", 16), ("bf16", 16), ("tf32", 8), ("e4m3", 32)])
def test_small_integers_are_exact(target: str, kind: str, k: int) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.integers(-4, 5, (3, 16, k)).astype(float), generator.integers(-4, 5, (3, k, 8)).astype(float)
    c = generator.integers(-100, 100, (3, 16, 8)).astype(float)
    found = multiply(a, b, c, (kind, kind), "f32", unit_of(target))
    assert (found == a @ b + c).all()


@pytest.mark.parametrize("kind", ["f16", "e4m3"])
@pytest.mark.parametrize("result", ["f32", "f16"])
@pytest.mark.parametrize("largest", [3, 20, 200, 1 << 13])
def test_whole_numbers_are_added_as_the_model_adds_them(
    largest: int, result: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, zeros of both signs and sums that are rounded among them."""
    generator, unit = np.random.default_rng(largest), unit_of("sm_90a")
    a, b = (
        generator.integers(-largest, largest, extents).astype(float) * generator.choice([-1.0, 0.0, 1.0], extents)
        for extents in ((2, 16, 64), (2, 64, 8))
    )
    c = generator.choice([-0.0, 0.0, 1.0, -7.0, float(1 << 15)], (2, 16, 8))
    found = multiply(a, b, c, (kind, kind), result, unit)
    monkeypatch.setattr(products, "_largest_whole", lambda _: np.inf)
    assert found.tobytes() == multiply(a, b, c, (kind, kind), result, unit).tobytes()


def truncated(terms: list[Fraction], fraction: int) -> Fraction:
    """The model in exact arithmetic: align to the largest exponent, cut, add, cut to 24 bits."""

    def exponent(value: Fraction) -> int:
        return (abs(value.numerator).bit_length() - value.denominator.bit_length()) if value else -(10**6)

    def cut(value: Fraction, unit: Fraction) -> Fraction:
        return Fraction(int(value / unit)) * unit

    tops = []
    for term in terms:
        top = exponent(term)
        tops.append(top if not term or Fraction(2) ** top <= abs(term) else top - 1)
    unit = Fraction(2) ** (max(tops) - fraction)
    total = sum((cut(term, unit) for term in terms), Fraction(0))
    if not total:
        return total
    top = exponent(total)
    top = top if Fraction(2) ** top <= abs(total) else top - 1
    return cut(total, Fraction(2) ** (top - 23))


@pytest.mark.parametrize("generation", [75, 80, 90])
def test_rounding_follows_the_model(generation: int) -> None:
    """Factors are powers of two times 1, so that the exponent of a product is the sum of those of its factors."""
    unit = UNITS[generation]
    generator = np.random.default_rng(generation)
    k = unit.bits16
    a = np.ldexp(generator.choice([-1.0, 1.0], (1, 16, k)), generator.integers(-12, 12, (1, 16, k)))
    b = np.ldexp(np.ones((1, k, 8)), generator.integers(-12, 12, (1, k, 8)))
    c = generator.standard_normal((1, 16, 8)).astype(np.float32).astype(float)
    found = multiply(a, b, c, ("f16", "f16"), "f32", unit)
    for row in range(16):
        for column in range(8):
            terms = [Fraction(a[0, row, i]) * Fraction(b[0, i, column]) for i in range(k)] + [
                Fraction(c[0, row, column])
            ]
            assert Fraction(found[0, row, column]) == truncated(terms, unit.fraction)


def test_infinities_and_nan_pass() -> None:
    a, b = np.ones((1, 16, 16)), np.ones((1, 16, 8))
    a[0, 0, 0], a[0, 1, 0] = np.inf, np.nan
    with np.errstate(all="ignore"):
        found = multiply(a, b, np.zeros((1, 16, 8)), ("f16", "f16"), "f32", UNITS[80])
    assert np.isinf(found[0, 0]).all()
    assert np.isnan(found[0, 1]).all()
    assert (found[0, 2:] == 16).all()


def test_integers_wrap_or_saturate() -> None:
    a, b = np.full((1, 16, 32), 127), np.full((1, 32, 8), 127)
    c = np.full((1, 16, 8), 2**31 - 5)
    kinds: Any = ("s8", "s8")
    assert (multiply(a, b, c, kinds, "s32", UNITS[80]) == 2**31 - 5 + 32 * 127 * 127 - 2**32).all()
    assert (multiply(a, b, c, kinds, "s32", UNITS[80], saturate=True) == 2**31 - 1).all()
