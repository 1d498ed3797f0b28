"""Special functions that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Rational approximations of W. J. Cody, "Rational Chebyshev approximations for the error function",
# Math. Comp. 23 (1969). Highest power first. Relative error below 1e-16 before rounding.
_SMALL_P = (
    1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3,
)  # fmt: skip
_SMALL_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_MIDDLE_P = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
    2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
_MIDDLE_Q = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
_LARGE_P = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
    1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4,
)  # fmt: skip
_LARGE_Q = (
    1.0, 2.56852019228982242e0, 1.87295284992346725e0,
    5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3,
)  # fmt: skip
# Phi(-x) = exp(-x^2 / 2) t p(t - 1/2) with t = 1 / (1 + x / 4), printed by codegen/cpu/tests/fit_math.py.
_NORMAL_TAIL = (
    0.001411895562595035, -0.0025387082530469326, -0.00092459428633123, 0.0050449922618649385, -0.0017627440918786645,
    -0.005557872942717766, 0.005079982754123464, 0.004444243186126697, -0.008368360327801763, -0.002577954727681853,
    0.012124437832381506, 0.0007337482506929688, -0.01799407032657865, -0.000488507143788997, 0.02958015115440444,
    0.008534035731687074, -0.052186190624176794, -0.055675077872537046, 0.06032151173348023, 0.24158629956368102,
    0.3730437159193171, 0.3871374007422148, 0.30394832098594604, 0.18882128260393788,
)  # fmt: skip
_SATURATED = 6.0  # 1 - erf(6) is 2e-17, less than half an ulp of 1: erf is 1 in float64 from here on


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total


def normal_cdf(x: Any) -> Any:
    """``(1 + erf(x / sqrt 2)) / 2``, without cancellation where it is small, in the dtype of `x`.

    float64 to within 3 ulp; narrower types are computed in float64 and rounded once. NaN gives NaN.
    """
    given = np.asarray(x)
    wide = given.astype(np.float64)
    size = np.minimum(np.abs(wide), 38.75)  # below -38.5 it is 0 in float64
    high = (size.view(np.int64) & ~np.int64((1 << 27) - 1)).view(np.float64)  # its square is exact
    power = np.exp(-0.5 * high * high) * np.exp(-0.5 * (size - high) * (size + high))
    t = 1 / (1 + 0.25 * size)
    tail = power * (t * _polynomial(_NORMAL_TAIL, t - 0.5))
    return np.where(wide < 0, tail, 1 - tail).astype(given.dtype)


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, without overflow, in the dtype of `x`."""
    given = np.asarray(x)
    e = np.exp(-np.abs(given))
    return np.where(given >= 0, 1 / (1 + e), e / (1 + e)).astype(given.dtype)


def exp_nonpositive(x: Any) -> Any:
    """e to the x, for x of at most 0; in f32, 0 where that is no normal number, which code may return as it is."""
    power = np.exp(x)
    return np.where(power < np.finfo(np.float32).tiny, np.float32(0), power) if power.dtype == np.float32 else power


def normal_cdf_tanh(x: Any) -> Any:
    """``(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``, without cancellation where it is small.

    Computed in a wider type, as the exponent is large there, and rounded once.
    """
    given = np.asarray(x)
    wide = given.astype(np.longdouble if given.dtype == np.float64 else np.float64)
    root, cubic = np.array(["1.5957691216057307117597842397375", "0.044715"]).astype(wide.dtype)  # 2 sqrt(2 / pi)
    power = np.exp(np.minimum(root * (wide + cubic * wide**3), 50))
    return (power / (power + 1)).astype(given.dtype)


def erf(x: Any) -> Any:
    """The error function, element by element, in the dtype of `x`.

    float64 to within 4 ulp; narrower types are computed in float64 and rounded once. NaN gives NaN.
    """
    given = np.asarray(x)
    wide = given.astype(np.float64).reshape(-1)
    size = np.minimum(np.abs(wide), _SATURATED)  # NaN stays NaN
    result = np.ones_like(wide)

    small = size <= 0.46875
    part = wide[small]
    square = part * part
    result[small] = part * _polynomial(_SMALL_P, square) / _polynomial(_SMALL_Q, square)

    middle = (size > 0.46875) & (size <= 4.0)
    part = size[middle]
    tail = np.exp(-part * part) * _polynomial(_MIDDLE_P, part) / _polynomial(_MIDDLE_Q, part)
    result[middle] = np.copysign(1 - tail, wide[middle])

    large = ~(size <= 4.0)
    part = size[large]
    inverse = 1 / (part * part)
    ratio = inverse * _polynomial(_LARGE_P, inverse) / _polynomial(_LARGE_Q, inverse)
    tail = np.exp(-part * part) * (1 / np.sqrt(np.pi) - ratio) / part
    result[large] = np.copysign(1 - tail, wide[large])
    return result.reshape(given.shape).astype(given.dtype)
