import math

import ml_dtypes
import numpy as np
import pytest

from tilewright.expr.special import erf

POINTS = np.concatenate([
    np.linspace(-7, 7, 20_001), np.logspace(-300, 0, 601), [0.46875, np.nextafter(0.46875, 1), 4.0, np.nextafter(4, 5)],
])  # fmt: skip


def test_erf_is_within_four_ulp_of_libm() -> None:
    expected = np.array([math.erf(x) for x in POINTS])
    assert (np.abs(erf(POINTS) - expected) <= 4 * np.spacing(np.abs(expected))).all()


def test_erf_keeps_zeros_signs_nan_and_infinities() -> None:
    found = erf(np.array([0.0, -0.0, np.inf, -np.inf, np.nan]))
    assert np.array_equal(found, [0.0, 0.0, 1.0, -1.0, np.nan], equal_nan=True)
    assert np.signbit(found).tolist()[:4] == [False, True, False, True]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_erf_rounds_once_to_narrow_types(dtype: type) -> None:
    x = np.linspace(-4, 4, 999).reshape(27, 37).astype(dtype)
    expected = erf(x.astype(np.float64)).astype(dtype)
    assert erf(x).dtype == dtype
    assert np.array_equal(erf(x), expected)


def test_erf_of_a_scalar_and_of_nothing() -> None:
    assert erf(np.float32(0.5)).shape == ()
    assert erf(np.zeros((0, 3))).shape == (0, 3)
